package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/store"
)

type stuckRow struct {
	ID           int64
	Queue        string
	State        int16
	Subject      *string
	Diagnosis    *int16 // nil of a marker that is healthy
	Since        *time.Time
	LastOwner    *string
	LeaseNo      int64
	LeaseUntil   *time.Time
	BeatAt       *time.Time
	Stage        *string
	AttemptsUsed int32
	MaxAttempts  int32
	Expirations  int32
	Fits, Marker bool
}

func (r *stuckRow) stuck() store.StuckJob {
	return store.StuckJob{
		JobID: store.JobID(r.ID), Queue: r.Queue, State: store.State(r.State), Subject: r.Subject,
		Diagnosis: store.Diagnosis(*r.Diagnosis), Since: *r.Since, Owner: r.LastOwner, LeaseNo: r.LeaseNo,
		LeaseUntil: r.LeaseUntil, LastBeatAt: r.BeatAt, Stage: r.Stage,
		AttemptsUsed: r.AttemptsUsed, MaxAttempts: r.MaxAttempts, Expirations: r.Expirations,
	}
}

// ListStuck lists jobs that need a look, by job id, see store.LeaseStore. Errors:
// QueueNotFoundError. Like ListJobs it reads a bounded number of rows.
func (s *Store) ListStuck(ctx context.Context, f store.StuckFilter, p store.Page) (store.StuckPage, error) {
	queue, err := s.queueID(ctx, f.Queue)
	if err != nil {
		return store.StuckPage{}, err
	}
	diagnoses := make([]int16, len(f.Diagnoses))
	for i, d := range f.Diagnoses {
		diagnoses[i] = int16(d)
	}
	page := store.StuckPage{Next: p.After}
	for started := time.Now(); ; {
		rows, err := query(ctx, s, unit{
			lane: s.reads, sql: sqlListStuck, idempotent: true,
			args: []any{page.Next, p.Size - len(page.Jobs) + 1, scanBound, queue, diagnoses},
		}, pgx.RowToStructByName[stuckRow])
		if err != nil {
			return store.StuckPage{}, err
		}
		if addStuck(&page, p.Size, rows) || time.Since(started) >= listPatience {
			return page, nil
		}
	}
}

// addStuck takes over what one statement found, and tells whether the page is done.
func addStuck(page *store.StuckPage, size int, rows []stuckRow) bool {
	for i := range rows {
		r := &rows[i]
		if r.Fits {
			if len(page.Jobs) == size {
				return true
			}
			page.Jobs = append(page.Jobs, r.stuck())
		}
		if page.Next = r.ID; r.Marker {
			return false
		}
	}
	page.Next = 0
	return true
}
