package client

import (
	"context"
	"sync/atomic"
	"time"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

const (
	// A handler is cancelled a tenth of the lease before its end, at most marginMost: it needs
	// time to notice, and what it sent last needs time to arrive.
	marginShare = 10
	marginMost  = 3 * time.Second
	// beatShare is the part of what remains after which to beat, where the service gives no advice that leaves room for
	// another try.
	beatShare = 3
	// beatFloor bounds how often one lease beats on its own: near the end of max_runtime a third
	// of what remains comes to nothing.
	beatFloor = 100 * time.Millisecond
)

// stateOfLease is who has the say over a lease.
type stateOfLease int

const (
	working    stateOfLease = iota // the handler
	completing                     // its Complete, which must be repeated until it is answered
	closing                        // its Fail or Release; it beats no more
	gone                           // nobody: it is ended, lost or given up
)

// lease is one lease of the worker, from its grant until its end is answered.
type lease struct {
	job    Job
	token  string
	keeper *keeper
	cancel context.CancelCauseFunc
	ctx    leaseContext

	endAt  atomic.Int64 // instant at which the lease may be another's
	stopAt atomic.Int64 // instant at which the handler is cancelled; never after it returned

	// What follows is guarded by the keeper's lock.
	place    int // in keeper.held
	state    stateOfLease
	asked    instant       // when the newest heartbeat that was answered had been sent
	interval time.Duration // between heartbeats
	beatAt   instant
	tries    int      // heartbeats since the last answer
	under    int      // heartbeats under way
	way      *channel // of the last heartbeat
	note     note
	urgent   instant // since when somebody waits for the note to be sent; 0 for nobody
	waiters  []waiter
	told     bool // the handler knows of the cancel request
	lost     bool // the service said that the lease is over
	loss     *LostError
	late     bool    // the handler was cancelled because the lease could not be renewed in time
	deferred *ending // an end that waits for heartbeats under way
	deferEnd instant // until when
}

// note is what the next heartbeat carries.
type note struct {
	stage      *string
	progress   *float64
	checkpoint []byte
	version    int // rises with every change
	owed       int // answered heartbeats that must still carry it
}

// waiter is a call of Stage or Checkpoint that waits for its version to be recorded.
type waiter struct {
	version int
	done    chan error
}

// newLease begins a lease that had not begun yet at since.
func newLease(base context.Context, k *keeper, granted *pb.Lease, since instant) *lease {
	l := &lease{token: granted.GetLeaseToken(), keeper: k, asked: since}
	l.job = Job{lease: l, wire: granted}
	inner, cancel := context.WithCancelCause(base)
	l.cancel = cancel
	l.ctx = leaseContext{Context: inner, lease: l}
	l.renew(since, granted.GetRemaining().AsDuration(), granted.GetNextHeartbeatIn().AsDuration())
	return l
}

// renew notes that so much remained of the lease at a time when it was not yet asked for.
func (l *lease) renew(since instant, remaining, next time.Duration) {
	end := since.add(remaining)
	l.endAt.Store(int64(end))
	if l.state == working {
		l.stopAt.Store(int64(end.add(-min(remaining/marginShare, marginMost))))
	}
	if next <= 0 || next > remaining/2 {
		next = remaining / beatShare
	}
	l.interval = max(next, beatFloor)
	l.beatAt = since.add(l.interval)
	l.tries = 0
}

func (l *lease) end() instant { return instant(l.endAt.Load()) }

func (l *lease) remaining() time.Duration { return max(0, l.end().sub(l.keeper.now())) }

// stop cancels the handler; the first cause counts.
func (l *lease) stop(cause error) {
	if l.ctx.Context.Err() == nil {
		l.keeper.metrics.cancelled(cause)
	}
	l.cancel(cause)
}

// expired is the cause of a handler whose lease was not renewed in time.
func (l *lease) expired() error { return &ExpiredError{JobID: l.job.ID(), LeaseNo: l.job.LeaseNo()} }

// leaseContext is the handler's context. It looks at the clock whenever it is asked: a process that
// was stopped and goes on may reach the handler's next step before the keeper's timer fires.
type leaseContext struct {
	context.Context
	lease *lease
}

func (c *leaseContext) look() {
	if stop := c.lease.stopAt.Load(); c.Context.Err() == nil && int64(c.lease.keeper.now()) >= stop {
		c.lease.stop(c.lease.expired())
	}
}

// Done is that of a cancelled context once the lease may be another's.
func (c *leaseContext) Done() <-chan struct{} {
	c.look()
	return c.Context.Done()
}

// Err is context.Canceled once the lease may be another's.
func (c *leaseContext) Err() error {
	c.look()
	return c.Context.Err()
}
