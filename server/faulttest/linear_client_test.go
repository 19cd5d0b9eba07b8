package faulttest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/leasehold/leasehold/store"
)

const (
	// linearCall is a client's deadline for one call: a swallowed one must not take all the
	// time that the test has.
	linearCall = 1500 * time.Millisecond
	// linearPause bounds the pause between two calls of a client.
	linearPause = 40 * time.Millisecond
	// linearKept is how many jobs and leases the clients choose from: few, so that they meet.
	linearKept = 40
	// linearOpen is how many jobs are to be had at a time, about.
	linearOpen = 30
	// linearMaxUnanswered is how many calls on one job may be without an answer.
	linearMaxUnanswered = 6
)

// linearClient is one client. It makes one call after the other, each to any replica.
type linearClient struct {
	world  *linearWorld
	owner  string
	rng    *rand.Rand
	stores []store.Store
	n      int         // numbers what must be told apart
	about  store.JobID // of the next call, 0 where any
}

// run makes calls until the context ends.
func (c *linearClient) run(ctx context.Context) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
		c.act()
		pause.Reset(time.Duration(c.rng.Int64N(int64(linearPause))))
	}
}

// act makes one of the calls, and repeats it where it was not answered, as workers do.
func (c *linearClient) act() {
	acts := []struct {
		weight int
		act    func() func(context.Context, store.Store) error
	}{
		{10, c.enqueue}, {25, c.acquire}, {10, c.acquireByID}, {25, c.heartbeat}, {14, c.complete}, {7, c.fail}, {5, c.release}, {3, c.cancel},
	}
	total := 0
	for _, a := range acts {
		total += a.weight
	}
	at := c.rng.IntN(total)
	for _, a := range acts {
		if at -= a.weight; at < 0 {
			c.about = 0
			c.call(a.act())
			return
		}
	}
}

// call makes a call, nil is none. What the recorder has seen of it is judged in the end.
func (c *linearClient) call(call func(context.Context, store.Store) error) {
	for tries := 1 + c.rng.IntN(3); call != nil && tries > 0; tries-- {
		ctx, cancel := context.WithTimeout(context.Background(), linearCall)
		err := call(ctx, c.stores[c.rng.IntN(len(c.stores))])
		cancel()
		unanswered := linearUnanswered(err)
		if unanswered && c.world.noteUnanswered(c.about) || !unanswered && c.rng.IntN(20) > 0 {
			return // some repeat what was answered, too
		}
	}
}

func linearUnanswered(err error) bool {
	_, unknown := errors.AsType[*store.OutcomeUnknownError](err)
	_, away := errors.AsType[*store.UnavailableError](err)
	return unknown || away || errors.Is(err, context.DeadlineExceeded)
}

// linearError is the error of a call of one item.
func linearError[T any](out []T, err error, item func(T) error) error {
	if err != nil || len(out) == 0 {
		return err
	}
	return item(out[0])
}

func (c *linearClient) newJob() store.NewJob {
	c.n++
	j := store.NewJob{Queue: linearQueues[0].Name, Payload: store.Payload{Data: fmt.Appendf(nil, "%s/%d", c.owner, c.n), ContentType: "text/plain"}}
	if c.rng.IntN(4) == 0 {
		j.Queue = linearQueues[1].Name
	}
	if c.rng.IntN(6) == 0 {
		j.Delay = to(time.Duration(c.rng.IntN(1000)) * time.Millisecond)
	}
	if c.rng.IntN(2) == 0 {
		j.IdempotencyKey = to(fmt.Sprintf("%s/%d", c.owner, c.n))
	}
	return j
}

func (c *linearClient) enqueue() func(context.Context, store.Store) error {
	if c.world.open() >= linearOpen {
		return nil
	}
	j := c.newJob()
	return func(ctx context.Context, s store.Store) error {
		out, err := s.Enqueue(ctx, []store.NewJob{j})
		if err == nil && out[0].Err == nil {
			c.world.noteJob(out[0].JobID)
		}
		return linearError(out, err, func(o store.Enqueued) error { return o.Err })
	}
}

func (c *linearClient) acquire() func(context.Context, store.Store) error {
	a := store.Acquire{Queues: []string{linearQueues[0].Name, linearQueues[1].Name}, MaxJobs: 1 + c.rng.IntN(3)}
	if c.rng.IntN(3) == 0 {
		a.Queues = a.Queues[1:]
	}
	return c.take(a)
}

func (c *linearClient) acquireByID() func(context.Context, store.Store) error {
	id, ok := c.job()
	if !ok {
		return nil
	}
	return c.take(store.Acquire{JobID: id, MaxJobs: 1})
}

func (c *linearClient) take(a store.Acquire) func(context.Context, store.Store) error {
	c.n++
	a.Owner = c.owner
	if c.rng.IntN(2) == 0 {
		a.RequestID = to(fmt.Sprintf("%s/%d", c.owner, c.n))
	}
	if c.rng.IntN(4) == 0 {
		a.LeaseDuration = to(2 * time.Second)
	}
	return func(ctx context.Context, s store.Store) error {
		out, err := s.Acquire(ctx, []store.Acquire{a})
		if err == nil {
			for i := range out[0].Leases {
				c.world.noteLease(out[0].Leases[i].Ref())
			}
		}
		return linearError(out, err, func(o store.Acquired) error { return o.Err })
	}
}

// lease is one that somebody has, or had: a client that acts on it may be late, or be
// somebody else's twin.
func (c *linearClient) lease() (ref store.LeaseRef, ok bool) {
	ref, ok = c.world.anyLease(c.rng)
	c.about = ref.JobID
	return ref, ok
}

func (c *linearClient) job() (id store.JobID, ok bool) {
	c.about, ok = c.world.anyJob(c.rng)
	return c.about, ok
}

func (c *linearClient) heartbeat() func(context.Context, store.Store) error {
	ref, ok := c.lease()
	if !ok {
		return nil
	}
	c.n++
	h := store.Heartbeat{Lease: ref}
	if c.rng.IntN(2) == 0 {
		h.Stage = to(fmt.Sprint("stage ", c.rng.IntN(3)))
	}
	if c.rng.IntN(3) == 0 {
		h.Checkpoint = fmt.Appendf(nil, "%s/%d", c.owner, c.n)
	}
	return func(ctx context.Context, s store.Store) error {
		out, err := s.Heartbeat(ctx, []store.Heartbeat{h})
		return linearError(out, err, func(o store.Beaten) error { return o.Err })
	}
}

func (c *linearClient) complete() func(context.Context, store.Store) error {
	ref, ok := c.lease()
	if !ok {
		return nil
	}
	f := store.Complete{Lease: ref, Result: store.Payload{Data: fmt.Appendf(nil, "of %s", c.owner), ContentType: "text/plain"}}
	if c.rng.IntN(4) == 0 {
		f.ThenEnqueue = []store.NewJob{c.newJob()}
	}
	return func(ctx context.Context, s store.Store) error {
		out, err := s.Complete(ctx, []store.Complete{f})
		return linearError(out, err, func(o store.Completion) error { c.world.noteEnd(ref, o.Err); return o.Err })
	}
}

func (c *linearClient) fail() func(context.Context, store.Store) error {
	ref, ok := c.lease()
	if !ok {
		return nil
	}
	f := store.Fail{Lease: ref, Error: store.JobError{Code: "declined", Message: c.owner}, Permanent: c.rng.IntN(6) == 0}
	if !f.Permanent && c.rng.IntN(3) == 0 {
		f.RetryAfter = to(time.Duration(c.rng.IntN(600)) * time.Millisecond)
	}
	if c.rng.IntN(6) == 0 {
		f.ThenEnqueue = []store.NewJob{c.newJob()}
	}
	return func(ctx context.Context, s store.Store) error {
		out, err := s.Fail(ctx, []store.Fail{f})
		return linearError(out, err, func(o store.Ended) error { return o.Err })
	}
}

func (c *linearClient) release() func(context.Context, store.Store) error {
	ref, ok := c.lease()
	if !ok {
		return nil
	}
	r := store.Release{Lease: ref, Delay: time.Duration(c.rng.IntN(2)*c.rng.IntN(400)) * time.Millisecond}
	return func(ctx context.Context, s store.Store) error {
		out, err := s.Release(ctx, []store.Release{r})
		return linearError(out, err, func(o store.Ended) error { return o.Err })
	}
}

func (c *linearClient) cancel() func(context.Context, store.Store) error {
	id, ok := c.job()
	if !ok {
		return nil
	}
	return func(ctx context.Context, s store.Store) error {
		_, err := s.CancelJob(ctx, id, store.Actor{Name: c.owner})
		return err
	}
}
