package storetest

import (
	"errors"
	"time"

	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/storetest/model"
)

// step gives every state that may follow.
func (s *specification) step(st model.State, input any) (out []model.State) {
	if f, ok := input.(finalRead); ok {
		for _, base := range s.withSilentEnds(st, farAhead) {
			if s.agrees(base, f.row) {
				out = append(out, base)
			}
		}
		return out
	}
	c := input.(Call)
	if c.Unknown {
		return s.unknownStep(st, c)
	}
	for _, base := range s.withSilentEnds(st, c.End.Add(s.cfg.ClockSlack)) {
		if undecided(c.Outcome.Err) || perhapsNotDue(base, c) {
			out = append(out, base)
			continue
		}
		if c.granted() && c.RequestID != "" {
			if s.replayed(base, c) {
				out = append(out, base)
			}
			continue
		}
		if next, ok := s.known(base, c); ok {
			out = append(out, next)
		}
	}
	return out
}

// undecided are refusals for reasons that lie outside of the job: they change nothing.
func undecided(err error) bool {
	var busy *store.BusyError
	var followUp *store.FollowUpError
	return errors.As(err, &busy) || errors.As(err, &followUp)
}

// perhapsNotDue tells whether an acquire may have come before the time of the next run,
// which is known only as a window.
func perhapsNotDue(base model.State, c Call) bool {
	return c.Outcome.Err == nil && c.Outcome.Empty == store.JobNotDue &&
		base.Phase == store.Pending && base.RunAt.To.After(c.Start)
}

// replayed tells whether an answer to a request that may have been repeated is the lease as
// it stands. When it was taken, the tables tell.
func (s *specification) replayed(base model.State, c Call) bool {
	g, ok := base.Replay(c.Outcome.LeaseNo, c.End)
	return ok && g.Attempt == c.Outcome.Attempt && string(g.Checkpoint) == string(c.Outcome.Checkpoint)
}

// unknownStep is the state if a call without an answer did take effect, at any time from
// its start on; none if it had no effect that matters.
func (s *specification) unknownStep(st model.State, c Call) (out []model.State) {
	for _, base := range s.withSilentEnds(st, farAhead) {
		next, _ := model.Step(base, s.request(s.chained(c)), c.Start)
		if next.Phase == store.Pending && base.Phase != store.Pending {
			next.RunAt.To = farAhead
		}
		next = s.withTimes(next)
		if _, beat := c.Request.(model.Heartbeat); beat {
			next = keepUntil(next, base)
		}
		if s.fingerprint(next) != s.fingerprint(base) {
			out = append(out, next)
		}
	}
	return out
}

// withTimes is a state with the times that the tables know, in the place of those at which
// the model was asked. Those of a job that was aged are others than they were.
func (s *specification) withTimes(st model.State) model.State {
	if s.aged {
		return st
	}
	if at := s.row.Job.CancelRequestedAt; st.CancelRequestedAt != nil && at != nil {
		st.CancelRequestedAt = at
	}
	l, ok := st.Latest()
	row, known := s.lease(l.LeaseNo)
	if !ok || !known || l.LeasedAt.Equal(row.LeasedAt) {
		return st
	}
	l.LeasedAt = row.LeasedAt
	if l.Beats == 0 {
		l.ChangedAt = row.LeasedAt // the model may have been asked at a much later time
	}
	return st.WithLease(l)
}

// keepUntil leaves out of a heartbeat without an answer that it renewed the lease. When it
// did, nobody knows; that a lease was not ended before its time is the business of
// CheckInvariants, and that it was not ended at its time is explained by an outage.
func keepUntil(next, base model.State) model.State {
	l, ok := next.Latest()
	if before, had := base.Latest(); ok && had {
		l.Until = before.Until
		return next.WithLease(l)
	}
	return next
}

// chained is a call without an answer with the follow-up jobs that the tables know of, which
// a repetition answers.
func (s *specification) chained(c Call) Call {
	row, ok := s.lease(LeaseNo(c.Request))
	if !ok {
		return c
	}
	switch r := c.Request.(type) {
	case model.Complete:
		if len(r.ThenEnqueue) > 0 {
			r.FollowUps = row.FollowUps
		}
		c.Request = r
	case model.Fail:
		r.FollowUps = row.FollowUps
		c.Request = r
	}
	return c
}

func (s *specification) request(c Call) model.Request {
	return model.Request{Call: c.Request, Queue: s.queue}
}

// known asks the model at the start and at the end of the call, and with and without the
// grace of R35, which no caller can see.
func (s *specification) known(base model.State, c Call) (model.State, bool) {
	for _, outage := range []bool{false, true} {
		r := s.request(c)
		r.Outage = outage
		early, okEarly := s.at(base, r, c, c.Start.Add(-s.cfg.ClockSlack))
		late, okLate := s.at(base, r, c, c.End.Add(s.cfg.ClockSlack))
		switch {
		case okEarly && okLate:
			early.RunAt.To = late.RunAt.To
			return early, true
		case okEarly:
			return early, true
		case okLate:
			return late, true
		}
	}
	return base, false
}

// at is the state after the call at a time, with what the answer told of times.
func (s *specification) at(base model.State, r model.Request, c Call, now time.Time) (model.State, bool) {
	next, want := model.Step(base, r, now)
	if _, ok := c.Request.(model.Undeliver); ok {
		return next, true // it answers nothing
	}
	if explains(c, want, c.End.Sub(c.Start)+2*s.cfg.ClockSlack) != nil {
		return base, false
	}
	next = s.withTimes(next)
	if !c.Outcome.Until.IsZero() {
		l, _ := next.Latest()
		l.Until = c.Outcome.Until
		next = next.WithLease(l)
	}
	if at := c.Outcome.RunAt.From; !at.IsZero() && next.Phase == store.Pending && !c.Outcome.AlreadyApplied {
		next = next.Settle(at)
	}
	return next, true
}

// withSilentEnds is the state, and what becomes of it if the service itself ended the
// lease before a time: by a sweep, or as undelivered. The lease's row says whether it did.
func (s *specification) withSilentEnds(st model.State, before time.Time) []model.State {
	states := []model.State{st}
	l, ok := st.Latest()
	if !ok || st.Phase != store.Processing {
		return states
	}
	row, ok := s.lease(l.LeaseNo)
	if !ok {
		return states
	}
	if row.Until.After(l.Until) && !s.aged { // renewed by a heartbeat without an answer
		l.Until = row.Until
		st = st.WithLease(l)
	}
	byTime := row.End == store.EndExpired || row.End == store.EndOverran || row.End == store.EndStalled
	if byTime || row.End == store.EndCompletedLate {
		at := before
		if row.End == store.EndStalled && at.After(l.Until) {
			at = l.Until // past it, the lease would have expired
		}
		next, o := model.Step(st, model.Request{Call: model.Sweep{}, Queue: s.queue}, at)
		if o.Ended != store.EndNone && (o.Ended == row.End || !byTime) {
			states = append(states, sinceThen(next, l, at))
		}
	}
	if row.End == store.EndUndelivered || row.End == store.EndCompletedLate {
		next, o := model.Step(st, model.Request{Call: model.Undeliver{LeaseNo: l.LeaseNo}, Queue: s.queue}, before)
		if o.Ended != store.EndNone {
			states = append(states, sinceThen(next, l, before))
		}
	}
	return states
}

// sinceThen widens the time of the next run: the lease was ended at an unknown time, from
// its beginning on.
func sinceThen(next model.State, l model.Lease, before time.Time) model.State {
	if next.Phase == store.Pending {
		next.RunAt.From = next.RunAt.From.Add(l.LeasedAt.Sub(before))
	}
	return next
}

// agrees tells whether a state is what the rows show.
func (s *specification) agrees(st model.State, row JobRow) bool {
	j := row.Job
	if st.Phase != j.State || st.LeaseNo != j.LeaseNo || st.CompletedLate != j.CompletedLate || len(st.Leases) != len(row.Leases) {
		return false
	}
	if !st.CompletedLate && st.AttemptsUsed != j.AttemptsUsed {
		return false
	}
	for i, l := range st.Leases {
		r := row.Leases[i]
		if l.LeaseNo != r.LeaseNo || l.End != r.End || l.Cancelled != r.Cancelled {
			return false
		}
		if l.End != store.EndCompletedLate && l.Counted != r.Counted {
			return false
		}
		if s.cfg.Repeats { // how often is the business of CheckInvariants
			continue
		}
		if l.Beats != r.Beats || (l.LateCalls == nil) != (r.LateCalls == nil) || l.LateCalls != nil && l.LateCalls.Count != r.LateCalls.Count {
			return false
		}
	}
	return true
}
