package postgres

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/store"
)

// Heartbeat renews leases, see store.LeaseStore.
func (s *Store) Heartbeat(ctx context.Context, items []store.Heartbeat) ([]store.Beaten, error) {
	results := make([]store.Beaten, len(items))
	err := s.inWaves(ctx, indexes(len(items)), func(i int) any { return items[i].Lease.JobID },
		func(ctx context.Context, wave []int) ([]int, error) {
			return s.heartbeatWave(ctx, items, results, wave)
		},
		func(i int, err error) { results[i].Err = cmp.Or(err, busyJob(items[i].Lease)) })
	return results, err
}

type beatRow struct {
	Ord             int
	Until           time.Time
	Remaining       time.Duration
	Gap             time.Duration
	Renewed         bool
	CancelRequested bool
}

func (s *Store) heartbeatWave(ctx context.Context, items []store.Heartbeat, results []store.Beaten, wave []int) ([]int, error) {
	n := len(wave)
	ids, numbers := make([]int64, n), make([]int64, n)
	stages, progress, checkpoints := make([]*string, n), make([]*float64, n), make([][]byte, n)
	for k, i := range wave {
		ids[k], numbers[k] = int64(items[i].Lease.JobID), items[i].Lease.LeaseNo
		stages[k], progress[k], checkpoints[k] = items[i].Stage, items[i].Progress, items[i].Checkpoint
	}
	rows, err := query(ctx, s, unit{lane: s.ends, sql: sqlHeartbeat, args: []any{ids, numbers, stages, progress, checkpoints}, idempotent: true},
		pgx.RowToStructByName[beatRow])
	if err != nil {
		return nil, err
	}
	done := make([]bool, n)
	for _, r := range rows {
		i := wave[r.Ord-1]
		done[r.Ord-1] = true
		results[i] = store.Beaten{Until: r.Until, Remaining: r.Remaining, CancelRequested: r.CancelRequested}
		if !r.Renewed {
			results[i] = store.Beaten{Err: &store.ExpiredError{Lease: items[i].Lease}}
			continue
		}
		s.seen.Beaten(r.Gap)
	}
	missed := missing(wave, done)
	return s.settleMissed(ctx, callHeartbeat, missed, func(i int) store.LeaseRef { return items[i].Lease },
		func(i int, _ verdict, _ leaseFacts, err error) { results[i] = store.Beaten{Err: err} })
}

// settleMissed looks afresh at leases that a statement did not act on, records late calls,
// hands each verdict but "locked" to settle, and returns the locked ones.
func (s *Store) settleMissed(ctx context.Context, call endingCall, missed []int, ref func(int) store.LeaseRef,
	settle func(int, verdict, leaseFacts, error),
) ([]int, error) {
	refs := make([]store.LeaseRef, len(missed))
	for n, i := range missed {
		refs[n] = ref(i)
	}
	facts, err := s.explainLeases(ctx, refs)
	if err != nil {
		return nil, err
	}
	var locked []int
	var late []store.LeaseRef
	for _, f := range facts {
		i := missed[f.Ord-1]
		v, err := call.judge(ref(i), f)
		if v == verdictLocked {
			locked = append(locked, i)
			continue
		}
		if _, superseded := errors.AsType[*store.SupersededError](err); superseded {
			late = append(late, ref(i))
		}
		settle(i, v, f, err)
	}
	s.noteLate(ctx, call, late)
	return locked, nil
}

func busyJob(ref store.LeaseRef) error {
	return &store.BusyError{JobID: ref.JobID, What: "the job"}
}

func indexes(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// missing returns the items of a wave that a statement returned nothing for.
func missing(wave []int, done []bool) []int {
	var out []int
	for k, i := range wave {
		if !done[k] {
			out = append(out, i)
		}
	}
	return out
}
