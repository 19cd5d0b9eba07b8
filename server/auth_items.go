package server

import (
	"context"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/server/identity"
	"github.com/leasehold/leasehold/store"
)

// permitted runs a write for the items that the caller may touch, and gives the others their
// refusal. A caller who may touch every queue costs nothing.
type permitted[Item, Result any] struct {
	*Server
	run func(context.Context, []Item) ([]Result, error)
	// free tells whether the identity needs no look at items.
	free func(*identity.Identity, []Item) bool
	// refusals are one for each item, nil where it may go on.
	refusals func(context.Context, *identity.Identity, []Item) ([]error, error)
	err      func(*Result) *error
}

func (p permitted[Item, Result]) do(ctx context.Context, items []Item) ([]Result, error) {
	id := p.callerOf(ctx)
	if p.free(id, items) {
		return p.run(ctx, items)
	}
	refusals, err := p.refusals(ctx, id, items)
	if err != nil {
		return nil, err
	}
	results := make([]Result, len(items))
	var allowed []Item
	var places []int
	for i, refusal := range refusals {
		if refusal != nil {
			*p.err(&results[i]) = refusal
			continue
		}
		allowed, places = append(allowed, items[i]), append(places, i)
	}
	if len(allowed) == 0 {
		return results, nil
	}
	done, err := p.run(ctx, allowed)
	if err != nil {
		return nil, err
	}
	for k, place := range places {
		results[place] = done[k]
	}
	return results, nil
}

func (s *Server) permittedEnqueue(ctx context.Context, items []store.NewJob) ([]store.Enqueued, error) {
	return permitted[store.NewJob, store.Enqueued]{
		Server: s, run: s.enqueue, err: func(r *store.Enqueued) *error { return &r.Err },
		free: func(id *identity.Identity, _ []store.NewJob) bool { return id.Everywhere(pb.Role_ROLE_PRODUCER) },
		refusals: func(_ context.Context, id *identity.Identity, items []store.NewJob) ([]error, error) {
			out := make([]error, len(items))
			for i := range items {
				out[i] = mayNot(id, pb.Role_ROLE_PRODUCER, items[i].Queue)
			}
			return out, nil
		},
	}.do(ctx, items)
}

func (s *Server) permittedHeartbeat(ctx context.Context, items []store.Heartbeat) ([]store.Beaten, error) {
	return ofLeases(s, s.store.Heartbeat, func(h *store.Heartbeat) (store.LeaseRef, []store.NewJob) { return h.Lease, nil },
		func(r *store.Beaten) *error { return &r.Err }).do(ctx, items)
}

func (s *Server) permittedComplete(ctx context.Context, items []store.Complete) ([]store.Completion, error) {
	return ofLeases(s, s.complete, func(c *store.Complete) (store.LeaseRef, []store.NewJob) { return c.Lease, c.ThenEnqueue },
		func(r *store.Completion) *error { return &r.Err }).do(ctx, items)
}

func (s *Server) permittedFail(ctx context.Context, items []store.Fail) ([]store.Ended, error) {
	return ofLeases(s, s.fail, func(f *store.Fail) (store.LeaseRef, []store.NewJob) { return f.Lease, f.ThenEnqueue },
		func(r *store.Ended) *error { return &r.Err }).do(ctx, items)
}

func (s *Server) permittedRelease(ctx context.Context, items []store.Release) ([]store.Ended, error) {
	return ofLeases(s, s.release, func(r *store.Release) (store.LeaseRef, []store.NewJob) { return r.Lease, nil },
		func(r *store.Ended) *error { return &r.Err }).do(ctx, items)
}

// ofLeases guards a write of leases: their jobs need the role worker on their queue, and
// follow-ups the role producer on theirs.
func ofLeases[Item, Result any](s *Server, run func(context.Context, []Item) ([]Result, error),
	parts func(*Item) (store.LeaseRef, []store.NewJob), err func(*Result) *error,
) permitted[Item, Result] {
	return permitted[Item, Result]{
		Server: s, run: run, err: err,
		free: func(id *identity.Identity, items []Item) bool {
			if !id.Everywhere(pb.Role_ROLE_WORKER) {
				return false
			}
			if id.Everywhere(pb.Role_ROLE_PRODUCER) {
				return true
			}
			for i := range items {
				if _, follow := parts(&items[i]); len(follow) > 0 {
					return false
				}
			}
			return true
		},
		refusals: func(ctx context.Context, id *identity.Identity, items []Item) ([]error, error) {
			jobs := make([]store.JobID, len(items))
			follow := make([][]store.NewJob, len(items))
			for i := range items {
				var ref store.LeaseRef
				ref, follow[i] = parts(&items[i])
				jobs[i] = ref.JobID
			}
			out, err := s.mayNotJobs(ctx, id, pb.Role_ROLE_WORKER, jobs)
			for i := range out {
				if out[i] == nil {
					out[i] = mayNotFollow(id, follow[i])
				}
			}
			return out, err
		},
	}
}

// mayNot is the refusal of a queue, nil where the identity has the role there.
func mayNot(id *identity.Identity, role pb.Role, queue string) error {
	if id.May(role, queue) {
		return nil
	}
	return &RoleMissingError{Role: role, Queue: queue}
}

// mayNotFollow refuses the first follow-up whose queue the identity may not put jobs into.
func mayNotFollow(id *identity.Identity, jobs []store.NewJob) error {
	for i := range jobs {
		if err := mayNot(id, pb.Role_ROLE_PRODUCER, jobs[i].Queue); err != nil {
			return &store.FollowUpError{Index: i, Err: err}
		}
	}
	return nil
}

// mayNotJobs is the refusal of each job, nil where the identity has the role on its queue. A
// job that does not exist is refused as such, not passed on: it may come to be in between.
func (s *Server) mayNotJobs(ctx context.Context, id *identity.Identity, role pb.Role, jobs []store.JobID) ([]error, error) {
	out := make([]error, len(jobs))
	if id.Everywhere(role) {
		return out, nil
	}
	queues, err := s.queuesOf.of(ctx, jobs...)
	if err != nil {
		return nil, err
	}
	for i, job := range jobs {
		queue, exists := queues[job]
		if !exists {
			out[i] = &store.JobNotFoundError{JobID: job}
			continue
		}
		out[i] = mayNot(id, role, queue)
	}
	return out, nil
}
