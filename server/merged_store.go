package server

import (
	"context"
	"time"

	"github.com/leasehold/leasehold/store"
)

// mergedStore is a Store whose hot calls are merged.
type mergedStore struct {
	store.Store
	enqueues   *merger[store.NewJob, store.Enqueued]
	acquires   *merger[store.Acquire, store.Acquired]
	heartbeats *merger[store.Heartbeat, store.Beaten]
	completes  *merger[store.Complete, store.Completion]
	fails      *merger[store.Fail, store.Ended]
	releases   *merger[store.Release, store.Ended]
}

const (
	// admitted bounds the acquires and the enqueues that wait; heartbeats and ends are still
	// admitted long after those are refused.
	admitted       = 10_000
	admittedAlways = 1_000_000
	// batchesInFlight is enough to keep the database busy while answers travel; more would
	// only make the batches smaller.
	batchesInFlight = 2
	// beatsLinger is what single heartbeats wait for others: nobody waits for their answer, and
	// alone they would be most of the statements that an otherwise idle service runs (R47).
	beatsLinger = 10 * time.Millisecond
)

func newMergedStore(st store.Store, claims int) *mergedStore {
	return &mergedStore{
		Store: st,
		enqueues: &merger[store.NewJob, store.Enqueued]{
			name: "Enqueue", run: st.Enqueue, err: func(r *store.Enqueued) *error { return &r.Err },
			bytes: jobBytes, inFlight: batchesInFlight, maxWaiting: admitted, group: keyedGroup,
		},
		acquires: &merger[store.Acquire, store.Acquired]{
			name: "AcquireLease", run: st.Acquire, err: func(r *store.Acquired) *error { return &r.Err },
			bytes: func(a *store.Acquire) int { return a.MaxJobs * mergedBytes / mergedItems }, group: acquireGroup, identity: acquireIdentity,
			jobs:      func(a *store.Acquire) int { return max(a.MaxJobs, 1) },
			abandoned: func(items []store.Acquire, results []store.Acquired) { undeliverAll(st, items, results) },
			inFlight:  claims, maxWaiting: admitted,
		},
		heartbeats: &merger[store.Heartbeat, store.Beaten]{
			name: "Heartbeat", run: st.Heartbeat, err: func(r *store.Beaten) *error { return &r.Err },
			bytes: func(h *store.Heartbeat) int { return len(h.Checkpoint) }, identity: func(h *store.Heartbeat) any { return h.Lease },
			inFlight: batchesInFlight, maxWaiting: admittedAlways, linger: beatsLinger,
		},
		completes: &merger[store.Complete, store.Completion]{
			name: "Complete", run: st.Complete, err: func(r *store.Completion) *error { return &r.Err },
			bytes: func(c *store.Complete) int { return len(c.Result.Data) }, identity: func(c *store.Complete) any { return c.Lease },
			group: func(c *store.Complete) string { return chained(len(c.ThenEnqueue)) }, inFlight: batchesInFlight, maxWaiting: admittedAlways,
		},
		fails: &merger[store.Fail, store.Ended]{
			name: "Fail", run: st.Fail, err: func(r *store.Ended) *error { return &r.Err },
			bytes: func(f *store.Fail) int { return len(f.Error.Message) + len(f.Error.Details) }, identity: func(f *store.Fail) any { return f.Lease },
			group: func(f *store.Fail) string { return chained(len(f.ThenEnqueue)) }, inFlight: batchesInFlight, maxWaiting: admittedAlways,
		},
		releases: &merger[store.Release, store.Ended]{
			name: "Release", run: st.Release, err: func(r *store.Ended) *error { return &r.Err },
			bytes: func(*store.Release) int { return 0 }, identity: func(r *store.Release) any { return r.Lease },
			inFlight: 1, maxWaiting: admittedAlways,
		},
	}
}

func (s *mergedStore) Acquire(ctx context.Context, items []store.Acquire) ([]store.Acquired, error) {
	return s.acquires.do(ctx, items)
}

func (s *mergedStore) Enqueue(ctx context.Context, items []store.NewJob) ([]store.Enqueued, error) {
	return s.enqueues.do(ctx, items)
}

func (s *mergedStore) Heartbeat(ctx context.Context, items []store.Heartbeat) ([]store.Beaten, error) {
	return s.heartbeats.do(ctx, items)
}

func (s *mergedStore) Complete(ctx context.Context, items []store.Complete) ([]store.Completion, error) {
	return s.completes.do(ctx, items)
}

func (s *mergedStore) Fail(ctx context.Context, items []store.Fail) ([]store.Ended, error) {
	return s.fails.do(ctx, items)
}

func (s *mergedStore) Release(ctx context.Context, items []store.Release) ([]store.Ended, error) {
	return s.releases.do(ctx, items)
}

func jobBytes(j *store.NewJob) int { return len(j.Payload.Data) }

// keyedGroup keeps jobs with an idempotency key apart: only their statement may be repeated
// after an unknown outcome.
func keyedGroup(j *store.NewJob) string {
	if j.IdempotencyKey != nil {
		return "keyed"
	}
	return ""
}

// chained keeps calls with follow-up jobs apart, each of which has a transaction of its own.
func chained(followUps int) string {
	if followUps > 0 {
		return "chained"
	}
	return ""
}

func acquireGroup(a *store.Acquire) string {
	if a.JobID != 0 {
		return "by id"
	}
	out := ""
	if a.RequestID != nil {
		out = "repeatable " // only these may run again after an unknown outcome
	}
	for _, q := range a.Queues {
		out += q + " "
	}
	return out
}

// acquireIdentity keeps two claims of one job or request apart; others have none in common.
func acquireIdentity(a *store.Acquire) any {
	switch {
	case a.JobID != 0:
		return a.JobID
	case a.RequestID != nil:
		return *a.RequestID
	}
	return a
}

// undeliverAll gives back the leases that a batch took for a caller that is gone.
func undeliverAll(st store.Store, items []store.Acquire, results []store.Acquired) {
	for i, r := range results {
		if len(r.Leases) == 0 {
			continue
		}
		refs := make([]store.LeaseRef, len(r.Leases))
		for k := range r.Leases {
			refs[k] = r.Leases[k].Ref()
		}
		ctx, cancel := context.WithTimeout(context.Background(), giveBackTimeout)
		_ = st.Undeliver(ctx, refs, items[i].RequestID) // where it fails they expire
		cancel()
	}
}
