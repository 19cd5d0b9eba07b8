package storetest

import (
	"context"
	"slices"
	"time"

	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/storetest/model"
)

// view is a job as it is shown.
func (d *memoryDB) view(j *memoryJob, full bool, now time.Time) store.Job {
	v := j.Job(full)
	if d.ownsKey(j, now) {
		v.IdempotencyKey = j.Spec.IdempotencyKey
	}
	return v
}

// GetJob reads one job.
func (m *Memory) GetJob(ctx context.Context, id store.JobID, full bool) (*store.Job, error) {
	d := m.db
	now, err := d.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer d.mu.Unlock()
	j, ok := d.jobs[id]
	if !ok {
		return nil, &store.JobNotFoundError{JobID: id}
	}
	v := d.view(j, full, now)
	return &v, nil
}

// JobQueues tells the queues of jobs.
func (m *Memory) JobQueues(ctx context.Context, ids []store.JobID) (map[store.JobID]string, error) {
	d := m.db
	if _, err := d.begin(ctx); err != nil {
		return nil, err
	}
	defer d.mu.Unlock()
	queues := map[store.JobID]string{}
	for _, id := range ids {
		if j, ok := d.jobs[id]; ok {
			queues[id] = j.Spec.Queue
		}
	}
	return queues, nil
}

// GetJobByKey reads the job that owns an idempotency key.
func (m *Memory) GetJobByKey(ctx context.Context, queue, key string, full bool) (*store.Job, error) {
	d := m.db
	now, err := d.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer d.mu.Unlock()
	if _, ok := d.queues[queue]; !ok {
		return nil, &store.QueueNotFoundError{Queue: queue}
	}
	j, ok := d.owner(queueKey{queue, key}, now)
	if !ok {
		return nil, &store.JobNotFoundError{Queue: queue, Key: key}
	}
	v := d.view(j, full, now)
	return &v, nil
}

// ListJobs lists jobs by id.
func (m *Memory) ListJobs(ctx context.Context, f store.JobFilter, full bool, p store.Page) (store.JobPage, error) {
	d := m.db
	now, err := d.begin(ctx)
	if err != nil {
		return store.JobPage{}, err
	}
	defer d.mu.Unlock()
	if err := d.filterQueue(f); err != nil {
		return store.JobPage{}, err
	}
	var page store.JobPage
	weight := 0
	for _, id := range d.after(p.After) {
		j := d.jobs[id]
		if !fits(f, j.State) {
			continue
		}
		if full {
			weight += j.Bytes()
			if j.Result != nil {
				weight += len(j.Result.Data)
			}
		}
		n := len(page.Jobs)
		if n == p.Size || n > 0 && p.Bytes > 0 && weight > p.Bytes {
			page.Next = int64(page.Jobs[n-1].ID)
			break
		}
		page.Jobs = append(page.Jobs, d.view(j, full, now))
	}
	return page, nil
}

func (d *memoryDB) filterQueue(f store.JobFilter) error {
	if f.Queue == nil {
		return nil
	}
	if _, ok := d.queues[*f.Queue]; !ok {
		return &store.QueueNotFoundError{Queue: *f.Queue}
	}
	return nil
}

// fits tells whether all that is set in a filter holds for a job.
func fits(f store.JobFilter, s model.State) bool {
	switch {
	case f.Queue != nil && s.Spec.Queue != *f.Queue,
		len(f.States) > 0 && !slices.Contains(f.States, s.Phase),
		f.Subject != nil && (s.Spec.Subject == nil || *s.Spec.Subject != *f.Subject),
		f.CreatedFrom != nil && s.CreatedAt.Before(*f.CreatedFrom),
		f.CreatedBefore != nil && !s.CreatedAt.Before(*f.CreatedBefore),
		f.ErrorCode != nil && (s.LastError == nil || s.LastError.Code != *f.ErrorCode):
		return false
	}
	return true
}

// recordBytes is what a lease weighs in an answer.
func recordBytes(r store.LeaseRecord) int {
	n := 200 + len(r.Owner)
	for _, s := range r.Stages {
		n += 20 + len(s.Stage)
	}
	if r.Error != nil {
		n += len(r.Error.Code) + len(r.Error.Message) + len(r.Error.Details)
	}
	return n
}

// ListLeases lists every lease of a job.
func (m *Memory) ListLeases(ctx context.Context, id store.JobID, p store.Page) (store.LeasePage, error) {
	d := m.db
	if _, err := d.begin(ctx); err != nil {
		return store.LeasePage{}, err
	}
	defer d.mu.Unlock()
	j, ok := d.jobs[id]
	if !ok {
		return store.LeasePage{}, &store.JobNotFoundError{JobID: id}
	}
	var page store.LeasePage
	weight := 0
	for _, l := range j.Leases {
		if l.LeaseNo <= p.After {
			continue
		}
		weight += recordBytes(l.LeaseRecord)
		n := len(page.Leases)
		if n == p.Size || n > 0 && p.Bytes > 0 && weight > p.Bytes {
			page.Next = page.Leases[n-1].LeaseNo
			break
		}
		page.Leases = append(page.Leases, l.LeaseRecord)
	}
	return page, nil
}

// LastLeases reads the latest leases of a job.
func (m *Memory) LastLeases(ctx context.Context, id store.JobID, n, bytes int) ([]store.LeaseRecord, error) {
	d := m.db
	if _, err := d.begin(ctx); err != nil {
		return nil, err
	}
	defer d.mu.Unlock()
	j, ok := d.jobs[id]
	if !ok {
		return nil, &store.JobNotFoundError{JobID: id}
	}
	var out []store.LeaseRecord
	weight := 0
	for i := len(j.Leases) - 1; i >= 0 && len(out) < n; i-- {
		weight += recordBytes(j.Leases[i].LeaseRecord)
		if bytes > 0 && weight > bytes {
			break
		}
		out = append(out, j.Leases[i].LeaseRecord)
	}
	slices.Reverse(out)
	return out, nil
}

// keptActs is how many acts of operators are read.
const keptActs = 100

// OperatorActs reads the latest acts on a job.
func (m *Memory) OperatorActs(ctx context.Context, id store.JobID) ([]store.OperatorAct, error) {
	d := m.db
	if _, err := d.begin(ctx); err != nil {
		return nil, err
	}
	defer d.mu.Unlock()
	j, ok := d.jobs[id]
	if !ok {
		return nil, &store.JobNotFoundError{JobID: id}
	}
	return slices.Clone(j.acts[max(0, len(j.acts)-keptActs):]), nil
}

func (j *memoryJob) record(act string, by store.Actor, now time.Time) {
	j.acts = append(j.acts, store.OperatorAct{At: now, Act: act, Actor: by.Name, Note: by.Note})
}

// CancelJob cancels a job or asks its holder to stop.
func (m *Memory) CancelJob(ctx context.Context, id store.JobID, by store.Actor) (store.CancelResult, error) {
	d := m.db
	now, err := d.begin(ctx)
	if err != nil {
		return store.CancelResult{}, err
	}
	defer d.mu.Unlock()
	o := d.act(id, model.Cancel{}, "cancel", by, now)
	return store.CancelResult{Requested: o.Requested, State: o.State}, o.Err
}

// act makes an operator's call on a job and records it where it changed something.
func (d *memoryDB) act(id store.JobID, c model.Call, name string, by store.Actor, now time.Time) model.Outcome {
	j, ok := d.jobs[id]
	if !ok {
		return model.Outcome{Err: &store.JobNotFoundError{JobID: id}}
	}
	if _, queued := d.queues[j.Spec.Queue]; !queued && c == (model.Retry{}) {
		return model.Outcome{Err: &store.QueueNotFoundError{Queue: j.Spec.Queue}}
	}
	was := j.Phase
	o := d.step(j, c, now)
	if o.Err == nil && !o.Passed && (o.Requested || j.Phase != was || was == store.Dead || was == store.Pending) {
		j.record(name, by, now)
	}
	return o
}
