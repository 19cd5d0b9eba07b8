package postgres

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/store"
)

// leasesPerStatement bounds what one statement brings: a lease may have 1,000 stages.
const leasesPerStatement = 25

// recordRow is one lease of a job with what stands in other tables.
type recordRow struct {
	LeaseNo                               int64
	Owner                                 string
	LeasedAt, Until                       time.Time
	EndedAt                               *time.Time
	EndKind                               int16
	Cancelled, Counted                    bool
	Beats                                 int64
	BeatAt                                *time.Time
	LargestGap                            *time.Duration
	Stage                                 *string
	Progress                              *float64
	FollowUps                             []int64
	ErrorCode, ErrorMessage, ErrorDetails *string
	LateCount                             *int64
	LateFirstAt, LateLastAt               *time.Time
	LateLastCall                          *string
	LateBy                                *time.Duration
	StageTimes                            []time.Time
	StageNames                            []string
}

func (r *recordRow) record(id store.JobID) store.LeaseRecord {
	record := store.LeaseRecord{
		JobID: id, LeaseNo: r.LeaseNo, Owner: r.Owner, LeasedAt: r.LeasedAt, Until: r.Until, EndedAt: r.EndedAt,
		End: store.End(r.EndKind), Cancelled: r.Cancelled, Counted: r.Counted, Beats: r.Beats, LastBeatAt: r.BeatAt,
		Stage: r.Stage, Progress: r.Progress, Error: jobError(r.ErrorCode, r.ErrorMessage, r.ErrorDetails), FollowUps: jobIDs(r.FollowUps),
	}
	if r.LargestGap != nil {
		record.LargestGap = *r.LargestGap
	}
	for i, at := range r.StageTimes {
		record.Stages = append(record.Stages, store.StageChange{At: at, Stage: r.StageNames[i]})
	}
	if r.LateCount != nil {
		record.LateCalls = &store.LateCalls{
			Count: *r.LateCount, FirstAt: *r.LateFirstAt, LastAt: *r.LateLastAt, LastCall: *r.LateLastCall, LateBy: *r.LateBy,
		}
	}
	return record
}

// recordBytes is what a lease weighs in an answer, at most: fixed fields, and times and tags
// around each stage and follow-up job.
func recordBytes(r store.LeaseRecord) int {
	n := 320 + len(r.Owner) + 24*len(r.FollowUps)
	if r.Stage != nil {
		n += len(*r.Stage)
	}
	if r.Error != nil {
		n += len(r.Error.Code) + len(r.Error.Message) + len(r.Error.Details)
	}
	for _, s := range r.Stages {
		n += 24 + len(s.Stage)
	}
	return n
}

// ListLeases lists the leases of a job by number, see store.JobStore.
func (s *Store) ListLeases(ctx context.Context, id store.JobID, p store.Page) (store.LeasePage, error) {
	page, weight := store.LeasePage{}, 0
	err := s.eachLease(ctx, sqlLeasesAfter, id, p.After, p.Size+1, func(r store.LeaseRecord) bool {
		weight += recordBytes(r)
		n := len(page.Leases)
		if n == p.Size || n > 0 && p.Bytes > 0 && weight > p.Bytes {
			page.Next = page.Leases[n-1].LeaseNo
			return false
		}
		page.Leases = append(page.Leases, r)
		return true
	})
	if err != nil {
		return store.LeasePage{}, err
	}
	return page, nil
}

// LastLeases reads the latest leases of a job, see store.JobStore. Errors: JobNotFoundError.
func (s *Store) LastLeases(ctx context.Context, id store.JobID, n, bytes int) ([]store.LeaseRecord, error) {
	var out []store.LeaseRecord
	weight := 0
	err := s.eachLease(ctx, sqlLeasesBefore, id, math.MaxInt64, n, func(r store.LeaseRecord) bool {
		if weight += recordBytes(r); bytes > 0 && weight > bytes {
			return false
		}
		out = append(out, r)
		return true
	})
	if err != nil {
		return nil, err
	}
	slices.Reverse(out)
	return out, nil
}

// eachLease hands up to n leases beyond one to yield, until it returns false. A lease that
// becomes a former one between two statements is in the later one's attempts.
func (s *Store) eachLease(ctx context.Context, sql string, id store.JobID, from int64, n int, yield func(store.LeaseRecord) bool) error {
	seen := false
	for n > 0 {
		limit := min(n, leasesPerStatement)
		rows, err := query(ctx, s, unit{lane: s.reads, sql: sql, args: []any{int64(id), from, limit}, idempotent: true},
			pgx.RowToStructByName[recordRow])
		if err != nil {
			return err
		}
		for i := range rows {
			if !yield(rows[i].record(id)) {
				return nil
			}
		}
		seen = seen || len(rows) > 0
		if len(rows) < limit {
			break
		}
		n -= limit
		from = rows[limit-1].LeaseNo
	}
	if seen {
		return nil
	}
	return s.jobExists(ctx, id)
}

func (s *Store) jobExists(ctx context.Context, id store.JobID) error {
	found, err := query(ctx, s, unit{lane: s.reads, sql: sqlJobExists, args: []any{int64(id)}, idempotent: true}, pgx.RowTo[bool])
	if err != nil {
		return err
	}
	if !found[0] {
		return &store.JobNotFoundError{JobID: id}
	}
	return nil
}

// OperatorActs reads the latest acts on a job, see store.JobStore. Errors: JobNotFoundError.
func (s *Store) OperatorActs(ctx context.Context, id store.JobID) ([]store.OperatorAct, error) {
	acts, err := query(ctx, s, unit{lane: s.reads, sql: sqlOperatorActs, args: []any{int64(id)}, idempotent: true},
		pgx.RowToStructByName[store.OperatorAct])
	if err != nil {
		return nil, err
	}
	if len(acts) == 0 {
		return nil, s.jobExists(ctx, id)
	}
	slices.Reverse(acts)
	return acts, nil
}
