package storetest

import (
	"context"
	"slices"
	"time"

	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/storetest/model"
)

// TokenKey is the key of the lease tokens.
func (m *Memory) TokenKey(context.Context) ([]byte, error) { return slices.Clone(m.db.key), nil }

// StampWritable records that a heartbeat could be written just now.
func (m *Memory) StampWritable(ctx context.Context) error {
	d := m.db
	now, err := d.begin(ctx)
	if err != nil {
		return err
	}
	defer d.mu.Unlock()
	if now.Sub(d.stamp) > 5*time.Second {
		d.since = now
	}
	d.stamp = now
	return nil
}

// SweepPage ends leases whose time is over.
func (m *Memory) SweepPage(ctx context.Context, after store.JobID, size int, queues []string) (store.Swept, error) {
	d := m.db
	now, err := d.begin(ctx)
	if err != nil {
		return store.Swept{}, err
	}
	defer d.mu.Unlock()
	var out store.Swept
	seen := 0
	last := store.JobID(0)
	for _, id := range d.after(int64(after)) {
		j := d.jobs[id]
		if j.Phase != store.Processing || len(queues) > 0 && !slices.Contains(queues, j.Spec.Queue) {
			continue
		}
		if seen == size {
			out.Next = last
			break
		}
		seen, last = seen+1, id
		if o := d.step(j, model.Sweep{}, now); o.Ended != store.EndNone {
			out.Ended++
		}
	}
	return out, nil
}

// BeginSweep tells whether a pass is due.
func (m *Memory) BeginSweep(ctx context.Context, interval time.Duration) (bool, error) {
	d := m.db
	now, err := d.begin(ctx)
	if err != nil {
		return false, err
	}
	defer d.mu.Unlock()
	return now.Sub(d.sweptAt) >= interval/2, nil
}

// FinishSweep records a finished pass.
func (m *Memory) FinishSweep(ctx context.Context) error {
	d := m.db
	now, err := d.begin(ctx)
	if err != nil {
		return err
	}
	defer d.mu.Unlock()
	d.sweptAt = now
	return nil
}

// BuryUnrunnable sets aside rows that can never run.
func (m *Memory) BuryUnrunnable(ctx context.Context) (int, error) {
	d := m.db
	now, err := d.begin(ctx)
	if err != nil {
		return 0, err
	}
	defer d.mu.Unlock()
	n := 0
	for _, j := range d.jobs {
		reason := "its lease_no is too near the bound of its type"
		if j.Undeliverable {
			reason = "its payload is gone"
		}
		if o := d.step(j, model.Bury{Reason: reason}, now); !o.Passed {
			n++
		}
	}
	return n, nil
}

// ForgetExpired deletes idempotency keys and request ids whose time is over.
func (m *Memory) ForgetExpired(ctx context.Context) (int, error) {
	d := m.db
	now, err := d.begin(ctx)
	if err != nil {
		return 0, err
	}
	defer d.mu.Unlock()
	n := 0
	for k := range d.keys {
		if _, alive := d.owner(k, now); !alive {
			delete(d.keys, k)
			n++
		}
	}
	for id, r := range d.requests {
		if !now.Before(r.at.Add(requestMemory)) {
			delete(d.requests, id)
			n++
		}
	}
	return n, nil
}

// EnsurePartitions does nothing: a map has no partitions.
func (m *Memory) EnsurePartitions(ctx context.Context) error { return ctx.Err() }

// ApplyRetention drops what is old enough. Without partitions, each job goes by itself.
func (m *Memory) ApplyRetention(ctx context.Context, facts, payloads *time.Duration) error {
	d := m.db
	now, err := d.begin(ctx)
	if err != nil {
		return err
	}
	defer d.mu.Unlock()
	old := func(j *memoryJob, age *time.Duration) bool {
		return age != nil && j.FinishedAt != nil && j.FinishedAt.Before(now.Add(-*age))
	}
	d.order = slices.DeleteFunc(d.order, func(id store.JobID) bool {
		j := d.jobs[id]
		if old(j, payloads) {
			j.Undeliverable, j.Result = true, nil
		}
		if old(j, facts) {
			delete(d.jobs, id)
			return true
		}
		return false
	})
	return nil
}

// ReadyQueues tells which queues have work.
func (m *Memory) ReadyQueues(ctx context.Context, queues []string) ([]store.QueueReadiness, error) {
	d := m.db
	now, err := d.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer d.mu.Unlock()
	out := make([]store.QueueReadiness, 0, len(queues))
	for _, name := range queues {
		q, ok := d.queues[name]
		if !ok {
			continue
		}
		r := store.QueueReadiness{Queue: name, Paused: q.PausedAt != nil}
		for _, j := range d.pending[name] {
			wait := j.RunAt.From.Sub(now)
			if wait <= 0 {
				r.Ready = true
			} else if r.Next == nil || wait < *r.Next {
				r.Next = &wait
			}
		}
		if r.Ready {
			r.Next = nil
		}
		out = append(out, r)
	}
	return out, nil
}

// Hint tells the other replicas that queues may have ready jobs.
func (m *Memory) Hint(ctx context.Context, queues []string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.db.mu.Lock()
	others := slices.DeleteFunc(slices.Clone(m.db.replicas), func(r *Memory) bool { return r == m })
	m.db.mu.Unlock()
	for _, r := range others {
		r.mu.Lock()
		for c := range r.hints {
			select {
			case c <- queues:
			default: // a full listener has a hint to look at already
			}
		}
		r.mu.Unlock()
	}
	return nil
}

// Listen calls onHint for each hint of another replica until the context ends.
func (m *Memory) Listen(ctx context.Context, onReady func(), onHint func(queues []string)) error {
	c := make(chan []string, 64)
	m.mu.Lock()
	m.hints[c] = struct{}{}
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		delete(m.hints, c)
		m.mu.Unlock()
	}()
	onReady()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case queues := <-c:
			onHint(queues)
		}
	}
}

// HeldSnapshots tells of nobody: there is nothing to remove.
func (m *Memory) HeldSnapshots(context.Context) ([]store.HeldSnapshot, error) { return nil, nil }

// Health reads what readiness needs.
func (m *Memory) Health(ctx context.Context) (store.Health, error) {
	d := m.db
	now, err := d.begin(ctx)
	if err != nil {
		return store.Health{}, err
	}
	defer d.mu.Unlock()
	h := store.Health{
		SchemaVersion: 1, PartitionsAhead: 8,
		WritableFor: now.Sub(d.since), StampAge: now.Sub(d.stamp), SweepAge: now.Sub(d.sweptAt),
	}
	if d.alwaysWritable {
		h.WritableFor, h.StampAge = 24*time.Hour, 0
	}
	return h, nil
}
