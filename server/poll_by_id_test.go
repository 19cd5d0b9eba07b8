package server

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

// slowClaims holds claims back while gate is open.
type slowClaims struct {
	store.Store
	slow chan struct{}
	n    int
}

func (s *slowClaims) Acquire(ctx context.Context, items []store.Acquire) ([]store.Acquired, error) {
	s.n++
	if s.n > 2 { // every look after the first
		<-s.slow
	}
	return s.Store.Acquire(ctx, items)
}

// TestR7_PollByIDTellsOfTheJob: a poll for one job whose last look came too late says what it
// saw before, and not that a queue has no ready jobs.
func TestR7_PollByIDTellsOfTheJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &slowClaims{Store: newStore(t, "q"), slow: make(chan struct{})}
		h := newHandlers(t, st, Config{ConcurrentClaims: 1})
		id := h.put(t, &pb.EnqueueRequest{Queue: "q"})
		if got := <-h.poll(t.Context(), &pb.AcquireLeaseRequest{JobId: &id, LeaseOwner: "w/1"}); got.leased() != 1 {
			t.Fatal("not leased")
		}
		byID := &pb.AcquireLeaseRequest{JobId: proto.String(id), LeaseOwner: "w/2", Wait: durationpb.New(2500 * time.Millisecond)}
		parked := h.poll(t.Context(), byID)
		// Somebody else's claim holds the only place, so that the looks of the poll do not begin.
		other := h.poll(t.Context(), &pb.AcquireLeaseRequest{Queues: []string{"q"}, LeaseOwner: "w/3"})
		got := <-parked
		close(st.slow)
		<-other
		if got.err != nil || got.resp.GetEmptyReason() != pb.EmptyReason_EMPTY_REASON_JOB_LEASED {
			t.Errorf("the poll for a leased job ends with %v, %v", got.resp, got.err)
		}
	})
}
