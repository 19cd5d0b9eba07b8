package postgres

import (
	"bytes"
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/store"
)

// leaseFacts is what a fresh look found of a lease that a statement did not act on.
type leaseFacts struct {
	Ord             int
	State           *int16
	Latest          *int64
	EndKind         *int16
	Sealed          *bool
	FollowUps       []int64
	Digest          []byte
	AttemptsLeft    *int32
	RunAt           *time.Time
	RunIn           *time.Duration
	FormerEnd       *int16
	FormerFollowUps []int64
}

// endingCall is a method that acts on a lease.
type endingCall struct {
	name string
	// own is the end that an earlier call of the same kind left.
	own []store.End
}

var (
	callHeartbeat = endingCall{name: "Heartbeat"}
	callComplete  = endingCall{name: "Complete", own: []store.End{store.EndCompleted, store.EndCompletedLate}}
	callFail      = endingCall{name: "Fail", own: []store.End{store.EndFailed, store.EndFailedPermanently}}
	callRelease   = endingCall{name: "Release", own: []store.End{store.EndReleased}}
)

func (c endingCall) ended(by *int16) bool {
	for _, end := range c.own {
		if by != nil && store.End(*by) == end {
			return true
		}
	}
	return false
}

// verdict is what the table of R17 says for a call on a lease that is not live.
type verdict int

const (
	verdictLocked     verdict = iota // nothing forbids the call: the row was locked
	verdictApplied                   // this very call ended it before
	verdictCompleting                // ended by its time: a Complete is still accepted
	verdictRefused
)

// judge reads the table of R17 for one lease.
func (c endingCall) judge(ref store.LeaseRef, f leaseFacts) (verdict, error) {
	if f.State == nil {
		return verdictRefused, &store.JobNotFoundError{JobID: ref.JobID}
	}
	state, end := store.State(*f.State), store.End(*f.EndKind)
	switch {
	case *f.Latest < ref.LeaseNo:
		// A token of this database for a lease that it does not know: it was restored
		// from an older state.
		return verdictRefused, &store.EndedError{Lease: ref, State: state}
	case *f.Latest > ref.LeaseNo:
		if c.ended(f.FormerEnd) {
			return verdictApplied, nil
		}
		return verdictRefused, &store.SupersededError{Lease: ref, CurrentLeaseNo: *f.Latest}
	case state == store.Processing:
		return verdictLocked, nil
	case c.ended(f.EndKind):
		return verdictApplied, nil
	case endedByTime(end) && !*f.Sealed && (state == store.Pending || state == store.Stuck || state == store.Dead):
		if c.name == callComplete.name {
			return verdictCompleting, nil
		}
		return verdictRefused, &store.ExpiredError{Lease: ref, End: end}
	}
	return verdictRefused, &store.EndedError{Lease: ref, End: end, State: state}
}

// endedByTime is true of the ends after which a Complete is still accepted.
func endedByTime(end store.End) bool {
	return end == store.EndExpired || end == store.EndOverran || end == store.EndStalled || end == store.EndUndelivered
}

// explainLeases looks afresh at leases that a statement did not act on.
func (s *Store) explainLeases(ctx context.Context, refs []store.LeaseRef) ([]leaseFacts, error) {
	if len(refs) == 0 {
		return nil, nil
	}
	ids, numbers := splitRefs(refs)
	return query(ctx, s, unit{lane: s.ends, sql: sqlExplainLeases, args: []any{ids, numbers}, idempotent: true},
		pgx.RowToStructByName[leaseFacts])
}

// noteLate records calls on superseded leases. It is a record, not part of the answer: a
// failure is logged and the caller still learns that it lost.
func (s *Store) noteLate(ctx context.Context, call endingCall, refs []store.LeaseRef) {
	if len(refs) == 0 {
		return
	}
	ids, numbers := splitRefs(refs)
	firsts, err := query(ctx, s, unit{lane: s.ends, sql: sqlNoteLateCalls, args: []any{ids, numbers, call.name}},
		pgx.RowTo[bool])
	if err != nil {
		s.log.Warn("a late call could not be recorded", "error", err)
	}
	for _, first := range firsts {
		if first {
			s.seen.DoubleRun()
		}
	}
}

// noteErrors keeps the reports of holders whose lease was ended by time.
func (s *Store) noteErrors(ctx context.Context, refs []store.LeaseRef, reports []store.JobError) {
	if len(refs) == 0 {
		return
	}
	ids, numbers := splitRefs(refs)
	codes, messages, details := make([]string, len(refs)), make([]string, len(refs)), make([]string, len(refs))
	for i, r := range reports {
		codes[i], messages[i], details[i] = r.Code, r.Message, r.Details
	}
	_, err := query(ctx, s, unit{lane: s.ends, sql: sqlNoteErrors, args: []any{ids, numbers, codes, messages, details}, idempotent: true},
		pgx.RowTo[int])
	if err != nil {
		s.log.Warn("a late error report could not be recorded", "error", err)
	}
}

func splitRefs(refs []store.LeaseRef) (ids, numbers []int64) {
	ids, numbers = make([]int64, len(refs)), make([]int64, len(refs))
	for i, r := range refs {
		ids[i], numbers[i] = int64(r.JobID), r.LeaseNo
	}
	return ids, numbers
}

// sameDigest tells a retry of a Complete from another Complete.
func sameDigest(a, b []byte) bool { return bytes.Equal(a, b) }

func jobIDs(ids []int64) []store.JobID {
	if len(ids) == 0 {
		return nil
	}
	out := make([]store.JobID, len(ids))
	for i, id := range ids {
		out[i] = store.JobID(id)
	}
	return out
}
