package client

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

const (
	// tick bounds how late the keeper looks at the clock. Timers stand still while the machine
	// sleeps; the clock that it then reads does not.
	tick = time.Second
	// batchItems and batchBytes bound one call; the contract's bounds are 1,000 and 4 MiB.
	batchItems = 1000
	batchBytes = 3 << 20
	// urgentCalls is how many heartbeats that somebody waits for are under way at once. While
	// they are, others gather and go together.
	urgentCalls = 2
	// deferMost bounds how long a Fail or Release waits for a heartbeat of its lease that is
	// under way.
	deferMost = 2 * time.Second
)

// keeper holds the leases of a worker: it renews them, and cancels handlers in time.
type keeper struct {
	lane    *lane
	now     clock
	log     *slog.Logger
	metrics *metrics
	ends    *ends

	kick  chan struct{}
	calls sync.WaitGroup

	mu     sync.Mutex
	held   []*lease
	wake   instant // when the loop looks again
	urgent int     // calls under way that somebody waits for
}

// run renews until ctx ends, and then waits for the calls under way.
func (k *keeper) run(ctx context.Context) {
	defer k.calls.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-k.kick:
		}
		now := k.now()
		wake := k.pass(ctx, now)
		timer.Reset(max(wake.sub(now), 0))
	}
}

// look lets the loop look at once. It never blocks.
func (k *keeper) look() {
	select {
	case k.kick <- struct{}{}:
	default:
	}
}

// add takes over new leases.
func (k *keeper) add(leases []*lease) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range leases {
		l.place = len(k.held)
		k.held = append(k.held, l)
		if l.beatAt < k.wake {
			k.wake = l.beatAt
			k.look()
		}
	}
}

// remove forgets leases that have ended, and returns how many it still had.
func (k *keeper) remove(leases []*lease) (n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range leases {
		if l.state != gone {
			k.drop(l)
			n++
		}
	}
	return n
}

func (k *keeper) drop(l *lease) {
	l.state = gone
	k.release(l, nil)
	last := k.held[len(k.held)-1]
	k.held[l.place], last.place = last, l.place
	k.held[len(k.held)-1] = nil
	k.held = k.held[:len(k.held)-1]
}

func (l *lease) over() error { return &JobOverError{JobID: l.job.ID(), LeaseNo: l.job.LeaseNo()} }

// release answers all who wait for a note of the lease; nil means that its handler has returned.
func (k *keeper) release(l *lease, err error) {
	if err == nil && len(l.waiters) > 0 {
		err = l.over()
	}
	for _, w := range l.waiters {
		w.done <- err
	}
	l.waiters, l.urgent = nil, 0
}

// pass does what is due, and returns when to look again.
func (k *keeper) pass(ctx context.Context, now instant) instant {
	k.mu.Lock()
	var late []*lease
	var ends []*ending
	due := false
	for _, l := range k.held {
		if l.state == working && !l.late && int64(now) >= l.stopAt.Load() {
			l.late = true
			late = append(late, l)
		}
		if l.deferred != nil && now >= l.deferEnd {
			ends, l.deferred = append(ends, l.deferred), nil
		}
		due = due || k.due(l) <= now
	}
	var beats []*beat
	if due {
		beats = k.gather(now)
	}
	k.wake = k.next(now)
	wake := k.wake
	k.mu.Unlock()

	for _, l := range late {
		l.stop(l.expired())
	}
	for _, e := range ends {
		k.ends.add(e)
	}
	for _, b := range beats {
		k.calls.Go(func() { k.send(ctx, b) })
	}
	return wake
}

// due is when a lease needs a heartbeat.
func (k *keeper) due(l *lease) instant {
	switch {
	case l.state >= closing || l.lost:
		return never
	case l.urgent == 0:
		return l.beatAt
	case k.urgent < urgentCalls:
		return l.urgent
	}
	// Those under way may hang.
	return min(l.beatAt, l.urgent.add(l.gap(l.urgent)))
}

// next is when to look again: for a heartbeat, for a handler that must be cancelled, or because
// timers cannot be trusted for longer.
func (k *keeper) next(now instant) instant {
	next := now.add(tick)
	for _, l := range k.held {
		next = min(next, k.due(l))
		if l.state == working && !l.late {
			next = min(next, instant(l.stopAt.Load()))
		}
		if l.deferred != nil {
			next = min(next, l.deferEnd)
		}
	}
	return next
}

// gather chooses the leases that beat now: those that are due, and those that will be within half
// of their interval, so that all leases of a worker soon beat together.
func (k *keeper) gather(now instant) []*beat {
	var batch []*lease
	for _, l := range k.held {
		due := k.due(l)
		if due > now && (l.tries > 0 || due > now.add(l.interval/2)) {
			continue
		}
		if l.under > 0 && l.beatAt <= now {
			l.way.blame() // it has not answered for so long: try another
		}
		batch = append(batch, l)
	}
	way := k.lane.pick()
	sooner := 1 - rand.Float64()/5 // of one call, whose leases should go on together
	var beats []*beat
	for len(batch) > 0 {
		var b *beat
		b, batch = k.prepare(batch, way, now, sooner)
		beats = append(beats, b)
	}
	return beats
}

// gap is how long to wait for the answer to a heartbeat before the next is sent beside it. It grows
// with the heartbeats since the last answer, and shrinks towards the end of the lease: the last
// third of what is left always has room for another.
func (l *lease) gap(now instant) time.Duration {
	const shortest, longest, endShare = 100 * time.Millisecond, 2 * time.Second, 3
	d := min(max(l.interval/beatShare, shortest), longest)
	for range min(l.tries, 20) {
		d += d / 2
	}
	d = min(d, l.interval)
	if left := instant(l.stopAt.Load()).sub(now); left > 0 {
		d = min(d, left/endShare)
	}
	return max(d, shortest)
}

// report adds to what the next heartbeat carries, sends that now, and waits until it is recorded.
func (k *keeper) report(ctx context.Context, l *lease, change func(*note)) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	done := make(chan error, 1)
	if !k.change(l, change, done) {
		if loss := k.lossOf(l); loss != nil {
			return loss
		}
		return l.over()
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// mention adds to what the next heartbeat carries.
func (k *keeper) mention(l *lease, change func(*note)) { k.change(l, change, nil) }

func (k *keeper) change(l *lease, change func(*note), done chan error) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.state != working || l.lost {
		return false
	}
	change(&l.note)
	l.note.version++
	l.note.owed = 1
	if done == nil {
		return true
	}
	l.waiters = append(l.waiters, waiter{version: l.note.version, done: done})
	if l.urgent == 0 {
		l.urgent = k.now()
		if k.urgent < urgentCalls {
			k.look() // else the answer to one of those under way is the signal
		}
	}
	return true
}

// conclude hands the say over a lease from its handler to e, which ends it. It is false where e
// must wait for a heartbeat under way: behind the Fail or Release that gives the job to somebody
// else, that heartbeat would look as if the work ran twice. The keeper then hands e in itself.
func (k *keeper) conclude(l *lease, e *ending) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.state == gone {
		return false // Run has returned without waiting for the handler
	}
	l.stopAt.Store(int64(never))
	k.release(l, nil)
	if e.kind == endComplete {
		l.state = completing
		return true
	}
	l.state = closing
	if l.under == 0 {
		return true
	}
	l.deferred, l.deferEnd = e, k.now().add(deferMost)
	k.look()
	return false
}

// lossOf is what the service said when a lease was over; nil where it did not.
func (k *keeper) lossOf(l *lease) *LostError {
	k.mu.Lock()
	defer k.mu.Unlock()
	return l.loss
}

// all lists the leases that are held.
func (k *keeper) all() []*lease {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]*lease(nil), k.held...)
}

// working lists the leases whose handlers have not returned yet.
func (k *keeper) working() []*lease {
	return slices.DeleteFunc(k.all(), func(l *lease) bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return l.state != working
	})
}
