package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/leasehold/leasehold/internal/loop"
)

const (
	// DefaultWatcherInterval lies between two passes of the watcher (R38).
	DefaultWatcherInterval = 30 * time.Second
	// MinWatcherInterval is the shortest.
	MinWatcherInterval = 100 * time.Millisecond
	// MaxWatcherInterval is the longest: a lease that ran out should not wait for hours.
	MaxWatcherInterval = time.Hour
	// MinRetention is the shortest time that facts and payloads are kept.
	MinRetention = 24 * time.Hour
)

// BackgroundConfig of a Background. The zero value is usable.
type BackgroundConfig struct {
	// WatcherInterval lies between two passes of the watcher, MinWatcherInterval ..
	// MaxWatcherInterval. Default: DefaultWatcherInterval.
	WatcherInterval time.Duration
	// RetainFacts is how long finished jobs, their leases and stages are kept, at least
	// MinRetention. Default: 0, for ever.
	RetainFacts time.Duration
	// RetainPayloads is the same for payloads, headers and results. Default: 0, as long as
	// the facts.
	RetainPayloads time.Duration
	// Log hears of what the loops did and could not do. Default: slog.Default().
	Log *slog.Logger
	// Registry gets the metrics. Default: none.
	Registry prometheus.Registerer
	// Leases are the metrics that the store tells of leases: the series of queues that were
	// deleted are dropped from them. Default: none.
	Leases *LeaseMetrics
}

// Validate joins all faults.
func (c BackgroundConfig) Validate() error {
	var faults []error
	if i := c.WatcherInterval; i != 0 && (i < MinWatcherInterval || i > MaxWatcherInterval) {
		faults = append(faults, fmt.Errorf("the watcher's interval must be %v..%v, got %v", MinWatcherInterval, MaxWatcherInterval, i))
	}
	for _, r := range []struct {
		what string
		keep time.Duration
	}{{"facts", c.RetainFacts}, {"payloads", c.RetainPayloads}} {
		if r.keep != 0 && r.keep < MinRetention {
			faults = append(faults, fmt.Errorf("%s must be kept for at least %v, or 0 for ever, got %v", r.what, MinRetention, r.keep))
		}
	}
	return errors.Join(faults...)
}

// Background is the work of a replica that no call asks for:
//
//	stamper     each second      notes that heartbeats can be written (R35)
//	watcher     each interval    ends expired, overrun and stalled leases (R38)
//	partitions  every 10 s       makes partitions ahead of the next job id (R44)
//	forget      each minute      deletes keys and request ids whose time is over
//	retention   each hour        drops partitions that are old enough
//	snapshots   every 15 s       measures who keeps dead rows from being removed (R48)
//	statistics  every 15 s       counts the jobs of queues for the metrics
//	leases      every 30 s       measures the newest leases for the metrics
//	readiness   each second      asks whether this replica should get calls
//	waking      always           see RunWaking
//
// Every replica runs all of it, and none needs to be the only one: what two of them do at
// once does no harm.
type Background struct {
	server *Server
	loops  []*loop.Loop
}

// NewBackground assembles the background work of s. ready learns whether the replica should
// get calls, and the gRPC health of s follows it.
func NewBackground(s *Server, ready *Readiness, cfg BackgroundConfig) (*Background, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.WatcherInterval = cmp.Or(cfg.WatcherInterval, DefaultWatcherInterval)
	cfg.Log = cmp.Or(cfg.Log, slog.Default())
	s.watcherInterval.Store(int64(cfg.WatcherInterval))
	metrics, err := loop.NewMetrics(cfg.Registry)
	if err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	w, err := newWatcher(s.store, cfg, s.wakes.look)
	if err != nil {
		return nil, err
	}
	snapshots, err := newSnapshotWatch(s.store, cfg)
	if err != nil {
		return nil, err
	}
	statistics, err := newStatistics(s.store, cfg)
	if err != nil {
		return nil, err
	}
	check, err := newReadinessCheck(s, ready, cfg)
	if err != nil {
		return nil, err
	}
	checks := loop.New(check.runOnce, loop.Config{
		Name: "readiness", Interval: readinessInterval, Timeout: readinessTimeout, Logger: cfg.Log, Metrics: metrics,
	})
	b := &Background{server: s, loops: []*loop.Loop{checks}}
	jobs := append(upkeepJobs(s.store, cfg), stampJob(s.store), w.job(), snapshots.job())
	for _, job := range append(jobs, statistics.jobs()...) {
		job.cfg.Logger, job.cfg.Metrics = cfg.Log, metrics
		job.cfg.OnPass = func(p loop.Pass) {
			// A replica that has just started should not lose a second before it is looked at.
			if p.Err == nil && len(ready.Reasons()) > 0 {
				checks.Kick()
			}
		}
		b.loops = append(b.loops, loop.New(job.runOnce, job.cfg))
	}
	return b, nil
}

// backgroundJob is what one loop does, and how often.
type backgroundJob struct {
	runOnce func(context.Context) error
	cfg     loop.Config
}

// Run runs all of it until the context ends, and returns nil. The store must outlive it.
func (b *Background) Run(ctx context.Context) error {
	runs := []func(context.Context) error{b.server.RunWaking}
	for _, l := range b.loops {
		runs = append(runs, l.Run)
	}
	return runLoops(ctx, runs...)
}
