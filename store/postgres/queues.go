package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/store"
)

const queueColumns = `q.name, q.created_at, q.paused_at, q.paused_by, q.pause_note, q.on_expiry, q.stall_ends_lease,
    q.max_attempts, q.max_expirations, q.backoff_initial, q.backoff_factor, q.backoff_cap, q.backoff_jitter,
    q.lease_duration, q.max_runtime, q.stall_timeout, q.cancel_grace, q.idempotency_retention`

// Queues are few and change seldom. Index for all: queues_name.
const (
	sqlCreateQueue = `
INSERT INTO leasehold.queues AS q (name, on_expiry, stall_ends_lease, max_attempts, max_expirations, backoff_initial,
    backoff_factor, backoff_cap, backoff_jitter, lease_duration, max_runtime, stall_timeout, cancel_grace, idempotency_retention)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
ON CONFLICT (name) WHERE deleted_at IS NULL DO NOTHING
RETURNING ` + queueColumns

	sqlEnsureQueues = `
INSERT INTO leasehold.queues (name) SELECT u.name FROM unnest($1::text[]) AS u(name) ORDER BY u.name
ON CONFLICT (name) WHERE deleted_at IS NULL DO NOTHING`

	sqlGetQueue = `SELECT ` + queueColumns + ` FROM leasehold.queues q WHERE q.name = $1 AND q.deleted_at IS NULL`

	sqlListQueues = `
SELECT ` + queueColumns + ` FROM leasehold.queues q
WHERE q.name > $1 AND q.deleted_at IS NULL ORDER BY q.name LIMIT $2`

	// $2 names the fields to change, as store.QueueField.
	sqlUpdateQueue = `
UPDATE leasehold.queues q SET
    on_expiry = CASE WHEN 'on_expiry' = ANY ($2::text[]) THEN $3::smallint ELSE q.on_expiry END,
    stall_ends_lease = CASE WHEN 'stall_ends_lease' = ANY ($2) THEN $4::boolean ELSE q.stall_ends_lease END,
    max_attempts = CASE WHEN 'policy.max_attempts' = ANY ($2) THEN $5::int ELSE q.max_attempts END,
    max_expirations = CASE WHEN 'policy.max_expirations' = ANY ($2) THEN $6::int ELSE q.max_expirations END,
    backoff_initial = CASE WHEN 'policy.backoff.initial' = ANY ($2) THEN $7::interval ELSE q.backoff_initial END,
    backoff_factor = CASE WHEN 'policy.backoff.factor' = ANY ($2) THEN $8::float8 ELSE q.backoff_factor END,
    backoff_cap = CASE WHEN 'policy.backoff.cap' = ANY ($2) THEN $9::interval ELSE q.backoff_cap END,
    backoff_jitter = CASE WHEN 'policy.backoff.jitter' = ANY ($2) THEN $10::float8 ELSE q.backoff_jitter END,
    lease_duration = CASE WHEN 'policy.lease_duration' = ANY ($2) THEN $11::interval ELSE q.lease_duration END,
    max_runtime = CASE WHEN 'policy.max_runtime' = ANY ($2) THEN $12::interval ELSE q.max_runtime END,
    stall_timeout = CASE WHEN 'policy.stall_timeout' = ANY ($2) THEN $13::interval ELSE q.stall_timeout END,
    cancel_grace = CASE WHEN 'policy.cancel_grace' = ANY ($2) THEN $14::interval ELSE q.cancel_grace END,
    idempotency_retention = CASE WHEN 'policy.idempotency_retention' = ANY ($2) THEN $15::interval ELSE q.idempotency_retention END
WHERE q.name = $1 AND q.deleted_at IS NULL
RETURNING ` + queueColumns

	// The first actor and note stay.
	sqlPauseQueue = `
UPDATE leasehold.queues q SET
    paused_at = coalesce(q.paused_at, clock_timestamp()),
    paused_by = CASE WHEN q.paused_at IS NULL THEN $2 ELSE q.paused_by END,
    pause_note = CASE WHEN q.paused_at IS NULL THEN $3 ELSE q.pause_note END
WHERE q.name = $1 AND q.deleted_at IS NULL
RETURNING ` + queueColumns

	sqlResumeQueue = `
UPDATE leasehold.queues q SET paused_at = NULL, paused_by = '', pause_note = ''
WHERE q.name = $1 AND q.deleted_at IS NULL
RETURNING ` + queueColumns

	// FOR UPDATE waits for every transaction that enqueues into the queue and bars new ones.
	sqlLockQueue = `SELECT q.id FROM leasehold.queues q WHERE q.name = $1 AND q.deleted_at IS NULL FOR UPDATE`

	// A new statement after the lock: it sees what those transactions committed.
	// jobs has no index on queue_id alone; the three partial ones cover all its states.
	sqlQueueHasJobs = `
SELECT EXISTS (SELECT FROM leasehold.jobs j WHERE j.queue_id = $1 AND j.priority BETWEEN 1 AND 9 AND j.state = 1)
    OR EXISTS (SELECT FROM leasehold.jobs j WHERE j.queue_id = $1 AND j.state = 2)
    OR EXISTS (SELECT FROM leasehold.jobs j WHERE j.queue_id = $1 AND j.state = 3)`

	sqlDeleteQueue = `UPDATE leasehold.queues q SET deleted_at = clock_timestamp() WHERE q.id = $1 RETURNING q.id`
)

type queueRow struct {
	Name           string
	CreatedAt      time.Time
	PausedAt       *time.Time
	PausedBy       string
	PauseNote      string
	OnExpiry       int16
	StallEndsLease bool
	policyRow
}

func (r queueRow) queue() store.Queue {
	return store.Queue{
		Name: r.Name, Policy: r.policy(), OnExpiry: store.OnExpiry(r.OnExpiry), StallEndsLease: r.StallEndsLease,
		CreatedAt: r.CreatedAt, PausedAt: r.PausedAt, PausedBy: r.PausedBy, PauseNote: r.PauseNote,
	}
}

// CreateQueue makes a queue, see store.QueueStore. A repetition after an unknown outcome
// would answer QueueExistsError for the caller's own queue, so there is none.
func (s *Store) CreateQueue(ctx context.Context, q store.Queue) (*store.Queue, error) {
	made, err := s.oneQueue(ctx, sqlCreateQueue, queueArgs(q.Name, q, nil), false)
	if _, missing := errors.AsType[*store.QueueNotFoundError](err); missing {
		return nil, &store.QueueExistsError{Queue: q.Name}
	}
	return made, err
}

// queueArgs are a queue's values after its name and, if given, the fields to change.
func queueArgs(name string, q store.Queue, fields []string) []any {
	args := []any{name}
	if fields != nil {
		args = append(args, fields)
	}
	p := q.Policy
	return append(args, int16(q.OnExpiry), q.StallEndsLease, p.MaxAttempts, p.MaxExpirations, p.BackoffInitial, p.BackoffFactor,
		p.BackoffCap, p.BackoffJitter, p.LeaseDuration, p.MaxRuntime, p.StallTimeout, p.CancelGrace, p.IdempotencyRetention)
}

// oneQueue runs a statement that returns the queue, or nothing where there is none.
func (s *Store) oneQueue(ctx context.Context, sql string, args []any, idempotent bool) (*store.Queue, error) {
	rows, err := query(ctx, s, unit{lane: s.work, sql: sql, args: args, idempotent: idempotent}, pgx.RowToStructByName[queueRow])
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, &store.QueueNotFoundError{Queue: args[0].(string)}
	}
	q := rows[0].queue()
	return &q, nil
}

// EnsureQueues makes the queues that do not exist.
func (s *Store) EnsureQueues(ctx context.Context, names []string) error {
	_, err := query(ctx, s, unit{lane: s.work, sql: sqlEnsureQueues, args: []any{names}, idempotent: true}, pgx.RowTo[int])
	return err
}

// GetQueue reads a queue.
func (s *Store) GetQueue(ctx context.Context, name string) (*store.Queue, error) {
	return s.oneQueue(ctx, sqlGetQueue, []any{name}, true)
}

// ListQueues lists queues by name.
func (s *Store) ListQueues(ctx context.Context, after string, size int) ([]store.Queue, error) {
	rows, err := query(ctx, s, unit{lane: s.reads, sql: sqlListQueues, args: []any{after, size}, idempotent: true}, pgx.RowToStructByName[queueRow])
	queues := make([]store.Queue, len(rows))
	for i, r := range rows {
		queues[i] = r.queue()
	}
	return queues, err
}

// UpdateQueue changes a queue.
func (s *Store) UpdateQueue(ctx context.Context, u store.QueueUpdate) (*store.Queue, error) {
	fields := make([]string, len(u.Fields))
	for i, f := range u.Fields {
		fields[i] = string(f)
	}
	return s.oneQueue(ctx, sqlUpdateQueue, queueArgs(u.Queue.Name, u.Queue, fields), true)
}

// PauseQueue stops leasing from a queue. The claim reads the pause from the queue's row, so
// that no statement with a snapshot from after this commit leases from it.
func (s *Store) PauseQueue(ctx context.Context, name string, by store.Actor) (*store.Queue, error) {
	return s.oneQueue(ctx, sqlPauseQueue, []any{name, by.Name, by.Note}, true)
}

// ResumeQueue ends a pause.
func (s *Store) ResumeQueue(ctx context.Context, name string) (*store.Queue, error) {
	return s.oneQueue(ctx, sqlResumeQueue, []any{name}, true)
}

// DeleteQueue removes a queue without live jobs.
func (s *Store) DeleteQueue(ctx context.Context, name string) error {
	return inTx(ctx, s, s.work, false, func(ctx context.Context, tx pgx.Tx) error {
		ids, err := collect(ctx, tx, sqlLockQueue, []any{name}, pgx.RowTo[int32])
		if err != nil {
			return err
		}
		if len(ids) == 0 {
			return &store.QueueNotFoundError{Queue: name}
		}
		busy, err := collect(ctx, tx, sqlQueueHasJobs, []any{ids[0]}, pgx.RowTo[bool])
		if err != nil {
			return err
		}
		if busy[0] {
			return &store.StateError{Queue: name, Want: "it has live jobs; complete or cancel them first"}
		}
		_, err = collect(ctx, tx, sqlDeleteQueue, []any{ids[0]}, pgx.RowTo[int32])
		return err
	})
}
