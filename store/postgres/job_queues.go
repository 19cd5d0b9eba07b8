package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/store"
)

// A job is live or finished, and moves between the tables: both are read under one snapshot
// (R31). Each id is looked up by itself, as the planner has no idea how many there are.
// Indexes: the primary keys of jobs, finished_jobs and queues.
const sqlJobQueues = `
SELECT a.id, q.name AS queue
FROM unnest($1::bigint[]) AS a (id)
CROSS JOIN LATERAL (
    SELECT j.queue_id FROM leasehold.jobs j WHERE j.id = a.id
    UNION ALL
    SELECT f.queue_id FROM leasehold.finished_jobs f WHERE f.id = a.id
    LIMIT 1) t
JOIN leasehold.queues q ON q.id = t.queue_id`

type jobQueueRow struct {
	ID    int64
	Queue string
}

// JobQueues tells the queues of jobs, see store.JobStore. It has the lane of heartbeats and
// ends, which ask for it: they must not wait behind lists.
func (s *Store) JobQueues(ctx context.Context, ids []store.JobID) (map[store.JobID]string, error) {
	rows, err := query(ctx, s, unit{lane: s.ends, sql: sqlJobQueues, args: []any{ids}, idempotent: true},
		pgx.RowToStructByName[jobQueueRow])
	if err != nil {
		return nil, err
	}
	queues := make(map[store.JobID]string, len(rows))
	for _, r := range rows {
		queues[store.JobID(r.ID)] = r.Queue
	}
	return queues, nil
}
