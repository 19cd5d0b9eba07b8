package postgres

// sqlCancel cancels jobs: PENDING and STUCK at once, PROCESSING is asked for. One row per
// job that it acted on. $2: dry run. Rows that others hold locked are skipped and looked at
// again. Index: jobs_pkey.
//
// PostgreSQL holds the CHECKs against the version of a row that the snapshot sees before it finds
// the newer one, which is locked here, and computes the row again: where a claim has committed
// in between, the first of the two must pass as well, so it is not asked to cancel.
const sqlCancel = `
WITH locked AS MATERIALIZED (
    SELECT j.id, j.state, j.cancel_requested_at FROM unnest($1::bigint[]) AS u(id) JOIN leasehold.jobs j ON j.id = u.id
    ORDER BY j.id FOR UPDATE OF j SKIP LOCKED
), clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now FROM (SELECT count(*) FROM locked) AS behind_the_locks
), asked AS (
    UPDATE leasehold.jobs j SET cancel_requested_at = CASE WHEN j.state = 2 THEN coalesce(j.cancel_requested_at, c.now) END
    FROM locked l, clock c WHERE NOT $2 AND j.id = l.id AND l.state = 2
), moved AS (
    DELETE FROM leasehold.jobs j USING locked l, clock c
    WHERE NOT $2 AND j.id = l.id AND l.state IN (1, 3)
    RETURNING c.now, ` + movedColumns + `
), finished AS (
    INSERT INTO leasehold.finished_jobs (` + finishedColumns + `)
    SELECT m.id, m.queue_id, 6, ` + movedAsItIs + `, ''
    FROM moved m
), acts AS (
    INSERT INTO leasehold.operator_acts (job_id, at, act, actor, note)
    SELECT l.id, c.now, 'cancel', $3, $4 FROM locked l, clock c
    WHERE NOT $2 AND (l.state <> 2 OR l.cancel_requested_at IS NULL)
)
SELECT l.id, CASE WHEN l.state = 2 THEN 2 ELSE 6 END::smallint AS state FROM locked l`

// sqlRetryLive makes STUCK jobs PENDING, and those that wait after a lease run now, with a new
// budget. A job that was never leased waits for its run_at and not for a backoff: it is left
// alone, and so is one that is due. The former holder's late Complete is refused from now on
// (sealed).
const sqlRetryLive = `
WITH locked AS MATERIALIZED (
    SELECT j.id, j.state
    FROM unnest($1::bigint[]) AS u(id) JOIN leasehold.jobs j ON j.id = u.id
    JOIN leasehold.job_data d ON d.job_id = j.id
    WHERE j.lease_no < 9223372036854000000
      AND (j.state = 3 OR (j.state = 1 AND j.lease_no > 0 AND j.run_at > statement_timestamp()))
    ORDER BY j.id FOR UPDATE OF j SKIP LOCKED
), clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now FROM (SELECT count(*) FROM locked) AS behind_the_locks
), retried AS (
    UPDATE leasehold.jobs j SET state = 1, run_at = CASE WHEN l.state = 3 THEN c.now ELSE least(j.run_at, c.now) END, attempts_used = 0, expirations = 0, free_ends = 0,
        sealed = j.end_kind <> 0, state_reason = ''
    FROM locked l, clock c
    WHERE NOT $2 AND j.id = l.id
), acts AS (
    INSERT INTO leasehold.operator_acts (job_id, at, act, actor, note)
    SELECT l.id, c.now, 'retry', $3, $4 FROM locked l, clock c WHERE NOT $2
)
SELECT l.id, 1::smallint AS state FROM locked l`

// sqlRetryDead brings DEAD jobs back from finished_jobs, with their last lease's facts, unless
// their queue was deleted: nobody would lease them. The queue is held against deletion.
const sqlRetryDead = `
WITH locked AS MATERIALIZED (
    SELECT f.id FROM unnest($1::bigint[]) AS u(id) JOIN leasehold.finished_jobs f ON f.id = u.id
    JOIN leasehold.job_data d ON d.job_id = u.id
    JOIN leasehold.queues q ON q.id = f.queue_id AND q.deleted_at IS NULL
    WHERE f.state = 5 AND f.lease_no < 9223372036854000000
    ORDER BY f.id FOR UPDATE OF f SKIP LOCKED FOR KEY SHARE OF q
), clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now FROM (SELECT count(*) FROM locked) AS behind_the_locks
), moved AS (
    DELETE FROM leasehold.finished_jobs j USING locked l, clock c
    WHERE NOT $2 AND j.id = l.id
    RETURNING c.now, ` + movedFinishedColumns + `
), revived AS (
    INSERT INTO leasehold.jobs (id, queue_id, state, priority, run_at, created_at, bytes, lease_no, last_owner, leased_at,
        lease_length, last_until, beat_at, beats, largest_gap, changed_at, stage, stage_changes, progress, end_kind, ended_at,
        counted, sealed, follow_ups, max_attempts, max_expirations, backoff_initial, backoff_factor, backoff_cap, backoff_jitter,
        lease_duration, max_runtime, stall_timeout, cancel_grace, idempotency_retention, subject, parent_id)
    SELECT m.id, m.queue_id, 1, m.priority, m.now, m.created_at, m.bytes, m.lease_no, m.last_owner, m.leased_at,
        m.lease_length, m.last_until, m.beat_at, m.beats, m.largest_gap, m.changed_at, m.stage, m.stage_changes, m.progress, m.end_kind, m.ended_at,
        m.counted, m.end_kind <> 0, m.follow_ups, ` + policyOfMoved + `, m.subject, m.parent_id
    FROM moved m
), acts AS (
    INSERT INTO leasehold.operator_acts (job_id, at, act, actor, note)
    SELECT l.id, c.now, 'retry', $3, $4 FROM locked l, clock c WHERE NOT $2
)
SELECT l.id, 1::smallint AS state FROM locked l`

const movedFinishedColumns = `j.id, j.queue_id, j.priority, j.created_at, j.bytes, j.lease_no, j.last_owner, j.leased_at,
        j.lease_length, j.last_until, j.beat_at, j.beats, j.largest_gap, j.changed_at, j.stage, j.stage_changes, j.progress,
        j.end_kind, j.ended_at, j.counted, j.follow_ups,
        j.max_attempts, j.max_expirations, j.backoff_initial, j.backoff_factor, j.backoff_cap, j.backoff_jitter,
        j.lease_duration, j.max_runtime, j.stall_timeout, j.cancel_grace, j.idempotency_retention, j.subject, j.parent_id`

// sqlResolveStuck finishes a STUCK job as an operator states it: $2 is the new state.
const sqlResolveStuck = `
WITH locked AS MATERIALIZED (
    SELECT j.id FROM leasehold.jobs j WHERE j.id = $1 AND j.state = 3 FOR UPDATE SKIP LOCKED
), moved AS (
    DELETE FROM leasehold.jobs j USING locked l WHERE j.id = l.id
    RETURNING clock_timestamp() AS now, ` + movedColumns + `
), finished AS (
    INSERT INTO leasehold.finished_jobs (` + finishedColumns + `)
    SELECT m.id, m.queue_id, $2::smallint, ` + movedAsItIs + `, 'resolved by an operator'
    FROM moved m
)
SELECT l.id FROM locked l`

// sqlResolveDead does the same to a DEAD one.
const sqlResolveDead = `
UPDATE leasehold.finished_jobs f SET state = $2::smallint, finished_at = CASE WHEN $2::smallint = 5 THEN f.finished_at ELSE clock_timestamp() END,
    sealed = true, state_reason = 'resolved by an operator'
WHERE f.id = $1 AND f.state = 5
RETURNING f.id`

// sqlResolveRecord keeps who and why, and the result unless retention has dropped results of
// that age already.
const sqlResolveRecord = `
WITH act AS (
    INSERT INTO leasehold.operator_acts (job_id, at, act, actor, note)
    VALUES ($1, clock_timestamp(), $2, $3, $4) RETURNING id
)
INSERT INTO leasehold.job_results (job_id, result, is_json, content_type)
SELECT $1, $5::bytea, $6::boolean, $7::text WHERE $5::bytea IS NOT NULL AND leasehold.has_partition('job_results', $1)
ON CONFLICT (job_id) DO UPDATE SET result = EXCLUDED.result, is_json = EXCLUDED.is_json, content_type = EXCLUDED.content_type`

// sqlJobStates tells where jobs stand, in both tables under one snapshot, whether a payload is
// left to run them with, and whether their queue is.
const sqlJobStates = `
SELECT u.id, coalesce(j.state, f.state) AS state, d.job_id IS NOT NULL AS whole,
       j.state = 1 AND j.run_at <= statement_timestamp() AS due, j.lease_no = 0 AS fresh,
       q.name AS queue, q.deleted_at IS NOT NULL AS queue_deleted
FROM unnest($1::bigint[]) AS u(id)
LEFT JOIN leasehold.jobs j ON j.id = u.id
LEFT JOIN leasehold.finished_jobs f ON f.id = u.id
LEFT JOIN leasehold.job_data d ON d.job_id = u.id
LEFT JOIN leasehold.queues q ON q.id = coalesce(j.queue_id, f.queue_id)`
