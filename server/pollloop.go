package server

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/leasehold/leasehold/store"
)

const (
	// pollInterval is how often a replica with parked polls asks the database (R41).
	pollInterval = time.Second
	// lookInterval is the least time between two polls that were asked for.
	lookInterval = 50 * time.Millisecond
	// parkInterval is the least time before a poll that comes because polls were parked, and
	// notedFor how long a queue that was polled needs none: ReadyQueues lets those who enqueue
	// by SQL know that somebody waits, and that lasts for longer.
	parkInterval = 200 * time.Millisecond
	notedFor     = 2 * time.Second
	// pollTimeout bounds one pass.
	pollTimeout = 5 * time.Second
	// dueSlack is added to the time at which a job becomes due: looking a moment early finds
	// nothing, and the next look is a second away.
	dueSlack = 2 * time.Millisecond
)

// pollLoop asks once a second which of the queues that are waited for have ready jobs: one
// statement for all, however many polls are parked. Jobs that become due in between are
// waited for by a timer. Whatever made a job ready (SQL, another replica, the passing of
// time), and whatever hint was lost, its waiters are woken within a second.
type pollLoop struct {
	store   store.Maintenance
	waiters *waiters
	log     *slog.Logger

	asked   chan struct{} // look now
	parked  chan struct{} // look soon: somebody waits for what has not been polled lately
	changed chan struct{} // a due time changed

	mu     sync.Mutex
	polled map[string]time.Time // by queue, when last
}

func newPollLoop(st store.Maintenance, ws *waiters, log *slog.Logger) *pollLoop {
	return &pollLoop{
		store: st, waiters: ws, log: log,
		asked: make(chan struct{}, 1), parked: make(chan struct{}, 1), changed: make(chan struct{}, 1),
		polled: map[string]time.Time{},
	}
}

// look makes the next pass come now, unless one has just been or nobody waits.
func (l *pollLoop) look() {
	if l.waiters.count() > 0 {
		signal(l.asked)
	}
}

// waitFor makes a pass come soon where queues have not been polled lately: until then, nobody
// who enqueues by SQL knows that somebody waits for them.
func (l *pollLoop) waitFor(queues []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, queue := range queues {
		if time.Since(l.polled[queue]) > notedFor {
			signal(l.parked)
			return
		}
	}
}

// polling notes that queues are polled now, and forgets the others in time.
func (l *pollLoop) polling(queues []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(l.polled, func(_ string, at time.Time) bool { return now.Sub(at) > notedFor })
	for _, queue := range queues {
		l.polled[queue] = now
	}
}

// rearm makes the loop see a due time that changed.
func (l *pollLoop) rearm() { signal(l.changed) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run polls until the context ends.
func (l *pollLoop) Run(ctx context.Context) error {
	timer := time.NewTimer(pollInterval)
	defer timer.Stop()
	last, next := time.Now(), time.Now().Add(pollInterval)
	failures := 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-l.changed:
		case <-l.asked:
			next = sooner(next, last.Add(lookInterval), failures)
		case <-l.parked:
			next = sooner(next, last.Add(parkInterval), failures)
		}
		if now := time.Now(); !now.Before(next) {
			last = now
			failures = l.pass(ctx, failures)
			next = last.Add(backoff(pollInterval, 5*pollInterval, failures))
		}
		timer.Reset(time.Until(l.wakeDue(next)))
	}
}

// sooner moves the next pass up, unless passes fail: then it keeps its pause.
func sooner(next, at time.Time, failures int) time.Time {
	if failures == 0 && at.Before(next) {
		return at
	}
	return next
}

// pass runs once and counts failures in a row.
func (l *pollLoop) pass(ctx context.Context, failures int) int {
	err := guard(func() error { return l.runOnce(ctx) })
	if err == nil || ctx.Err() != nil {
		return 0
	}
	l.log.WarnContext(ctx, "poll for ready jobs failed", "error", err, "failures", failures+1)
	return failures + 1
}

func (l *pollLoop) runOnce(ctx context.Context) error {
	names := l.waiters.waited()
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	l.polling(names)
	bounded, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	found, err := l.store.ReadyQueues(bounded, names)
	if err != nil {
		return err
	}
	now := time.Now()
	for _, r := range found {
		l.waiters.polled(r, now)
		if r.Ready && !r.Paused {
			l.waiters.wakeSome(r.Queue, fanOut)
		}
	}
	return nil
}

// wakeDue wakes for the jobs that have become due and returns when to look again: at next,
// or earlier where another becomes due.
func (l *pollLoop) wakeDue(next time.Time) time.Time {
	due, soonest := l.waiters.takeDue(time.Now().Add(-dueSlack))
	for _, queue := range due {
		l.waiters.wakeSome(queue, fanOut)
	}
	if at := soonest.Add(dueSlack); !soonest.IsZero() && at.Before(next) {
		return at
	}
	return next
}
