package storetest

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/storetest/model"
)

// CreateQueue makes a queue.
func (m *Memory) CreateQueue(ctx context.Context, q store.Queue) (*store.Queue, error) {
	d := m.db
	now, err := d.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer d.mu.Unlock()
	if _, ok := d.queues[q.Name]; ok {
		return nil, &store.QueueExistsError{Queue: q.Name}
	}
	return d.createQueue(q, now), nil
}

func (d *memoryDB) createQueue(q store.Queue, now time.Time) *store.Queue {
	q.CreatedAt, q.PausedAt, q.PausedBy, q.PauseNote = now, nil, "", ""
	d.queues[q.Name] = &q
	c := q
	return &c
}

// EnsureQueues makes the queues that do not exist.
func (m *Memory) EnsureQueues(ctx context.Context, names []string) error {
	d := m.db
	now, err := d.begin(ctx)
	if err != nil {
		return err
	}
	defer d.mu.Unlock()
	for _, n := range names {
		if _, ok := d.queues[n]; !ok {
			d.createQueue(store.Queue{Name: n}, now)
		}
	}
	return nil
}

// onQueue runs fn on a queue's row and answers a copy of it.
func (m *Memory) onQueue(ctx context.Context, name string, fn func(q *store.Queue, now time.Time)) (*store.Queue, error) {
	d := m.db
	now, err := d.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer d.mu.Unlock()
	q, ok := d.queues[name]
	if !ok {
		return nil, &store.QueueNotFoundError{Queue: name}
	}
	fn(q, now)
	c := *q
	return &c, nil
}

// GetQueue reads a queue.
func (m *Memory) GetQueue(ctx context.Context, name string) (*store.Queue, error) {
	return m.onQueue(ctx, name, func(*store.Queue, time.Time) {})
}

// ListQueues lists queues by name.
func (m *Memory) ListQueues(ctx context.Context, after string, size int) ([]store.Queue, error) {
	d := m.db
	if _, err := d.begin(ctx); err != nil {
		return nil, err
	}
	defer d.mu.Unlock()
	var out []store.Queue
	for _, name := range slices.Sorted(maps.Keys(d.queues)) {
		if name > after && len(out) < size {
			out = append(out, *d.queues[name])
		}
	}
	return out, nil
}

// fields are what UpdateQueue can change.
var fields = map[store.QueueField]func(to, from *store.Queue){
	store.FieldMaxAttempts:          func(t, f *store.Queue) { t.Policy.MaxAttempts = f.Policy.MaxAttempts },
	store.FieldMaxExpirations:       func(t, f *store.Queue) { t.Policy.MaxExpirations = f.Policy.MaxExpirations },
	store.FieldBackoffInitial:       func(t, f *store.Queue) { t.Policy.BackoffInitial = f.Policy.BackoffInitial },
	store.FieldBackoffFactor:        func(t, f *store.Queue) { t.Policy.BackoffFactor = f.Policy.BackoffFactor },
	store.FieldBackoffCap:           func(t, f *store.Queue) { t.Policy.BackoffCap = f.Policy.BackoffCap },
	store.FieldBackoffJitter:        func(t, f *store.Queue) { t.Policy.BackoffJitter = f.Policy.BackoffJitter },
	store.FieldLeaseDuration:        func(t, f *store.Queue) { t.Policy.LeaseDuration = f.Policy.LeaseDuration },
	store.FieldMaxRuntime:           func(t, f *store.Queue) { t.Policy.MaxRuntime = f.Policy.MaxRuntime },
	store.FieldStallTimeout:         func(t, f *store.Queue) { t.Policy.StallTimeout = f.Policy.StallTimeout },
	store.FieldCancelGrace:          func(t, f *store.Queue) { t.Policy.CancelGrace = f.Policy.CancelGrace },
	store.FieldIdempotencyRetention: func(t, f *store.Queue) { t.Policy.IdempotencyRetention = f.Policy.IdempotencyRetention },
	store.FieldOnExpiry:             func(t, f *store.Queue) { t.OnExpiry = f.OnExpiry },
	store.FieldStallEndsLease:       func(t, f *store.Queue) { t.StallEndsLease = f.StallEndsLease },
}

// UpdateQueue changes a queue.
func (m *Memory) UpdateQueue(ctx context.Context, u store.QueueUpdate) (*store.Queue, error) {
	return m.onQueue(ctx, u.Queue.Name, func(q *store.Queue, _ time.Time) {
		for _, f := range u.Fields {
			if set, ok := fields[f]; ok {
				set(q, &u.Queue)
			}
		}
	})
}

// DeleteQueue removes a queue without live jobs.
func (m *Memory) DeleteQueue(ctx context.Context, name string) error {
	d := m.db
	if _, err := d.begin(ctx); err != nil {
		return err
	}
	defer d.mu.Unlock()
	if _, ok := d.queues[name]; !ok {
		return &store.QueueNotFoundError{Queue: name}
	}
	for _, j := range d.jobs {
		if j.Spec.Queue == name && j.Live() {
			return &store.StateError{Queue: name, Want: "must have no live job to be deleted"}
		}
	}
	delete(d.queues, name)
	maps.DeleteFunc(d.keys, func(k queueKey, _ memoryKey) bool { return k.queue == name })
	return nil
}

// PauseQueue stops leasing from a queue. The first actor and note stay.
func (m *Memory) PauseQueue(ctx context.Context, name string, by store.Actor) (*store.Queue, error) {
	return m.onQueue(ctx, name, func(q *store.Queue, now time.Time) {
		if q.PausedAt == nil {
			q.PausedAt, q.PausedBy, q.PauseNote = &now, by.Name, by.Note
		}
	})
}

// ResumeQueue ends a pause.
func (m *Memory) ResumeQueue(ctx context.Context, name string) (*store.Queue, error) {
	return m.onQueue(ctx, name, func(q *store.Queue, _ time.Time) {
		q.PausedAt, q.PausedBy, q.PauseNote = nil, "", ""
	})
}

// RetryJobs makes jobs run again.
func (m *Memory) RetryJobs(ctx context.Context, act store.BulkAct) (store.BulkResult, error) {
	return m.bulk(ctx, act, model.Retry{}, "retry")
}

// CancelJobs cancels many.
func (m *Memory) CancelJobs(ctx context.Context, act store.BulkAct) (store.BulkResult, error) {
	return m.bulk(ctx, act, model.Cancel{}, "cancel")
}

func (m *Memory) bulk(ctx context.Context, act store.BulkAct, c model.Call, name string) (store.BulkResult, error) {
	d := m.db
	now, err := d.begin(ctx)
	if err != nil {
		return store.BulkResult{}, err
	}
	defer d.mu.Unlock()
	ids, next, err := d.selected(act.Selection, c, now)
	if err != nil {
		return store.BulkResult{}, err
	}
	out := store.BulkResult{Next: next}
	for _, id := range ids {
		item := store.BulkItem{JobID: id}
		var o model.Outcome
		if j, ok := d.jobs[id]; ok && act.DryRun {
			_, o = model.Step(j.State, d.request(j.State, c, now), now)
		} else {
			o = d.act(id, c, name, act.Actor, now)
		}
		if item.Err = o.Err; o.Err == nil {
			item.State = o.State
		}
		out.Items = append(out.Items, item)
	}
	return out, nil
}

// selected are the jobs of a batch, by id; by filter, those that the act applies to.
func (d *memoryDB) selected(s store.Selection, c model.Call, now time.Time) ([]store.JobID, int64, error) {
	if s.Filter == nil {
		ids := slices.Clone(s.IDs)
		slices.Sort(ids)
		return slices.Compact(ids), 0, nil
	}
	if err := d.filterQueue(*s.Filter); err != nil {
		return nil, 0, err
	}
	var ids []store.JobID
	for _, id := range d.after(s.Page.After) {
		j := d.jobs[id]
		if !fits(*s.Filter, j.State) {
			continue
		}
		if _, o := model.Step(j.State, d.request(j.State, c, now), now); o.Err != nil || o.Passed {
			continue
		}
		if len(ids) == max(s.Page.Size, 1) {
			return ids, int64(ids[len(ids)-1]), nil
		}
		ids = append(ids, id)
	}
	return ids, 0, nil
}

// ResolveJob records what became of a job.
func (m *Memory) ResolveJob(ctx context.Context, r store.Resolution) (*store.Job, error) {
	d := m.db
	now, err := d.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer d.mu.Unlock()
	name := "resolve_dead"
	if r.Result != nil {
		name = "resolve_completed"
	}
	if o := d.act(r.JobID, model.Resolve{Result: r.Result}, name, r.Actor, now); o.Err != nil {
		return nil, o.Err
	}
	v := d.view(d.jobs[r.JobID], false, now)
	return &v, nil
}
