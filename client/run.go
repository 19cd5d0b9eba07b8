package client

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"time"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// begin starts the handlers of new leases, which had not begun yet at since. What cannot be worked on
// any more is given back: where the worker shuts down, or the lease has run out on its way.
func (w *Worker) begin(values context.Context, granted []*pb.Lease, since instant) {
	leases := make([]*lease, len(granted))
	for i, g := range granted {
		leases[i] = newLease(values, w.keeper, g, since)
		w.metrics.of(leases[i].job.Queue()).leases.Inc()
	}
	w.holding.add(len(leases))
	w.metrics.held.Add(float64(len(leases)))
	w.keeper.add(leases)
	w.running.add(len(leases))
	now := int64(w.now())
	for _, l := range leases {
		if w.ending() || now >= l.stopAt.Load() {
			w.conclude(l, releasing(l, 0))
			continue
		}
		go w.work(l)
	}
}

// ending tells whether a shutdown has begun.
func (w *Worker) ending() bool {
	select {
	case <-w.draining:
		return true
	default:
		return false
	}
}

// work runs the handler for one lease.
func (w *Worker) work(l *lease) {
	ctx, ended := traced(&l.ctx, w.cfg.Tracer, &l.job)
	began := time.Now()
	// This stands where the handler never returns: it called runtime.Goexit.
	err := error(&PanicError{Value: "the handler called runtime.Goexit"})
	defer func() {
		w.metrics.ran(l.job.Queue(), time.Since(began))
		ended(err)
		w.returned(ctx, l, err)
	}()
	err = w.handle(ctx, l)
}

// handle turns a panic into an error.
func (w *Worker) handle(ctx context.Context, l *lease) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &PanicError{Value: r, Stack: debug.Stack()}
		}
	}()
	return w.cfg.Handler(ctx, &l.job)
}

// returned ends a lease whose handler returned err.
func (w *Worker) returned(ctx context.Context, l *lease, err error) {
	var cause error
	if l.ctx.Context.Err() != nil {
		cause = context.Cause(l.ctx.Context)
	}
	if err != nil {
		w.logFailure(l, err, cause)
	}
	w.conclude(l, endingOf(ctx, l, err, cause, w.keeper.lossOf(l)))
}

// conclude ends a lease by e; nil ends it without a word.
func (w *Worker) conclude(l *lease, e *ending) {
	defer w.running.add(-1)
	if e == nil {
		w.metrics.of(l.job.Queue()).ends[outcomeLost].Inc()
		w.forget([]*lease{l})
	} else {
		w.hand(e)
	}
	l.cancel(nil) // frees what the handler derived from its context
}

// hand passes the end of a lease on.
func (w *Worker) hand(e *ending) {
	if w.keeper.conclude(e.lease, e) {
		w.ends.add(e)
	}
}

func (w *Worker) logFailure(l *lease, err, cause error) {
	level := slog.LevelInfo
	attrs := []slog.Attr{
		slog.String("job_id", l.job.ID()), slog.String("queue", l.job.Queue()), slog.Int64("lease_no", l.job.LeaseNo()),
		slog.Int("attempt", l.job.Attempt()), slog.Any("error", err),
	}
	if p, ok := errors.AsType[*PanicError](err); ok {
		level = slog.LevelError
		attrs = append(attrs, slog.String("stack", string(p.Stack)))
	} else if _, ok := errors.AsType[*ReleaseError](err); ok {
		level = slog.LevelDebug
	}
	if cause != nil {
		attrs = append(attrs, slog.Any("cause", cause))
	}
	w.cfg.Log.LogAttrs(l.ctx.Context, level, "handler returned an error", attrs...)
}
