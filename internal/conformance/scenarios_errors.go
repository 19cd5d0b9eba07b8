package conformance

import (
	"slices"
	"time"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// acquireErrors are what AcquireLease may be answered; those that are a matter of people too, because
// people mend them while workers run.
var acquireErrors = []pb.ErrorReason{
	pb.ErrorReason_ERROR_REASON_DATABASE_UNAVAILABLE, pb.ErrorReason_ERROR_REASON_DRAINING, pb.ErrorReason_ERROR_REASON_JOB_BUSY,
	pb.ErrorReason_ERROR_REASON_OVERLOADED, pb.ErrorReason_ERROR_REASON_RATE_LIMITED, pb.ErrorReason_ERROR_REASON_INTERNAL,
	pb.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN, pb.ErrorReason_ERROR_REASON_INVALID_REQUEST, pb.ErrorReason_ERROR_REASON_QUEUE_NOT_FOUND,
	pb.ErrorReason_ERROR_REASON_REQUEST_ID_REUSED, pb.ErrorReason_ERROR_REASON_CREDENTIALS_MISSING,
	pb.ErrorReason_ERROR_REASON_CREDENTIALS_INVALID, pb.ErrorReason_ERROR_REASON_ROLE_MISSING,
}

// beatErrors are what Heartbeat may be answered, but for the losses, which have a scenario.
var beatErrors = []pb.ErrorReason{
	pb.ErrorReason_ERROR_REASON_DATABASE_UNAVAILABLE, pb.ErrorReason_ERROR_REASON_DRAINING, pb.ErrorReason_ERROR_REASON_JOB_BUSY,
	pb.ErrorReason_ERROR_REASON_OVERLOADED, pb.ErrorReason_ERROR_REASON_RATE_LIMITED, pb.ErrorReason_ERROR_REASON_INTERNAL,
	pb.ErrorReason_ERROR_REASON_INVALID_REQUEST, pb.ErrorReason_ERROR_REASON_INVALID_TOKEN, pb.ErrorReason_ERROR_REASON_JOB_NOT_FOUND,
	pb.ErrorReason_ERROR_REASON_CREDENTIALS_INVALID, pb.ErrorReason_ERROR_REASON_ROLE_MISSING,
}

// endErrors are what Complete may be answered, but for FAILED_PRECONDITION, which has a scenario.
var endErrors = []pb.ErrorReason{
	pb.ErrorReason_ERROR_REASON_DATABASE_UNAVAILABLE, pb.ErrorReason_ERROR_REASON_DRAINING, pb.ErrorReason_ERROR_REASON_JOB_BUSY,
	pb.ErrorReason_ERROR_REASON_OVERLOADED, pb.ErrorReason_ERROR_REASON_RATE_LIMITED, pb.ErrorReason_ERROR_REASON_INTERNAL,
	pb.ErrorReason_ERROR_REASON_INVALID_REQUEST, pb.ErrorReason_ERROR_REASON_TOO_LARGE, pb.ErrorReason_ERROR_REASON_INVALID_TOKEN,
	pb.ErrorReason_ERROR_REASON_JOB_NOT_FOUND, pb.ErrorReason_ERROR_REASON_QUEUE_NOT_FOUND, pb.ErrorReason_ERROR_REASON_CREDENTIALS_INVALID,
	pb.ErrorReason_ERROR_REASON_ROLE_MISSING, pb.ErrorReason_ERROR_REASON_IDEMPOTENCY_KEY_REUSED,
}

// refusedEnds are what Complete is refused with where trying again does not help.
var refusedEnds = []pb.ErrorReason{
	pb.ErrorReason_ERROR_REASON_LEASE_SUPERSEDED, pb.ErrorReason_ERROR_REASON_LEASE_ENDED,
	pb.ErrorReason_ERROR_REASON_RESULT_CONFLICT, pb.ErrorReason_ERROR_REASON_WRONG_STATE,
}

// beatSeconds is long enough for one heartbeat.
const beatSeconds = 3

// errorPatience is how long a worker may take to come back after one error.
const errorPatience = 30 * time.Second

// try lets one answer befall the worker, and sees whether it completes another job behind it. It is
// false where going on would show nothing.
func (st *scene) try(what string, seen func() bool) bool {
	t := trial{what: what}
	t.seen = st.until(patience, seen)
	if t.seen {
		t.survived = st.until(errorPatience, completedAll(st.offer(0)...))
	}
	st.trials = append(st.trials, t)
	return t.seen && t.survived
}

// playAcquireErrors: one refusal, one job, and so on: what pauses grow with failures in a row.
func playAcquireErrors(st *scene) {
	for _, reason := range acquireErrors {
		done := false
		st.behave(func(c *call) fault {
			if done || c.method != callAcquire {
				return fault{}
			}
			done = true
			return fault{refuse: refuse(reason)}
		})
		st.interrupt()
		if !st.try(refuse(reason).word(), func() bool { return done }) {
			return
		}
	}
}

// interrupt ends the polls that are parked, by a job, so that the next call is a new poll.
func (st *scene) interrupt() { st.until(errorPatience, completedAll(st.offer(0)...)) }

// playBeatErrors: the first heartbeat of each job is refused.
func playBeatErrors(st *scene) {
	for reasons := range slices.Chunk(beatErrors, st.scenario.slots) {
		if !st.beatTrial(reasons) {
			return
		}
	}
}

// beatTrial refuses the first heartbeats of some jobs, which are worked on side by side where the
// worker can.
func (st *scene) beatTrial(reasons []pb.ErrorReason) bool {
	refusals := map[*job]pb.ErrorReason{}
	st.behave(func(c *call) fault {
		if c.method != callBeat || c.lease == nil || len(c.lease.of(callBeat)) > 1 {
			return fault{}
		}
		reason, ours := refusals[c.lease.job]
		if !ours {
			return fault{}
		}
		return fault{refuse: refuse(reason)}
	})
	var jobs []*job
	for _, reason := range reasons {
		// The script must know the job before a worker can have it.
		j := st.prepare(beatSeconds)
		st.mu.Lock()
		refusals[j] = reason
		st.mu.Unlock()
		jobs = append(jobs, j)
	}
	st.publish(jobs...)
	for i, reason := range reasons {
		j := jobs[i]
		beaten := func() bool { return len(j.leases) > 0 && len(j.leases[0].of(callBeat)) > 0 }
		st.until(errorPatience, func() bool { return beaten() || st.settled(j)() })
		if !st.try(refuse(reason).word(), beaten) {
			return false
		}
	}
	return true
}

// playEndErrors: the first Complete of a job is refused.
func playEndErrors(st *scene) {
	st.refuseCompletes(endErrors, st.try)
}

// playRefusedEnd: the same, with what no repetition can mend.
func playRefusedEnd(st *scene) {
	st.refuseCompletes(refusedEnds, func(_ string, seen func() bool) bool { return st.until(errorPatience, seen) })
	st.pass(inFlight)
}

func (st *scene) refuseCompletes(reasons []pb.ErrorReason, try func(what string, seen func() bool) bool) {
	for _, reason := range reasons {
		j := st.prepare(0)
		st.behave(func(c *call) fault {
			if c.method != callComplete || c.lease == nil || c.lease.job != j || len(c.lease.of(callComplete)) > 1 {
				return fault{}
			}
			return fault{refuse: refuse(reason)}
		})
		st.publish(j)
		if !try(refuse(reason).word(), func() bool { return len(j.leases) > 0 && len(j.leases[0].of(callComplete)) > 0 }) {
			return
		}
	}
}

const askToWait = 3 * time.Second

// backOffReasons are refusals with RetryInfo. The first is of the caller, the same everywhere; the
// second is of one replica, so that a worker may ask another at once.
var backOffReasons = []struct {
	reason pb.ErrorReason
	spare  int // calls that may come at once all the same
}{
	{pb.ErrorReason_ERROR_REASON_RATE_LIMITED, 0},
	{pb.ErrorReason_ERROR_REASON_OVERLOADED, 1},
}

// playBackOff: acquires are refused for as long as the answer asks to wait.
func playBackOff(st *scene) {
	for _, b := range backOffReasons {
		var began time.Duration
		over := false
		st.behave(func(c *call) fault {
			if c.method != callAcquire || over {
				return fault{}
			}
			if began == 0 {
				began = c.at
			}
			if over = c.at > began+askToWait*9/10; over {
				return fault{}
			}
			r := refuse(b.reason)
			r.retryAfter = askToWait
			return fault{refuse: r}
		})
		st.interrupt()
		if !st.until(errorPatience, func() bool { return over }) {
			return
		}
	}
}
