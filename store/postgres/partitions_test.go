package postgres_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold/leasehold/store"
)

const partitionWidth = 1_000_000

// sqlAhead counts, by table, the partitions that begin behind the next job id, from the
// bounds that the catalogue states.
const sqlAhead = `
SELECT p.partrelid::regclass::text || ' ' || count(*) FILTER (
    WHERE (regexp_match(pg_get_expr(c.relpartbound, c.oid), 'FROM \(''?(\d+)'))[1]::numeric > (SELECT last_value FROM leasehold.job_id_seq))
FROM pg_partitioned_table p
LEFT JOIN pg_inherits i ON i.inhparent = p.partrelid LEFT JOIN pg_class c ON c.oid = i.inhrelid
GROUP BY p.partrelid ORDER BY 1`

// moveSequence makes next the id of the next job.
func (h *harness) moveSequence(t *testing.T, next int64) {
	t.Helper()
	h.Exec(t, `SELECT setval('leasehold.job_id_seq', $1, false)`, next)
}

// partitionsAhead is the smallest number of partitions that a table has ahead.
func (h *harness) partitionsAhead(t *testing.T) int {
	t.Helper()
	rows := h.rows(t, sqlAhead)
	if len(rows) != 6 {
		t.Fatalf("the partitioned tables are %q", rows)
	}
	least := 1 << 30
	for _, row := range rows {
		var table string
		var ahead int
		if _, err := fmt.Sscan(row, &table, &ahead); err != nil {
			t.Fatal(err)
		}
		least = min(least, ahead)
	}
	return least
}

func TestR44AtLeastEightPartitionsAreAheadAndNoneIsTheDefault(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	if found := h.rows(t, `SELECT partrelid::regclass::text FROM pg_partitioned_table WHERE partdefid <> 0`); len(found) > 0 {
		t.Errorf("DETACH of these is slow for ever: %q", found)
	}
	check := func(when string) {
		t.Helper()
		health, err := h.store.Health(t.Context())
		if ahead := h.partitionsAhead(t); err != nil || ahead < 8 || health.PartitionsAhead != ahead {
			t.Errorf("%s: %d ahead, Health says %d, %v", when, ahead, health.PartitionsAhead, err)
		}
	}
	check("after the migration")
	for _, next := range []int64{1, partitionWidth - 1, partitionWidth, partitionWidth + 1, 7 * partitionWidth, 1<<31 - 5, 1<<53 + 1} {
		h.moveSequence(t, next)
		if err := h.store.EnsurePartitions(t.Context()); err != nil {
			t.Fatal(err)
		}
		check(fmt.Sprintf("with the sequence at %d", next))
	}
	h.moveSequence(t, 1<<53+6*partitionWidth)
	if health, err := h.store.Health(t.Context()); err != nil || health.PartitionsAhead != h.partitionsAhead(t) || health.PartitionsAhead > 3 {
		t.Errorf("used up: Health says %d ahead, %v", health.PartitionsAhead, err)
	}
}

func TestR44PartitionsAreMadeOnceByFourAtOnce(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.moveSequence(t, 1<<31-5)
	var all sync.WaitGroup
	failures := make([]error, 4)
	for n := range failures {
		s := openStore(t, h.URL)
		all.Go(func() { failures[n] = s.EnsurePartitions(context.Background()) })
	}
	all.Wait()
	for n, err := range failures {
		if err != nil {
			t.Errorf("session %d: %v", n, err)
		}
	}
	if ahead := h.partitionsAhead(t); ahead < 8 {
		t.Errorf("%d ahead", ahead)
	}
}

// Each step is taken at once, in partitions that nobody has made ahead.
func TestR44EverythingWorksRightAfterTheSequenceMoved(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.neverBlameless(t)
	for _, next := range []int64{1<<31 - 5, 1<<53 + 1, 9_007_199_999_999_998} { // the last ends its partition
		h.moveSequence(t, next)
		refs := h.leases(t, 10)
		// The statement that found the partitions missing used up some ids.
		if first := int64(refs[0].JobID); first < next || first > next+100 {
			t.Fatalf("the ids begin at %d, want %d", first, next)
		}
		stage, items := "psp_call", beatsOf(refs...)
		for i := range items {
			items[i].Stage, items[i].Checkpoint = &stage, []byte("half")
		}
		beaten, err := h.store.Heartbeat(t.Context(), items)
		if err != nil || slices.ContainsFunc(beaten, func(b store.Beaten) bool { return b.Err != nil }) {
			t.Fatalf("Heartbeat: %+v, %v", beaten, err)
		}
		h.complete(t, refs[0])
		report := store.JobError{Code: "declined"}
		ended, err := h.store.Fail(t.Context(), []store.Fail{{Lease: refs[1], Error: report}, {Lease: refs[2], Error: report, Permanent: true}})
		if err != nil || ended[0].State != store.Pending || ended[1].State != store.Dead {
			t.Fatalf("Fail: %+v, %v", ended, err)
		}
		for _, ref := range refs[3:5] {
			h.Age(t, ref.JobID, time.Hour)
		}
		stuck, err := h.store.ListStuck(t.Context(), store.StuckFilter{}, store.Page{Size: 10})
		if err != nil || len(stuck.Jobs) != 2 || stuck.Jobs[1].JobID != refs[4].JobID || stuck.Jobs[1].Diagnosis != store.LeaseExpired {
			t.Errorf("ListStuck: %+v, %v", stuck, err)
		}
		if n := h.sweep(t); n != 2 {
			t.Errorf("the sweep ended %d leases", n)
		}
		if again := h.lease(t, refs[3].JobID); again.LeaseNo != 2 { // writes to attempts
			t.Errorf("leased again under number %d", again.LeaseNo)
		}
		h.drain(t, refs)
	}
}

// drain finishes what a round left, so that the next one finds only its own.
func (h *harness) drain(t *testing.T, refs []store.LeaseRef) {
	t.Helper()
	var ids []store.JobID
	for _, ref := range refs {
		ids = append(ids, ref.JobID)
		if records, err := h.store.ListLeases(t.Context(), ref.JobID, store.Page{Size: 10}); err != nil || len(records.Leases[0].Stages) != 1 {
			t.Errorf("ListLeases: %+v, %v", records, err)
		}
	}
	if _, err := h.store.CancelJobs(t.Context(), store.BulkAct{Selection: store.Selection{IDs: ids}}); err != nil {
		t.Fatal(err)
	}
	h.Exec(t, `UPDATE leasehold.jobs SET lease_until = now() - interval '1 hour' WHERE state = 2`)
	h.sweep(t)
	if left := one[int](t, h, `SELECT count(*)::int FROM leasehold.jobs`); left != 0 {
		t.Fatalf("%d jobs are left", left)
	}
}

// Somebody moved the sequence, and all replicas find the partitions missing together.
func TestR44ManyEnqueuesAtOnceFindThePartitionsMissing(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.enqueue(t, store.NewJob{})
	h.moveSequence(t, 1<<40)
	var all sync.WaitGroup
	failures := make([]string, 8)
	for n := range failures {
		all.Go(func() {
			out, err := h.store.Enqueue(context.Background(), []store.NewJob{{Queue: "q"}})
			if err != nil || out[0].Err != nil {
				failures[n] = fmt.Sprintf("Enqueue %d: %v, %v ", n, out, err)
			}
		})
	}
	all.Wait()
	if text := strings.Join(failures, ""); text != "" {
		t.Error(text)
	}
}

// sqlScans lists the partitions that were looked into, and how often.
const sqlScans = `
SELECT s.relname || ' ' || coalesce(s.idx_scan, 0) + s.seq_scan FROM pg_stat_user_tables s JOIN pg_class c ON c.oid = s.relid
WHERE s.schemaname = 'leasehold' AND c.relispartition AND coalesce(s.idx_scan, 0) + s.seq_scan > 0 ORDER BY 1`

func TestR44ALookUpByIDTouchesOnePartition(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.store.Close()
	h.store = openAs(t, h.URL, "first")
	var refs []store.LeaseRef
	for part := range int64(5) {
		h.moveSequence(t, part*partitionWidth+10)
		ref := h.leases(t, 1)[0]
		h.beat(t, ref, "psp_call")
		h.complete(t, ref)
		refs = append(refs, ref)
	}
	h.store.Close()
	// A session reports its scans at its end at the latest.
	await(t, "the sessions are gone", func() bool {
		return one[int](t, h, `SELECT count(*)::int FROM pg_stat_activity WHERE application_name = 'first' AND datname = current_database()`) == 0
	})
	h.Exec(t, `SELECT pg_stat_reset()`)
	s, ref := openStore(t, h.URL), refs[3]
	if _, err := s.GetJob(t.Context(), ref.JobID, true); err != nil {
		t.Fatal(err)
	}
	if _, err := s.ListLeases(t.Context(), ref.JobID, store.Page{Size: 10}); err != nil {
		t.Fatal(err)
	}
	if out, err := s.Complete(t.Context(), completesOf(ref)); err != nil || !out[0].AlreadyApplied {
		t.Fatalf("Complete: %+v, %v", out, err)
	}
	s.Close()
	var scanned []string
	await(t, "the scans are reported", func() bool {
		scanned = h.rows(t, sqlScans)
		return len(scanned) >= 5
	})
	for _, table := range scanned {
		if !strings.Contains(table, "_3000000 ") {
			t.Errorf("looked into %s", table)
		}
	}
}
