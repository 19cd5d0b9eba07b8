package model

import (
	"time"

	"github.com/leasehold/leasehold/store"
)

// standing is how the lease of a token stands: a row of the table of R17.
type standing int

const (
	open           standing = iota // live, or past lease_until and nobody has ended it
	timedOut                       // ended by its time or as undelivered; the job stands as that end left it
	byComplete                     // ended by Complete
	byFail                         // ended by Fail
	byRelease                      // ended by Release
	actedOn                        // as timedOut, but cancelled by it, or an operator has acted since
	formerByFail                   // R18: an earlier lease, ended by Fail
	formerReleased                 // R18: an earlier lease, ended by Release
	former                         // R18: an earlier lease, ended otherwise
)

// verdict is a cell of the table of R17.
type verdict int

const (
	apply      verdict = iota // renewed, accepted
	applyLate                 // accepted, history "completed late"
	repeated                  // already_applied, or RESULT_CONFLICT
	expired                   // LEASE_EXPIRED
	noted                     // LEASE_EXPIRED, the error is noted
	ended                     // LEASE_ENDED
	superseded                // LEASE_SUPERSEDED, recorded as a late call
)

// column is a column of the table of R17.
type column int

const (
	colHeartbeat column = iota
	colComplete
	colFail
	colRelease
)

// r17 is the table of R17 and R18.
var r17 = map[standing][4]verdict{
	//               Heartbeat   Complete    Fail        Release
	open:           {apply, apply, apply, apply},
	timedOut:       {expired, applyLate, noted, expired},
	byComplete:     {ended, repeated, ended, ended},
	byFail:         {ended, ended, repeated, ended},
	byRelease:      {ended, ended, ended, repeated},
	actedOn:        {ended, ended, ended, ended},
	formerByFail:   {superseded, superseded, repeated, superseded},
	formerReleased: {superseded, superseded, superseded, repeated},
	former:         {superseded, superseded, superseded, superseded},
}

// standing tells the row of the table for a lease of this job.
func (s State) standing(l Lease) standing {
	if l.LeaseNo != s.LeaseNo {
		switch l.End {
		case store.EndFailed, store.EndFailedPermanently:
			return formerByFail
		case store.EndReleased:
			return formerReleased
		}
		return former
	}
	switch l.End {
	case store.EndNone:
		return open
	case store.EndCompleted, store.EndCompletedLate:
		return byComplete
	case store.EndFailed, store.EndFailedPermanently:
		return byFail
	case store.EndReleased:
		return byRelease
	}
	if s.ActedOn || s.Phase == store.Cancelled || s.Phase == store.Completed {
		return actedOn
	}
	return timedOut
}

// judge looks the call up in the table. Where the verdict is a refusal, the outcome says
// so, and the state has what is recorded of it.
func (s State) judge(no int64, c column, call Call, now time.Time) (State, Lease, verdict, Outcome) {
	l, ok := s.Lease(no)
	ref := store.LeaseRef{JobID: s.ID, LeaseNo: no}
	if !ok {
		return s, l, ended, Outcome{Err: &store.JobNotFoundError{JobID: s.ID}}
	}
	v := r17[s.standing(l)][c]
	var err error
	switch v {
	case expired, noted:
		err = &store.ExpiredError{Lease: ref, End: l.End}
		if f, isFail := call.(Fail); isFail && v == noted && l.Error == nil {
			l.Error = ptr(f.Error)
			s = s.WithLease(l)
		}
	case ended:
		err = &store.EndedError{Lease: ref, End: l.End, State: s.Phase}
	case superseded:
		err = &store.SupersededError{Lease: ref, CurrentLeaseNo: s.LeaseNo}
		s = s.recordLateCall(l, call.Name(), now)
	}
	return s, l, v, Outcome{Err: err}
}

// recordLateCall keeps the double-run meter of R18: one record per lease.
func (s State) recordLateCall(l Lease, name string, now time.Time) State {
	c := store.LateCalls{FirstAt: now}
	if l.LateCalls != nil {
		c = *l.LateCalls
	}
	c.Count++
	c.LastAt, c.LastCall = now, name
	if l.EndedAt != nil {
		c.LateBy = now.Sub(*l.EndedAt)
	}
	l.LateCalls = &c
	return s.WithLease(l)
}
