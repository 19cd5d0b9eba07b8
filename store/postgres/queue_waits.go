package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// The note is a courtesy to those who enqueue by SQL, and must not hold up the poll, which is
// the truth: waitPatience bounds its wait for a lock, noteTimeout all of it.
const (
	waitPatience = 50 * time.Millisecond
	noteTimeout  = time.Second
)

// sqlNoteWaited notes that replicas have polls parked for queues (R41). The note lasts for three
// polls, so that a replica that died is soon forgotten, and one that was made within the last
// second is left alone: one write a second for each queue, however many replicas wait. A row
// that somebody holds is skipped. Indexes: queues_name, queue_waits_pkey.
const sqlNoteWaited = `
WITH wanted AS MATERIALIZED (
    SELECT q.id AS queue_id, clock_timestamp() AS now
    FROM leasehold.queues q WHERE q.name = ANY ($1::text[]) AND q.deleted_at IS NULL
), stale AS MATERIALIZED (
    SELECT w.queue_id FROM wanted n JOIN leasehold.queue_waits w ON w.queue_id = n.queue_id
    WHERE w.waited_until NOT BETWEEN n.now + interval '2 seconds' AND n.now + interval '3 seconds'
    ORDER BY w.queue_id FOR NO KEY UPDATE OF w SKIP LOCKED
), renewed AS (
    UPDATE leasehold.queue_waits w SET waited_until = clock_timestamp() + interval '3 seconds'
    FROM stale s WHERE w.queue_id = s.queue_id RETURNING 1
), made AS (
    INSERT INTO leasehold.queue_waits (queue_id, waited_until)
    SELECT n.queue_id, clock_timestamp() + interval '3 seconds' FROM wanted n
    WHERE NOT EXISTS (SELECT FROM leasehold.queue_waits w WHERE w.queue_id = n.queue_id)
    ORDER BY n.queue_id ON CONFLICT DO NOTHING RETURNING 1
)
SELECT (SELECT count(*) FROM renewed)::int + (SELECT count(*) FROM made)::int`

// noteWaited makes those who enqueue by SQL notify. A failure costs up to a second of latency,
// until the next poll, and nothing else.
func (s *Store) noteWaited(ctx context.Context, queues []string) {
	bounded, cancel := context.WithTimeout(ctx, noteTimeout)
	defer cancel()
	u := unit{lane: s.work, sql: sqlNoteWaited, args: []any{queues}, lock: waitPatience}
	if _, err := query(bounded, s, u, pgx.RowTo[int]); err != nil && ctx.Err() == nil {
		s.log.DebugContext(ctx, "that queues are waited for could not be noted", "error", err)
	}
}
