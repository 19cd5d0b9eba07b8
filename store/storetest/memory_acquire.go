package storetest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/storetest/model"
)

// Acquire takes leases.
func (m *Memory) Acquire(ctx context.Context, items []store.Acquire) ([]store.Acquired, error) {
	d := m.db
	now, err := d.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer d.mu.Unlock()
	out := make([]store.Acquired, len(items))
	var open, repeats []*claim
	asked := map[string]bool{}
	for i := range items {
		c := &claim{item: items[i], out: &out[i]}
		switch {
		case c.item.RequestID != nil && asked[*c.item.RequestID]:
			repeats = append(repeats, c)
			continue
		case d.replay(c, now):
		case d.refused(c):
		case c.item.JobID != 0:
			d.acquireByID(c, now)
			d.remember(c, now)
		default:
			open = append(open, c)
		}
		if c.item.RequestID != nil {
			asked[*c.item.RequestID] = true
		}
	}
	d.acquireByQueue(open, now)
	for _, c := range repeats {
		if !d.replay(c, now) {
			c.out.Empty = store.NoReadyJobs
		}
	}
	return out, nil
}

// claim is one item of an Acquire while it is served.
type claim struct {
	item  store.Acquire
	out   *store.Acquired
	bytes int
	full  bool
}

func (c *claim) call() model.Acquire {
	return model.Acquire{Owner: c.item.Owner, Duration: c.item.LeaseDuration, ByID: c.item.JobID != 0}
}

// arguments is what a repeated request id must repeat.
func (c *claim) arguments() string {
	i := c.item
	d := time.Duration(0)
	if i.LeaseDuration != nil {
		d = *i.LeaseDuration
	}
	return fmt.Sprintf("%q %d %q %d %d", i.Queues, i.JobID, i.Owner, i.MaxJobs, d)
}

// replay answers a request id that is remembered (R12).
func (d *memoryDB) replay(c *claim, now time.Time) bool {
	if c.item.RequestID == nil {
		return false
	}
	r, ok := d.requests[*c.item.RequestID]
	if !ok || !now.Before(r.at.Add(requestMemory)) {
		return false
	}
	if r.arguments != c.arguments() {
		c.out.Err = &store.RequestReusedError{RequestID: *c.item.RequestID}
		return true
	}
	r.replayed = true
	for _, ref := range r.leases {
		j, ok := d.jobs[ref.JobID]
		if !ok {
			continue
		}
		if l, ok := j.Replay(ref.LeaseNo, now); ok {
			l.Job = d.view(j, true, now)
			c.out.Leases = append(c.out.Leases, l)
		}
	}
	if len(c.out.Leases) == 0 {
		c.out.Empty = store.NoReadyJobs
	}
	return true
}

// remember writes down the request id of a claim that has leases.
func (d *memoryDB) remember(c *claim, now time.Time) {
	if c.item.RequestID == nil || len(c.out.Leases) == 0 {
		return
	}
	r := &memoryRequest{arguments: c.arguments(), at: now}
	for i := range c.out.Leases {
		r.leases = append(r.leases, c.out.Leases[i].Ref())
	}
	d.requests[*c.item.RequestID] = r
}

func (d *memoryDB) refused(c *claim) bool {
	for _, q := range c.item.Queues {
		if _, ok := d.queues[q]; !ok {
			c.out.Err = &store.QueueNotFoundError{Queue: q}
			return true
		}
	}
	return false
}

func (d *memoryDB) acquireByID(c *claim, now time.Time) {
	j, ok := d.jobs[c.item.JobID]
	if !ok {
		c.out.Err = &store.JobNotFoundError{JobID: c.item.JobID}
		return
	}
	d.take(c, j, now)
}

// take leases one job to a claim, or says why not.
func (d *memoryDB) take(c *claim, j *memoryJob, now time.Time) {
	o := d.step(j, c.call(), now)
	if o.Empty != store.NotEmpty {
		c.out.Empty = o.Empty
		return
	}
	l := j.Granted(o)
	l.Job = d.view(j, true, now)
	c.out.Leases = append(c.out.Leases, l)
	c.bytes += j.Bytes()
}

// acquireByQueue hands ready jobs round the claims one by one, so that of two callers who
// ask for many at once neither takes all.
func (d *memoryDB) acquireByQueue(open []*claim, now time.Time) {
	ready := map[string][]*memoryJob{}
	for progress := true; progress; {
		progress = false
		for _, c := range open {
			progress = d.takeNext(c, ready, now) || progress
		}
	}
	for _, c := range open {
		if len(c.out.Leases) == 0 {
			c.out.Empty = d.whyEmpty(c.item.Queues)
		}
		d.remember(c, now)
	}
}

func (d *memoryDB) takeNext(c *claim, ready map[string][]*memoryJob, now time.Time) bool {
	if c.full || len(c.out.Leases) >= max(c.item.MaxJobs, 1) {
		return false
	}
	limit := c.item.MaxBytes
	if limit == 0 {
		limit = store.DefaultAnswerBytes
	}
	for _, q := range c.item.Queues {
		if _, ok := ready[q]; !ok {
			ready[q] = d.ready(q, now)
		}
		if len(ready[q]) == 0 {
			continue
		}
		j := ready[q][0]
		if len(c.out.Leases) > 0 && c.bytes+j.Bytes() > limit {
			c.full = true
			return false
		}
		ready[q] = ready[q][1:]
		d.take(c, j, now)
		return true
	}
	return false
}

// ready are the jobs of a queue that a claim may take, in the order of R36.
func (d *memoryDB) ready(queue string, now time.Time) []*memoryJob {
	if d.queues[queue].PausedAt != nil {
		return nil
	}
	var jobs []*memoryJob
	for _, j := range d.pending[queue] {
		if j.Due(now) && !j.Undeliverable && j.LeaseNo < model.MaxLeaseNo {
			jobs = append(jobs, j)
		}
	}
	slices.SortFunc(jobs, func(a, b *memoryJob) int { return model.Order(a.State, b.State) })
	return jobs
}

func (d *memoryDB) whyEmpty(queues []string) store.EmptyReason {
	for _, q := range queues {
		if d.queues[q].PausedAt == nil {
			return store.NoReadyJobs
		}
	}
	return store.QueuePaused
}

// Undeliver gives back leases whose answer could not be delivered.
func (m *Memory) Undeliver(ctx context.Context, leases []store.LeaseRef, requestID *string) error {
	d := m.db
	now, err := d.begin(ctx)
	if err != nil {
		return err
	}
	defer d.mu.Unlock()
	replayed := false
	if requestID != nil {
		r, ok := d.requests[*requestID]
		replayed = ok && r.replayed
	}
	for _, ref := range leases {
		if j, ok := d.jobs[ref.JobID]; ok {
			d.step(j, model.Undeliver{LeaseNo: ref.LeaseNo, Replayed: replayed}, now)
		}
	}
	return nil
}
