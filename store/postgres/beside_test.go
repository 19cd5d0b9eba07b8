package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/leasehold/leasehold/store"
)

// A follow-up's idempotency key that somebody else is about to commit is waited for, as that
// of an Enqueue is.
func TestR32AHeldKeyOfAFollowUpIsWaitedFor(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	refs, held, like := h.leases(t, 2), "held", "like"
	holder := newStranger(t, h.URL)
	holder.holdKey(held, h.enqueue(t, store.NewJob{IdempotencyKey: &like})[0])
	follow := []store.NewJob{{Queue: "q", IdempotencyKey: &held}}
	ended := make(chan error, 2)
	go func() {
		out, err := h.store.Complete(context.Background(), []store.Complete{{Lease: refs[0], ThenEnqueue: follow}})
		ended <- firstError(err, func() error { return out[0].Err })
	}()
	go func() {
		out, err := h.store.Fail(context.Background(), []store.Fail{{Lease: refs[1], ThenEnqueue: follow}})
		ended <- firstError(err, func() error { return out[0].Err })
	}()
	select {
	case err := <-ended:
		t.Fatalf("a call ended before the key was free: %v", err)
	case <-time.After(300 * time.Millisecond): // a refusal came within a few
	}
	holder.exec(`COMMIT`)
	for range refs {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// The highest lease number is neither given again nor left where nobody takes or buries it.
func TestR39TheLastLeaseNumberLeavesNoGap(t *testing.T) {
	t.Parallel()
	const last = 9_223_372_036_854_000_000
	h := newHarness(t)
	id := h.enqueue(t, store.NewJob{})[0]
	if _, err := h.store.Release(t.Context(), []store.Release{{Lease: h.lease(t, id)}}); err != nil {
		t.Fatal(err)
	}
	h.SetLeaseNo(t, id, last-1)
	ref := h.lease(t, id)
	if ref.LeaseNo != last {
		t.Fatalf("leased as number %d", ref.LeaseNo)
	}
	if _, err := h.store.Release(t.Context(), []store.Release{{Lease: ref}}); err != nil {
		t.Fatal(err)
	}
	if out, err := h.store.Acquire(t.Context(), []store.Acquire{{Queues: []string{"q"}, Owner: "worker-2", MaxJobs: 1}}); err != nil || len(out[0].Leases) != 0 {
		t.Errorf("Acquire: %+v, %v", out, err)
	}
	if n, err := h.store.BuryUnrunnable(t.Context()); err != nil || n != 1 || h.state(t, id) != store.Dead {
		t.Errorf("%d jobs were buried, %v; it is %s", n, err, h.state(t, id))
	}
}

// A job whose queue's row is gone must not make its page of a sweep look like the last one.
// That nobody can remove such a row is another matter.
func TestR38AJobWhoseQueueIsGoneHidesNoOther(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.neverBlameless(t)
	if err := h.store.EnsureQueues(t.Context(), []string{"gone"}); err != nil {
		t.Fatal(err)
	}
	made, err := h.store.Enqueue(t.Context(), []store.NewJob{{Queue: "gone"}})
	if err != nil {
		t.Fatal(err)
	}
	lost := made[0].JobID
	h.lease(t, lost)
	h.leases(t, 50)
	h.Exec(t, `UPDATE leasehold.jobs SET lease_until = lease_until - interval '1 hour'`)
	if _, err := h.SQL.Exec(t.Context(), `DELETE FROM leasehold.queues WHERE name = 'gone'`); err == nil {
		t.Error("the row of a queue can be deleted")
	}
	h.Exec(t, `ALTER TABLE leasehold.queues DISABLE TRIGGER USER`)
	h.Exec(t, `DELETE FROM leasehold.queues WHERE name = 'gone'`)
	for after, pages := store.JobID(0), 0; pages == 0 || after != 0; pages++ {
		swept, err := h.store.SweepPage(t.Context(), after, 10, nil)
		if after = swept.Next; err != nil && pages > 0 || pages > 50 {
			t.Fatalf("page %d: %v", pages, err)
		}
	}
	if left := h.rows(t, `SELECT id::text FROM leasehold.jobs WHERE state = 2 AND id <> $1`, int64(lost)); len(left) > 0 {
		t.Errorf("%d leases were not ended", len(left))
	}
}
