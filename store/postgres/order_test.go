package postgres_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/leasehold/leasehold/store"
)

// onlyBusy tells whether nothing but locks stood in the way.
func onlyBusy(got []string, err error) bool {
	if err != nil {
		return is[*store.BusyError](err)
	}
	return !slices.ContainsFunc(got, func(s string) bool { return s != "ok" && s != busy })
}

// Merged statements take their rows in a fixed order, in whatever order they were asked for.
func TestR32BatchesInAnyOrderNeverDeadlock(t *testing.T) {
	t.Parallel()
	const callers, rounds = 6, 8
	h := newHarness(t)
	refs := h.leases(t, 60)
	stores := []store.Store{h.store, openStore(t, h.URL)}
	inParallel := func(work func(s store.Store, mine []store.LeaseRef, round int)) {
		var all sync.WaitGroup
		for n := range callers {
			all.Go(func() {
				mine := slices.Clone(refs)
				for round := range rounds {
					rand.Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
					work(stores[n%2], mine, round)
				}
			})
		}
		all.Wait()
	}
	inParallel(func(s store.Store, mine []store.LeaseRef, round int) {
		if got, err := endingCalls["Heartbeat"](context.Background(), s, mine); !onlyBusy(got, err) {
			t.Errorf("Heartbeat: %q, %v", got, err)
		}
		items := make([]store.NewJob, len(mine))
		for i := range items {
			key := fmt.Sprint("key ", mine[i].JobID, " of round ", round)
			items[i] = store.NewJob{Queue: "q", IdempotencyKey: &key}
		}
		if out, err := s.Enqueue(context.Background(), items); !onlyBusy(faults(out, enqueueErr), err) {
			t.Errorf("Enqueue: %q, %v", faults(out, enqueueErr), err)
		}
	})
	inParallel(func(s store.Store, mine []store.LeaseRef, _ int) {
		if got, err := endingCalls["Complete"](context.Background(), s, mine); !onlyBusy(got, err) {
			t.Errorf("Complete: %q, %v", got, err)
		}
	})
	for _, s := range stores {
		s.(interface{ Close() }).Close()
	}
	await(t, "the sessions have reported", func() bool {
		return one[int](t, h, `SELECT count(*)::int FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'leasehold'`) == 0
	})
	if n := one[int](t, h, `SELECT deadlocks::int FROM pg_stat_database WHERE datname = current_database()`); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
	if n := one[int](t, h, `SELECT count(*)::int FROM leasehold.idempotency_keys`); n != len(refs)*rounds {
		t.Errorf("%d keys were stored, want %d", n, len(refs)*rounds)
	}
	if n := one[int](t, h, `SELECT count(*)::int FROM leasehold.finished_jobs`); n != len(refs) {
		t.Errorf("%d jobs are completed, want %d", n, len(refs))
	}
}

// A stranger that holds the row of one queue stops enqueues into that one only.
func TestR32ALockedQueueDelaysNoOtherQueue(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	if err := h.store.EnsureQueues(t.Context(), []string{"held", "free"}); err != nil {
		t.Fatal(err)
	}
	holder := newStranger(t, h.URL)
	holder.exec(`BEGIN`)
	holder.exec(`SELECT FROM leasehold.queues WHERE name = 'held' FOR UPDATE`)
	out, err := h.store.Enqueue(t.Context(), []store.NewJob{{Queue: "free"}, {Queue: "held"}, {Queue: "free"}})
	if got := faults(out, enqueueErr); err != nil || !slices.Equal(got, []string{"ok", busy, "ok"}) {
		t.Errorf("the batch got %q, %v", got, err)
	}
	holder.exec(`COMMIT`)
	if out, err = h.store.Enqueue(t.Context(), []store.NewJob{{Queue: "held"}}); err != nil || out[0].Err != nil {
		t.Errorf("after the lock: %+v, %v", out, err)
	}
}

// What needs the owner's rights is in functions of the owner.
func TestR44TheServiceNeedsNoOwnersRights(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	const role = "leasehold_service"
	h.store.Close()
	h.store = openStore(t, h.URL+"&role="+role)
	h.neverBlameless(t)
	h.oldJobs(t, 30*day, nil)
	h.moveSequence(t, 1<<40)
	refs := h.leases(t, 3) // makes partitions
	h.complete(t, refs[0])
	h.Age(t, refs[1].JobID, day)
	if n := h.sweep(t); n != 1 {
		t.Errorf("the sweep ended %d leases", n)
	}
	h.retain(t, day, day)
	h.wantPartitions(t, "old enough,", "0", nil)
	for name, call := range map[string]func(context.Context) error{
		"StampWritable":    h.store.StampWritable,
		"EnsurePartitions": h.store.EnsurePartitions,
		"FinishSweep":      h.store.FinishSweep,
		"BuryUnrunnable":   func(ctx context.Context) error { _, err := h.store.BuryUnrunnable(ctx); return err },
		"ForgetExpired":    func(ctx context.Context) error { _, err := h.store.ForgetExpired(ctx); return err },
		"Health":           func(ctx context.Context) error { _, err := h.store.Health(ctx); return err },
		"TokenKey":         func(ctx context.Context) error { _, err := h.store.TokenKey(ctx); return err },
		"Hint":             func(ctx context.Context) error { return h.store.Hint(ctx, []string{"q"}) },
		"DeleteQueue": func(ctx context.Context) error {
			if err := h.store.EnsureQueues(ctx, []string{"empty"}); err != nil {
				return err
			}
			return h.store.DeleteQueue(ctx, "empty")
		},
	} {
		if err := call(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := h.rows(t, `SELECT usename::text FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'leasehold' LIMIT 1`); len(got) != 1 {
		t.Errorf("the Store has no session: %q", got)
	}
	denied := newStranger(t, h.URL+"&role="+role)
	if _, err := denied.conn.Exec(t.Context(), `ALTER TABLE leasehold.jobs ADD COLUMN more int`); err == nil {
		t.Error("the role has the owner's rights: this proves nothing")
	}
}
