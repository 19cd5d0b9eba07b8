package storetest

import (
	"context"
	"slices"
	"time"

	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/storetest/model"
)

// Heartbeat renews leases.
func (m *Memory) Heartbeat(ctx context.Context, items []store.Heartbeat) ([]store.Beaten, error) {
	d := m.db
	now, err := d.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer d.mu.Unlock()
	out := make([]store.Beaten, len(items))
	for i, h := range items {
		o := d.onLease(h.Lease, model.Heartbeat{
			LeaseNo: h.Lease.LeaseNo, Stage: h.Stage, Progress: h.Progress, Checkpoint: slices.Clone(h.Checkpoint),
		}, now)
		out[i] = store.Beaten{
			Until: o.Until, Remaining: o.Remaining, CancelRequested: o.CancelRequested, Err: o.Err,
		}
	}
	return out, nil
}

// onLease makes a call of a token.
func (d *memoryDB) onLease(ref store.LeaseRef, c model.Call, now time.Time) model.Outcome {
	j, ok := d.jobs[ref.JobID]
	if !ok {
		return model.Outcome{Err: &store.JobNotFoundError{JobID: ref.JobID}}
	}
	return d.step(j, c, now)
}

// Complete ends leases and their jobs.
func (m *Memory) Complete(ctx context.Context, items []store.Complete) ([]store.Completion, error) {
	d := m.db
	now, err := d.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer d.mu.Unlock()
	out := make([]store.Completion, len(items))
	for i, c := range items {
		o := d.withFollowUps(c.Lease, c.ThenEnqueue, now, func(ids []store.JobID) model.Call {
			return model.Complete{
				LeaseNo: c.Lease.LeaseNo, Result: c.Result, ThenEnqueue: c.ThenEnqueue, FollowUps: ids,
			}
		})
		out[i] = store.Completion{
			AlreadyApplied: o.AlreadyApplied, Late: o.Late, FollowUps: o.FollowUps, Err: o.Err,
		}
	}
	return out, nil
}

// withFollowUps makes a call that stores follow-ups if it is accepted, and only then: the
// model is asked first, which costs nothing, because it changes nothing.
func (d *memoryDB) withFollowUps(
	ref store.LeaseRef, items []store.NewJob, now time.Time, call func(ids []store.JobID) model.Call,
) model.Outcome {
	j, ok := d.jobs[ref.JobID]
	if !ok {
		return model.Outcome{Err: &store.JobNotFoundError{JobID: ref.JobID}}
	}
	_, o := model.Step(j.State, d.request(j.State, call(nil), now), now)
	var ids []store.JobID
	if o.Err == nil && !o.AlreadyApplied {
		var err error
		if ids, err = d.followUps(items, now, ref.JobID); err != nil {
			return model.Outcome{Err: err}
		}
	}
	return d.step(j, call(ids), now)
}

// Fail ends leases and counts an attempt.
func (m *Memory) Fail(ctx context.Context, items []store.Fail) ([]store.Ended, error) {
	d := m.db
	now, err := d.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer d.mu.Unlock()
	out := make([]store.Ended, len(items))
	for i, f := range items {
		out[i] = d.endedOf(f.Lease.JobID, d.withFollowUps(f.Lease, f.ThenEnqueue, now, func(ids []store.JobID) model.Call {
			return model.Fail{
				LeaseNo: f.Lease.LeaseNo, Error: store.CleanJobError(f.Error), Permanent: f.Permanent,
				RetryAfter: f.RetryAfter, FollowUps: ids,
			}
		}), now)
	}
	return out, nil
}

// Release gives leases back.
func (m *Memory) Release(ctx context.Context, items []store.Release) ([]store.Ended, error) {
	d := m.db
	now, err := d.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer d.mu.Unlock()
	out := make([]store.Ended, len(items))
	for i, r := range items {
		out[i] = d.endedOf(r.Lease.JobID, d.onLease(r.Lease, model.Release{LeaseNo: r.Lease.LeaseNo, Delay: r.Delay}, now), now)
	}
	return out, nil
}

func (d *memoryDB) endedOf(id store.JobID, o model.Outcome, now time.Time) store.Ended {
	if o.Err != nil {
		return store.Ended{Err: o.Err}
	}
	e := store.Ended{
		State: o.State, AttemptsLeft: o.AttemptsLeft, AlreadyApplied: o.AlreadyApplied, FollowUps: o.FollowUps,
	}
	if o.State == store.Pending {
		e.Queue = d.jobs[id].Spec.Queue
		at := o.RunAt.From
		e.NextRunAt, e.NextRunIn = &at, max(0, at.Sub(now))
	}
	return e
}

// ListStuck lists jobs that need a look.
func (m *Memory) ListStuck(ctx context.Context, f store.StuckFilter, p store.Page) (store.StuckPage, error) {
	d := m.db
	now, err := d.begin(ctx)
	if err != nil {
		return store.StuckPage{}, err
	}
	defer d.mu.Unlock()
	if f.Queue != nil {
		if _, ok := d.queues[*f.Queue]; !ok {
			return store.StuckPage{}, &store.QueueNotFoundError{Queue: *f.Queue}
		}
	}
	var page store.StuckPage
	for _, id := range d.after(p.After) {
		j := d.jobs[id]
		if f.Queue != nil && j.Spec.Queue != *f.Queue {
			continue
		}
		s, ok := model.Diagnose(j.State, now)
		if !ok || len(f.Diagnoses) > 0 && !slices.Contains(f.Diagnoses, s.Diagnosis) {
			continue
		}
		if len(page.Jobs) == p.Size {
			page.Next = int64(page.Jobs[p.Size-1].JobID)
			break
		}
		page.Jobs = append(page.Jobs, s)
	}
	return page, nil
}

// after are the ids beyond one, ascending.
func (d *memoryDB) after(id int64) []store.JobID {
	i, found := slices.BinarySearch(d.order, store.JobID(id))
	if found {
		i++
	}
	return d.order[i:]
}
