package postgres

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/store"
)

const (
	sqlTokenKey = `SELECT s.token_key FROM leasehold.secrets s`

	// An UPDATE that touches no row still finds a table that is locked and a server that is
	// read-only (R35).
	sqlTouchJobs = `UPDATE leasehold.jobs SET beats = beats WHERE false`

	// The row is locked before the clock is read: computed in the SET list, the time would be
	// that of before the wait (measured). A stamp that lies ahead was made before the clock was
	// set back: it counts as a gap, or it would pass for fresh until the clock has caught up.
	// What is returned moves the horizon of the marks: when it began it had no xid yet.
	sqlStamp = `
WITH held AS MATERIALIZED (
    SELECT s.singleton, s.stamped_at FROM leasehold.service s FOR UPDATE
), clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now FROM (SELECT count(*) FROM held) AS behind_the_lock
)
UPDATE leasehold.service s SET
    writable_since = CASE WHEN c.now - h.stamped_at BETWEEN interval '-5 seconds' AND interval '5 seconds' THEN s.writable_since ELSE c.now END,
    stamped_at = c.now
FROM held h, clock c WHERE s.singleton = h.singleton
RETURNING statement_timestamp() AS began, pg_current_xact_id()::text::bigint AS xid,
          pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS xmin`

	// Candidates of a sweep, without locks: a page of leased rows by id, whatever their queue.
	// A stall is only a candidate where the queue ends stalled leases. A page has all its rows,
	// whatever becomes of them: a short one would be taken for the last. Index: jobs_leased_ids.
	sqlSweepCandidates = `
WITH page AS MATERIALIZED (
    SELECT j.id, j.lease_no, j.queue_id, j.lease_until, j.changed_at, j.stall_timeout
    FROM leasehold.jobs j WHERE j.state = 2 AND j.id > $1 ORDER BY j.id LIMIT $2
)
SELECT p.id, p.lease_no, ` + sqlIsOver + ` AS over
FROM page p LEFT JOIN leasehold.queues q ON q.id = p.queue_id
ORDER BY p.id`

	// The same for some queues only, whose leases may lie anywhere among the others: all leased
	// rows are passed, and only what is over is returned. At most once a second (R38).
	sqlSweepCandidatesOf = `
SELECT p.id, p.lease_no, true AS over
FROM leasehold.jobs p JOIN leasehold.queues q ON q.id = p.queue_id
WHERE p.state = 2 AND p.id > $1 AND q.name = ANY ($3::text[]) AND ` + sqlIsOver + `
ORDER BY p.id LIMIT $2`

	sqlIsOver = `coalesce(p.lease_until < statement_timestamp()
    OR (q.stall_ends_lease AND p.changed_at + p.stall_timeout < statement_timestamp()), false)`

	// A pass that lies ahead was made before the clock was set back.
	sqlBeginSweep = `
SELECT s.swept_at NOT BETWEEN c.now - $1::interval / 2 AND c.now + interval '5 seconds'
FROM leasehold.service s, (SELECT clock_timestamp() AS now) c`

	sqlFinishSweep = `UPDATE leasehold.service SET swept_at = clock_timestamp()`

	// A counter near its type's bound: no claim takes the row. Index: jobs_worn_out.
	sqlBury = `
WITH worn AS MATERIALIZED (
    SELECT j.id FROM leasehold.jobs j WHERE j.lease_no >= 9223372036854000000 AND j.state IN (1, 3)
    ORDER BY j.id LIMIT 1000 FOR UPDATE SKIP LOCKED
), moved AS (
    DELETE FROM leasehold.jobs j USING worn w WHERE j.id = w.id
    RETURNING clock_timestamp() AS now, ` + movedColumns + `
)
INSERT INTO leasehold.finished_jobs (` + finishedColumns + `)
SELECT m.id, m.queue_id, 5, ` + movedAsItIs + `, 'its lease_no is at the bound of its type'
FROM moved m
RETURNING id`

	// Jobs whose payload is gone, in a page of live jobs by id, going round. A claim that meets
	// one sets it aside as well. Indexes: jobs_pkey, the primary key of job_data.
	sqlSetAside = `
WITH page AS MATERIALIZED (
    SELECT j.id, j.state FROM leasehold.jobs j WHERE j.id > $1 ORDER BY j.id LIMIT 2000
), bare AS MATERIALIZED (
    SELECT j.id FROM page p JOIN leasehold.jobs j ON j.id = p.id
    WHERE p.state = 1 AND j.state = 1 AND NOT EXISTS (SELECT FROM leasehold.job_data d WHERE d.job_id = p.id)
    ORDER BY j.id FOR UPDATE OF j SKIP LOCKED
), aside AS (
    UPDATE leasehold.jobs j SET state = 3, state_reason = 'its payload is gone: it cannot be delivered'
    FROM bare b WHERE j.id = b.id RETURNING 1
)
SELECT (SELECT count(*) FROM aside)::int AS done, (SELECT max(p.id) FROM page p) AS last`

	// Keys of jobs that ended longer ago than they have to be kept, or that retention dropped.
	// A page by job id. Locked ones are skipped: to wait would hold the others locked meanwhile.
	// Indexes: idempotency_keys_job, idempotency_keys_pkey.
	sqlForgetKeys = `
WITH page AS MATERIALIZED (
    SELECT k.queue_id, k.key, k.job_id FROM leasehold.idempotency_keys k
    WHERE k.job_id > $1 ORDER BY k.job_id LIMIT 1000
), over AS MATERIALIZED (
    SELECT k.queue_id, k.key, k.job_id
    FROM page p JOIN leasehold.idempotency_keys k ON k.queue_id = p.queue_id AND k.key = p.key AND k.job_id = p.job_id
    WHERE NOT EXISTS (SELECT FROM leasehold.jobs j WHERE j.id = p.job_id)
      AND NOT EXISTS (SELECT FROM leasehold.finished_jobs f WHERE f.id = p.job_id
            AND f.finished_at + coalesce(f.idempotency_retention, interval '7 days') > statement_timestamp())
    FOR UPDATE OF k SKIP LOCKED
), gone AS (
    DELETE FROM leasehold.idempotency_keys k USING over o
    WHERE k.queue_id = o.queue_id AND k.key = o.key AND k.job_id = o.job_id
    RETURNING 1
)
SELECT (SELECT count(*) FROM gone)::int AS done, (SELECT max(p.job_id) FROM page p) AS last`

	sqlForgetRequests = `
WITH old AS MATERIALIZED (
    SELECT r.request_id FROM leasehold.acquire_requests r
    WHERE r.created_at < statement_timestamp() - interval '24 hours' ORDER BY r.created_at LIMIT 1000 FOR UPDATE SKIP LOCKED
)
DELETE FROM leasehold.acquire_requests r USING old o WHERE r.request_id = o.request_id RETURNING 1`

	sqlEnsurePartitions = `SELECT leasehold.ensure_partitions()`
	// The lock of ensure_partitions, which returns at once where another holds it: a statement
	// that needs a partition would then find it still missing.
	sqlAwaitPartitions = `SELECT pg_advisory_xact_lock(7310868735420870001)`
	sqlDropPartition   = `SELECT leasehold.drop_partitions(clock_timestamp() - $1::interval, $2::text[])`

	// One probe per queue and priority of jobs_ready, from its mark ($2, $3), for the first job
	// and so for the next due.
	sqlReadyQueues = `
SELECT u.name AS queue, q.paused_at IS NOT NULL AS paused, coalesce(min(f.run_at) <= statement_timestamp(), false) AS ready,
       CASE WHEN min(f.run_at) IS NOT NULL THEN greatest(min(f.run_at) - statement_timestamp(), interval '0') END AS next
FROM unnest($1::text[]) WITH ORDINALITY AS u(name, ord)
JOIN leasehold.queues q ON q.name = u.name AND q.deleted_at IS NULL
CROSS JOIN generate_series(1, 9) AS p(priority)
LEFT JOIN LATERAL (
    SELECT j.run_at FROM leasehold.jobs j
    WHERE j.queue_id = q.id AND j.priority = p.priority::smallint AND j.state = 1
      AND (j.run_at, j.id) >= (($2::timestamptz[])[(u.ord::int - 1) * 9 + p.priority], ($3::bigint[])[(u.ord::int - 1) * 9 + p.priority])
    ORDER BY j.run_at, j.id LIMIT 1) f ON true
GROUP BY u.name, q.paused_at`

	sqlHealth = `
SELECT leasehold.partitions_ahead() AS partitions_ahead,
       extract(epoch FROM clock_timestamp() - s.writable_since)::float8 AS writable_for,
       extract(epoch FROM clock_timestamp() - s.stamped_at)::float8 AS stamp_age,
       extract(epoch FROM clock_timestamp() - s.swept_at)::float8 AS sweep_age,
       (` + sqlSchemaVersion + `) AS schema_version
FROM leasehold.service s`
)

// TokenKey is the key of the lease tokens.
func (s *Store) TokenKey(ctx context.Context) ([]byte, error) {
	keys, err := query(ctx, s, unit{lane: s.work, sql: sqlTokenKey, idempotent: true}, pgx.RowTo[[]byte])
	if err != nil {
		return nil, err
	}
	if len(keys) != 1 {
		return nil, errors.New("leasehold.secrets has no key")
	}
	return keys[0], nil
}

// StampWritable records that a heartbeat could have been written just now (R35), and moves
// the horizon of the marks (R48).
func (s *Store) StampWritable(ctx context.Context) error {
	type stampRow struct {
		Began     time.Time
		XID, Xmin int64
	}
	rows, err := query(ctx, s, unit{lane: s.ends, before: []prepared{{sql: sqlTouchJobs}}, sql: sqlStamp, idempotent: true},
		pgx.RowToStructByName[stampRow])
	for _, r := range rows {
		s.marks.observe(r.Began, r.XID, r.Xmin)
	}
	return err
}

// SweepPage ends what is over in one page of leased jobs, see store.Maintenance. Where the
// page fails as a whole, each lease is tried alone, so that one bad row stops nobody else.
func (s *Store) SweepPage(ctx context.Context, after store.JobID, size int, queues []string) (store.Swept, error) {
	type candidate struct {
		ID, LeaseNo int64
		Over        bool
	}
	u := unit{lane: s.work, sql: sqlSweepCandidates, args: []any{int64(after), size}, idempotent: true}
	if len(queues) > 0 {
		u.sql, u.args = sqlSweepCandidatesOf, append(u.args, queues)
	}
	page, err := query(ctx, s, u,
		pgx.RowToStructByName[candidate])
	if err != nil {
		// A page that was not read must not pass for one whose rows are at fault: the pass
		// would count as finished.
		return store.Swept{}, &store.UnavailableError{Cause: err}
	}
	var inputs []endInput
	for _, c := range page {
		if c.Over {
			inputs = append(inputs, endInput{ref: store.LeaseRef{JobID: store.JobID(c.ID), LeaseNo: c.LeaseNo}})
		}
	}
	swept := store.Swept{}
	if len(page) == size {
		swept.Next = store.JobID(page[len(page)-1].ID)
	}
	swept.Ended, err = s.endByTime(ctx, inputs)
	return swept, err
}

func (s *Store) endByTime(ctx context.Context, inputs []endInput) (int, error) {
	if len(inputs) == 0 {
		return 0, nil
	}
	rows, err := query(ctx, s, unit{lane: s.work, sql: sqlEndLeases, args: endArgs(inputs), idempotent: true},
		pgx.RowToStructByName[endRow])
	if err == nil {
		s.tellEnded(rows)
		return len(rows), nil
	}
	if len(inputs) == 1 || ctx.Err() != nil || unavailable(err) {
		return 0, err
	}
	ended, faults := 0, []error(nil)
	for _, half := range [][]endInput{inputs[:len(inputs)/2], inputs[len(inputs)/2:]} {
		n, err := s.endByTime(ctx, half)
		ended += n
		if err != nil {
			faults = append(faults, err)
		}
	}
	return ended, errors.Join(faults...)
}

func unavailable(err error) bool {
	_, is := errors.AsType[*store.UnavailableError](err)
	return is
}

// BeginSweep tells whether a pass is due.
func (s *Store) BeginSweep(ctx context.Context, interval time.Duration) (bool, error) {
	due, err := query(ctx, s, unit{lane: s.work, sql: sqlBeginSweep, args: []any{interval}, idempotent: true}, pgx.RowTo[bool])
	return err == nil && len(due) == 1 && due[0], err
}

// FinishSweep records a finished pass.
func (s *Store) FinishSweep(ctx context.Context) error {
	_, err := query(ctx, s, unit{lane: s.work, sql: sqlFinishSweep, idempotent: true}, pgx.RowTo[int])
	return err
}

// BuryUnrunnable sets aside rows that can never run: all whose lease number is at its bound,
// and those without payload in one page of live jobs, going round.
func (s *Store) BuryUnrunnable(ctx context.Context) (int, error) {
	ids, err := query(ctx, s, unit{lane: s.work, sql: sqlBury, idempotent: true}, pgx.RowTo[int64])
	if err != nil {
		return 0, err
	}
	bare, err := s.onePage(ctx, sqlSetAside, &s.setAsideAfter)
	return len(ids) + bare, err
}

// onePage runs a statement over the page behind a cursor and moves the cursor, back to the
// start at the end.
func (s *Store) onePage(ctx context.Context, sql string, cursor *atomic.Int64) (int, error) {
	type pageRow struct {
		Done int
		Last *int64
	}
	rows, err := query(ctx, s, unit{lane: s.work, sql: sql, args: []any{cursor.Load()}, idempotent: true}, pgx.RowToStructByName[pageRow])
	if err != nil {
		return 0, err
	}
	next := int64(0)
	if rows[0].Last != nil {
		next = *rows[0].Last
	}
	cursor.Store(next)
	return rows[0].Done, nil
}

// ForgetExpired deletes keys and request ids whose time is over: those of some pages of keys,
// and up to 1,000 requests.
func (s *Store) ForgetExpired(ctx context.Context) (int, error) {
	keys, err := s.forgetKeys(ctx)
	if err != nil {
		return 0, err
	}
	requests, err := query(ctx, s, unit{lane: s.work, sql: sqlForgetRequests, idempotent: true}, pgx.RowTo[int])
	return keys + len(requests), err
}

// barrenPages is how many pages without a key that is over are passed in one call.
const barrenPages = 20

// forgetKeys deletes keys at the head, where the oldest jobs are and most keys are over, or
// else in the next pages of a walk over all. A caller takes none for the end: without the
// head, the walk would be among the millions that live, and few pages a call, for weeks.
func (s *Store) forgetKeys(ctx context.Context) (int, error) {
	var head atomic.Int64
	done, err := s.onePage(ctx, sqlForgetKeys, &head)
	for page := 0; page < barrenPages && done == 0 && err == nil; page++ {
		done, err = s.onePage(ctx, sqlForgetKeys, &s.forgetAfter)
		if s.forgetAfter.Load() == 0 {
			break // come round
		}
	}
	return done, err
}

// EnsurePartitions makes the partitions that are ahead complete.
func (s *Store) EnsurePartitions(ctx context.Context) error {
	_, err := query(ctx, s, unit{lane: s.work, sql: sqlEnsurePartitions, idempotent: true}, pgx.RowTo[int])
	return err
}

// makePartitions is EnsurePartitions for a statement whose ids have run ahead, as after
// somebody has moved the sequence. It must not come back to itself.
func (s *Store) makePartitions(ctx context.Context) error {
	_, sent, err := attempt(ctx, unit{lane: s.reads, before: []prepared{{sql: sqlAwaitPartitions}}, sql: sqlEnsurePartitions}, pgx.RowTo[int])
	if err != nil {
		return domainError(err, sent, true)
	}
	return nil
}

// ApplyRetention drops what is old enough, one partition per statement.
func (s *Store) ApplyRetention(ctx context.Context, facts, payloads *time.Duration) error {
	var faults []error
	for _, r := range []struct {
		age    *time.Duration
		tables []string
	}{
		{payloads, []string{"job_data", "job_results"}},
		{facts, []string{"finished_jobs", "attempts", "stages", "lease_errors", "job_data", "job_results"}},
	} {
		for r.age != nil {
			dropped, err := query(ctx, s, unit{lane: s.work, sql: sqlDropPartition, args: []any{*r.age, r.tables}, idempotent: true}, pgx.RowTo[*int64])
			if err != nil {
				faults = append(faults, err)
				break
			}
			if dropped[0] == nil {
				break
			}
			s.log.Info("dropped a partition by retention", "first_job_id", *dropped[0], "tables", r.tables)
		}
	}
	return errors.Join(faults...)
}

// ReadyQueues tells which queues have a job that is due. First it notes that they are waited
// for: what was enqueued before that note, and did not notify, is found by what follows it.
func (s *Store) ReadyQueues(ctx context.Context, queues []string) ([]store.QueueReadiness, error) {
	s.noteWaited(ctx, queues)
	type readyRow struct {
		Queue         string
		Paused, Ready bool
		Next          *time.Duration
	}
	v := s.marks.view(queues, false)
	rows, err := query(ctx, s, unit{lane: s.work, sql: sqlReadyQueues, args: []any{queues, v.runAt, v.ids}, idempotent: true},
		pgx.RowToStructByName[readyRow])
	if v.fromStart {
		s.marks.scannedFromStart(v)
	}
	out := make([]store.QueueReadiness, len(rows))
	for i, r := range rows {
		out[i] = store.QueueReadiness{Queue: r.Queue, Ready: r.Ready && !r.Paused, Paused: r.Paused}
		if !r.Ready {
			out[i].Next = r.Next
		}
	}
	return out, err
}

// Health reads what readiness needs.
func (s *Store) Health(ctx context.Context) (store.Health, error) {
	type healthRow struct {
		PartitionsAhead                 int
		WritableFor, StampAge, SweepAge float64
		SchemaVersion                   int64
	}
	rows, err := query(ctx, s, unit{lane: s.reads, sql: sqlHealth, idempotent: true}, pgx.RowToStructByName[healthRow])
	if err != nil || len(rows) != 1 {
		return store.Health{}, err
	}
	seconds := func(f float64) time.Duration { return time.Duration(f * float64(time.Second)) }
	r := rows[0]
	return store.Health{
		SchemaVersion: r.SchemaVersion, PartitionsAhead: r.PartitionsAhead, WritableFor: seconds(r.WritableFor),
		StampAge: seconds(r.StampAge), SweepAge: seconds(r.SweepAge),
	}, nil
}
