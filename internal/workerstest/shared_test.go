//go:build workers

package workerstest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

const (
	sharedJobs    = 3000
	sharedSeconds = 1
	sharedSlots   = 30
	// sharedLease is how long a killed worker's jobs stay where they are. A worker that a busy
	// machine held up for less loses nothing.
	sharedLease = 5 * time.Second
	// perWorker is how often each worker is killed, and drained.
	perWorker = 2
)

// sqlWhoDidWhat counts the leases of a queue by owner and end.
const sqlWhoDidWhat = `SELECT owner, coalesce(ended_by, '') AS ended_by, count(*)::int AS leases
	FROM leasehold.all_leases WHERE queue = $1 GROUP BY 1, 2`

type deeds struct {
	Owner   string
	EndedBy string
	Leases  int
}

// team is workers of all languages on one queue.
type team struct {
	*world
	queue   string
	members map[string]*process // by language
	killed  []*process
	drained []*process
	all     []*process
}

func (m *team) begin(l language) {
	slots := sharedSlots
	if l.slots > 0 {
		slots = l.slots
	}
	p := start(m.t, l.name, []string{l.command(m.t)}, m.replica.GRPC(), m.queue, slots)
	m.members[l.name] = p
	m.all = append(m.all, p)
}

// whoDidWhat is what the tables say.
func (m *team) whoDidWhat() []deeds {
	m.t.Helper()
	rows, err := m.db.SQL.Query(context.Background(), sqlWhoDidWhat, m.queue)
	if err != nil {
		m.t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[deeds])
	if err != nil {
		m.t.Fatal(err)
	}
	return list
}

// owns tells whether a lease_owner is the name of a process: the workers put their number into it.
func (p *process) owns(owner string) bool {
	return regexp.MustCompile(`(^|\D)` + strconv.Itoa(p.cmd.Process.Pid) + `(\D|$)`).MatchString(owner)
}

// of sums up what processes did, by the end of their leases.
func of(list []deeds, processes ...*process) map[string]int {
	sum := map[string]int{}
	for _, d := range list {
		for _, p := range processes {
			if p.owns(d.Owner) {
				sum[d.EndedBy] += d.Leases
			}
		}
	}
	return sum
}

// TestSharedQueue: workers of all languages share a queue, while each is killed with kill -9 and
// drained with SIGTERM at random moments, and started again. Every job is completed once, and the
// tables say by whom.
func TestSharedQueue(t *testing.T) {
	w := newWorld(t)
	m := &team{world: w, queue: w.createQueue("shared", sharedLease, pb.OnExpiry_ON_EXPIRY_REQUEUE), members: map[string]*process{}}
	w.enqueue(m.queue, sharedJobs, sharedSeconds)
	for _, l := range languages {
		m.begin(l)
	}
	for _, l := range languages {
		eventually(t, "the "+l.name+" worker works", func() bool { return of(m.whoDidWhat(), m.members[l.name])["COMPLETED"] > 0 })
	}
	var victims []language
	for range perWorker {
		victims = append(victims, languages...)
	}
	rand.Shuffle(len(victims), func(i, j int) { victims[i], victims[j] = victims[j], victims[i] })
	for _, l := range victims {
		m.strike(l)
	}
	eventually(t, "all jobs are completed", func() bool { return w.completed(m.queue) == sharedJobs })
	for _, l := range languages {
		m.members[l.name].drain()
	}
	m.judge()
}

// strike kills a worker in the middle of a job, starts it again, and then ends it by SIGTERM and
// starts it once more.
func (m *team) strike(l language) {
	m.t.Helper()
	p := m.members[l.name]
	inTheMiddle := func() bool {
		return of(m.whoDidWhat(), m.members[l.name])[""] > 0 || m.completed(m.queue) == sharedJobs
	}
	eventually(m.t, p.String()+" holds a lease", inTheMiddle)
	p.kill()
	m.killed = append(m.killed, p)
	m.begin(l)
	p = m.members[l.name]
	eventually(m.t, p.String()+" holds a lease", inTheMiddle)
	p.drain()
	m.drained = append(m.drained, p)
	m.begin(l)
}

// judge holds the tables to what was promised, and reports who did what.
func (m *team) judge() {
	m.t.Helper()
	list := m.whoDidWhat()
	var table strings.Builder
	rows := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(rows, "WORKER\tPROCESSES\tCOMPLETED\tEXPIRED\tRELEASED\tOTHER")
	completed := 0
	for _, l := range languages {
		var processes []*process
		for _, p := range m.all {
			if p.name == l.name {
				processes = append(processes, p)
			}
		}
		sum := of(list, processes...)
		done := sum["COMPLETED"] + sum["COMPLETED_LATE"]
		other := 0
		for end, n := range sum {
			if end != "COMPLETED" && end != "COMPLETED_LATE" && end != "EXPIRED" && end != "RELEASED" {
				other += n
			}
		}
		_, _ = fmt.Fprintf(rows, "%s\t%d\t%d\t%d\t%d\t%d\n", l.name, len(processes), done, sum["EXPIRED"], sum["RELEASED"], other) // into memory
		if done == 0 {
			m.t.Errorf("the %s worker completed nothing, of which the tables would tell by the number of its process in lease_owner", l.name)
		}
		completed += done
	}
	_ = rows.Flush()
	lost := of(list, m.killed...)["EXPIRED"]
	m.t.Logf("who did what:\n%s%d leases ran out with the %d processes that were killed", table.String(), lost, len(m.killed))
	if completed != sharedJobs {
		m.t.Errorf("%d completions of %d jobs", completed, sharedJobs)
	}
	if lost == 0 {
		m.t.Error("no worker was killed in the middle of a job")
	}
	if n := of(list, m.drained...); n["EXPIRED"] > 0 || n[""] > 0 {
		m.t.Errorf("workers that were drained left leases behind: %v", n)
	}
	if n := one[int](m.world, `SELECT count(*)::int FROM leasehold.all_jobs WHERE queue = $1`, m.queue); n != sharedJobs {
		m.t.Errorf("%d jobs", n)
	}
}
