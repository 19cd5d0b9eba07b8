package storetest

import (
	"context"
	"time"

	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/storetest/model"
)

// Enqueue stores jobs.
func (m *Memory) Enqueue(ctx context.Context, items []store.NewJob) ([]store.Enqueued, error) {
	d := m.db
	now, err := d.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer d.mu.Unlock()
	out := make([]store.Enqueued, len(items))
	for i, item := range items {
		if err := d.refuse(item, now, nil); err != nil {
			out[i].Err = err
			continue
		}
		out[i].JobID, out[i].Created = d.enqueue(item, now, nil)
	}
	return out, nil
}

// refuse tells why a job cannot be stored, or nil. reserved are keys of jobs that will be
// stored before it.
func (d *memoryDB) refuse(item store.NewJob, now time.Time, reserved map[queueKey]string) error {
	if _, ok := d.queues[item.Queue]; !ok {
		return &store.QueueNotFoundError{Queue: item.Queue}
	}
	if item.RunAt != nil && item.RunAt.After(now.Add(store.MaxAhead)) {
		return &store.InvalidError{Field: "run_at", Description: "at most 5 years ahead"}
	}
	if len(item.Payload.Data) > store.MaxPayloadBytes {
		return &store.InvalidError{Field: "payload", Description: "at most 1 MiB", TooLarge: true}
	}
	if item.IdempotencyKey == nil {
		return nil
	}
	k := queueKey{item.Queue, *item.IdempotencyKey}
	digest := model.PayloadDigest(item.Payload)
	if j, ok := d.owner(k, now); ok && d.keys[k].digest != digest {
		return &store.KeyReusedError{Queue: item.Queue, JobID: j.ID}
	}
	if r, ok := reserved[k]; ok && r != digest {
		return &store.KeyReusedError{Queue: item.Queue}
	}
	return nil
}

// owner is the job that a key belongs to now.
func (d *memoryDB) owner(k queueKey, now time.Time) (*memoryJob, bool) {
	key, ok := d.keys[k]
	if !ok {
		return nil, false
	}
	j, ok := d.jobs[key.job]
	return j, ok && d.ownsKey(j, now)
}

// enqueue stores a job that nothing refuses.
func (d *memoryDB) enqueue(item store.NewJob, now time.Time, parent *store.JobID) (store.JobID, bool) {
	if item.IdempotencyKey != nil {
		k := queueKey{item.Queue, *item.IdempotencyKey}
		if j, ok := d.owner(k, now); ok {
			return j.ID, false
		}
		d.keys[k] = memoryKey{job: d.lastID + 1, digest: model.PayloadDigest(item.Payload)}
	}
	d.lastID++
	s, _ := model.Step(model.State{}, model.Request{
		Call: model.Enqueue{ID: d.lastID, Job: item, Parent: parent}, Queue: *d.queues[item.Queue],
	}, now)
	j := &memoryJob{}
	d.jobs[s.ID] = j
	d.order = append(d.order, s.ID)
	d.put(j, s)
	return s.ID, true
}

// followUps stores all of then_enqueue or nothing (R19).
func (d *memoryDB) followUps(items []store.NewJob, now time.Time, parent store.JobID) ([]store.JobID, error) {
	reserved := map[queueKey]string{}
	for i, item := range items {
		if err := d.refuse(item, now, reserved); err != nil {
			return nil, &store.FollowUpError{Index: i, Err: err}
		}
		if item.IdempotencyKey != nil {
			reserved[queueKey{item.Queue, *item.IdempotencyKey}] = model.PayloadDigest(item.Payload)
		}
	}
	var ids []store.JobID
	for _, item := range items {
		id, _ := d.enqueue(item, now, &parent)
		ids = append(ids, id)
	}
	return ids, nil
}
