package model

import (
	"time"

	"github.com/leasehold/leasehold/store"
)

// Job is the job as a Store shows it; with full, with its content. The idempotency key is
// not the model's to know and left out.
func (s State) Job(full bool) store.Job {
	j := store.Job{
		ID: s.ID, Queue: s.Spec.Queue, State: s.Phase, Subject: s.Spec.Subject,
		Priority: *s.Spec.Priority, RunAt: s.RunAt.From, CreatedAt: s.CreatedAt,
		Policy: s.Spec.Policy, AttemptsUsed: s.AttemptsUsed, Expirations: s.Expirations,
		LeaseNo: s.LeaseNo, Stage: s.Stage, CancelRequestedAt: s.CancelRequestedAt,
		FinishedAt: s.FinishedAt, CompletedLate: s.CompletedLate, LastError: s.LastError,
		StateReason: s.Reason, ParentJobID: s.Parent,
	}
	if l, ok := s.Latest(); ok {
		j.Progress = l.Progress
		if s.Phase == store.Processing {
			j.LeaseOwner, j.LeaseUntil = ptr(l.Owner), ptr(l.Until)
		}
	}
	if full {
		if !s.Undeliverable {
			j.Payload = ptr(s.Spec.Payload)
		}
		j.Headers, j.Result, j.Checkpoint = s.Spec.Headers, s.Result, s.Checkpoint
	}
	return j
}

// Granted is the lease that an Acquire of this outcome gave.
func (s State) Granted(o Outcome) store.Lease {
	return store.Lease{
		Job: s.Job(true), LeaseNo: o.LeaseNo, Attempt: o.Attempt, Until: o.Until,
		Remaining: o.Remaining, LastStage: o.LastStage, Checkpoint: o.Checkpoint,
	}
}

// Replay is the latest lease as a repeated Acquire answers it, or false where it has
// ended or is another.
func (s State) Replay(no int64, now time.Time) (store.Lease, bool) {
	l, ok := s.Latest()
	if !ok || l.LeaseNo != no || l.End != store.EndNone {
		return store.Lease{}, false
	}
	g := s.Granted(Outcome{
		LeaseNo: no, Attempt: s.AttemptsUsed + 1, Until: l.Until, Remaining: max(0, l.Until.Sub(now)),
		Checkpoint: s.Checkpoint,
	})
	if n := len(s.Leases); n > 1 {
		g.LastStage = s.Leases[n-2].Stage
	}
	return g, true
}

// Bytes is what the job weighs in an answer: payload, headers and checkpoint.
func (s State) Bytes() int {
	n := len(s.Spec.Payload.Data) + len(s.Checkpoint)
	for k, v := range s.Spec.Headers {
		n += len(k) + len(v)
	}
	return n
}

func (c Age) step(s State, _ Request, _ time.Time) (State, Outcome) {
	return s.Age(c.By), Outcome{State: s.Phase}
}

// Age shifts every time of the job into the past, which is to it as if time had passed.
func (s State) Age(d time.Duration) State {
	shift := func(t *time.Time) *time.Time {
		if t == nil {
			return nil
		}
		return ptr(t.Add(-d))
	}
	s.CreatedAt = s.CreatedAt.Add(-d)
	s.RunAt = Window{From: s.RunAt.From.Add(-d), To: s.RunAt.To.Add(-d)}
	s.CancelRequestedAt, s.FinishedAt = shift(s.CancelRequestedAt), shift(s.FinishedAt)
	leases := make([]Lease, len(s.Leases))
	for i, l := range s.Leases {
		l.LeasedAt, l.Until, l.ChangedAt = l.LeasedAt.Add(-d), l.Until.Add(-d), l.ChangedAt.Add(-d)
		l.EndedAt, l.LastBeatAt = shift(l.EndedAt), shift(l.LastBeatAt)
		if c := l.LateCalls; c != nil {
			l.LateCalls = &store.LateCalls{
				Count: c.Count, FirstAt: c.FirstAt.Add(-d), LastAt: c.LastAt.Add(-d),
				LastCall: c.LastCall, LateBy: c.LateBy,
			}
		}
		stages := make([]store.StageChange, len(l.Stages))
		for k, g := range l.Stages {
			stages[k] = store.StageChange{At: g.At.Add(-d), Stage: g.Stage}
		}
		l.Stages = stages
		leases[i] = l
	}
	s.Leases = leases
	return s
}
