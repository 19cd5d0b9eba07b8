package loop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"time"
)

// Config of a Loop. Name and Interval are required; the zero value of the rest is usable.
type Config struct {
	// Name is what logs and metrics call it: one of few, known words.
	Name string
	// Interval lies between the starts of two passes, above 0. A pass that takes longer is
	// followed by the next at once.
	Interval time.Duration
	// Timeout bounds one pass. Default: 10 s.
	Timeout time.Duration
	// StartWithin is how much later than the start the first pass may come, at random.
	// Default: the interval, at most 1 s.
	StartWithin time.Duration
	// RetryMax bounds the wait after failures, which begins at the interval, at most 1 s.
	// Default: the interval, at least 1 s and at most 30 s.
	RetryMax time.Duration
	// Logger hears of failures. Default: slog.Default().
	Logger *slog.Logger
	// Metrics counts passes. Default: nobody does.
	Metrics *Metrics
	// OnPass hears of each finished pass, from the loop's goroutine. It is how tests wait
	// for a pass instead of for a time. Default: nobody does.
	OnPass func(Pass)
}

// Validate joins all faults.
func (c Config) Validate() error {
	var faults []error
	if c.Name == "" {
		faults = append(faults, errors.New("a loop needs a name"))
	}
	if c.Interval <= 0 {
		faults = append(faults, fmt.Errorf("the interval of loop %q must be above 0, got %v", c.Name, c.Interval))
	}
	if c.Timeout < 0 || c.StartWithin < 0 || c.RetryMax < 0 {
		faults = append(faults, fmt.Errorf("loop %q has a negative duration", c.Name))
	}
	return errors.Join(faults...)
}

// Pass is what became of one pass.
type Pass struct {
	Err      error // nil where it went well; *PanicError where it panicked
	Took     time.Duration
	Failures int // in a row, this one included
}

// PanicError is a pass that panicked.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

const (
	defaultTimeout  = 10 * time.Second
	maxStartWithin  = time.Second
	maxFirstRetry   = time.Second
	maxDefaultRetry = 30 * time.Second
)

// Loop is one piece of work that comes back.
type Loop struct {
	work func(context.Context) error
	cfg  Config
	kick chan struct{}
}

// New makes a loop of work. It panics where cfg is not valid: that is a mistake in the
// program, not in its configuration.
func New(work func(context.Context) error, cfg Config) *Loop {
	if err := cfg.Validate(); err != nil {
		panic(err)
	}
	cfg.Timeout = cmp.Or(cfg.Timeout, defaultTimeout)
	cfg.StartWithin = cmp.Or(cfg.StartWithin, min(cfg.Interval, maxStartWithin))
	cfg.RetryMax = cmp.Or(cfg.RetryMax, min(max(cfg.Interval, maxFirstRetry), maxDefaultRetry))
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	cfg.Metrics.expect(cfg.Name)
	return &Loop{work: work, cfg: cfg, kick: make(chan struct{}, 1)}
}

// Kick lets the next pass come now, unless the loop waits after a failure: a broken database
// must not be asked as often as its users are unhappy. A kick that comes during a pass leads
// to another one after it, because the running pass may have looked already. It never blocks.
func (l *Loop) Kick() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// Run makes passes until ctx ends, and returns nil then. It must run once at a time.
func (l *Loop) Run(ctx context.Context) error {
	if !l.wait(ctx, rand.N(l.cfg.StartWithin+1), l.kick) {
		return nil
	}
	failures := 0
	for {
		began := time.Now()
		err := l.runOnce(ctx)
		if ctx.Err() != nil {
			return nil // what failed because the loop ends did not fail
		}
		failures = l.count(ctx, failures, err, time.Since(began))
		if failures > 0 {
			if !l.wait(ctx, l.retryIn(failures), nil) {
				return nil
			}
			continue
		}
		if !l.wait(ctx, time.Until(began.Add(l.cfg.Interval)), l.kick) {
			return nil
		}
	}
}

// runOnce makes one pass within its timeout, and turns a panic into its error.
func (l *Loop) runOnce(ctx context.Context) (err error) {
	bounded, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	defer func() {
		if r := recover(); r != nil {
			err = &PanicError{Value: r, Stack: debug.Stack()}
		}
	}()
	return l.work(bounded)
}

// count notes what became of a pass and returns the failures in a row.
func (l *Loop) count(ctx context.Context, before int, err error, took time.Duration) int {
	failures := 0
	if err != nil {
		failures = before + 1
	}
	l.cfg.Metrics.passed(l.cfg.Name, err, took)
	l.report(ctx, before, failures, err)
	if l.cfg.OnPass != nil {
		l.cfg.OnPass(Pass{Err: err, Took: took, Failures: failures})
	}
	return failures
}

// report logs a failure, and the end of a row of them. Of a long row it logs the 1st, 2nd,
// 4th, 8th and so on: an outage of an hour must not fill the log that explains it.
func (l *Loop) report(ctx context.Context, before, failures int, err error) {
	attrs := []slog.Attr{slog.String("loop", l.cfg.Name)}
	if failures == 0 {
		if before > 0 {
			l.cfg.Logger.LogAttrs(ctx, slog.LevelInfo, "background work goes on", append(attrs, slog.Int("failures", before))...)
		}
		return
	}
	attrs = append(attrs, slog.Int("failures", failures), slog.Any("error", err))
	if p, ok := errors.AsType[*PanicError](err); ok {
		l.cfg.Logger.LogAttrs(ctx, slog.LevelError, "background work panicked", append(attrs, slog.String("stack", string(p.Stack)))...)
		return
	}
	level := slog.LevelDebug
	if failures&(failures-1) == 0 {
		level = slog.LevelWarn
	}
	l.cfg.Logger.LogAttrs(ctx, level, "background work failed", append(attrs, causes(err)...)...)
}

// causes are what an error wraps without telling: the domain's errors keep the words of a
// driver from callers, but the log is where they belong.
func causes(err error) []slog.Attr {
	if cause := errors.Unwrap(err); cause != nil {
		return []slog.Attr{slog.Any("cause", cause)}
	}
	return nil
}

// retryIn is the wait after so many failures in a row.
func (l *Loop) retryIn(failures int) time.Duration {
	d := min(l.cfg.Interval, maxFirstRetry, l.cfg.RetryMax)
	for i := 1; i < failures && d < l.cfg.RetryMax; i++ {
		d *= 2
	}
	d = min(d, l.cfg.RetryMax)
	return d - rand.N(d/2+1)
}

// wait waits; false where the context ended first. A kick ends it, where kicks are heard.
func (l *Loop) wait(ctx context.Context, d time.Duration, kick <-chan struct{}) bool {
	timer := time.NewTimer(max(d, 0))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-kick:
	case <-timer.C:
	}
	return ctx.Err() == nil
}
