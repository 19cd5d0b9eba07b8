package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/store"
)

// lastLeaseRows is how many of the newest rows of a table tell when a queue was last leased
// from: a few milliseconds' worth.
const lastLeaseRows = 1000

// ExplainJob reads what decides whether a job may run now, see store.Inspector.
func (s *Store) ExplainJob(ctx context.Context, id store.JobID) (*store.JobStanding, error) {
	type standingRow struct {
		At             time.Time
		Queue          string
		State          int16
		PausedAt       *time.Time
		PausedBy       string
		PauseNote      string
		LeaseOwner     *string
		DueIn          time.Duration
		Whole          bool
		LeaseRemaining time.Duration
		Ahead          int64
		LastLeaseAt    *time.Time
	}
	rows, err := query(ctx, s, unit{
		lane: s.reads, sql: sqlExplainJob, args: []any{int64(id), store.MaxJobsAhead, lastLeaseRows}, idempotent: true,
	}, pgx.RowToStructByName[standingRow])
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, &store.JobNotFoundError{JobID: id}
	}
	r := rows[0]
	return &store.JobStanding{
		At: r.At, Queue: r.Queue, State: store.State(r.State), DueIn: r.DueIn, PausedAt: r.PausedAt, PausedBy: r.PausedBy,
		PauseNote: r.PauseNote, Whole: r.Whole, Ahead: r.Ahead, LastLeaseAt: r.LastLeaseAt, LeaseOwner: r.LeaseOwner,
		LeaseRemaining: r.LeaseRemaining,
	}, nil
}

// QueueStats counts the jobs of queues, see store.Inspector.
func (s *Store) QueueStats(ctx context.Context, names []string) ([]store.QueueStats, error) {
	type statsRow struct {
		Queue                                     string
		Ready, Scheduled, Processing, Stuck, Dead int64
		OldestAge                                 *time.Duration
	}
	rows, err := query(ctx, s, unit{lane: s.reads, sql: sqlQueueStats, args: []any{names, store.MaxQueueCount}, idempotent: true},
		pgx.RowToStructByName[statsRow])
	stats := make([]store.QueueStats, len(rows))
	for i, r := range rows {
		stats[i] = store.QueueStats(r)
	}
	return stats, err
}
