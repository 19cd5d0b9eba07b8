package server

import (
	"context"
	"time"

	"github.com/leasehold/leasehold/internal/loop"
	"github.com/leasehold/leasehold/store"
)

const (
	partitionsInterval = 10 * time.Second
	partitionsTimeout  = 30 * time.Second
	partitionsStart    = 100 * time.Millisecond

	forgetInterval = time.Minute
	forgetTimeout  = 50 * time.Second
	forgetStart    = 15 * time.Second
	// forgetRounds bounds one pass. What is left waits for the next: deleting a backlog of
	// millions at once would compete with the work.
	forgetRounds = 100

	retentionInterval = time.Hour
	retentionTimeout  = 30 * time.Minute
	retentionStart    = time.Minute
)

// upkeepJobs keep the tables in shape. Each has a loop of its own, so that a retention that
// waits for a lock does not hold up the making of partitions, without which enqueues fail.
func upkeepJobs(st store.Maintenance, cfg BackgroundConfig) []backgroundJob {
	jobs := []backgroundJob{
		{runOnce: st.EnsurePartitions, cfg: loop.Config{
			Name: "partitions", Interval: partitionsInterval, Timeout: partitionsTimeout, StartWithin: partitionsStart,
		}},
		{
			runOnce: func(ctx context.Context) error { return forgetExpired(ctx, st) },
			cfg:     loop.Config{Name: "forget", Interval: forgetInterval, Timeout: forgetTimeout, StartWithin: forgetStart},
		},
	}
	if cfg.RetainFacts == 0 && cfg.RetainPayloads == 0 {
		return jobs
	}
	retain := func(ctx context.Context) error {
		return st.ApplyRetention(ctx, keptFor(cfg.RetainFacts), keptFor(cfg.RetainPayloads))
	}
	return append(jobs, backgroundJob{runOnce: retain, cfg: loop.Config{
		Name: "retention", Interval: retentionInterval, Timeout: retentionTimeout, StartWithin: retentionStart,
	}})
}

// forgetExpired deletes idempotency keys and request ids whose time is over, in rounds that
// the store bounds, until a round finds none.
func forgetExpired(ctx context.Context, st store.Maintenance) error {
	for range forgetRounds {
		n, err := st.ForgetExpired(ctx)
		if err != nil || n == 0 {
			return err
		}
	}
	return nil
}

// keptFor is the store's word for a time to keep: nil for ever.
func keptFor(d time.Duration) *time.Duration {
	if d == 0 {
		return nil
	}
	return &d
}
