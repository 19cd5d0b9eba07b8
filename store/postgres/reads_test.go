package postgres_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/store"
)

// allBytes holds every value of a byte, and so is no text in any encoding.
func allBytes() []byte {
	b := make([]byte, 256)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

func (h *harness) enqueue(t testing.TB, jobs ...store.NewJob) []store.JobID {
	t.Helper()
	if err := h.store.EnsureQueues(t.Context(), []string{"q"}); err != nil {
		t.Fatal(err)
	}
	for i := range jobs {
		jobs[i].Queue = "q"
	}
	out, err := h.store.Enqueue(t.Context(), jobs)
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]store.JobID, len(out))
	for i, o := range out {
		if ids[i] = o.JobID; o.Err != nil {
			t.Fatal(o.Err)
		}
	}
	return ids
}

func (h *harness) lease(t testing.TB, id store.JobID) store.LeaseRef {
	t.Helper()
	out, err := h.store.Acquire(t.Context(), []store.Acquire{{JobID: id, Owner: "worker-1", MaxJobs: 1}})
	if err != nil || out[0].Err != nil || len(out[0].Leases) != 1 {
		t.Fatalf("Acquire: %+v, %v", out, err)
	}
	return out[0].Leases[0].Ref()
}

// rows reads one column of text.
func (h *harness) rows(t testing.TB, sql string, args ...any) []string {
	t.Helper()
	rows, err := h.SQL.Query(context.Background(), sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return out
}

func TestR43_all_jobs_shows_any_bytes(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	contents := []struct {
		payload store.Payload
		want    string
	}{
		{store.Payload{Data: []byte(`{"a":  1}`), JSON: true}, `{"a":  1}`},
		{store.Payload{Data: []byte("größe")}, "größe"},
		{store.Payload{Data: []byte{}}, ""},
		{store.Payload{Data: []byte{0}}, `\000`},
		{store.Payload{Data: []byte{0xff, 'a'}}, `\377a`},
		{store.Payload{Data: []byte{0xc0, 0x80}}, `\300\200`},              // overlong
		{store.Payload{Data: []byte{0xed, 0xa0, 0x80}}, `\355\240\200`},    // a surrogate
		{store.Payload{Data: []byte("ab\xe2\x82")}, `ab\342\202`},          // cut
		{store.Payload{Data: []byte{0xff}, JSON: true}, `\377`},            // by somebody's own SQL
		{store.Payload{Data: slices.Repeat(allBytes(), 4096)[:1<<20]}, ""}, // compared below
		{store.Payload{Data: allBytes()}, ""},
	}
	for i, c := range contents {
		id := h.enqueue(t, store.NewJob{Payload: c.payload})[0]
		ref := h.lease(t, id)
		if _, err := h.store.Heartbeat(t.Context(), []store.Heartbeat{{Lease: ref, Checkpoint: c.payload.Data[:min(len(c.payload.Data), 60_000)]}}); err != nil {
			t.Fatal(err)
		}
		got := h.rows(t, `SELECT payload FROM leasehold.all_jobs WHERE id = $1 AND checkpoint IS NOT NULL AND state = 'PROCESSING'`, int64(id))
		if len(got) != 1 || i < len(contents)-2 && got[0] != c.want || len(got[0]) < len(c.payload.Data) {
			t.Errorf("payload %d is shown as %.100q, want %q", i, got, c.want)
		}
		out, err := h.store.Complete(t.Context(), []store.Complete{{Lease: ref, Result: store.Payload{Data: c.payload.Data, ContentType: "x/y"}}})
		if err != nil || out[0].Err != nil {
			t.Fatalf("Complete: %+v, %v", out, err)
		}
		after := h.rows(t, `SELECT payload FROM leasehold.all_jobs WHERE id = $1 AND state = 'COMPLETED' AND result = payload AND finished_at IS NOT NULL`, int64(id))
		if len(after) != 1 || after[0] != got[0] {
			t.Errorf("payload %d of the finished job is shown as %.100q", i, after)
		}
	}
}

func TestR43_all_leases_has_one_row_per_lease(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	ids := h.enqueue(t, store.NewJob{}, store.NewJob{})
	for range 3 {
		ref := h.lease(t, ids[0])
		h.beat(t, ref, "psp_call")
		if out, err := h.store.Release(t.Context(), []store.Release{{Lease: ref}}); err != nil || out[0].Err != nil {
			t.Fatalf("Release: %+v, %v", out, err)
		}
	}
	failed := h.lease(t, ids[0])
	out, err := h.store.Fail(t.Context(), []store.Fail{{Lease: failed, Permanent: true, Error: store.JobError{Code: "declined"}}})
	if err != nil || out[0].Err != nil {
		t.Fatalf("Fail: %+v, %v", out, err)
	}
	h.lease(t, ids[1])
	if beaten, err := h.store.Heartbeat(t.Context(), []store.Heartbeat{{Lease: store.LeaseRef{JobID: ids[0], LeaseNo: 1}}}); err != nil || beaten[0].Err == nil {
		t.Fatalf("a superseded lease beats: %+v, %v", beaten, err)
	}
	got := h.rows(t, `
SELECT concat_ws(' ', job_id, lease_no, queue, owner, coalesce(ended_by, 'live'), beats, stage, error_code, late_calls)
FROM leasehold.all_leases ORDER BY job_id, lease_no`)
	first := int64(ids[0])
	want := []string{
		fmt.Sprintf("%d 1 q worker-1 RELEASED 1 psp_call 1", first), fmt.Sprintf("%d 2 q worker-1 RELEASED 1 psp_call 0", first),
		fmt.Sprintf("%d 3 q worker-1 RELEASED 1 psp_call 0", first), fmt.Sprintf("%d 4 q worker-1 FAILED_PERMANENTLY 0 declined 0", first),
		fmt.Sprintf("%d 1 q worker-1 live 0 0", int64(ids[1])),
	}
	if !slices.Equal(got, want) {
		t.Fatalf("the leases are\n%q\nwant\n%q", got, want)
	}
}

func (h *harness) beat(t testing.TB, ref store.LeaseRef, stage string) {
	t.Helper()
	out, err := h.store.Heartbeat(t.Context(), []store.Heartbeat{{Lease: ref, Stage: &stage}})
	if err != nil || out[0].Err != nil {
		t.Fatalf("Heartbeat: %+v, %v", out, err)
	}
}

func TestR21_stuck_jobs_says_what_ListStuck_says(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	ids := h.enqueue(t, store.NewJob{}, store.NewJob{}, store.NewJob{}, store.NewJob{})
	for _, id := range ids[:3] {
		h.lease(t, id)
	}
	h.Age(t, ids[0], time.Hour)
	h.Exec(t, `UPDATE leasehold.jobs SET expirations = 3 WHERE id = ANY ($1)`, []int64{int64(ids[1]), int64(ids[3])})
	page, err := h.store.ListStuck(t.Context(), store.StuckFilter{}, store.Page{Size: 10})
	if err != nil {
		t.Fatal(err)
	}
	words := map[store.Diagnosis]string{store.CrashLoop: "CRASH_LOOP", store.LeaseExpired: "LEASE_EXPIRED"}
	var want []string
	for _, j := range page.Jobs {
		want = append(want, fmt.Sprintf("%d %s %s", j.JobID, j.State, words[j.Diagnosis]))
	}
	got := h.rows(t, `SELECT concat_ws(' ', id, state, diagnosis) FROM leasehold.stuck_jobs WHERE since IS NOT NULL ORDER BY id`)
	if len(got) != 3 || !slices.Equal(got, want) {
		t.Fatalf("the view says %q, ListStuck %q", got, want)
	}
}

func TestR43_queue_stats_counts_by_state(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	hour := time.Hour
	ids := h.enqueue(t, store.NewJob{}, store.NewJob{}, store.NewJob{Delay: &hour}, store.NewJob{}, store.NewJob{})
	h.Age(t, ids[0], time.Hour)
	h.lease(t, ids[3])
	if out, err := h.store.Fail(t.Context(), []store.Fail{{Lease: h.lease(t, ids[4]), Permanent: true}}); err != nil || out[0].Err != nil {
		t.Fatalf("Fail: %+v, %v", out, err)
	}
	if err := h.store.EnsureQueues(t.Context(), []string{"empty"}); err != nil {
		t.Fatal(err)
	}
	got := h.rows(t, `
SELECT concat_ws(' ', queue, paused, ready, scheduled, processing, stuck, dead, oldest_ready_age >= interval '1 hour')
FROM leasehold.queue_stats ORDER BY queue`)
	if want := []string{"empty f 0 0 0 0 0", "q f 2 1 1 0 1 t"}; !slices.Equal(got, want) {
		t.Fatalf("the queues stand at %q, want %q", got, want)
	}
}

// sqlFillLists makes 50,000 jobs, every fifth live, of two queues: the second has the last
// and the 25,000th only, both DEAD.
const sqlFillLists = `
WITH queue AS (
    INSERT INTO leasehold.queues (name) VALUES ('many'), ('few') RETURNING id, name
), live AS (
    INSERT INTO leasehold.jobs (id, queue_id, run_at, subject)
    SELECT g, q.id, clock_timestamp(), 'common' FROM generate_series(5, 49995, 5) g, queue q WHERE q.name = 'many' AND g <> 25000
)
INSERT INTO leasehold.finished_jobs (id, queue_id, state, priority, run_at, created_at, finished_at, bytes, attempts_used, expirations,
    lease_no, beats, stage_changes, end_kind, counted, sealed, subject, state_reason)
SELECT g, q.id, CASE q.name WHEN 'few' THEN 5 ELSE 4 END, 5, clock_timestamp(), clock_timestamp(), clock_timestamp(), 0, 0, 0,
    0, 0, 0, 0, false, false, 'common', ''
FROM generate_series(1, 50000) g JOIN queue q ON (q.name = 'few') = (g IN (25000, 50000)) WHERE g % 5 <> 0 OR g IN (25000, 50000)`

func TestR4_lists_read_a_bounded_number_of_rows_at_a_time(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.Exec(t, sqlFillLists)
	few, many, common, rare := "few", "many", "common", "rare"
	future := time.Now().Add(time.Hour)
	for name, c := range map[string]struct {
		filter store.JobFilter
		size   int
		want   int
	}{
		"all of both tables":          {store.JobFilter{}, 1000, 50_000},
		"live":                        {store.JobFilter{States: []store.State{store.Pending}}, 1000, 9_998},
		"rare ones":                   {store.JobFilter{Queue: &few}, 1000, 2},
		"rare ones, one by one":       {store.JobFilter{Queue: &few}, 1, 2},
		"rare ones by their state":    {store.JobFilter{Queue: &few, States: []store.State{store.Dead}}, 1, 2},
		"live and not completed":      {store.JobFilter{Queue: &few, States: []store.State{store.Dead, store.Pending}}, 1, 2},
		"a subject of too many":       {store.JobFilter{Queue: &few, Subject: &common}, 1, 2},
		"a subject of many, live":     {store.JobFilter{Queue: &many, Subject: &common, States: []store.State{store.Pending}}, 1000, 9_998},
		"none of that subject":        {store.JobFilter{Subject: &rare}, 1000, 0},
		"none created later":          {store.JobFilter{CreatedFrom: &future}, 1000, 0},
		"none that is being worked":   {store.JobFilter{States: []store.State{store.Processing}}, 1000, 0},
		"none that is held":           {store.JobFilter{States: []store.State{store.Stuck}}, 1000, 0},
		"none with that error":        {store.JobFilter{ErrorCode: &rare}, 1000, 0},
		"finished, of the old states": {store.JobFilter{States: []store.State{store.Completed}}, 1000, 40_000},
	} {
		t.Run(name, func(t *testing.T) { wantListed(t, h, c.filter, c.size, c.want) })
	}
}

// wantListed pages through a list and counts: each job once, in the order of ids.
func wantListed(t *testing.T, h *harness, f store.JobFilter, size, want int) {
	t.Helper()
	p, n, last := store.Page{Size: size}, 0, store.JobID(0)
	for range 1000 {
		out, err := h.store.ListJobs(t.Context(), f, false, p)
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range out.Jobs {
			if j.ID <= last || len(out.Jobs) > size {
				t.Fatalf("job %d is listed after job %d, on a page of %d", j.ID, last, len(out.Jobs))
			}
			last = j.ID
		}
		n += len(out.Jobs)
		if out.Next == 0 {
			if n != want {
				t.Fatalf("listed %d jobs, want %d", n, want)
			}
			return
		}
		if out.Next <= p.After || out.Next < int64(last) {
			t.Fatalf("the page after %d goes on at %d; its last job is %d", p.After, out.Next, last)
		}
		p.After = out.Next
	}
	t.Fatal("the pages do not end")
}

func TestR21_list_goes_past_many_healthy_leases(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.Exec(t, `
WITH queue AS (INSERT INTO leasehold.queues (name) VALUES ('q') RETURNING id)
INSERT INTO leasehold.jobs (id, queue_id, run_at, state, lease_no, lease_owner, last_owner, lease_until, leased_at, lease_length, changed_at)
SELECT g, q.id, clock_timestamp(), 2, 1, 'w', 'w', clock_timestamp() + CASE WHEN g IN (20000, 45000) THEN interval '-1 minute' ELSE interval '1 hour' END,
       clock_timestamp(), interval '1 hour', clock_timestamp()
FROM generate_series(1, 45000) g, queue q`)
	var got []store.JobID
	p := store.Page{Size: 1}
	for range 1000 {
		out, err := h.store.ListStuck(t.Context(), store.StuckFilter{Diagnoses: []store.Diagnosis{store.LeaseExpired}}, p)
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range out.Jobs {
			got = append(got, j.JobID)
		}
		if p.After = out.Next; out.Next == 0 {
			break
		}
	}
	if !slices.Equal(got, []store.JobID{20_000, 45_000}) {
		t.Fatalf("listed %v", got)
	}
}

func TestR4_leases_of_a_long_history(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	id := h.enqueue(t, store.NewJob{})[0]
	h.Exec(t, `UPDATE leasehold.jobs SET lease_no = 60, last_owner = 'w', leased_at = now(), lease_length = '1 minute', end_kind = 8, ended_at = now() WHERE id = $1`, int64(id))
	h.Exec(t, `
INSERT INTO leasehold.attempts (job_id, lease_no, owner, leased_at, lease_length, ended_at, end_kind, counted, beats)
SELECT $1, g, 'w', now(), '1 minute', now(), 8, false, 0 FROM generate_series(1, 59) g`, int64(id))
	h.Exec(t, `
INSERT INTO leasehold.stages (job_id, lease_no, n, at, stage)
SELECT $1, g, n, now(), repeat('s', 100) FROM generate_series(1, 60) g, generate_series(1, 50) n`, int64(id))
	var want []int64
	for n := range int64(60) {
		want = append(want, n+1)
	}
	for _, p := range []store.Page{{Size: 1000}, {Size: 25}, {Size: 26}, {Size: 1000, Bytes: 200_000}} {
		var got []int64
		for pages := 0; pages == 0 || p.After > 0; pages++ {
			out, err := h.store.ListLeases(t.Context(), id, p)
			if err != nil || p.Bytes > 0 && len(out.Leases) > p.Bytes/5000 || pages > 60 {
				t.Fatalf("ListLeases: %d leases, %v", len(out.Leases), err)
			}
			for _, r := range out.Leases {
				if got = append(got, r.LeaseNo); len(r.Stages) != 50 {
					t.Fatalf("lease %d has %d stages", r.LeaseNo, len(r.Stages))
				}
			}
			p.After = out.Next
		}
		if !slices.Equal(got, want) {
			t.Fatalf("listed %v", got)
		}
	}
	for n, from := range map[int]int{1: 59, 25: 35, 40: 20, 100: 0} {
		out, err := h.store.LastLeases(t.Context(), id, n, 0)
		var got []int64
		for _, r := range out {
			got = append(got, r.LeaseNo)
		}
		if err != nil || !slices.Equal(got, want[from:]) {
			t.Fatalf("the last %d leases are %v, %v", n, got, err)
		}
	}
}
