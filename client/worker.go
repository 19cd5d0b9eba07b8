package client

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

const (
	// returnWithin is how long handlers may take to return once their context is cancelled at a
	// shutdown.
	returnWithin = 3 * time.Second
	// reportWithin is how long the ends of the last leases may take to be told.
	reportWithin = 5 * time.Second
)

var errRunTwice = errors.New("a Worker runs once")

// Worker leases jobs and runs its handler for them. See the package comment.
type Worker struct {
	cfg     WorkerConfig
	service *Service
	now     clock
	metrics *metrics
	slots   *slots
	keeper  *keeper
	ends    *ends
	running *counter // handlers
	holding *counter // leases, until their end is answered
	lastID  atomic.Int64
	idBase  string

	ran      atomic.Bool
	draining chan struct{}
	drain    sync.Once
	hurrying chan struct{}
	hurry    sync.Once
}

// NewWorker makes a worker, which does nothing before Run. It fails where cfg is not valid, or its
// metrics clash with others in the registry.
func NewWorker(service *Service, cfg WorkerConfig) (*Worker, error) {
	return newWorker(service, cfg, systemClock())
}

func newWorker(service *Service, cfg WorkerConfig, now clock) (*Worker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	m, err := newMetrics(cfg.Registry, cfg.Queues)
	if err != nil {
		return nil, err
	}
	w := &Worker{
		cfg: cfg, service: service, now: now, metrics: m,
		slots: newSlots(cfg.Concurrency), running: newCounter(), holding: newCounter(), idBase: random(12),
		draining: make(chan struct{}), hurrying: make(chan struct{}),
	}
	w.ends = &ends{leases: pb.NewLeaseServiceClient(service.calls), now: now, log: cfg.Log, metrics: m, running: w.running, settled: w.settled, hand: w.hand}
	w.keeper = &keeper{
		lane: service.beats, now: now, log: cfg.Log, metrics: m,
		ends: w.ends, kick: make(chan struct{}, 1),
	}
	return w, nil
}

// Owner is the name under which the worker takes leases.
func (w *Worker) Owner() string { return w.cfg.Owner }

// Run leases jobs and runs their handlers until ctx ends or Shutdown is called. It then
//
//   - stops leasing at once, and gives back what it had leased but not begun;
//   - lets handlers go on for the grace, or until Hurry;
//   - cancels their contexts (*ShutdownError) and waits up to 3 s for them to return;
//   - tells the service of every end, waiting up to 5 s.
//
// It returns nil where all leases were ended, else *DrainError. Nothing that the service answers, and
// nothing that a handler does, ends it. The end of ctx does not cancel handlers, but its values
// reach them. A Worker runs once.
func (w *Worker) Run(ctx context.Context) error {
	if w.ran.Swap(true) {
		return errRunTwice
	}
	values := context.WithoutCancel(ctx)
	w.ends.ctx, w.ends.close = context.WithCancel(values)
	polling, stopPolling := context.WithCancel(ctx)
	defer stopPolling()
	defer context.AfterFunc(ctx, w.Shutdown)()
	keeping, stopKeeping := context.WithCancel(values)
	defer stopKeeping()

	w.metrics.slots.Add(float64(w.cfg.Concurrency))
	defer w.metrics.slots.Sub(float64(w.cfg.Concurrency))
	var loops sync.WaitGroup
	loops.Go(func() { w.keeper.run(keeping) })
	var polls sync.WaitGroup
	polls.Go(func() { w.poll(polling, values) })
	w.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "worker runs", slog.String("owner", w.cfg.Owner),
		slog.Any("queues", w.cfg.Queues), slog.Int("concurrency", w.cfg.Concurrency))

	<-w.draining
	stopPolling()
	w.awaitHandlers(ctx)
	polls.Wait()
	report := w.awaitEnds()
	stopKeeping()
	loops.Wait()
	w.ends.stop()
	w.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "worker ended", slog.String("owner", w.cfg.Owner), slog.Any("error", report))
	return report
}

// Shutdown begins what the end of Run's context begins. It does not wait; Run returns when it is
// done. It may be called any number of times, also before Run.
func (w *Worker) Shutdown() { w.drain.Do(func() { close(w.draining) }) }

// Hurry is Shutdown without the grace: handlers are cancelled now, and Run returns within 8 s. It
// is as safe: no job is given back while its handler works.
func (w *Worker) Hurry() {
	w.hurry.Do(func() { close(w.hurrying) })
	w.Shutdown()
}

// awaitHandlers waits until the handlers have returned: for the grace, then, cancelled, a little.
func (w *Worker) awaitHandlers(ctx context.Context) {
	grace := time.NewTimer(w.cfg.Grace)
	defer grace.Stop()
	select {
	case <-w.running.none():
		return
	case <-grace.C:
	case <-w.hurrying:
	}
	leases := w.keeper.working()
	w.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "handlers are cancelled", slog.Int("handlers", len(leases)))
	for _, l := range leases {
		l.stop(&ShutdownError{})
	}
	within := time.NewTimer(returnWithin)
	defer within.Stop()
	select {
	case <-w.running.none():
	case <-within.C:
	}
}

// awaitEnds waits until the ends of all leases are answered, except those whose handlers still run.
func (w *Worker) awaitEnds() error {
	within := time.NewTimer(reportWithin)
	defer within.Stop()
	report := &DrainError{Running: w.abandon()}
	select {
	case <-w.holding.none():
	case <-within.C:
		report.Unreported = idsOf(w.keeper.all())
	}
	if len(report.Running)+len(report.Unreported) == 0 {
		return nil
	}
	return report
}

// abandon lets go of the leases whose handlers still run. They are renewed no more, and expire.
func (w *Worker) abandon() []string {
	leases := w.keeper.working()
	w.forget(leases)
	return idsOf(leases)
}

func idsOf(leases []*lease) []string {
	var ids []string
	for _, l := range leases {
		ids = append(ids, l.job.ID())
	}
	return ids
}

// settled takes leases whose end is answered, or given up.
func (w *Worker) settled(list []*ending) {
	leases := make([]*lease, len(list))
	for i, e := range list {
		leases[i] = e.lease
	}
	w.forget(leases)
}

func (w *Worker) forget(leases []*lease) {
	n := w.keeper.remove(leases)
	w.holding.add(-n)
	w.metrics.held.Sub(float64(n))
	w.slots.give(n)
}
