package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/leasehold/leasehold/internal/loop"
	"github.com/leasehold/leasehold/store"
)

const (
	// watcherPage is how many leased jobs one statement of a pass looks at.
	watcherPage = 500
	// watcherPageTimeout bounds one page, watcherTimeout a pass. A pass that did not get
	// through in its time goes on where it stopped.
	watcherPageTimeout = 15 * time.Second
	watcherTimeout     = 5 * time.Minute
	// watcherStart bounds the jitter of the first pass: readiness waits for a pass.
	watcherStart = 300 * time.Millisecond
	// buryRounds bounds the rounds of one pass; what is left waits for the next.
	buryRounds = 10
)

// watcher is the sweep that ends the leases whose time is over, so that no job stays
// PROCESSING for ever after its worker died (R38). It runs in every replica, side by side:
// every write is conditional on the lease that was read.
type watcher struct {
	store    store.Maintenance
	log      *slog.Logger
	interval time.Duration
	freed    func() // called where leases were ended: jobs may be ready

	ended, buried prometheus.Counter

	// next is where a pass goes on that its time cut off. Without it, more leased jobs than
	// fit into one pass would hide those behind them for ever.
	next store.JobID
}

func newWatcher(st store.Maintenance, cfg BackgroundConfig, freed func()) (*watcher, error) {
	w := &watcher{
		store: st, log: cfg.Log, interval: cfg.WatcherInterval, freed: freed,
		ended: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "leasehold_watcher_leases_ended_total",
			Help: "Leases that the watcher of this replica ended: expired, overrun or stalled.",
		}),
		buried: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "leasehold_watcher_jobs_buried_total",
			Help: "Jobs that the watcher of this replica set aside because they can never run.",
		}),
	}
	if cfg.Registry == nil {
		return w, nil
	}
	if err := errors.Join(cfg.Registry.Register(w.ended), cfg.Registry.Register(w.buried)); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return w, nil
}

func (w *watcher) job() backgroundJob {
	return backgroundJob{runOnce: w.runOnce, cfg: loop.Config{
		Name: "watcher", Interval: w.interval, Timeout: watcherTimeout,
		StartWithin: min(w.interval, watcherStart), RetryMax: max(w.interval, 5*time.Second),
	}}
}

// runOnce makes one pass, unless another replica has just finished one. A row that cannot
// be ended is reported, and the pass goes on behind it and counts as finished: one bad row
// must neither hide the others nor turn the readiness of every replica red.
func (w *watcher) runOnce(ctx context.Context) error {
	due, err := w.store.BeginSweep(ctx, w.interval)
	if err != nil || !due {
		return err
	}
	faults, err := w.sweep(ctx)
	if err != nil {
		return err
	}
	for _, finish := range []func(context.Context) error{w.bury, w.store.FinishSweep} {
		if err := finish(ctx); err != nil {
			faults = append(faults, err)
		}
	}
	if len(faults) == 1 {
		return faults[0]
	}
	return errors.Join(faults...)
}

// sweep goes through all leased jobs, page by page. faults are those of rows; err is what
// cut the sweep off.
func (w *watcher) sweep(ctx context.Context) (faults []error, err error) {
	for {
		swept, err := w.page(ctx)
		if err != nil && ctx.Err() != nil {
			return nil, err // the next pass goes on from here
		}
		from := w.next
		w.next = swept.Next
		switch {
		case err != nil && swept.Next == 0 && ofWholePage(err):
			return nil, err
		case err != nil:
			faults = append(faults, err)
		case swept.Next != 0 && swept.Next <= from:
			w.next = 0
			return nil, fmt.Errorf("the sweep does not get on: behind job %d comes job %d", from, swept.Next)
		}
		if swept.Next == 0 {
			return faults, nil
		}
	}
}

func (w *watcher) page(ctx context.Context) (store.Swept, error) {
	bounded, cancel := context.WithTimeout(ctx, watcherPageTimeout)
	defer cancel()
	swept, err := w.store.SweepPage(bounded, w.next, watcherPage, nil)
	if swept.Ended > 0 {
		w.ended.Add(float64(swept.Ended))
		w.log.InfoContext(ctx, "leases whose time was over were ended", "leases", swept.Ended)
		w.freed()
	}
	return swept, err
}

// bury sets aside what can never run.
func (w *watcher) bury(ctx context.Context) error {
	for range buryRounds {
		n, err := w.store.BuryUnrunnable(ctx)
		if n > 0 {
			w.buried.Add(float64(n))
			w.log.WarnContext(ctx, "jobs that can never run were set aside", "jobs", n)
		}
		if err != nil || n == 0 {
			return err
		}
	}
	return nil
}

// ofWholePage tells an error after which nobody knows what the page would have held from
// one of its rows.
func ofWholePage(err error) bool {
	_, away := errors.AsType[*store.UnavailableError](err)
	_, busy := errors.AsType[*store.BusyError](err)
	return away || busy || errors.Is(err, context.DeadlineExceeded)
}
