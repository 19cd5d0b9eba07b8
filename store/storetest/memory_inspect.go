package storetest

import (
	"context"
	"slices"
	"time"

	"github.com/leasehold/leasehold/store"
)

// ExplainJob is store.Inspector.ExplainJob.
func (m *Memory) ExplainJob(ctx context.Context, id store.JobID) (*store.JobStanding, error) {
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
	v := d.view(j, false, now)
	s := &store.JobStanding{At: now, Queue: v.Queue, State: v.State, Whole: !j.Undeliverable, LeaseOwner: v.LeaseOwner}
	if q, ok := d.queues[v.Queue]; ok {
		s.PausedAt, s.PausedBy, s.PauseNote = q.PausedAt, q.PausedBy, q.PauseNote
	}
	switch {
	case v.State == store.Processing:
		s.LeaseRemaining = v.LeaseUntil.Sub(now)
	case v.State == store.Pending && v.RunAt.After(now):
		s.DueIn = v.RunAt.Sub(now)
	case v.State == store.Pending:
		before := slices.IndexFunc(d.ready(v.Queue, now), func(other *memoryJob) bool { return other.ID == id })
		s.Ahead = int64(min(max(before, 0), store.MaxJobsAhead))
	}
	s.LastLeaseAt = d.lastLease(v.Queue)
	return s, nil
}

func (d *memoryDB) lastLease(queue string) *time.Time {
	var last *time.Time
	for _, j := range d.jobs {
		lease, leased := j.Latest()
		if leased && j.Spec.Queue == queue && (last == nil || lease.LeasedAt.After(*last)) {
			last = &lease.LeasedAt
		}
	}
	return last
}

// QueueStats is store.Inspector.QueueStats.
func (m *Memory) QueueStats(ctx context.Context, names []string) ([]store.QueueStats, error) {
	d := m.db
	now, err := d.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer d.mu.Unlock()
	stats := make([]store.QueueStats, len(names))
	for i, name := range names {
		stats[i].Queue = name
		for _, j := range d.jobs {
			if j.Spec.Queue == name {
				count(&stats[i], d.view(j, false, now), now)
			}
		}
	}
	return stats, nil
}

func count(s *store.QueueStats, j store.Job, now time.Time) {
	switch {
	case j.State == store.Processing:
		s.Processing++
	case j.State == store.Stuck:
		s.Stuck++
	case j.State == store.Dead:
		s.Dead++
	case j.State == store.Pending && j.RunAt.After(now):
		s.Scheduled++
	case j.State == store.Pending:
		s.Ready++
		if age := now.Sub(j.RunAt); s.OldestAge == nil || age > *s.OldestAge {
			s.OldestAge = &age
		}
	}
}

// LintFacts is store.Inspector.LintFacts, as far as there is something to tell: a Memory has
// neither tables nor sessions.
func (m *Memory) LintFacts(ctx context.Context, q store.LintQuery) (*store.LintFacts, error) {
	d := m.db
	now, err := d.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer d.mu.Unlock()
	facts := &store.LintFacts{At: now}
	if q.Queue != nil && d.queues[*q.Queue] == nil {
		return nil, &store.QueueNotFoundError{Queue: *q.Queue}
	}
	for name, queue := range d.queues {
		if q.Queue == nil || *q.Queue == name {
			facts.Queues = append(facts.Queues, store.QueueLeases{Queue: name, OnExpiry: queue.OnExpiry})
		}
	}
	return facts, nil
}
