package postgres

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/store"
)

// endInput is one item of sqlEndLeases.
type endInput struct {
	ref       store.LeaseRef
	kind      store.End // EndNone: by time, if it is over
	delay     *time.Duration
	report    *store.JobError
	followUps []store.JobID
}

type endRow struct {
	Ord          int
	ID           int64
	LeaseNo      int64
	State        int16
	EndKind      int16
	AttemptsLeft int32
	NextRunAt    *time.Time
	NextRunIn    time.Duration
	Ran          time.Duration
	Queue        string
}

func (r endRow) ended() store.Ended {
	e := store.Ended{Queue: r.Queue, State: store.State(r.State), AttemptsLeft: r.AttemptsLeft, NextRunAt: r.NextRunAt}
	if r.NextRunAt != nil {
		e.NextRunIn = r.NextRunIn
	}
	return e
}

// tellEnded tells the observer of leases whose end is committed.
func (s *Store) tellEnded(rows []endRow) {
	for _, r := range rows {
		s.seen.Ended(r.Queue, store.End(r.EndKind), r.Ran)
	}
}

func endArgs(inputs []endInput) []any {
	n := len(inputs)
	ids, numbers, kinds := make([]int64, n), make([]int64, n), make([]int16, n)
	delays := make([]*time.Duration, n)
	codes, messages, details, chains := make([]*string, n), make([]*string, n), make([]*string, n), make([]*string, n)
	for i, in := range inputs {
		ids[i], numbers[i], kinds[i], delays[i] = int64(in.ref.JobID), in.ref.LeaseNo, int16(in.kind), in.delay
		if in.report != nil {
			codes[i], messages[i], details[i] = &in.report.Code, &in.report.Message, &in.report.Details
		}
		chains[i] = arrayText(in.followUps)
	}
	return []any{ids, numbers, kinds, delays, codes, messages, details, chains}
}

// Fail ends leases and counts an attempt, see store.LeaseStore.
func (s *Store) Fail(ctx context.Context, items []store.Fail) ([]store.Ended, error) {
	inputs := make([]endInput, len(items))
	chains := make([][]store.NewJob, len(items))
	for i, f := range items {
		report := store.CleanJobError(f.Error)
		inputs[i] = endInput{ref: f.Lease, kind: store.EndFailed, delay: f.RetryAfter, report: &report}
		if f.Permanent {
			inputs[i].kind = store.EndFailedPermanently
		}
		chains[i] = f.ThenEnqueue
	}
	return s.endLeases(ctx, callFail, inputs, chains)
}

// Release ends leases without counting an attempt, see store.LeaseStore.
func (s *Store) Release(ctx context.Context, items []store.Release) ([]store.Ended, error) {
	inputs := make([]endInput, len(items))
	for i, r := range items {
		inputs[i] = endInput{ref: r.Lease, kind: store.EndReleased}
		if r.Delay > 0 {
			inputs[i].delay = &items[i].Delay
		}
	}
	return s.endLeases(ctx, callRelease, inputs, nil)
}

func (s *Store) endLeases(ctx context.Context, call endingCall, inputs []endInput, chains [][]store.NewJob) ([]store.Ended, error) {
	results := make([]store.Ended, len(inputs))
	var plain, chained []int
	for i := range inputs {
		if chains != nil && len(chains[i]) > 0 {
			chained = append(chained, i)
		} else {
			plain = append(plain, i)
		}
	}
	fail := func(i int, err error) { results[i].Err = cmp.Or(err, busyJob(inputs[i].ref)) }
	err := s.inWaves(ctx, plain, func(i int) any { return inputs[i].ref.JobID },
		func(ctx context.Context, wave []int) ([]int, error) {
			return s.endWave(ctx, call, inputs, results, wave)
		}, fail)
	if err != nil {
		return nil, err
	}
	for _, i := range chained {
		err := s.inWaves(ctx, []int{i}, func(i int) any { return i }, func(ctx context.Context, _ []int) ([]int, error) {
			return s.endChained(ctx, call, inputs, results, i, chains[i])
		}, fail)
		if err != nil {
			results[i].Err = err
		}
	}
	return results, nil
}

func (s *Store) endWave(ctx context.Context, call endingCall, inputs []endInput, results []store.Ended, wave []int) ([]int, error) {
	part := make([]endInput, len(wave))
	for k, i := range wave {
		part[k] = inputs[i]
	}
	rows, err := query(ctx, s, unit{lane: s.ends, sql: sqlEndLeases, args: endArgs(part), idempotent: true},
		pgx.RowToStructByName[endRow])
	if err != nil {
		return nil, err
	}
	done := make([]bool, len(wave))
	for _, r := range rows {
		done[r.Ord-1] = true
		results[wave[r.Ord-1]] = r.ended()
	}
	s.tellEnded(rows)
	return s.endMissed(ctx, call, inputs, results, missing(wave, done))
}

// endMissed settles what sqlEndLeases did not take, and returns what was locked.
func (s *Store) endMissed(ctx context.Context, call endingCall, inputs []endInput, results []store.Ended, missed []int) ([]int, error) {
	var refs []store.LeaseRef
	var reports []store.JobError
	locked, err := s.settleMissed(ctx, call, missed, func(i int) store.LeaseRef { return inputs[i].ref },
		func(i int, v verdict, f leaseFacts, err error) {
			if v == verdictApplied {
				results[i] = appliedBefore(inputs[i].ref, f)
				return
			}
			results[i] = store.Ended{Err: err}
			if _, expired := errors.AsType[*store.ExpiredError](err); expired && inputs[i].report != nil {
				refs, reports = append(refs, inputs[i].ref), append(reports, *inputs[i].report)
			}
		})
	s.noteErrors(ctx, refs, reports)
	return locked, err
}

// appliedBefore is the answer to a call that is repeated: how the job stands now.
func appliedBefore(ref store.LeaseRef, f leaseFacts) store.Ended {
	e := store.Ended{AlreadyApplied: true, State: store.State(*f.State), AttemptsLeft: max(0, *f.AttemptsLeft)}
	if f.RunAt != nil {
		e.NextRunAt, e.NextRunIn = f.RunAt, *f.RunIn
	}
	e.FollowUps = jobIDs(f.FollowUps)
	if *f.Latest > ref.LeaseNo {
		e.FollowUps = jobIDs(f.FormerFollowUps)
	}
	return e
}

// endChained is one Fail with follow-up jobs, in a transaction of its own.
func (s *Store) endChained(ctx context.Context, call endingCall, inputs []endInput, results []store.Ended, i int, chain []store.NewJob) ([]int, error) {
	settled, err := s.settledBefore(ctx, call, inputs[i].ref, func(leaseFacts) {})
	if err != nil {
		return nil, err
	}
	if settled {
		return s.endMissed(ctx, call, inputs, results, []int{i})
	}
	in := inputs[i]
	var rows []endRow
	err = inTx(ctx, s, s.ends, true, func(ctx context.Context, tx pgx.Tx) error {
		var err error
		if in.followUps, err = enqueueFollowUps(ctx, tx, chain, in.ref.JobID); err != nil {
			return err
		}
		if rows, err = collect(ctx, tx, sqlEndLeases, endArgs([]endInput{in}), pgx.RowToStructByName[endRow]); err != nil {
			return err
		}
		if len(rows) == 0 {
			return notTakenError{}
		}
		return nil
	})
	switch {
	case isNotTaken(err):
		return s.endMissed(ctx, call, inputs, results, []int{i})
	case isBusy(err):
		return []int{i}, nil // the key of a follow-up job is held: try again
	case err != nil:
		return nil, err
	}
	s.tellEnded(rows)
	results[i] = rows[0].ended()
	results[i].FollowUps = in.followUps
	return nil, nil
}

// Undeliver gives back leases whose answer could not be delivered, see store.LeaseStore.
func (s *Store) Undeliver(ctx context.Context, leases []store.LeaseRef, requestID *string) error {
	inputs := make([]endInput, len(leases))
	for i, ref := range leases {
		inputs[i] = endInput{ref: ref, kind: store.EndUndelivered}
	}
	// What is locked for a moment, as by a claim that passes over it, is tried again: a lease
	// that is left runs until it expires, and costs an attempt.
	for try := 1; ; try++ {
		ended, err := s.undeliver(ctx, inputs, requestID)
		if err != nil || ended == len(inputs) || try == maxTries || !sleep(ctx, jittered(time.Duration(try)*10*time.Millisecond)) {
			return err
		}
	}
}

// undeliver is one try, and tells how many leases are not held any more. Leases that were
// ended before count as locked ones: they cannot be told apart without another statement.
func (s *Store) undeliver(ctx context.Context, inputs []endInput, requestID *string) (int, error) {
	ended := 0
	var rows []endRow
	err := inTx(ctx, s, s.ends, true, func(ctx context.Context, tx pgx.Tx) error {
		rows = nil // of a try that was rolled back
		if requestID != nil {
			// The row is the referee between this and a replay, which counts itself in it.
			delivered, err := collect(ctx, tx, sqlHoldRequest, []any{*requestID}, pgx.RowTo[bool])
			if err != nil || (len(delivered) == 1 && delivered[0]) {
				ended = len(inputs) // a replay has delivered them: nothing is left to do
				return err
			}
		}
		var err error
		rows, err = collect(ctx, tx, sqlEndLeases, endArgs(inputs), pgx.RowToStructByName[endRow])
		ended = len(rows)
		return err
	})
	if err == nil {
		s.tellEnded(rows)
	}
	return ended, err
}

// sqlHoldRequest holds the record of a request against replays, and answers whether one
// has delivered its leases already.
const sqlHoldRequest = `SELECT r.replays > 0 FROM leasehold.acquire_requests r WHERE r.request_id = $1 FOR UPDATE`
