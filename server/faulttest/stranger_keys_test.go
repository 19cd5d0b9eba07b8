package faulttest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// TestR32_KeysThatAStrangerHoldsInItsOwnWay: rows of keys that are inserted, or locked, with
// plain SQL that knows nothing of the locks of keys. PostgreSQL lets whoever wants the same
// key wait; nobody who wants another may wait with it, and all are merged.
func TestR32_KeysThatAStrangerHoldsInItsOwnWay(t *testing.T) {
	t.Parallel()
	s := newStrangersVictim(t)
	over := accepted(t, s.members[0].jobs.Enqueue, &pb.EnqueueRequest{Queue: "q", IdempotencyKey: to("over")}).GetJobId()
	accepted(t, s.members[0].jobs.CancelJob, &pb.CancelJobRequest{JobId: over, Actor: "on-call"})
	s.db.Age(t, jobNumber(t, over), 30*24*time.Hour)
	tx, err := s.db.SQL.Begin(t.Context())
	mustDo(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) }) // it may have ended
	_, err = tx.Exec(t.Context(), `INSERT INTO leasehold.idempotency_keys (queue_id, key, job_id, digest)
    SELECT q.id, 'inserted', 0, '' FROM leasehold.queues q WHERE q.name = 'q'`)
	mustDo(t, err)
	_, err = tx.Exec(t.Context(), `SELECT FROM leasehold.idempotency_keys WHERE key = 'over' FOR UPDATE`)
	mustDo(t, err)

	until := time.Now().Add(strangerHolds)
	var calling sync.WaitGroup
	held := map[string]func(context.Context) error{}
	for _, key := range []string{"inserted", "over"} {
		call := func(ctx context.Context) error {
			_, err := s.members[1].jobs.Enqueue(ctx, &pb.EnqueueRequest{Queue: "q", IdempotencyKey: &key})
			return err
		}
		held[key] = call
		calling.Go(func() { s.wantBusy(t, key, call, until) })
	}
	for i := range 16 {
		calling.Go(func() {
			for n := 0; time.Now().Before(until) && !t.Failed(); n++ {
				timed(t, s, s.members[1].jobs.Enqueue, &pb.EnqueueRequest{Queue: "q", IdempotencyKey: to(fmt.Sprint("key ", i, " ", n))})
			}
		})
	}
	calling.Wait()
	mustDo(t, tx.Rollback(t.Context()))
	t.Logf("beside the keys %d jobs were enqueued, the slowest in %v", s.answered.Load(), time.Duration(s.slowest.Load()))
	for key, call := range held {
		if reason := s.try(call); reason != "" {
			t.Errorf("key %q after the locks: %s", key, reason)
		}
	}
}
