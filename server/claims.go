package server

import (
	"context"
	"time"

	"github.com/leasehold/leasehold/store"
)

const (
	// claimTimeout bounds a claim once it has begun.
	claimTimeout = 10 * time.Second
	// claimGrace is how far beyond the caller's own deadline a begun claim may run. Cutting
	// it at the deadline would leave open whether it committed: leases that nobody knows of
	// until they expire. Let to the end, its leases are known and given back.
	claimGrace = time.Second
	// giveBackTimeout bounds the return of leases whose caller is gone.
	giveBackTimeout = 5 * time.Second
)

// claims takes leases for one caller at a time; the store behind it merges that with the
// claims of others, and bounds how many wait.
type claims struct {
	acquire func(context.Context, []store.Acquire) ([]store.Acquired, error)
}

// claim takes leases. It calls begin, once, at the last moment before a statement can see
// the queues, and returns without a claim where ctx is done or closed is closed before that.
func (c *claims) claim(ctx context.Context, closed <-chan struct{}, item store.Acquire, begin func()) (store.Acquired, error) {
	if err := ctx.Err(); err != nil {
		return store.Acquired{}, err
	}
	select {
	case <-closed:
		return store.Acquired{}, &DrainingError{}
	default:
	}
	begin()
	callOf(ctx).noteClaim()
	begun, cancel := beyondCaller(ctx)
	defer cancel()
	got, err := c.acquire(begun, []store.Acquire{item})
	if err != nil {
		return store.Acquired{}, err
	}
	return got[0], got[0].Err
}

// beyondCaller is a context for a claim that has begun: the caller's going away no longer
// ends it, its deadline does a little later.
func beyondCaller(ctx context.Context) (context.Context, context.CancelFunc) {
	limit := time.Now().Add(claimTimeout)
	begun := context.WithValue(context.WithoutCancel(ctx), callerKey{}, ctx)
	if deadline, ok := ctx.Deadline(); ok {
		// A claim that waits for a lock has not begun: the caller hears of the lock in time.
		begun = store.PatientUntil(begun, deadline)
		if deadline.Add(claimGrace).Before(limit) {
			limit = deadline.Add(claimGrace)
		}
	}
	return context.WithDeadline(begun, limit)
}

// giveBack returns leases whose answer cannot be delivered. It is called while the call's
// context is done, so it has a time of its own. Where it fails the leases expire instead.
func (s *Server) giveBack(ctx context.Context, leases []store.Lease, requestID *string) {
	if len(leases) == 0 {
		return
	}
	refs := make([]store.LeaseRef, len(leases))
	byQueue := map[string]int{}
	for i := range leases {
		refs[i] = leases[i].Ref()
		byQueue[leases[i].Job.Queue]++
	}
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTimeout)
	defer cancel()
	if err := s.store.Undeliver(own, refs, requestID); err != nil {
		callOf(ctx).addCause(err)
		return
	}
	s.metrics.undelivered.Add(float64(len(refs)))
	callOf(ctx).setUndelivered(len(refs))
	for queue, n := range byQueue {
		s.wakes.ready(queue, n)
	}
}
