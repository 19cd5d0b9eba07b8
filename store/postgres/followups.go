package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/store"
)

// notTakenError undoes what a call did beside a lease or job that was not to be had.
type notTakenError struct{}

func (notTakenError) Error() string { return "the lease or job was not to be had" }

func isNotTaken(err error) bool {
	_, is := errors.AsType[notTakenError](err)
	return is
}

func isBusy(err error) bool {
	_, is := errors.AsType[*store.BusyError](err)
	return is
}

// settledBefore tells whether a call on a lease has its answer already, without acting.
func (s *Store) settledBefore(ctx context.Context, call endingCall, ref store.LeaseRef, see func(leaseFacts)) (bool, error) {
	facts, err := s.explainLeases(ctx, []store.LeaseRef{ref})
	if err != nil {
		return false, err
	}
	see(facts[0])
	v, _ := call.judge(ref, facts[0])
	return v == verdictApplied || v == verdictRefused, nil
}

// enqueueFollowUps stores follow-up jobs in the caller's transaction. The first that is
// refused is a *store.FollowUpError, which undoes it.
func enqueueFollowUps(ctx context.Context, tx pgx.Tx, jobs []store.NewJob, parent store.JobID) ([]store.JobID, error) {
	results := make([]store.Enqueued, len(jobs))
	todo := checkNewJobs(jobs, results)
	for len(todo) > 0 {
		wave, rest := splitWave(todo, func(i int) any { return enqueueIdentity(jobs[i], i) })
		part := make([]store.NewJob, len(wave))
		for k, i := range wave {
			part[k] = jobs[i]
		}
		rows, err := collect(ctx, tx, sqlEnqueue, enqueueArgs(part, &parent), pgx.RowToStructByName[enqueueRow])
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			i := wave[row.Ord-1]
			if !settleEnqueue(jobs[i], row, &results[i]) {
				return nil, &store.BusyError{What: "the idempotency key of a follow-up job"}
			}
		}
		todo = rest
	}
	ids := make([]store.JobID, len(jobs))
	for i := range results {
		if results[i].Err != nil {
			return nil, &store.FollowUpError{Index: i, Err: results[i].Err}
		}
		ids[i] = results[i].JobID
	}
	return ids, nil
}

// collect runs one statement of a transaction.
func collect[T any](ctx context.Context, tx pgx.Tx, sql string, args []any, row pgx.RowToFunc[T]) ([]T, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, row)
}
