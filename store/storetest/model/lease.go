package model

import (
	"math"
	"time"

	"github.com/leasehold/leasehold/store"
)

// MaxLeaseNo is where a lease number is too near its type's bound to be raised (R39).
const MaxLeaseNo = math.MaxInt64 - 1000

func (c Enqueue) step(s State, r Request, now time.Time) (State, Outcome) {
	spec := c.Job
	spec.Policy = Merge(c.Job.Policy, r.Queue.Policy)
	if spec.Priority == nil {
		spec.Priority = ptr(int32(store.DefaultPriority))
	}
	runAt := now
	switch {
	case c.Job.RunAt != nil && c.Job.RunAt.After(now):
		runAt = *c.Job.RunAt
	case c.Job.Delay != nil:
		runAt = now.Add(*c.Job.Delay)
	}
	return State{
		ID: c.ID, Spec: &spec, CreatedAt: now, Parent: c.Parent,
		Phase: store.Pending, RunAt: At(runAt),
	}, Outcome{State: store.Pending, RunAt: At(runAt)}
}

func (c Acquire) step(s State, r Request, now time.Time) (State, Outcome) {
	switch {
	case s.Phase == store.Stuck:
		return s, Outcome{Empty: store.JobStuck}
	case s.Phase.Terminal():
		return s, Outcome{Empty: store.JobFinished}
	case s.Phase == store.Processing:
		return c.takeOver(s, r, now)
	case r.Queue.PausedAt != nil:
		return s, Outcome{Empty: store.QueuePaused}
	case !s.Due(now):
		return s, Outcome{Empty: store.JobNotDue}
	case s.Undeliverable || s.LeaseNo >= MaxLeaseNo:
		return s, Outcome{Empty: store.NoReadyJobs}
	}
	return c.grant(s, now)
}

// takeOver applies R8: expiry is one rule, whoever triggers it. The old lease is ended by
// section 6 first, and a new one begins only if the job runs again now.
func (c Acquire) takeOver(s State, r Request, now time.Time) (State, Outcome) {
	l, _ := s.Latest()
	if !c.ByID || r.Outage || !l.Until.Before(now) {
		return s, Outcome{Empty: store.JobLeased}
	}
	if r.Queue.PausedAt != nil {
		return s, Outcome{Empty: store.QueuePaused}
	}
	end := s.timeUp(l, r.Queue, now)
	s, o := c.step(s.end(ending{end: end}, r.Queue, now), r, now)
	o.Ended = end
	return s, o
}

func (c Acquire) grant(s State, now time.Time) (State, Outcome) {
	limits := s.Limits()
	d := limits.LeaseDuration
	if c.Duration != nil {
		d = *c.Duration
	}
	until := now.Add(d)
	if limits.MaxRuntime != nil {
		until = earlier(until, now.Add(*limits.MaxRuntime))
	}
	o := Outcome{
		LeaseNo: s.LeaseNo + 1, Attempt: s.AttemptsUsed + 1, Until: until, Remaining: until.Sub(now),
		Checkpoint: s.Checkpoint, State: store.Processing,
	}
	if before, ok := s.Latest(); ok {
		o.LastStage = before.Stage
	}
	s.LeaseNo++
	s.Phase = store.Processing
	s.ActedOn, s.Resolved = false, false
	return s.WithLease(Lease{
		LeaseRecord: store.LeaseRecord{
			JobID: s.ID, LeaseNo: s.LeaseNo, Owner: c.Owner, LeasedAt: now, Until: until,
		},
		Duration: d, ChangedAt: now,
	}), o
}

// timeUp tells by which end the time of a lease is over, or EndNone.
func (s State) timeUp(l Lease, q store.Queue, now time.Time) store.End {
	limits := s.Limits()
	if l.Until.Before(now) {
		if limits.MaxRuntime != nil && !l.Until.Before(l.LeasedAt.Add(*limits.MaxRuntime)) {
			return store.EndOverran
		}
		return store.EndExpired
	}
	if q.StallEndsLease && s.stalled(l, now) {
		return store.EndStalled
	}
	return store.EndNone
}

func (s State) stalled(l Lease, now time.Time) bool {
	t := s.Limits().StallTimeout
	return t != nil && l.ChangedAt.Add(*t).Before(now)
}

func (c Sweep) step(s State, r Request, now time.Time) (State, Outcome) {
	if s.Phase != store.Processing || r.Outage {
		return s, Outcome{State: s.Phase, Passed: true}
	}
	l, _ := s.Latest()
	end := s.timeUp(l, r.Queue, now)
	if end == store.EndNone {
		return s, Outcome{State: s.Phase, Passed: true}
	}
	s = s.end(ending{end: end}, r.Queue, now)
	o := s.after()
	o.Ended = end
	return s, o
}

func (c Heartbeat) step(s State, _ Request, now time.Time) (State, Outcome) {
	s, l, v, o := s.judge(c.LeaseNo, colHeartbeat, c, now)
	if v != apply {
		return s, o
	}
	until := now.Add(l.Duration)
	if bound, ok := s.bound(l); ok {
		if !bound.After(now) {
			return s, Outcome{Err: &store.ExpiredError{
				Lease: store.LeaseRef{JobID: s.ID, LeaseNo: l.LeaseNo}, End: store.EndNone,
			}}
		}
		until = earlier(until, bound)
	}
	s, l = c.note(s, l, now)
	l.LargestGap = max(l.LargestGap, now.Sub(l.LastSign()))
	l.Until, l.Beats, l.LastBeatAt = until, l.Beats+1, ptr(now)
	return s.WithLease(l), Outcome{
		LeaseNo: l.LeaseNo, Until: until, Remaining: until.Sub(now),
		CancelRequested: s.CancelRequestedAt != nil, State: s.Phase,
	}
}

// bound is the time that no renewal passes (R16).
func (s State) bound(l Lease) (t time.Time, ok bool) {
	limits := s.Limits()
	if limits.MaxRuntime != nil {
		t, ok = l.LeasedAt.Add(*limits.MaxRuntime), true
	}
	if s.CancelRequestedAt != nil {
		grace := s.CancelRequestedAt.Add(limits.CancelGrace)
		if !ok || grace.Before(t) {
			t, ok = grace, true
		}
	}
	return t, ok
}

// LastSign is the last sign of life: a heartbeat, or the beginning.
func (l Lease) LastSign() time.Time {
	if l.LastBeatAt != nil {
		return *l.LastBeatAt
	}
	return l.LeasedAt
}

// note keeps stage, progress and checkpoint. Only a change counts against a stall: a
// worker that hangs may well repeat its last stage for ever.
func (c Heartbeat) note(s State, l Lease, now time.Time) (State, Lease) {
	if c.Stage != nil {
		if l.Stage == nil || *l.Stage != *c.Stage {
			l.ChangedAt = now
			l.Stages = addStage(l.Stages, store.StageChange{At: now, Stage: *c.Stage})
		}
		l.Stage, s.Stage = c.Stage, c.Stage
	}
	if c.Progress != nil {
		if l.Progress == nil || *l.Progress != *c.Progress {
			l.ChangedAt = now
		}
		l.Progress = c.Progress
	}
	if c.Checkpoint != nil {
		if string(s.Checkpoint) != string(c.Checkpoint) {
			l.ChangedAt = now
		}
		s.Checkpoint = c.Checkpoint
	}
	return s, l
}

// addStage appends to a timeline of at most MaxStageChanges; the last is replaced then.
func addStage(t []store.StageChange, c store.StageChange) []store.StageChange {
	if len(t) < store.MaxStageChanges {
		return append(t[:len(t):len(t)], c)
	}
	t = append([]store.StageChange(nil), t...)
	t[len(t)-1] = c
	return t
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
