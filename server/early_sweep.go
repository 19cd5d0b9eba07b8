package server

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/leasehold/leasehold/store"
)

const (
	// earlySweepInterval is the least time between two early sweeps of a replica (R38).
	earlySweepInterval = time.Second
	// earlySweepShare: while somebody holds a snapshot, a sweep passes the dead entries of all
	// jobs that were ever leased. Early ones take at most a twentieth of the time for that.
	earlySweepShare = 20
	// earlySweepPage is how many leased jobs one looks at; the watcher's own passes look at
	// all.
	earlySweepPage = 1000
	// earlySweepTimeout bounds one: an acquire waits for it.
	earlySweepTimeout = 3 * time.Second
	// maxSweepQueues is how many queues are remembered for the next one. With more, it looks
	// at all queues.
	maxSweepQueues = 1000
)

// earlySweep lets an acquire that found nothing end the expired leases of its queues before
// the watcher's next pass. What comes within the interval of the last one is remembered for
// the next, so that a busy queue never keeps the turn from a quiet one.
type earlySweep struct {
	store   store.Maintenance
	waiters *waiters
	log     *slog.Logger
	now     func() time.Time
	ended   func() // called where leases were ended: jobs may be ready

	mu      sync.Mutex
	last    time.Time // when the last one began
	next    time.Time // no other before
	running bool
	queues  map[string]bool
}

func newEarlySweep(st store.Maintenance, ws *waiters, log *slog.Logger, ended func()) *earlySweep {
	return &earlySweep{store: st, waiters: ws, log: log, now: time.Now, ended: ended, queues: map[string]bool{}}
}

// run sweeps if its turn has come, and returns how many leases it ended.
func (e *earlySweep) run(ctx context.Context, queues []string) int {
	names, turn := e.begin(queues)
	if !turn {
		return 0
	}
	defer e.finish()
	// A caller that goes away would otherwise break the connection in mid-statement.
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), earlySweepTimeout)
	defer cancel()
	swept, err := e.store.SweepPage(bounded, 0, earlySweepPage, names)
	if err != nil {
		e.log.WarnContext(ctx, "early sweep failed", "error", err)
		return 0
	}
	if swept.Ended > 0 {
		e.ended()
	}
	return swept.Ended
}

// begin notes the queues and, where the turn has come, takes all that are noted.
func (e *earlySweep) begin(queues []string) (names []string, turn bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, name := range queues {
		if len(e.queues) <= maxSweepQueues {
			e.queues[name] = true
		}
	}
	now := e.now()
	if e.running || now.Before(e.next) {
		return nil, false
	}
	e.running, e.last, e.next = true, now, now.Add(earlySweepInterval)
	if len(e.queues) <= maxSweepQueues {
		for name := range e.queues {
			names = append(names, name)
		}
	}
	clear(e.queues)
	return names, true
}

func (e *earlySweep) finish() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.running = false
	now := e.now()
	if rest := now.Add(earlySweepShare * now.Sub(e.last)); rest.After(e.next) {
		e.next = rest
	}
}

// Run sweeps, once a second, the queues that parked polls wait for, until the context ends:
// a parked poll is an acquire that has found nothing for as long as it is parked. Else
// workers that all wait would take over the job of one that died only at their next call.
func (e *earlySweep) Run(ctx context.Context) error {
	for sleep(ctx, earlySweepInterval) {
		queues := e.waiters.waited()
		if len(queues) == 0 {
			continue
		}
		if err := guard(func() error { e.run(ctx, queues); return nil }); err != nil {
			e.log.ErrorContext(ctx, "early sweep failed", "error", err)
		}
	}
	return nil
}
