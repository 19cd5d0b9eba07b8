package storetest

import (
	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/storetest/model"
)

// terminal tells the state that an accepted call brought the job to, if it is terminal
// and the call was the one that did it.
func terminal(c Call) store.State {
	if !answeredOK(c) || c.Outcome.AlreadyApplied {
		return 0
	}
	switch c.Request.(type) {
	case model.Complete:
		return store.Completed
	case model.Fail, model.Release, model.Cancel, model.Resolve:
		if c.Outcome.State.Terminal() {
			return c.Outcome.State
		}
	}
	return 0
}

// maybe tells whether some call of a kind was accepted, or may have been.
func maybe[C model.Call](calls History) bool {
	for _, c := range calls {
		if _, ok := c.Request.(C); ok && (c.Unknown || c.Outcome.Err == nil) {
			return true
		}
	}
	return false
}

// checkTerminal is I2.
func (j *jobChecker) checkTerminal() {
	completions := 0
	for _, c := range j.calls {
		state := terminal(c)
		if state == 0 {
			continue
		}
		if _, ok := c.Request.(model.Complete); ok {
			completions++
		}
		j.checkAfterTerminal(c, state)
	}
	if completions > 1 {
		j.report("I2", j.id, "%d Completes were applied", completions)
	}
	state := j.row.Job.State
	if completions > 0 && state != store.Completed {
		j.report("I2", j.id, "a Complete was applied, and the job is %s", state)
	}
	if state == store.Completed && !maybe[model.Complete](j.calls) && !maybe[model.Resolve](j.calls) {
		j.report("I2", j.id, "it is COMPLETED, and nobody said so")
	}
	if state == store.Cancelled && !maybe[model.Cancel](j.calls) {
		j.report("I2", j.id, "it is CANCELLED, and nobody asked for it")
	}
}

// checkAfterTerminal looks for what must not follow a terminal state but by an operator:
// a lease, or another terminal state than a late Complete's.
func (j *jobChecker) checkAfterTerminal(c Call, state store.State) {
	for _, after := range j.calls {
		if after.Unknown || !after.Start.After(c.End) || j.operatedBetween(c, after) {
			continue
		}
		if _, ok := after.Request.(model.Acquire); ok && after.Outcome.LeaseNo != 0 && after.Outcome.Err == nil {
			j.report("I2", j.id, "it was %s, and then lease %d was given", state, after.Outcome.LeaseNo)
		}
		other := terminal(after)
		late := state == store.Dead && other == store.Completed
		if other != 0 && other != state && !late {
			j.report("I2", j.id, "it was %s, and then %s", state, other)
		}
	}
}

// operatedBetween tells whether an operator may have changed the job between two calls.
func (j *jobChecker) operatedBetween(from, to Call) bool {
	for _, c := range j.calls {
		switch c.Request.(type) {
		case model.Retry, model.Resolve:
			if (c.Unknown || c.Outcome.Err == nil && c.End.After(from.Start)) && c.Start.Before(to.End) {
				return true
			}
		}
	}
	return false
}

// maxTries is how often a service tries a call at most.
const maxTries = 4

// tally counts the calls of one lease that are on record, may be, and are not: those of the
// last kind only where a try before the last may have done what the last did not.
type tally struct{ yes, maybe, no int64 }

func (t tally) holds(n int64, repeats bool) bool {
	if repeats {
		return n >= t.yes && n <= maxTries*(t.yes+t.maybe+t.no)
	}
	return n >= t.yes && n <= t.yes+t.maybe
}

// add counts a call.
func (t tally) add(c Call, onRecord bool) tally {
	switch {
	case c.Unknown:
		t.maybe++
	case onRecord:
		t.yes++
	default:
		t.no++
	}
	return t
}

// checkRefused is I4 as far as the rows show it: heartbeats that were refused are not
// counted, late calls are, each once, and results and follow-ups are those accepted.
func (j *jobChecker) checkRefused() {
	beats, late := map[int64]tally{}, map[int64]tally{}
	for _, c := range j.calls {
		no := LeaseNo(c.Request)
		if no == 0 {
			continue
		}
		if _, beat := c.Request.(model.Heartbeat); beat {
			beats[no] = beats[no].add(c, c.Outcome.Err == nil)
		}
		late[no] = late[no].add(c, isErr[*store.SupersededError](c.Outcome.Err))
	}
	for _, r := range j.row.Leases {
		if b := beats[r.LeaseNo]; !b.holds(r.Beats, j.cfg.Repeats) {
			j.report("I4", j.id, "lease %d has %d beats on record; answered OK %d, unknown %d", r.LeaseNo, r.Beats, b.yes, b.maybe)
		}
		n := int64(0)
		if r.LateCalls != nil {
			n = r.LateCalls.Count
		}
		l := late[r.LeaseNo]
		if j.cfg.Repeats {
			l.yes, l.maybe = 0, l.maybe+l.yes
		}
		if !l.holds(n, j.cfg.Repeats) {
			j.report("I4", j.id, "lease %d has %d late calls on record; refused %d, unknown %d", r.LeaseNo, n, l.yes, l.maybe)
		}
	}
	j.checkResult()
}

// checkResult is I4 for results: the one that was accepted stays.
func (j *jobChecker) checkResult() {
	for _, c := range j.calls {
		r, ok := c.Request.(model.Complete)
		if !ok || !answeredOK(c) || j.row.Job.Result == nil {
			continue
		}
		if model.Digest(r.Result, nil) != model.Digest(*j.row.Job.Result, nil) {
			j.report("I4", j.id, "the result of lease %d was accepted, and another is stored", r.LeaseNo)
		}
	}
}

// LeaseNo is the lease that a call of a token is about, 0 for all others.
func LeaseNo(c model.Call) int64 {
	switch c := c.(type) {
	case model.Heartbeat:
		return c.LeaseNo
	case model.Complete:
		return c.LeaseNo
	case model.Fail:
		return c.LeaseNo
	case model.Release:
		return c.LeaseNo
	}
	return 0
}

// checkEnds is I5: every end on record is true.
func (j *jobChecker) checkEnds() {
	for _, l := range j.row.Leases {
		of := j.calls.lease(l.LeaseNo)
		switch l.End {
		case store.EndCompleted, store.EndCompletedLate:
			if !maybe[model.Complete](of) {
				j.report("I5", j.id, "lease %d ended by a Complete that nobody made", l.LeaseNo)
			}
		case store.EndFailed, store.EndFailedPermanently:
			if !maybe[model.Fail](of) {
				j.report("I5", j.id, "lease %d ended by a Fail that nobody made", l.LeaseNo)
			}
		case store.EndReleased:
			if !maybe[model.Release](of) {
				j.report("I5", j.id, "lease %d ended by a Release that nobody made", l.LeaseNo)
			}
		case store.EndExpired, store.EndOverran:
			if l.EndedAt != nil && l.EndedAt.Before(l.Until) {
				j.report("I5", j.id, "lease %d expired at %s, before its end at %s", l.LeaseNo, *l.EndedAt, l.Until)
			}
		}
		if l.Cancelled && !maybe[model.Cancel](j.calls) {
			j.report("I5", j.id, "lease %d ended as cancelled, and nobody asked for it", l.LeaseNo)
		}
	}
	j.checkAcceptedEnds()
}

// checkAcceptedEnds is I5 the other way round: a call that was accepted is on record.
func (j *jobChecker) checkAcceptedEnds() {
	for _, c := range j.calls {
		if !answeredOK(c) {
			continue
		}
		r, ok := j.record(LeaseNo(c.Request))
		if !ok {
			continue
		}
		right := true
		switch c.Request.(type) {
		case model.Complete:
			right = r.End == store.EndCompletedLate || r.End == store.EndCompleted && !c.Outcome.Late
		case model.Fail:
			right = r.End == store.EndFailed || r.End == store.EndFailedPermanently
		case model.Release:
			right = r.End == store.EndReleased
		}
		if !right {
			j.report("I5", j.id, "%s of lease %d was accepted, and it is on record as ended by %d", c.Request.Name(), r.LeaseNo, r.End)
		}
	}
}

// lease are the calls of one token.
func (h History) lease(no int64) (calls History) {
	for _, c := range h {
		if LeaseNo(c.Request) == no {
			calls = append(calls, c)
		}
	}
	return calls
}

// checkCounters is I5: attempts.
func (j *jobChecker) checkCounters() {
	job := j.row.Job
	if limit := model.LimitsOf(job.Policy).MaxAttempts; job.AttemptsUsed > limit {
		j.report("I5", j.id, "%d attempts used of %d", job.AttemptsUsed, limit)
	}
	counted := int32(0)
	for _, l := range j.row.Leases {
		if l.Counted {
			counted++
		}
	}
	// A retry starts the budget anew, a late Complete may take a counted end back.
	if !maybe[model.Retry](j.calls) && !job.CompletedLate && counted != job.AttemptsUsed {
		j.report("I5", j.id, "%d attempts used, %d leases on record as counted", job.AttemptsUsed, counted)
	}
}

// checkShape is I6 and I7.
func (j *jobChecker) checkShape() {
	job := j.row.Job
	leased := job.State == store.Processing
	open := len(j.row.Leases) > 0 && j.row.Leases[len(j.row.Leases)-1].End == store.EndNone
	if (job.LeaseOwner != nil) != leased || (job.LeaseUntil != nil) != leased || open != leased {
		j.report("I6", j.id, "it is %s with lease_owner %v, lease_until %v, an open lease %t",
			job.State, job.LeaseOwner, job.LeaseUntil, open)
	}
	if (job.FinishedAt != nil) != job.State.Terminal() {
		j.report("I6", j.id, "it is %s with finished_at %v", job.State, job.FinishedAt)
	}
	if j.cfg.Settled && leased {
		j.report("I7", j.id, "it is still leased by %v", *job.LeaseOwner)
	}
}
