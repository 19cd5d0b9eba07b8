package postgres_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/leasehold/leasehold/store"
)

// lockJobs holds the rows of some leases until the transaction ends.
func (s *stranger) lockJobs(refs ...store.LeaseRef) {
	s.t.Helper()
	ids := make([]int64, len(refs))
	for i, ref := range refs {
		ids[i] = int64(ref.JobID)
	}
	s.exec(`BEGIN`)
	s.exec(`SELECT FROM leasehold.jobs WHERE id = ANY ($1::bigint[]) ORDER BY id FOR UPDATE`, ids)
}

// endingCalls are the calls on a batch of leases, each with the error of every item.
var endingCalls = map[string]func(context.Context, store.Store, []store.LeaseRef) ([]string, error){
	"Heartbeat": func(ctx context.Context, s store.Store, refs []store.LeaseRef) ([]string, error) {
		out, err := s.Heartbeat(ctx, beatsOf(refs...))
		return faults(out, beatErr), err
	},
	"Complete": func(ctx context.Context, s store.Store, refs []store.LeaseRef) ([]string, error) {
		out, err := s.Complete(ctx, completesOf(refs...))
		return faults(out, completeErr), err
	},
	"Fail": func(ctx context.Context, s store.Store, refs []store.LeaseRef) ([]string, error) {
		items := make([]store.Fail, len(refs))
		for i, ref := range refs {
			items[i].Lease = ref
		}
		out, err := s.Fail(ctx, items)
		return faults(out, endErr), err
	},
	"Release": func(ctx context.Context, s store.Store, refs []store.LeaseRef) ([]string, error) {
		items := make([]store.Release, len(refs))
		for i, ref := range refs {
			items[i].Lease = ref
		}
		out, err := s.Release(ctx, items)
		return faults(out, endErr), err
	},
}

const busy = "*store.BusyError"

// The others of a batch are answered while the stranger still holds the locks: whoever
// waited for them would be answered never.
func TestR32LockedRowsDelayNobodyElse(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	for name, call := range endingCalls {
		t.Run(name, func(t *testing.T) {
			refs := h.leases(t, 10)
			holder := newStranger(t, h.URL)
			holder.lockJobs(refs[3], refs[7])
			got, err := call(t.Context(), h.store, refs)
			want := []string{"ok", "ok", "ok", busy, "ok", "ok", "ok", busy, "ok", "ok"}
			if err != nil || !slices.Equal(got, want) {
				t.Fatalf("the batch got %q, %v", got, err)
			}
			holder.exec(`ROLLBACK`)
			got, err = call(t.Context(), h.store, []store.LeaseRef{refs[3], refs[7]})
			if err != nil || !slices.Equal(got, []string{"ok", "ok"}) {
				t.Errorf("after the locks: %q, %v", got, err)
			}
		})
	}
}

const (
	// deadline is that of a caller who meets a lock.
	deadline = 1500 * time.Millisecond
	// ownPatience is that of a Store whose caller names no deadline.
	ownPatience = 5 * time.Second
)

func TestR32ALockedRowIsBusyByTheDeadlineOfItsCaller(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	for name, call := range endingCalls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refs := h.leases(t, 1)
			holder := newStranger(t, h.URL)
			holder.lockJobs(refs...)
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			defer cancel()
			started := time.Now()
			got, err := call(ctx, h.store, refs)
			if took := time.Since(started); err != nil || !slices.Equal(got, []string{busy}) || took > ownPatience {
				t.Errorf("after %v it got %q, %v", took, got, err)
			}
			done := make(chan string, 1)
			s := openAs(t, h.URL, name)
			go func() {
				got, err := call(context.Background(), s, refs)
				done <- fmt.Sprint(got, err)
			}()
			h.awaitRepeats(t, name)
			holder.exec(`ROLLBACK`)
			if text := <-done; text != fmt.Sprint([]string{"ok"}, nil) {
				t.Errorf("a call that was there when the lock ended: %s", text)
			}
		})
	}
}

func TestR32ALockedJobIsNeverTakenForLost(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.neverBlameless(t)
	refs := h.leases(t, 1)
	free := h.enqueue(t, blankJobs(2)...)
	h.Age(t, refs[0].JobID, time.Hour)
	holder := newStranger(t, h.URL)
	holder.exec(`BEGIN`)
	holder.exec(`SELECT FROM leasehold.jobs WHERE id = ANY ($1::bigint[]) FOR UPDATE`, []int64{int64(refs[0].JobID), int64(free[0])})
	out, err := h.store.Acquire(store.Impatient(t.Context()), []store.Acquire{
		{JobID: free[0], Owner: "worker-2", MaxJobs: 1}, {JobID: free[1], Owner: "worker-2", MaxJobs: 1},
	})
	if err != nil || !is[*store.BusyError](out[0].Err) || len(out[1].Leases) != 1 {
		t.Errorf("Acquire: %+v, %v", out, err)
	}
	if n := h.sweep(t); n != 0 {
		t.Errorf("the sweep ended %d locked leases", n)
	}
	holder.exec(`COMMIT`)
	if n := h.sweep(t); n != 1 {
		t.Errorf("after the lock the sweep ended %d leases", n)
	}
	h.lease(t, free[0])
}

// holdKey inserts an idempotency key as an enqueue does that has not committed yet: with the
// content of a job that is stored already under another key.
func (s *stranger) holdKey(key string, like store.JobID) {
	s.t.Helper()
	s.exec(`BEGIN`)
	s.exec(`SELECT pg_advisory_xact_lock(hashtextextended($1, q.id)) FROM leasehold.queues q WHERE q.name = 'q'`, key)
	s.exec(`
WITH made AS (
    INSERT INTO leasehold.jobs (id, queue_id, run_at) SELECT nextval('leasehold.job_id_seq'), q.id, now() FROM leasehold.queues q WHERE q.name = 'q'
    RETURNING id, queue_id
), data AS (INSERT INTO leasehold.job_data (job_id, payload) SELECT m.id, '' FROM made m)
INSERT INTO leasehold.idempotency_keys (queue_id, key, job_id, digest)
SELECT m.queue_id, $1, m.id, k.digest FROM made m, leasehold.idempotency_keys k WHERE k.job_id = $2`, key, int64(like))
}

func TestR32AnUncommittedKeyDelaysNobodyElse(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	held, other, another := "held", "other", "another"
	like := h.enqueue(t, store.NewJob{IdempotencyKey: &another})[0]
	batch := []store.NewJob{{Queue: "q", IdempotencyKey: &other}, {Queue: "q", IdempotencyKey: &held}, {Queue: "q"}}
	holder := newStranger(t, h.URL)
	holder.holdKey(held, like)
	out, err := h.store.Enqueue(t.Context(), batch)
	if got := faults(out, enqueueErr); err != nil || !slices.Equal(got, []string{"ok", busy, "ok"}) || !out[0].Created || !out[2].Created {
		t.Fatalf("the batch got %q, %v", got, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	started := time.Now()
	out, err = h.store.Enqueue(ctx, batch[1:2])
	if took := time.Since(started); err != nil || !is[*store.BusyError](out[0].Err) || took > ownPatience {
		t.Errorf("after %v the held key got %+v, %v", took, out, err)
	}
	holder.exec(`ROLLBACK`)
	if out, err = h.store.Enqueue(t.Context(), batch[1:2]); err != nil || out[0].Err != nil || !out[0].Created {
		t.Errorf("after a rollback: %+v, %v", out, err)
	}
	owner := out[0].JobID
	if out, err = h.store.Enqueue(t.Context(), batch[1:2]); err != nil || out[0].JobID != owner || out[0].Created {
		t.Errorf("once more: %+v, %v", out, err)
	}
}

func TestR32AKeyThatIsCommittedMeanwhileGivesItsJob(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	held, another := "held", "another"
	like := h.enqueue(t, store.NewJob{IdempotencyKey: &another})[0]
	holder := newStranger(t, h.URL)
	holder.holdKey(held, like)
	done := make(chan error, 1)
	var out []store.Enqueued
	s := openAs(t, h.URL, "enqueuer")
	go func() {
		var err error
		out, err = s.Enqueue(context.Background(), []store.NewJob{{Queue: "q", IdempotencyKey: &held}})
		done <- err
	}()
	h.awaitRepeats(t, "enqueuer")
	holder.exec(`COMMIT`)
	if err := <-done; err != nil || out[0].Err != nil || out[0].Created {
		t.Fatalf("Enqueue: %+v, %v", out, err)
	}
	if owners := h.rows(t, `SELECT job_id::text FROM leasehold.idempotency_keys WHERE key = 'held'`); owners[0] != number(out[0].JobID) {
		t.Errorf("the key belongs to %s, the answer says %d", owners[0], out[0].JobID)
	}
}

// readAndWrite are calls of each lane, which all need the table of jobs.
func readAndWrite(s store.Store, refs []store.LeaseRef) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"Heartbeat": func(ctx context.Context) error { _, err := s.Heartbeat(ctx, beatsOf(refs...)); return err },
		"Complete":  func(ctx context.Context) error { _, err := s.Complete(ctx, completesOf(refs[0])); return err },
		"Acquire": func(ctx context.Context) error {
			_, err := s.Acquire(ctx, []store.Acquire{{Queues: []string{"q"}, Owner: "worker-2", MaxJobs: 1}})
			return err
		},
		"Enqueue": func(ctx context.Context) error { _, err := s.Enqueue(ctx, []store.NewJob{{Queue: "q"}}); return err },
		"GetJob":  func(ctx context.Context) error { _, err := s.GetJob(ctx, refs[0].JobID, true); return err },
		"Sweep":   func(ctx context.Context) error { _, err := s.SweepPage(ctx, 0, 100, nil); return err },
		"Stamp":   s.StampWritable,
	}
}

// The Store's sessions are new to most of these calls: a session that prepares a statement
// waits for the lock as well, and must do so no longer than one that runs it.
func TestR32ALockedTableFailsCallsFastAndDrainsNothing(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	refs := h.leases(t, 3)
	if err := h.store.StampWritable(t.Context()); err != nil {
		t.Fatal(err)
	}
	const stamp = `SELECT writable_since || ' ' || stamped_at FROM leasehold.service`
	before := one[string](t, h, stamp)
	holder := newStranger(t, h.URL)
	holder.exec(`BEGIN`)
	holder.exec(`LOCK TABLE leasehold.jobs IN ACCESS EXCLUSIVE MODE`)
	var all sync.WaitGroup
	for name, call := range readAndWrite(h.store, refs) {
		for range 2 {
			all.Go(func() {
				started := time.Now()
				err := call(context.Background())
				if took := time.Since(started); !is[*store.BusyError](err) && !is[*store.UnavailableError](err) || took > 2*ownPatience {
					t.Errorf("%s under the lock, after %v: %v", name, took, err)
				}
			})
		}
	}
	all.Wait() // by its own timeouts, while the lock is held
	if _, err := h.store.GetQueue(t.Context(), "q"); err != nil {
		t.Errorf("a call that needs no jobs: %v", err)
	}
	if stat := h.store.Pool().Stat(); stat.AcquiredConns() != 0 || stat.TotalConns() > stat.MaxConns() {
		t.Errorf("of %d connections %d are still taken", stat.TotalConns(), stat.AcquiredConns())
	}
	if after := one[string](t, h, stamp); after != before {
		t.Errorf("the stamp went from %s to %s while no heartbeat could be written", before, after)
	}
	holder.exec(`COMMIT`)
	for name, call := range readAndWrite(h.store, refs[1:]) {
		if err := call(t.Context()); err != nil {
			t.Errorf("%s after the lock: %v", name, err)
		}
	}
	if after := one[string](t, h, stamp); after == before {
		t.Error("no stamp was written after the lock")
	}
}
