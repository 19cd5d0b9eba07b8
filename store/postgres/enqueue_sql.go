package postgres

// sqlEnqueue stores jobs, one row per item in the arrays; arrays of policy columns that
// nobody set are empty, unnest fills them with NULL.
//
// Invariants: the row of the queue is held against deletion (FOR KEY SHARE) until the
// commit, and where it is locked only its own jobs are put off; an idempotency key is taken only under its advisory lock, so that nobody ever
// waits for a stranger's uncommitted key (R32); a key that was committed after this
// statement's snapshot loses by ON CONFLICT and is looked at again by a new statement (R31).
// A run_at in the past counts as now, by the database's clock, which is read when the
// transaction has its xid: no mark is beyond it then (R48, see marks). The minute beyond five
// years is for callers whose clock is ahead.
//
// Indexes: queues_name, idempotency_keys_pkey, the primary keys of jobs and finished_jobs.
const sqlEnqueue = `
WITH queue AS MATERIALIZED (
    SELECT q.id, q.name, q.max_attempts, q.max_expirations, q.backoff_initial, q.backoff_factor, q.backoff_cap,
           q.backoff_jitter, q.lease_duration, q.max_runtime, q.stall_timeout, q.cancel_grace, q.idempotency_retention
    FROM leasehold.queues q
    WHERE q.name = ANY ($1::text[]) AND q.deleted_at IS NULL
    FOR KEY SHARE SKIP LOCKED
), clock AS MATERIALIZED (
    SELECT CASE WHEN pg_current_xact_id() IS NOT NULL THEN clock_timestamp() END AS now
), input AS MATERIALIZED (
    SELECT i.ord, i.queue, q.id AS queue_id, i.payload, i.is_json, i.content_type, i.headers, i.subject,
           coalesce(i.priority, 5)::smallint AS priority,
           CASE WHEN i.delay IS NOT NULL THEN c.now + i.delay
                ELSE greatest(coalesce(i.run_at, c.now), c.now) END AS run_at,
           i.key, i.digest, i.parent_id,
           coalesce(i.max_attempts, q.max_attempts) AS max_attempts,
           coalesce(i.max_expirations, q.max_expirations) AS max_expirations,
           coalesce(i.backoff_initial, q.backoff_initial) AS backoff_initial,
           coalesce(i.backoff_factor, q.backoff_factor) AS backoff_factor,
           coalesce(i.backoff_cap, q.backoff_cap) AS backoff_cap,
           coalesce(i.backoff_jitter, q.backoff_jitter) AS backoff_jitter,
           coalesce(i.lease_duration, q.lease_duration) AS lease_duration,
           coalesce(i.max_runtime, q.max_runtime) AS max_runtime,
           coalesce(i.stall_timeout, q.stall_timeout) AS stall_timeout,
           coalesce(i.cancel_grace, q.cancel_grace) AS cancel_grace,
           coalesce(i.idempotency_retention, q.idempotency_retention) AS idempotency_retention,
           CASE WHEN i.key IS NULL THEN true
                WHEN q.id IS NULL THEN false
                ELSE pg_try_advisory_xact_lock(hashtextextended(i.key, q.id)) END AS free
    FROM unnest($2::text[], $3::bytea[], $4::boolean[], $5::text[], $6::text[], $7::text[], $8::int[],
                $9::timestamptz[], $10::interval[], $11::text[], $12::bytea[], $13::bigint[],
                $14::int[], $15::int[], $16::interval[], $17::float8[], $18::interval[], $19::float8[],
                $20::interval[], $21::interval[], $22::interval[], $23::interval[], $24::interval[])
         WITH ORDINALITY AS i(queue, payload, is_json, content_type, headers, subject, priority,
                run_at, delay, key, digest, parent_id,
                max_attempts, max_expirations, backoff_initial, backoff_factor, backoff_cap, backoff_jitter,
                lease_duration, max_runtime, stall_timeout, cancel_grace, idempotency_retention, ord)
    CROSS JOIN clock c
    LEFT JOIN queue q ON q.name = i.queue
), looked AS MATERIALIZED (
    SELECT i.*, k.job_id AS old_id, k.digest = i.digest AS same,
           k.job_id IS NOT NULL AND (EXISTS (SELECT FROM leasehold.jobs j WHERE j.id = k.job_id)
             OR EXISTS (SELECT FROM leasehold.finished_jobs f WHERE f.id = k.job_id
                        AND f.finished_at + coalesce(f.idempotency_retention, interval '7 days') > statement_timestamp()))
           AS held
    FROM input i
    LEFT JOIN leasehold.idempotency_keys k ON i.key IS NOT NULL AND k.queue_id = i.queue_id AND k.key = i.key
), fresh AS MATERIALIZED (
    SELECT l.*, nextval('leasehold.job_id_seq') AS id
    FROM looked l
    WHERE l.queue_id IS NOT NULL AND l.free AND NOT l.held
      AND l.run_at <= statement_timestamp() + interval '1827 days 1 minute'
    ORDER BY l.ord
), key_made AS (
    INSERT INTO leasehold.idempotency_keys (queue_id, key, job_id, digest)
    SELECT f.queue_id, f.key, f.id, f.digest FROM fresh f
    WHERE f.key IS NOT NULL AND f.old_id IS NULL ORDER BY f.queue_id, f.key
    ON CONFLICT DO NOTHING RETURNING job_id
), key_taken AS (
    UPDATE leasehold.idempotency_keys k SET job_id = f.id, digest = f.digest
    FROM fresh f
    WHERE f.old_id IS NOT NULL AND k.queue_id = f.queue_id AND k.key = f.key AND k.job_id = f.old_id
    RETURNING k.job_id
), stored AS (
    INSERT INTO leasehold.jobs (id, queue_id, state, priority, run_at, created_at, bytes, subject, parent_id,
           max_attempts, max_expirations, backoff_initial, backoff_factor, backoff_cap, backoff_jitter,
           lease_duration, max_runtime, stall_timeout, cancel_grace, idempotency_retention)
    SELECT f.id, f.queue_id, 1, f.priority, f.run_at, statement_timestamp(),
           octet_length(f.payload) + coalesce(octet_length(f.headers), 0), f.subject, f.parent_id,
           f.max_attempts, f.max_expirations, f.backoff_initial, f.backoff_factor, f.backoff_cap, f.backoff_jitter,
           f.lease_duration, f.max_runtime, f.stall_timeout, f.cancel_grace, f.idempotency_retention
    FROM fresh f
    WHERE f.key IS NULL OR f.id IN (SELECT job_id FROM key_made) OR f.id IN (SELECT job_id FROM key_taken)
    RETURNING id
), data AS (
    INSERT INTO leasehold.job_data (job_id, payload, is_json, content_type, headers)
    SELECT f.id, f.payload, f.is_json, f.content_type, f.headers::jsonb
    FROM fresh f WHERE (f.id IN (SELECT id FROM stored)) IS TRUE
)
SELECT l.ord::int AS ord,
       CASE WHEN l.queue_id IS NULL AND EXISTS (SELECT FROM leasehold.queues q WHERE q.name = l.queue AND q.deleted_at IS NULL) THEN 'busy'
            WHEN l.queue_id IS NULL THEN 'queue'
            WHEN l.run_at > statement_timestamp() + interval '1827 days 1 minute' THEN 'ahead'
            WHEN NOT l.free THEN 'busy'
            WHEN l.held AND l.same THEN 'same'
            WHEN l.held THEN 'reused'
            ELSE 'lost' END AS outcome,
       l.old_id AS job_id
FROM looked l
WHERE l.queue_id IS NULL OR l.held OR NOT l.free OR l.run_at > statement_timestamp() + interval '1827 days 1 minute'
UNION ALL
SELECT f.ord::int, CASE WHEN f.id IN (SELECT id FROM stored) THEN 'created' ELSE 'lost' END, f.id
FROM fresh f`
