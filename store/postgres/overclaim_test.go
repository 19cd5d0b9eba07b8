package postgres_test

import (
	"fmt"
	"testing"

	"github.com/leasehold/leasehold/store"
)

// claimBySubSelect is the claim that is written everywhere. It marks `priority`, so that it
// may be tried without a lease.
const claimBySubSelect = `
UPDATE leasehold.jobs SET priority = 9
WHERE id IN (SELECT id FROM leasehold.jobs WHERE state = 1 AND priority = 5 ORDER BY id LIMIT 5 FOR UPDATE SKIP LOCKED)`

// The experiment behind the MATERIALIZED claim of R9: as the inner side of a nested loop the
// sub-select runs once per row, each time past what it has marked already.
func TestR9AClaimBySubSelectMarksMoreThanItsLimit(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.enqueue(t, blankJobs(40)...)
	s := newStranger(t, h.URL)
	for _, setting := range []string{"enable_hashjoin", "enable_mergejoin", "enable_hashagg", "enable_sort", "enable_material"} {
		s.exec(`SET ` + setting + ` = off`)
	}
	if n := s.exec(claimBySubSelect).RowsAffected(); n <= 5 {
		t.Errorf("it marked %d with a limit of 5: this plan no longer shows why the claim is MATERIALIZED", n)
	}
}

func TestR9TheClaimMarksWhatItReturnsUnderEveryPlan(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	name := one[string](t, h, `SELECT current_database()`)
	h.Exec(t, `ALTER TABLE leasehold.jobs SET (autovacuum_enabled = false)`)
	h.Exec(t, `ANALYZE leasehold.jobs`) // while it is empty: the statistics are stale ever after
	jobs := make([]store.NewJob, 0, 800)
	for i := range cap(jobs) {
		priority := int32(1 + i%3)
		jobs = append(jobs, store.NewJob{Priority: &priority})
	}
	h.enqueue(t, jobs...)
	const (
		noLoops   = "enable_nestloop=off"
		noIndexes = "enable_indexscan=off enable_indexonlyscan=off"
		noStores  = "enable_material=off enable_memoize=off"
		noHashes  = "enable_hashagg=off enable_sort=off enable_incremental_sort=off"
		noOrder   = "join_collapse_limit=1 from_collapse_limit=1"
		tiny      = "work_mem=64kB cursor_tuple_fraction=0.0001 random_page_cost=1000"
		parallel  = "parallel_setup_cost=0 parallel_tuple_cost=0 min_parallel_table_scan_size=0 min_parallel_index_scan_size=0"
		custom    = "plan_cache_mode=force_custom_plan"
	)
	for _, settings := range [][]string{
		{}, {noLoops}, {noIndexes}, {noStores}, {noHashes}, {noOrder}, {tiny}, {parallel}, {custom},
		{noLoops, noIndexes}, {noLoops, noStores, noHashes}, {noIndexes, noStores, noOrder}, {noLoops, noIndexes, noStores, noHashes, noOrder, tiny, parallel, custom},
	} {
		h.Exec(t, `ALTER DATABASE `+name+` RESET ALL`)
		for _, group := range settings {
			h.setForNewSessions(t, name, group)
		}
		for _, statistics := range []string{"reltuples = 0, relpages = 0", "reltuples = 1e9, relpages = 10000000"} {
			h.Exec(t, `UPDATE pg_class SET `+statistics+` WHERE oid = 'leasehold.jobs'::regclass`)
			h.claimExactly(t, fmt.Sprint(settings, " ", statistics))
		}
	}
}

// setForNewSessions applies settings, written as name=value with blanks between.
func (h *harness) setForNewSessions(t *testing.T, database, settings string) {
	t.Helper()
	h.Exec(t, fmt.Sprintf(`
DO $do$ DECLARE s text; BEGIN
    FOREACH s IN ARRAY string_to_array('%s', ' ') LOOP
        EXECUTE format('ALTER DATABASE %s SET %%s = %%L', split_part(s, '=', 1), split_part(s, '=', 2));
    END LOOP;
END $do$`, settings, database))
}

// claimExactly lets a new Store claim for four callers at once, and compares what it says
// with what is marked.
func (h *harness) claimExactly(t *testing.T, plan string) {
	t.Helper()
	const leased = `SELECT count(*)::int FROM leasehold.jobs WHERE state = 2`
	before := one[int](t, h, leased)
	s := openStore(t, h.URL)
	defer s.Close()
	items := make([]store.Acquire, 4)
	want := 0
	for i := range items {
		items[i] = store.Acquire{Queues: []string{"q"}, Owner: "worker-1", MaxJobs: 1 + 2*i}
		want += items[i].MaxJobs
	}
	out, err := s.Acquire(t.Context(), items)
	if err != nil {
		t.Fatalf("%s: %v", plan, err)
	}
	got, seen := 0, map[store.JobID]bool{}
	for i, o := range out {
		if o.Err != nil || len(o.Leases) != items[i].MaxJobs {
			t.Errorf("%s: caller %d got %d of %d leases, %v", plan, i, len(o.Leases), items[i].MaxJobs, o.Err)
		}
		for n := range o.Leases {
			seen[o.Leases[n].Job.ID] = true
		}
		got += len(o.Leases)
	}
	if marked := one[int](t, h, leased) - before; marked != got || len(seen) != got || got != want {
		t.Errorf("%s: %d wanted, %d returned of %d jobs, %d marked", plan, want, got, len(seen), marked)
	}
}
