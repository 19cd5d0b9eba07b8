package server

import (
	"context"

	"github.com/leasehold/leasehold/store"
)

// The writes that make jobs ready: each calls the store, with auto-creation of queues where
// that is on, and then wakes those who wait for what it stored.

func (s *Server) enqueue(ctx context.Context, items []store.NewJob) ([]store.Enqueued, error) {
	run := s.store.Enqueue
	if s.cfg.AutoCreateQueues {
		run = autoCreate[store.NewJob, store.Enqueued]{
			store: s.store, run: run,
			queues: func(j store.NewJob) []string { return []string{j.Queue} },
			err:    func(r *store.Enqueued) *error { return &r.Err },
		}.do
	}
	results, err := run(ctx, items)
	if err == nil {
		s.wakes.enqueued(items, func(i int) bool { return results[i].Err == nil && results[i].Created })
	}
	return results, err
}

func (s *Server) complete(ctx context.Context, items []store.Complete) ([]store.Completion, error) {
	run := s.store.Complete
	if s.cfg.AutoCreateQueues {
		run = autoCreate[store.Complete, store.Completion]{
			store: s.store, run: run,
			queues: func(c store.Complete) []string { return queuesOf(c.ThenEnqueue) },
			err:    func(r *store.Completion) *error { return &r.Err },
		}.do
	}
	results, err := run(ctx, items)
	for i, r := range results {
		if r.Err == nil && !r.AlreadyApplied {
			s.wakes.enqueued(items[i].ThenEnqueue, func(int) bool { return true })
		}
	}
	return results, err
}

func (s *Server) fail(ctx context.Context, items []store.Fail) ([]store.Ended, error) {
	run := s.store.Fail
	if s.cfg.AutoCreateQueues {
		run = autoCreate[store.Fail, store.Ended]{
			store: s.store, run: run,
			queues: func(f store.Fail) []string { return queuesOf(f.ThenEnqueue) },
			err:    func(r *store.Ended) *error { return &r.Err },
		}.do
	}
	results, err := run(ctx, items)
	for i, r := range results {
		s.wakes.ended(items[i].Lease, r)
		if r.Err == nil && !r.AlreadyApplied {
			s.wakes.enqueued(items[i].ThenEnqueue, func(int) bool { return true })
		}
	}
	return results, err
}

func (s *Server) release(ctx context.Context, items []store.Release) ([]store.Ended, error) {
	results, err := s.store.Release(ctx, items)
	for i, r := range results {
		s.wakes.ended(items[i].Lease, r)
	}
	return results, err
}

func queuesOf(jobs []store.NewJob) []string {
	names := make([]string, len(jobs))
	for i := range jobs {
		names[i] = jobs[i].Queue
	}
	return names
}
