package postgres_test

import (
	"slices"
	"testing"
	"time"

	"github.com/leasehold/leasehold/store"
)

// TestR32ALockedKeyHoldsUpNoForgetting: a stranger's lock on one key that is over holds up
// neither the deletion of the others nor, by the locks of a deletion that waits, whoever
// wants one of those.
func TestR32ALockedKeyHoldsUpNoForgetting(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	keys := []string{"a", "b", "c"}
	var jobs []store.NewJob
	for i := range keys {
		jobs = append(jobs, store.NewJob{IdempotencyKey: &keys[i]})
	}
	for _, id := range h.enqueue(t, jobs...) {
		if _, err := h.store.CancelJob(t.Context(), id, store.Actor{Name: "on-call"}); err != nil {
			t.Fatal(err)
		}
		h.Age(t, id, 30*24*time.Hour)
	}
	holder := newStranger(t, h.URL)
	holder.exec(`BEGIN`)
	holder.exec(`SELECT FROM leasehold.idempotency_keys WHERE key = 'b' FOR UPDATE`)
	if n, err := h.store.ForgetExpired(t.Context()); err != nil || n != 2 {
		t.Errorf("beside the lock %d keys were forgotten, %v", n, err)
	}
	if left := h.rows(t, `SELECT key FROM leasehold.idempotency_keys`); !slices.Equal(left, []string{"b"}) {
		t.Errorf("beside the lock %v are left", left)
	}
	holder.exec(`ROLLBACK`)
	if n, err := h.store.ForgetExpired(t.Context()); err != nil || n != 1 {
		t.Errorf("after the lock %d keys were forgotten, %v", n, err)
	}
}
