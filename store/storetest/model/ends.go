package model

import (
	"time"

	"github.com/leasehold/leasehold/store"
)

// next says when the job runs again: the third column of section 6.
type next int

const (
	never       next = iota // the job is over
	afterFail               // backoff, or retry_after
	afterExpiry             // at once the first time, backoff from the second in a row
	afterReturn             // the delay given; without one at once, from the fourth in a row backoff
)

// spending is a row of section 6.
type spending struct {
	attempt    bool // uses an attempt
	expiration bool // and one of max_expirations
	next       next
}

// section6 is the table "which end uses what". The rows for the last attempt, for queues
// that hold and for a cancel request are in decisions.
var section6 = map[store.End]spending{
	//                          attempt expiration next run
	store.EndCompleted:         {false, false, never},
	store.EndCompletedLate:     {false, false, never},
	store.EndFailed:            {true, false, afterFail},
	store.EndFailedPermanently: {true, false, never},
	store.EndExpired:           {true, true, afterExpiry},
	store.EndOverran:           {true, true, afterExpiry},
	store.EndStalled:           {true, true, afterExpiry},
	store.EndReleased:          {false, false, afterReturn},
	store.EndUndelivered:       {false, false, afterReturn},
}

// Free returns in a row from which they wait, and at which they count as failed (R28).
const (
	firstWaitingReturn = 4
	countedReturn      = 100
)

// facts is what decides the state after an end that is no Complete.
type facts struct {
	cancelRequested bool
	permanent       bool
	byTime          bool
	holds           bool
	crashLoop       bool // max_expirations reached
	noAttemptsLeft  bool
	byWorker        bool // a Fail: the worker said why
}

// decisions tells what becomes of the job: the first row that applies.
var decisions = []struct {
	applies func(f facts) bool
	then    store.State
	reason  string
}{
	{func(f facts) bool { return f.cancelRequested }, store.Cancelled, ""},
	{func(f facts) bool { return f.permanent }, store.Dead, ""},
	{func(f facts) bool { return f.byTime && f.holds }, store.Stuck,
		"its lease was ended by its time, and the queue holds such jobs"},
	{func(f facts) bool { return f.byTime && f.crashLoop }, store.Stuck,
		"too many leases in a row were ended by their time"},
	{func(f facts) bool { return f.noAttemptsLeft && f.byWorker }, store.Dead, ""},
	{func(f facts) bool { return f.noAttemptsLeft }, store.Dead, "its attempts are used up"},
	{func(facts) bool { return true }, store.Pending, ""},
}

// ending is how the latest lease is ended, by anything but Complete.
type ending struct {
	end        store.End
	err        *store.JobError
	retryAfter *time.Duration
	delay      time.Duration
	followUps  []store.JobID
}

// end ends the latest lease and decides about the job.
func (s State) end(e ending, q store.Queue, now time.Time) State {
	l, _ := s.Latest()
	limits := s.Limits()
	row := section6[e.end]
	free := row.next == afterReturn && e.delay == 0
	if l.Beats > 0 {
		s.FreeReturns = 0
	}
	counts := row.attempt
	if s.CancelRequestedAt != nil {
		counts = false
	} else {
		if free {
			s.FreeReturns++
			counts = s.FreeReturns >= countedReturn
		}
		s = s.spend(row, counts, free)
	}
	d := decide(facts{
		cancelRequested: s.CancelRequestedAt != nil,
		permanent:       e.end == store.EndFailedPermanently,
		byTime:          row.expiration,
		holds:           q.OnExpiry == store.OnExpiryHold,
		crashLoop:       s.Expirations >= limits.MaxExpirations,
		noAttemptsLeft:  counts && s.AttemptsUsed >= limits.MaxAttempts,
		byWorker:        row.next == afterFail,
	})
	l.End, l.EndedAt, l.Counted = e.end, ptr(now), counts
	l.Cancelled = d.state == store.Cancelled
	l.FollowUps = e.followUps
	if e.err != nil {
		l.Error, s.LastError = e.err, e.err
	}
	s = s.WithLease(l)
	s.Phase, s.Reason = d.state, d.reason
	if s.Phase.Terminal() {
		s.FinishedAt = ptr(now)
	}
	if s.Phase == store.Pending {
		s.RunAt = s.nextRun(row.next, e, counts, limits.Backoff, now)
	}
	return s
}

// spend moves the counters of the job. A counted end starts the free returns anew, and
// any end that shows the worker alive starts the expirations anew; a free return shows
// nothing.
func (s State) spend(row spending, counts, free bool) State {
	if counts {
		s.AttemptsUsed++
		s.FreeReturns = 0
	}
	switch {
	case row.expiration:
		s.Expirations++
	case counts || !free:
		s.Expirations = 0
	}
	return s
}

type decision struct {
	state  store.State
	reason string
}

func decide(f facts) decision {
	for _, d := range decisions {
		if d.applies(f) {
			return decision{d.then, d.reason}
		}
	}
	panic("the last decision applies always")
}

// nextRun is when the job may run again. What was asked for is not shortened by jitter.
func (s State) nextRun(n next, e ending, counted bool, b Backoff, now time.Time) Window {
	switch {
	case n == afterFail && e.retryAfter != nil:
		return At(now.Add(*e.retryAfter))
	case n == afterFail, n == afterReturn && counted:
		return b.After(now, s.AttemptsUsed)
	case n == afterExpiry && s.Expirations > 1:
		return b.After(now, s.Expirations-1)
	case n == afterReturn && e.delay > 0:
		return At(now.Add(e.delay))
	case n == afterReturn && s.FreeReturns >= firstWaitingReturn:
		return b.After(now, s.FreeReturns-firstWaitingReturn+1)
	}
	return At(now)
}

// after is the outcome of an end.
func (s State) after() Outcome {
	o := Outcome{State: s.Phase, AttemptsLeft: max(0, s.Limits().MaxAttempts-s.AttemptsUsed)}
	if s.Phase == store.Pending {
		o.RunAt = s.RunAt
	}
	return o
}
