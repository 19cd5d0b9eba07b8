package postgres

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/store"
)

type completeRow struct {
	Ord   int
	Late  bool
	Ran   time.Duration
	Queue string
}

func (r completeRow) end() store.End {
	if r.Late {
		return store.EndCompletedLate
	}
	return store.EndCompleted
}

// Complete ends leases and their jobs, see store.LeaseStore. Items with follow-up jobs have
// a transaction each, because a refused follow-up undoes its whole call and no other.
func (s *Store) Complete(ctx context.Context, items []store.Complete) ([]store.Completion, error) {
	results := make([]store.Completion, len(items))
	var plain, chained []int
	for i := range items {
		if len(items[i].ThenEnqueue) > 0 {
			chained = append(chained, i)
		} else {
			plain = append(plain, i)
		}
	}
	fail := func(i int, err error) { results[i].Err = cmp.Or(err, busyJob(items[i].Lease)) }
	err := s.inWaves(ctx, plain, func(i int) any { return items[i].Lease.JobID },
		func(ctx context.Context, wave []int) ([]int, error) { return s.completeWave(ctx, items, results, wave) }, fail)
	if err != nil {
		return nil, err
	}
	for _, i := range chained {
		err := s.inWaves(ctx, []int{i}, func(i int) any { return i },
			func(ctx context.Context, _ []int) ([]int, error) { return s.completeChained(ctx, items, results, i) }, fail)
		if err != nil {
			results[i].Err = err
		}
	}
	return results, nil
}

func (s *Store) completeWave(ctx context.Context, items []store.Complete, results []store.Completion, wave []int) ([]int, error) {
	part := make([]store.Complete, len(wave))
	for k, i := range wave {
		part[k] = items[i]
	}
	rows, err := query(ctx, s, unit{lane: s.ends, sql: sqlComplete, args: completeArgs(part, nil), idempotent: true},
		pgx.RowToStructByName[completeRow])
	if err != nil {
		return nil, err
	}
	done := make([]bool, len(wave))
	for _, r := range rows {
		done[r.Ord-1] = true
		results[wave[r.Ord-1]] = store.Completion{Late: r.Late}
		s.seen.Ended(r.Queue, r.end(), r.Ran)
	}
	return s.completeMissed(ctx, items, results, missing(wave, done))
}

// completeMissed settles what sqlComplete did not take, and returns what was locked. A job
// that its last attempt's end by time made DEAD is completed after all.
func (s *Store) completeMissed(ctx context.Context, items []store.Complete, results []store.Completion, missed []int) ([]int, error) {
	var dead, again []int
	locked, err := s.settleMissed(ctx, callComplete, missed, func(i int) store.LeaseRef { return items[i].Lease },
		func(i int, v verdict, f leaseFacts, err error) {
			switch {
			case v == verdictCompleting && store.State(*f.State) == store.Dead:
				dead = append(dead, i)
			case v == verdictCompleting:
				again = append(again, i) // it was locked while its lease was being ended
			case v == verdictApplied && !sameDigest(f.Digest, completeDigest(items[i])):
				results[i] = store.Completion{Err: &store.ConflictError{Lease: items[i].Lease}}
			case v == verdictApplied:
				results[i] = store.Completion{
					AlreadyApplied: true, Late: store.End(*f.EndKind) == store.EndCompletedLate, FollowUps: jobIDs(f.FollowUps),
				}
			default:
				results[i] = store.Completion{Err: err}
			}
		})
	if err != nil {
		return nil, err
	}
	for _, i := range dead {
		done, err := s.completeDead(ctx, items[i], nil)
		switch {
		case err != nil:
			results[i] = store.Completion{Err: err}
		case done:
			results[i] = store.Completion{Late: true}
		default:
			again = append(again, i) // an operator was quicker: look again
		}
	}
	return append(locked, again...), nil
}

func (s *Store) completeDead(ctx context.Context, item store.Complete, followUps []store.JobID) (bool, error) {
	rows, err := query(ctx, s, unit{lane: s.ends, sql: sqlCompleteDead, args: completeDeadArgs(item, followUps), idempotent: true},
		pgx.RowToStructByName[completeRow])
	for _, r := range rows {
		s.seen.Ended(r.Queue, r.end(), r.Ran)
	}
	return len(rows) > 0, err
}

func completeArgs(items []store.Complete, followUps [][]store.JobID) []any {
	n := len(items)
	ids, numbers := make([]int64, n), make([]int64, n)
	results, isJSON, types := make([][]byte, n), make([]bool, n), make([]string, n)
	digests, chains := make([][]byte, n), make([]*string, n)
	for i, c := range items {
		ids[i], numbers[i] = int64(c.Lease.JobID), c.Lease.LeaseNo
		if !emptyPayload(c.Result) {
			results[i] = notNil(c.Result.Data)
		}
		isJSON[i], types[i], digests[i] = c.Result.JSON, c.Result.ContentType, completeDigest(c)
		if followUps != nil {
			chains[i] = arrayText(followUps[i])
		}
	}
	return []any{ids, numbers, results, isJSON, types, digests, chains}
}

func completeDeadArgs(c store.Complete, followUps []store.JobID) []any {
	var result []byte
	if !emptyPayload(c.Result) {
		result = notNil(c.Result.Data)
	}
	return []any{int64(c.Lease.JobID), c.Lease.LeaseNo, result, c.Result.JSON, c.Result.ContentType, completeDigest(c), arrayText(followUps)}
}

func emptyPayload(p store.Payload) bool {
	return len(p.Data) == 0 && p.ContentType == "" && !p.JSON
}

// arrayText writes ids as a PostgreSQL array, NULL where there are none.
func arrayText(ids []store.JobID) *string {
	if len(ids) == 0 {
		return nil
	}
	parts := make([]string, len(ids))
	for i, id := range ids {
		parts[i] = itoa64(int64(id))
	}
	return ptr("{" + strings.Join(parts, ",") + "}")
}

// completeDigest tells equal Completes: of the result and of all that follow-up jobs say,
// but for headers, where trace contexts differ from try to try. An empty Complete has none.
func completeDigest(c store.Complete) []byte {
	if emptyPayload(c.Result) && len(c.ThenEnqueue) == 0 {
		return nil
	}
	h := sha256.New()
	writePayload(h, c.Result)
	for _, job := range c.ThenEnqueue {
		job.Headers = nil
		// Marshalling plain data of known types cannot fail.
		text, _ := json.Marshal(job)
		_, _ = h.Write(text)
	}
	return h.Sum(nil)[:16]
}

// completeChained is one Complete with follow-up jobs.
func (s *Store) completeChained(ctx context.Context, items []store.Complete, results []store.Completion, i int) ([]int, error) {
	item := items[i]
	var rows []completeRow
	var followUps []store.JobID
	dead := false
	// A retry must be answered as such even where its follow-ups would be refused now.
	settled, err := s.settledBefore(ctx, callComplete, item.Lease, func(f leaseFacts) {
		dead = f.State != nil && store.State(*f.State) == store.Dead
	})
	if err != nil || settled {
		if err == nil {
			return s.completeMissed(ctx, items, results, []int{i})
		}
		return nil, err
	}
	err = inTx(ctx, s, s.ends, true, func(ctx context.Context, tx pgx.Tx) error {
		var err error
		if followUps, err = enqueueFollowUps(ctx, tx, item.ThenEnqueue, item.Lease.JobID); err != nil {
			return err
		}
		sql, args := sqlComplete, completeArgs([]store.Complete{item}, [][]store.JobID{followUps})
		if dead {
			sql, args = sqlCompleteDead, completeDeadArgs(item, followUps)
		}
		if rows, err = collect(ctx, tx, sql, args, pgx.RowToStructByName[completeRow]); err != nil {
			return err
		}
		if len(rows) == 0 {
			return notTakenError{}
		}
		return nil
	})
	switch {
	case isNotTaken(err):
		return s.completeMissed(ctx, items, results, []int{i})
	case isBusy(err):
		return []int{i}, nil // the key of a follow-up job is held: try again
	case err != nil:
		return nil, err
	}
	results[i] = store.Completion{Late: rows[0].Late, FollowUps: followUps}
	s.seen.Ended(rows[0].Queue, rows[0].end(), rows[0].Ran)
	return nil, nil
}
