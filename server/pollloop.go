package server

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/leasehold/leasehold/store"
)

const (
	// pollInterval is how often a replica with parked polls asks the database (R41).
	pollInterval = time.Second
	// lookInterval is the least time between two polls that were asked for.
	lookInterval = 50 * time.Millisecond
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
	changed chan struct{} // a due time changed
}

func newPollLoop(st store.Maintenance, ws *waiters, log *slog.Logger) *pollLoop {
	return &pollLoop{
		store: st, waiters: ws, log: log,
		asked: make(chan struct{}, 1), changed: make(chan struct{}, 1),
	}
}

// look makes the next pass come now, unless one has just been or nobody waits.
func (l *pollLoop) look() {
	if l.waiters.count() > 0 {
		signal(l.asked)
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
			if soon := last.Add(lookInterval); failures == 0 && soon.Before(next) {
				next = soon
			}
		}
		if now := time.Now(); !now.Before(next) {
			last = now
			failures = l.pass(ctx, failures)
			next = last.Add(backoff(pollInterval, 5*pollInterval, failures))
		}
		timer.Reset(time.Until(l.wakeDue(next)))
	}
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
