package postgres

// The claim. It is one statement: rows are locked, then marked, and no plan can mark more
// rows than it returns, because what is picked is MATERIALIZED (measured: an UPDATE over a
// sub-select with LIMIT may run that more than once).
//
// callers ($2.. arrays, by position n) get jobs one by one in turns: the k-th picked job
// goes to slots[k]. A caller's answer ends at its max_bytes, but its first job is always
// granted. A caller with a request id takes part only if this transaction holds its
// advisory lock (sqlLockRequests) and no row of that id is younger than 24 hours; an older
// one is replaced.
//
// A job whose payload is gone is set STUCK instead of leased, so that it never blocks
// those behind it. A counter near its type's bound keeps a job out (R39).
//
// The former lease's record goes to attempts in the same statement.
const (
	sqlCallers = `
WITH callers AS MATERIALIZED (
    SELECT c.n, c.max_jobs
    FROM unnest($4::int[], $6::text[]) WITH ORDINALITY AS c(max_jobs, request_id, n)
    WHERE c.request_id IS NULL
       OR (c.n::text = ANY (string_to_array(current_setting('leasehold.request_locks', true), ','))
           AND NOT EXISTS (SELECT FROM leasehold.acquire_requests r WHERE r.request_id = c.request_id
                          AND r.created_at > statement_timestamp() - interval '24 hours'))
), slots AS MATERIALIZED (
    SELECT array_agg(s.n ORDER BY s.round, s.n) AS caller, count(*) AS size
    FROM (SELECT c.n, round FROM callers c, generate_series(1, c.max_jobs) AS round) s
), `

	// By queue. Index: jobs_ready; one probe per queue and priority, from its mark ($8, $9: nine
	// for each queue), which stops at the first that fills the batch. Needs no promotion of
	// scheduled jobs. An unknown queue among those asked for takes nothing at all. firsts is
	// what moves the marks: the first PENDING job of each source that jobs were picked from.
	sqlPickByQueue = `
source AS MATERIALIZED (
    SELECT q.id, p.priority, q.ord, (q.ord - 1) * 9 + p.priority AS n,
           ($8::timestamptz[])[(q.ord - 1) * 9 + p.priority] AS from_run_at, ($9::bigint[])[(q.ord - 1) * 9 + p.priority] AS from_id
    FROM (SELECT q.id, q.paused_at, u.ord::int AS ord, count(*) OVER () AS found
          FROM unnest($1::text[]) WITH ORDINALITY AS u(name, ord)
          JOIN leasehold.queues q ON q.name = u.name AND q.deleted_at IS NULL) q
    CROSS JOIN generate_series(1, 9) AS p(priority)
    WHERE q.found = cardinality($1) AND q.paused_at IS NULL
    ORDER BY q.ord, p.priority
), picked AS MATERIALIZED (
    SELECT row_number() OVER () AS slot, x.*
    FROM (SELECT ($1::text[])[s.ord] AS queue, s.n AS source, j.*
          FROM (SELECT s.id, s.priority, s.ord, s.n, s.from_run_at, s.from_id FROM source s ORDER BY s.ord, s.priority) s
          CROSS JOIN LATERAL (
              SELECT ` + pickedColumns + `
              FROM leasehold.jobs j
              WHERE j.queue_id = s.id AND j.priority = s.priority::smallint AND j.state = 1
                AND (j.run_at, j.id) >= (s.from_run_at, s.from_id)
                AND j.run_at <= statement_timestamp() AND j.lease_no < 9223372036854000000
              ORDER BY j.run_at, j.id
              LIMIT (SELECT size FROM slots)
              FOR UPDATE SKIP LOCKED) j
          LIMIT (SELECT size FROM slots)) x
), firsts AS MATERIALIZED (
    SELECT array_agg(ARRAY[s.ord, s.priority, (extract(epoch FROM f.run_at) * 1000000)::bigint, f.id]) AS found
    FROM source s
    CROSS JOIN LATERAL (
        SELECT j.run_at, j.id FROM leasehold.jobs j
        WHERE j.queue_id = s.id AND j.priority = s.priority::smallint AND j.state = 1
          AND (j.run_at, j.id) >= (s.from_run_at, s.from_id)
        ORDER BY j.run_at, j.id LIMIT 1) f
    WHERE (s.n IN (SELECT p.source FROM picked p)) IS TRUE
), `

	// By job id: the n-th id belongs to the n-th caller. Index: jobs_pkey.
	sqlPickByID = `
picked AS MATERIALIZED (
    SELECT u.n AS slot, q.name AS queue, ` + pickedColumns + `
    FROM unnest($1::bigint[]) WITH ORDINALITY AS u(id, n)
    JOIN leasehold.jobs j ON j.id = u.id
    JOIN leasehold.queues q ON q.id = j.queue_id
    WHERE (u.n IN (SELECT c.n FROM callers c)) IS TRUE
      AND j.state = 1 AND j.run_at <= statement_timestamp() AND q.paused_at IS NULL
      AND j.lease_no < 9223372036854000000
    ORDER BY j.id
    FOR UPDATE OF j SKIP LOCKED
), `

	pickedColumns = `j.id, j.bytes, j.lease_no, j.lease_duration, j.max_runtime,
    j.last_owner, j.leased_at, j.lease_length, j.last_until, j.ended_at, j.end_kind, j.counted, j.beats,
    j.beat_at, j.largest_gap, j.stage, j.stage_changes, j.progress, j.follow_ups`

	sqlSlotByQueue   = `(SELECT caller FROM slots)[p.slot]`
	sqlSlotByID      = `p.slot`
	sqlFirstsByQueue = `CASE WHEN t.slot = 1 THEN (SELECT found FROM firsts) END`
	sqlFirstsByID    = `NULL::bigint[]`

	// A job that was never leased has no checkpoint, and is not looked up.
	sqlGrantHead = `
granted AS MATERIALIZED (
    SELECT g.*, coalesce(($3::interval[])[g.caller], g.lease_duration, interval '60 seconds') AS length,
           d.job_id IS NOT NULL AS whole, d.payload, d.is_json, d.content_type, d.headers
    FROM (SELECT h.*, sum(h.bytes + h.checkpoint_bytes + 1024) OVER w AS running, row_number() OVER w AS nth
          FROM (SELECT p.*, CASE WHEN p.lease_no > 0 THEN coalesce((SELECT octet_length(c.data) FROM leasehold.checkpoints c
                                 WHERE c.job_id = p.id), 0) ELSE 0 END AS checkpoint_bytes, `
	sqlGrantTail = ` AS caller FROM picked p) h
          WINDOW w AS (PARTITION BY h.caller ORDER BY h.slot)) g
    LEFT JOIN leasehold.job_data d ON d.job_id = g.id
    WHERE g.running <= ($5::int[])[g.caller] OR g.nth = 1
), clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now FROM (SELECT count(*) FROM granted) AS behind_the_locks
), former AS (
    INSERT INTO leasehold.attempts (job_id, lease_no, owner, leased_at, lease_length, last_until, ended_at, end_kind,
           counted, beats, beat_at, largest_gap, stage, progress, follow_ups)
    SELECT g.id, g.lease_no, g.last_owner, g.leased_at, g.lease_length, g.last_until, g.ended_at, g.end_kind,
           g.counted, g.beats, g.beat_at, g.largest_gap, CASE WHEN g.stage_changes > 0 THEN g.stage END, g.progress, g.follow_ups
    FROM granted g WHERE g.whole AND g.lease_no > 0
), taken AS (
    UPDATE leasehold.jobs j SET
        state = 2, lease_no = g.lease_no + 1, lease_owner = ($2::text[])[g.caller], last_owner = ($2::text[])[g.caller],
        leased_at = c.now, lease_length = g.length,
        lease_until = c.now + least(g.length, g.max_runtime), last_until = NULL,
        beat_at = NULL, beats = 0, largest_gap = NULL, changed_at = c.now, stage_changes = 0, progress = NULL,
        end_kind = 0, ended_at = NULL, counted = false, sealed = false, follow_ups = NULL, state_reason = ''
    FROM granted g, clock c
    WHERE j.id = g.id AND g.whole
    RETURNING g.caller, g.slot, g.queue, j.id, j.priority, j.run_at, j.created_at, j.attempts_used, j.expirations,
        j.lease_no, j.lease_owner, j.lease_until, j.lease_until - c.now AS remaining, j.stage, j.subject, j.parent_id,
        j.max_attempts, j.max_expirations, j.backoff_initial, j.backoff_factor, j.backoff_cap, j.backoff_jitter,
        j.lease_duration, j.max_runtime, j.stall_timeout, j.cancel_grace, j.idempotency_retention,
        g.payload, g.is_json, g.content_type, g.headers
), set_aside AS (
    UPDATE leasehold.jobs j SET state = 3, state_reason = 'its payload is gone: it cannot be delivered'
    FROM granted g WHERE j.id = g.id AND NOT g.whole
), remembered AS (
    INSERT INTO leasehold.acquire_requests (request_id, digest, job_ids, lease_nos, created_at)
    SELECT ($6::text[])[t.caller], ($7::bytea[])[t.caller], array_agg(t.id), array_agg(t.lease_no), max(c.now)
    FROM taken t, clock c
    WHERE ($6::text[])[t.caller] IS NOT NULL
    GROUP BY t.caller
    ON CONFLICT (request_id) DO UPDATE SET digest = EXCLUDED.digest, job_ids = EXCLUDED.job_ids,
        lease_nos = EXCLUDED.lease_nos, created_at = EXCLUDED.created_at, replays = 0
)
SELECT t.caller::int AS caller, t.slot::int AS slot, ` + leaseColumns + `,
       CASE WHEN t.lease_no > 1 THEN (SELECT k.data FROM leasehold.checkpoints k WHERE k.job_id = t.id) END AS checkpoint, `
	sqlGrantEnd = ` AS firsts
FROM taken t
LEFT JOIN leasehold.idempotency_keys i ON i.job_id = t.id`

	// The columns of a leaseRow over t (queue, job and data) and i (key).
	leaseColumns = `t.queue, t.id, t.priority, t.run_at, t.created_at, t.attempts_used, t.expirations, t.lease_no,
    t.lease_owner, t.lease_until, t.remaining, t.stage, t.subject, t.parent_id,
    t.max_attempts, t.max_expirations, t.backoff_initial, t.backoff_factor, t.backoff_cap, t.backoff_jitter,
    t.lease_duration, t.max_runtime, t.stall_timeout, t.cancel_grace, t.idempotency_retention,
    t.payload, t.is_json, t.content_type, t.headers, i.key AS idempotency_key`

	sqlAcquireByQueue = sqlCallers + sqlPickByQueue + sqlGrantHead + sqlSlotByQueue + sqlGrantTail + sqlFirstsByQueue + sqlGrantEnd
	sqlAcquireByID    = sqlCallers + sqlPickByID + sqlGrantHead + sqlSlotByID + sqlGrantTail + sqlFirstsByID + sqlGrantEnd
)

// sqlLockRequests takes the advisory lock of each request id that is free, ahead of the
// claim in the same transaction, so that the claim's snapshot sees what an earlier holder
// committed. The positions held are left where sqlCallers reads them.
const sqlLockRequests = `
SELECT set_config('leasehold.request_locks', coalesce((
    SELECT string_agg(u.n::text, ',') FROM unnest($1::text[]) WITH ORDINALITY AS u(id, n)
    WHERE u.id IS NOT NULL AND pg_try_advisory_xact_lock(hashtextextended(u.id, -1))), ''), true)`

// sqlReplay finds what request ids were answered, counting the replay, so that the
// give-back of an undelivered answer leaves those leases alone (R12).
const sqlReplay = `
WITH held AS MATERIALIZED (
    SELECT r.request_id FROM leasehold.acquire_requests r
    WHERE r.request_id = ANY ($1::text[]) AND r.created_at > statement_timestamp() - interval '24 hours'
    ORDER BY r.request_id FOR UPDATE
)
UPDATE leasehold.acquire_requests r SET replays = r.replays + 1
FROM held h WHERE r.request_id = h.request_id
RETURNING r.request_id, r.digest, r.job_ids, r.lease_nos`

// sqlReplayLeases reads the leases that a replay answers, those still live.
// Index: jobs_pkey.
const sqlReplayLeases = `
SELECT 1 AS caller, t.slot::int AS slot, ` + leaseColumns + `, k.data AS checkpoint, NULL::bigint[] AS firsts
FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS u(id, lease_no, n)
JOIN LATERAL (
    SELECT u.n AS slot, q.name AS queue, j.id, j.priority, j.run_at, j.created_at, j.attempts_used, j.expirations,
        j.lease_no, j.lease_owner, j.lease_until, j.lease_until - statement_timestamp() AS remaining, j.stage, j.subject,
        j.parent_id, j.max_attempts, j.max_expirations, j.backoff_initial, j.backoff_factor, j.backoff_cap,
        j.backoff_jitter, j.lease_duration, j.max_runtime, j.stall_timeout, j.cancel_grace, j.idempotency_retention,
        d.payload, d.is_json, d.content_type, d.headers
    FROM leasehold.jobs j
    JOIN leasehold.job_data d ON d.job_id = j.id
    JOIN leasehold.queues q ON q.id = j.queue_id
    WHERE j.id = u.id AND j.lease_no = u.lease_no AND j.lease_until > statement_timestamp()) t ON true
LEFT JOIN leasehold.checkpoints k ON k.job_id = t.id
LEFT JOIN leasehold.idempotency_keys i ON i.job_id = t.id`

// sqlExplainQueues says of each queue whether it exists and is paused.
const sqlExplainQueues = `
SELECT u.name, q.id IS NOT NULL AS found, q.paused_at IS NOT NULL AS paused
FROM unnest($1::text[]) AS u(name)
LEFT JOIN leasehold.queues q ON q.name = u.name AND q.deleted_at IS NULL`

// sqlExplainJobs says of each job why it was not leased; both tables under one snapshot.
const sqlExplainJobs = `
SELECT u.n::int AS ord, coalesce(j.state, f.state) AS state, q.paused_at IS NOT NULL AS paused,
       j.run_at > statement_timestamp() AS ahead, j.lease_until > statement_timestamp() AS live,
       j.lease_no >= 9223372036854000000 AS spent
FROM unnest($1::bigint[]) WITH ORDINALITY AS u(id, n)
LEFT JOIN leasehold.jobs j ON j.id = u.id
LEFT JOIN leasehold.finished_jobs f ON f.id = u.id
LEFT JOIN leasehold.queues q ON q.id = j.queue_id`
