package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
)

// leaseRow is one lease as the tables have it.
type leaseRow struct {
	JobID     int64      `db:"job_id"`
	LeaseNo   int64      `db:"lease_no"`
	Owner     string     `db:"owner"`
	LeasedAt  time.Time  `db:"leased_at"`
	EndedAt   *time.Time `db:"ended_at"`
	EndedBy   *string    `db:"ended_by"`
	Beats     int64      `db:"beats"`
	LateCalls int64      `db:"late_calls"`
}

// jobRow is one job as the tables have it.
type jobRow struct {
	ID    int64   `db:"id"`
	State string  `db:"state"`
	Key   *string `db:"idempotency_key"`
}

const (
	sqlLeases = `
SELECT l.job_id, l.lease_no, l.owner, l.leased_at, l.ended_at, l.ended_by, l.beats::bigint AS beats, l.late_calls::bigint AS late_calls
FROM leasehold.all_leases l ORDER BY l.job_id, l.lease_no`
	sqlJobs = `SELECT j.id, j.state, j.idempotency_key FROM leasehold.all_jobs j ORDER BY j.id`
)

// evidence is what the workers were told and what the tables say.
type evidence struct {
	*load
	facts   []string
	mayLose bool
	leases  []leaseRow
	jobs    []jobRow
}

// gather reads the tables when all is at rest.
func (s *scene) gather(ctx context.Context) (*evidence, error) {
	conn, err := pgx.Connect(ctx, s.final.SocketURL(database))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // only read from
	e := &evidence{load: s.load, facts: s.facts, mayLose: s.mayLose}
	rows, err := conn.Query(ctx, sqlLeases)
	if err != nil {
		return nil, err
	}
	if e.leases, err = pgx.CollectRows(rows, pgx.RowToStructByName[leaseRow]); err != nil {
		return nil, err
	}
	if rows, err = conn.Query(ctx, sqlJobs); err != nil {
		return nil, err
	}
	e.jobs, err = pgx.CollectRows(rows, pgx.RowToStructByName[jobRow])
	return e, err
}

// judge returns each promise that was broken.
func (e *evidence) judge() (faults []string) {
	broken := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	for a, n := range e.answers {
		if a.reached && !e.mayLose {
			broken("%s reached a worker from %s, %d times", a.word, a.method, n)
		}
	}
	if !e.mayLose {
		for _, l := range e.losses() {
			broken("%s", l.text)
		}
		for _, d := range e.doubles() {
			broken("%s", d)
		}
	}
	for _, j := range e.jobs {
		if j.State != "COMPLETED" {
			broken("job %d is %s in the end", j.ID, j.State)
		}
	}
	for _, l := range e.leases {
		if end := l.end(); !e.mayLose && (!slices.Contains(wanted, end) || l.LateCalls > 0) {
			broken("lease %d of job %d, given to %s, ended by %s with %d late calls", l.LeaseNo, l.JobID, l.Owner, end, l.LateCalls)
		}
	}
	if len(e.jobs) < 100 || len(e.leases) < len(e.jobs) {
		broken("%d jobs and %d leases are no load", len(e.jobs), len(e.leases))
	}
	return faults
}

// wanted are the ends that workers mean, and the one of an answer that nobody heard.
var wanted = []string{"COMPLETED", "FAILED", "RELEASED", "UNDELIVERED"}

func (l leaseRow) end() string {
	if l.EndedBy == nil {
		return "NOTHING"
	}
	return *l.EndedBy
}

// loss is one acknowledgement that the tables know nothing of.
type loss struct{ what, text string }

func lose(what, format string, args ...any) loss { return loss{what, fmt.Sprintf(format, args...)} }

// losses are acknowledgements that the tables know nothing of.
func (e *evidence) losses() (lost []loss) {
	keys := map[string]int64{}
	for _, j := range e.jobs {
		if j.Key != nil {
			keys[*j.Key] = j.ID
		}
	}
	for _, key := range slices.Sorted(maps.Keys(e.stored)) {
		if id := e.stored[key]; keys[key] != id {
			lost = append(lost, lose("jobs", "job %d was stored under %s, and the tables have job %d there", id, key, keys[key]))
		}
	}
	rows := map[grantKey]leaseRow{}
	for _, l := range e.leases {
		rows[grantKey{l.JobID, l.LeaseNo}] = l
	}
	for _, key := range slices.SortedFunc(maps.Keys(e.grants), compareGrants) {
		g := e.grants[key]
		row, is := rows[key]
		switch {
		case !is:
			lost = append(lost, lose("leases", "lease %d of job %d was given to %s and is not in the tables", key.no, key.job, g.owner))
		case row.Owner != g.owner:
			lost = append(lost, lose("leases", "lease %d of job %d was given to %s and is %s's in the tables", key.no, key.job, g.owner, row.Owner))
		case g.ended != "" && g.ended != row.end():
			lost = append(lost, lose("ends", "lease %d of job %d: %s was confirmed, the tables say %s", key.no, key.job, g.ended, row.end()))
		}
	}
	return lost
}

func compareGrants(a, b grantKey) int {
	return cmp.Or(cmp.Compare(a.job, b.job), cmp.Compare(a.no, b.no))
}

// doubles are leases that two were told of, jobs that were completed twice, leases of a job that
// overlap, and keys with two jobs.
func (e *evidence) doubles() []string {
	found := slices.Clone(e.doubled)
	completed := map[int64]int64{}
	for key, g := range e.grants {
		if g.ended != "COMPLETED" {
			continue
		}
		if other, is := completed[key.job]; is {
			found = append(found, fmt.Sprintf("job %d was completed by its leases %d and %d", key.job, other, key.no))
		}
		completed[key.job] = key.no
	}
	for i := 1; i < len(e.leases); i++ {
		if a, b := e.leases[i-1], e.leases[i]; a.JobID == b.JobID && (a.EndedAt == nil || a.EndedAt.After(b.LeasedAt)) {
			found = append(found, fmt.Sprintf("leases %d and %d of job %d overlap", a.LeaseNo, b.LeaseNo, a.JobID))
		}
	}
	keys := map[string]int64{}
	for _, j := range e.jobs {
		if j.Key == nil {
			continue
		}
		if other, is := keys[*j.Key]; is {
			found = append(found, fmt.Sprintf("the key %s has the jobs %d and %d", *j.Key, other, j.ID))
		}
		keys[*j.Key] = j.ID
	}
	return found
}

// report prints the tables, and writes every lease into a file if there is one.
func (e *evidence) report(out io.Writer, path string) error {
	fmt.Fprintln(out)
	for _, f := range e.facts {
		fmt.Fprintln(out, " ", f)
	}
	tell(out, "  connections opened by clients: %d; the longest time without a stored job: %.2f s\n\n", e.opened.Load(), e.longest.Seconds())
	w := tabwriter.NewWriter(out, 2, 0, 2, ' ', 0)
	fmt.Fprintln(w, "  call\tanswer\ttimes\tthe worker")
	for _, a := range slices.SortedFunc(maps.Keys(e.answers), func(a, b answer) int {
		return cmp.Or(cmp.Compare(a.method, b.method), cmp.Compare(a.word, b.word))
	}) {
		what := "repeated it"
		if a.word == "OK" {
			what = "went on"
		} else if a.reached {
			what = "GOT AN ERROR"
		}
		tell(w, "  %s\t%s\t%d\t%s\n", a.method, a.word, e.answers[a], what)
	}
	ends := map[string]int{}
	late := 0
	for _, l := range e.leases {
		ends[l.end()]++
		late += int(l.LateCalls)
	}
	tell(w, "\n  leases ended by\ttimes\t\t\n")
	for _, end := range slices.Sorted(maps.Keys(ends)) {
		tell(w, "  %s\t%d\t\t\n", end, ends[end])
	}
	tell(w, "  late calls\t%d\t\t\n", late)
	if err := w.Flush(); err != nil {
		return err
	}
	lost := map[string]int{}
	for _, l := range e.losses() {
		lost[l.what]++
	}
	tell(out, "\n  %d jobs, %d leases; lost after they were confirmed: %d jobs, %d leases, %d ends; %d doubled\n\n",
		len(e.jobs), len(e.leases), lost["jobs"], lost["leases"], lost["ends"], len(e.doubles()))
	if path == "" {
		return nil
	}
	tell(out, "  every lease: %s\n", path)
	return e.writeLeases(path)
}

func (e *evidence) writeLeases(path string) (err error) {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	w := bufio.NewWriter(file)
	fmt.Fprintln(w, "job_id\tlease_no\towner\tleased_at\tended_at\tended_by\tbeats\tlate_calls\ttold")
	for _, l := range e.leases {
		ended, told := "-", "-"
		if l.EndedAt != nil {
			ended = l.EndedAt.Format(time.RFC3339Nano)
		}
		if g := e.grants[grantKey{l.JobID, l.LeaseNo}]; g != nil {
			told = cmp.Or(g.ended, "granted")
		}
		tell(w, "%d\t%d\t%s\t%s\t%s\t%s\t%d\t%d\t%s\n", l.JobID, l.LeaseNo, l.Owner, l.LeasedAt.Format(time.RFC3339Nano), ended, l.end(), l.Beats, l.LateCalls, told)
	}
	return w.Flush()
}

// tell prints. Whoever closed the output needs no report, and the exit code remains.
func tell(out io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(out, format, args...) }
