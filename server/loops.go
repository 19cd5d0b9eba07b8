package server

import (
	"context"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"golang.org/x/sync/errgroup"
)

// runLoops runs loops side by side until the context ends or one returns an error.
func runLoops(ctx context.Context, loops ...func(context.Context) error) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, loop := range loops {
		group.Go(func() error { return loop(ctx) })
	}
	return group.Wait()
}

// guard turns a panic of a pass into its error: one bad row must not end a loop for good.
func guard(pass func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &panicError{value: r, stack: debug.Stack()}
		}
	}()
	return pass()
}

// backoff doubles an interval with each failure, up to a limit, and shortens what it gives
// after a failure by up to a fifth at random: replicas that failed together do not come
// back together.
func backoff(interval, limit time.Duration, failures int) time.Duration {
	if failures == 0 {
		return interval
	}
	d := interval
	for i := 0; i < failures && d < limit; i++ {
		d *= 2
	}
	d = min(d, limit)
	return d - rand.N(d/5)
}

// sleep waits; false where the context ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
