package model

import (
	"math"
	"time"

	"github.com/leasehold/leasehold/store"
)

// Limits is a policy in which everything is set.
type Limits struct {
	MaxAttempts          int32
	MaxExpirations       int32
	Backoff              Backoff
	LeaseDuration        time.Duration
	MaxRuntime           *time.Duration // nil: no bound
	StallTimeout         *time.Duration // nil: never
	CancelGrace          time.Duration
	IdempotencyRetention time.Duration
}

// LimitsOf fills in the defaults.
func LimitsOf(p store.Policy) Limits {
	return Limits{
		MaxAttempts:    or(p.MaxAttempts, store.DefaultMaxAttempts),
		MaxExpirations: or(p.MaxExpirations, store.DefaultMaxExpirations),
		Backoff: Backoff{
			Initial: or(p.BackoffInitial, store.DefaultBackoffInitial),
			Factor:  or(p.BackoffFactor, store.DefaultBackoffFactor),
			Cap:     or(p.BackoffCap, store.DefaultBackoffCap),
			Jitter:  or(p.BackoffJitter, store.DefaultBackoffJitter),
		},
		LeaseDuration:        or(p.LeaseDuration, store.DefaultLeaseDuration),
		MaxRuntime:           p.MaxRuntime,
		StallTimeout:         p.StallTimeout,
		CancelGrace:          or(p.CancelGrace, store.DefaultCancelGrace),
		IdempotencyRetention: or(p.IdempotencyRetention, store.DefaultIdempotencyRetention),
	}
}

// Merge is what a job copies from its queue at enqueue (R27): what it did not set itself.
func Merge(job, queue store.Policy) store.Policy {
	return store.Policy{
		MaxAttempts:          first(job.MaxAttempts, queue.MaxAttempts),
		MaxExpirations:       first(job.MaxExpirations, queue.MaxExpirations),
		BackoffInitial:       first(job.BackoffInitial, queue.BackoffInitial),
		BackoffFactor:        first(job.BackoffFactor, queue.BackoffFactor),
		BackoffCap:           first(job.BackoffCap, queue.BackoffCap),
		BackoffJitter:        first(job.BackoffJitter, queue.BackoffJitter),
		LeaseDuration:        first(job.LeaseDuration, queue.LeaseDuration),
		MaxRuntime:           first(job.MaxRuntime, queue.MaxRuntime),
		StallTimeout:         first(job.StallTimeout, queue.StallTimeout),
		CancelGrace:          first(job.CancelGrace, queue.CancelGrace),
		IdempotencyRetention: first(job.IdempotencyRetention, queue.IdempotencyRetention),
	}
}

func or[T any](p *T, d T) T {
	if p != nil {
		return *p
	}
	return d
}

func first[T any](ps ...*T) *T {
	for _, p := range ps {
		if p != nil {
			return p
		}
	}
	return nil
}

// Backoff is the wait of R29.
type Backoff struct {
	Initial time.Duration
	Factor  float64
	Cap     time.Duration
	Jitter  float64
}

// Bounds are the shortest and the longest wait after the n-th counted end, n >= 1. The
// power is taken in floating point and capped before it becomes a Duration: as integers,
// initial * factor^n overflows from n = 34 on and turns into a retry at once.
func (b Backoff) Bounds(n int32) (shortest, longest time.Duration) {
	x := float64(b.Initial) * math.Pow(b.Factor, float64(max(n, 1)-1))
	if !(x < float64(b.Cap)) {
		x = float64(b.Cap)
	}
	return time.Duration(x * (1 - b.Jitter)), time.Duration(x)
}

// After is the window of the next run.
func (b Backoff) After(now time.Time, n int32) Window {
	shortest, longest := b.Bounds(n)
	return Window{From: now.Add(shortest), To: now.Add(longest)}
}
