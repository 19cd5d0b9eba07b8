package model

import (
	"time"

	"github.com/leasehold/leasehold/store"
)

func (c Complete) step(s State, _ Request, now time.Time) (State, Outcome) {
	s, l, v, o := s.judge(c.LeaseNo, colComplete, c, now)
	switch v {
	case apply, applyLate:
	case repeated:
		if l.Digest != Digest(c.Result, c.ThenEnqueue) {
			return s, Outcome{Err: &store.ConflictError{Lease: store.LeaseRef{JobID: s.ID, LeaseNo: l.LeaseNo}}}
		}
		return s, Outcome{
			AlreadyApplied: true, Late: l.End == store.EndCompletedLate, FollowUps: l.FollowUps, State: s.Phase,
		}
	default:
		return s, o
	}
	l.End, l.EndedAt = store.EndCompleted, ptr(now)
	if v == applyLate {
		l.End, s.CompletedLate = store.EndCompletedLate, true
	}
	l.Digest, l.FollowUps = Digest(c.Result, c.ThenEnqueue), c.FollowUps
	s = s.WithLease(l)
	s.Phase, s.Reason, s.Result, s.FinishedAt = store.Completed, "", ptr(c.Result), ptr(now)
	return s, Outcome{Late: v == applyLate, FollowUps: c.FollowUps, State: s.Phase}
}

func (c Fail) step(s State, r Request, now time.Time) (State, Outcome) {
	s, l, v, o := s.judge(c.LeaseNo, colFail, c, now)
	switch v {
	case apply:
	case repeated:
		o = s.after()
		o.AlreadyApplied, o.FollowUps = true, l.FollowUps
		return s, o
	default:
		return s, o
	}
	e := ending{end: store.EndFailed, err: ptr(c.Error), retryAfter: c.RetryAfter, followUps: c.FollowUps}
	if c.Permanent {
		e.end = store.EndFailedPermanently
	}
	s = s.end(e, r.Queue, now)
	o = s.after()
	o.FollowUps = c.FollowUps
	return s, o
}

func (c Release) step(s State, r Request, now time.Time) (State, Outcome) {
	s, _, v, o := s.judge(c.LeaseNo, colRelease, c, now)
	switch v {
	case apply:
	case repeated:
		o = s.after()
		o.AlreadyApplied = true
		return s, o
	default:
		return s, o
	}
	s = s.end(ending{end: store.EndReleased, delay: c.Delay}, r.Queue, now)
	return s, s.after()
}

// An answer that arrived after all, or by a replay, must not lose its lease: whoever beats
// works on the job.
func (c Undeliver) step(s State, r Request, now time.Time) (State, Outcome) {
	l, ok := s.Lease(c.LeaseNo)
	if !ok || c.Replayed || l.Beats > 0 || s.standing(l) != open {
		return s, Outcome{State: s.Phase, Passed: true}
	}
	s = s.end(ending{end: store.EndUndelivered}, r.Queue, now)
	o := s.after()
	o.Ended = store.EndUndelivered
	return s, o
}

func (c Cancel) step(s State, _ Request, now time.Time) (State, Outcome) {
	switch s.Phase {
	case store.Cancelled:
		return s, Outcome{State: s.Phase}
	case store.Completed, store.Dead:
		return s, Outcome{Err: s.wrong("must be PENDING, PROCESSING or STUCK to be cancelled")}
	case store.Processing:
		if s.CancelRequestedAt == nil {
			s.CancelRequestedAt = ptr(now)
		}
		return s, Outcome{State: s.Phase, Requested: true}
	}
	s.Phase, s.Reason, s.ActedOn, s.FinishedAt = store.Cancelled, "", true, ptr(now)
	return s, Outcome{State: s.Phase}
}

func (c Retry) step(s State, _ Request, now time.Time) (State, Outcome) {
	switch s.Phase {
	case store.Dead, store.Stuck:
	case store.Pending:
		if s.Due(now) && s.RunAt.Exact() {
			return s, Outcome{State: s.Phase, RunAt: s.RunAt, Passed: true}
		}
		// A job that its producer scheduled waits for its time, not for a backoff: a retry
		// of a whole queue must not start next month's work today.
		if s.LeaseNo == 0 {
			return s, Outcome{Err: s.wrong("waits for its run_at, not for a retry"), Passed: true}
		}
	default:
		return s, Outcome{Err: s.wrong("must be DEAD, STUCK or PENDING to be retried"), Passed: true}
	}
	s.Phase, s.RunAt, s.Reason = store.Pending, At(now), ""
	s.AttemptsUsed, s.Expirations, s.FreeReturns = 0, 0, 0
	s.FinishedAt, s.ActedOn, s.Resolved = nil, true, false
	return s, Outcome{State: s.Phase, RunAt: s.RunAt}
}

func (c Resolve) step(s State, _ Request, now time.Time) (State, Outcome) {
	then := store.Dead
	if c.Result != nil {
		then = store.Completed
	}
	same := s.Resolved && s.Phase == then && (c.Result == nil || Digest(*s.Result, nil) == Digest(*c.Result, nil))
	switch {
	case same:
		return s, Outcome{State: s.Phase, Passed: true}
	case s.Phase != store.Stuck && s.Phase != store.Dead:
		return s, Outcome{Err: s.wrong("must be STUCK or DEAD to be resolved")}
	}
	if s.Phase != then { // a DEAD job that stays so has been finished since it died
		s.FinishedAt = ptr(now)
	}
	s.Phase, s.Reason, s.ActedOn, s.Resolved, s.Result = then, "", true, true, c.Result
	return s, Outcome{State: s.Phase}
}

func (c Bury) step(s State, _ Request, now time.Time) (State, Outcome) {
	if s.Phase != store.Pending || !s.Undeliverable && s.LeaseNo < MaxLeaseNo {
		return s, Outcome{State: s.Phase, Passed: true}
	}
	s.Phase, s.Reason, s.FinishedAt = store.Dead, c.Reason, ptr(now)
	return s, Outcome{State: s.Phase}
}

func (s State) wrong(want string) error {
	return &store.StateError{JobID: s.ID, State: s.Phase, Want: want}
}
