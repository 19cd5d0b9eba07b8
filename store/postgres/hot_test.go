package postgres_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/postgres"
)

const sqlUpdatesOfJobs = `
SELECT n_tup_upd || ' ' || n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = 'leasehold.jobs'::regclass`

// updatesOfJobs reads the counters once they stand at `total`: a session reports them at
// its end at the latest, and not at each commit.
func (h *harness) updatesOfJobs(t *testing.T, total int) (updates, hot int) {
	t.Helper()
	await(t, fmt.Sprintf("%d updates of jobs are reported", total), func() bool {
		if _, err := fmt.Sscan(h.rows(t, sqlUpdatesOfJobs)[0], &updates, &hot); err != nil {
			t.Fatal(err)
		}
		return updates >= total
	})
	return updates, hot
}

// A server of its own, and one payload at a time: a transaction that writes for long, in any
// database of a server, delays the reuse of dead versions in all the others.
func TestR45HeartbeatsAreHeapOnly(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t)
	if err := migrate(t.Context(), server.URL("postgres")); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{100, 2 << 10, 64 << 10} {
		t.Run(fmt.Sprintf("payload of %d bytes", size), func(t *testing.T) {
			name := fmt.Sprintf("payload_%d", size)
			newStranger(t, server.URL("template1")).exec("CREATE DATABASE " + name + " TEMPLATE postgres")
			const leased, beats = 200, 20
			h := newHarnessOn(t, server.URL(name))
			refs := h.leasesWithPayload(t, leased, size)
			h.store.Close()
			before, hotBefore := h.updatesOfJobs(t, leased)
			s := openStore(t, h.URL)
			for n := range beats {
				beatWithEverything(t, s, refs, n)
			}
			s.Close()
			after, hotAfter := h.updatesOfJobs(t, before+leased*beats)
			share := float64(hotAfter-hotBefore) / float64(after-before)
			t.Logf("%d updates, %.1f %% of them heap-only", after-before, 100*share)
			if after-before != leased*beats || share < 0.95 {
				t.Errorf("of %d updates, %d wanted, %.1f %% were heap-only", after-before, leased*beats, 100*share)
			}
		})
	}
}

// leasesWithPayload leases n jobs of one queue.
func (h *harness) leasesWithPayload(t *testing.T, n, size int) []store.LeaseRef {
	t.Helper()
	for range n / 20 {
		jobs := blankJobs(20)
		for i := range jobs {
			jobs[i].Payload.Data = bytes.Repeat([]byte{byte(i)}, size)
		}
		h.enqueue(t, jobs...)
	}
	var refs []store.LeaseRef
	for len(refs) < n {
		out, err := h.store.Acquire(t.Context(), []store.Acquire{{Queues: []string{"q"}, Owner: "worker-1", MaxJobs: n - len(refs)}})
		if err != nil || len(out[0].Leases) == 0 {
			t.Fatalf("Acquire: %+v, %v", out, err)
		}
		for i := range out[0].Leases {
			refs = append(refs, out[0].Leases[i].Ref())
		}
	}
	return refs
}

// beatWithEverything is the n-th heartbeat of each lease, of which a third change the stage,
// a third the progress, and all send a checkpoint now and then.
func beatWithEverything(t *testing.T, s *postgres.Store, refs []store.LeaseRef, n int) {
	t.Helper()
	items := beatsOf(refs...)
	stage, progress := fmt.Sprintf("stage_%d", n), float64(n)/100
	for i := range items {
		switch (i + n) % 3 {
		case 0:
			items[i].Stage = &stage
		case 1:
			items[i].Progress = &progress
		}
		if n%5 == 0 {
			items[i].Checkpoint = fmt.Appendf(nil, "checkpoint %d", n)
		}
	}
	out, err := s.Heartbeat(t.Context(), items)
	if err != nil {
		t.Fatal(err)
	}
	for i := range out {
		if out[i].Err != nil {
			t.Fatalf("Heartbeat %d: %v", i, out[i].Err)
		}
	}
}

// sqlIndexesThatMention finds the indexes of jobs that have one of some columns as a key, in
// an expression or in their predicate.
const sqlIndexesThatMention = `
SELECT pg_get_indexdef(i.indexrelid)
FROM pg_index i
WHERE i.indrelid = 'leasehold.jobs'::regclass
  AND EXISTS (
      SELECT FROM pg_attribute a
      WHERE a.attrelid = i.indrelid AND a.attname = ANY ($1::text[])
        AND (a.attnum = ANY (i.indkey)
             OR coalesce(pg_get_expr(i.indexprs, i.indrelid), '') ~ ('\m' || a.attname || '\M')
             OR coalesce(pg_get_expr(i.indpred, i.indrelid), '') ~ ('\m' || a.attname || '\M')))`

func TestR45NoIndexMentionsWhatAHeartbeatWrites(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	ref := h.leases(t, 1)[0]
	row := func() map[string]any {
		var columns map[string]any
		text := one[string](t, h, `SELECT to_jsonb(j)::text FROM leasehold.jobs j WHERE j.id = $1`, int64(ref.JobID))
		if err := json.Unmarshal([]byte(text), &columns); err != nil {
			t.Fatal(err)
		}
		return columns
	}
	before := row()
	for n := range 4 { // a stage, a progress and a checkpoint each
		beatWithEverything(t, h.store, []store.LeaseRef{ref}, n)
	}
	var written []string
	for column, value := range row() {
		if fmt.Sprint(value) != fmt.Sprint(before[column]) {
			written = append(written, column)
		}
	}
	slices.Sort(written)
	want := []string{"beat_at", "beats", "changed_at", "largest_gap", "lease_until", "progress", "stage", "stage_changes"}
	if !slices.Equal(written, want) {
		t.Fatalf("heartbeats write %q, want %q", written, want)
	}
	if indexes := h.rows(t, sqlIndexesThatMention, written); len(indexes) > 0 {
		t.Errorf("these make each heartbeat write to an index: %s", strings.Join(indexes, "; "))
	}
	// The look-up finds a key and a predicate where there is one.
	for _, column := range []string{"run_at", "state", "end_kind"} {
		if len(h.rows(t, sqlIndexesThatMention, []string{column})) == 0 {
			t.Errorf("no index is found to mention %s", column)
		}
	}
}
