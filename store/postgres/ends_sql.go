package postgres

// The end of a lease by anything but Complete: Fail, Release, undelivered, and by time. One
// statement holds the table of section 6, so that expiry is one rule whoever triggers it.
//
// Rows are locked FOR UPDATE in the order of job ids, matched by id and lease_no and not by
// the columns of jobs_leased_ids (the planner takes that index for tiny, and it is full of
// dead entries). Locked rows are skipped, never waited for. The clock is read once behind
// the locks (R30); expiry is judged by statement_timestamp(), so that a statement that slept
// never judges by the time it slept through. Whoever ends a lease by time needs may_blame (R35).
//
// kind: store.End of the call, 0 for "by time, if it is over".
const (
	sqlEndLeases      = sqlEndInputs + sqlEnd
	sqlEndExpiredByID = sqlEndInputsByID + sqlEnd

	sqlEndInputs = `
WITH input AS MATERIALIZED (
    SELECT i.ord, i.job_id, i.lease_no, i.kind, i.delay, i.code, i.message, i.details, i.follow_ups
    FROM unnest($1::bigint[], $2::bigint[], $3::smallint[], $4::interval[], $5::text[], $6::text[], $7::text[], $8::text[])
         WITH ORDINALITY AS i(job_id, lease_no, kind, delay, code, message, details, follow_ups, ord)
), `

	// By job id, whatever lease is live: for an acquire that takes over (R8).
	sqlEndInputsByID = `
WITH input AS MATERIALIZED (
    SELECT 0::bigint AS ord, j.id AS job_id, j.lease_no, 0::smallint AS kind, NULL::interval AS delay,
           NULL::text AS code, NULL::text AS message, NULL::text AS details, NULL::text AS follow_ups
    FROM unnest($1::bigint[]) AS u(id) JOIN leasehold.jobs j ON j.id = u.id
    WHERE j.lease_until < statement_timestamp()
), `

	sqlEnd = `
locked AS MATERIALIZED (
    SELECT i.ord, i.kind, i.delay, i.code, i.message, i.details, i.follow_ups::bigint[] AS follow_ups,
           j.id, j.queue_id, j.lease_no, j.state, j.attempts_used, j.expirations, j.beats, j.lease_until, j.leased_at,
           j.lease_length, j.beat_at, j.changed_at, j.cancel_requested_at,
           j.backoff_initial, j.backoff_factor, j.backoff_cap, j.backoff_jitter, j.max_runtime, j.stall_timeout,
           CASE WHEN j.beats > 0 THEN 0 ELSE j.free_ends END AS free_ends,
           coalesce(j.max_attempts, 25) AS max_attempts, coalesce(j.max_expirations, 5) AS max_expirations
    FROM input i
    JOIN leasehold.jobs j ON j.id = i.job_id AND j.lease_no = i.lease_no
    ORDER BY j.id
    FOR UPDATE OF j SKIP LOCKED
), clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now FROM (SELECT count(*) FROM locked) AS behind_the_locks
), ending AS MATERIALIZED (
    SELECT l.*, q.name AS queue, q.on_expiry = 2 AS holds,
           CASE WHEN l.kind = 9 AND l.beats > 0 THEN NULL
                WHEN l.kind <> 0 THEN l.kind
                WHEN NOT leasehold.may_blame(l.lease_length) THEN NULL
                WHEN l.lease_until < statement_timestamp() AND l.lease_until >= l.leased_at + l.max_runtime THEN 6
                WHEN l.lease_until < statement_timestamp() THEN 5
                WHEN q.stall_ends_lease AND l.changed_at + l.stall_timeout < statement_timestamp() THEN 7
           END::smallint AS end_kind,
           l.cancel_requested_at IS NOT NULL AS cancelled
    FROM locked l JOIN leasehold.queues q ON q.id = l.queue_id
    WHERE l.state = 2
), counted AS MATERIALIZED (
    SELECT e.*,
           e.end_kind IN (5, 6, 7) AS by_time,
           e.end_kind IN (8, 9) AND coalesce(e.delay, interval '0') <= interval '0' AS free,
           NOT e.cancelled AND (e.end_kind IN (3, 4, 5, 6, 7)
               OR (coalesce(e.delay, interval '0') <= interval '0' AND e.free_ends + 1 >= 100)) AS counts
    FROM ending e WHERE e.end_kind IS NOT NULL
), summed AS MATERIALIZED (
    SELECT c.*,
           CASE WHEN c.counts THEN greatest(least(c.attempts_used + 1, c.max_attempts), c.attempts_used)
                ELSE c.attempts_used END AS used,
           CASE WHEN c.by_time AND NOT c.cancelled THEN least(c.expirations + 1, 1000)
                WHEN c.counts OR (c.end_kind = 8 AND NOT c.free) THEN 0 ELSE c.expirations END AS expired,
           CASE WHEN c.counts THEN 0 WHEN c.free THEN c.free_ends + 1 ELSE c.free_ends END AS given_back
    FROM counted c
), judged AS MATERIALIZED (
    SELECT s.*, k.now,
           CASE WHEN s.cancelled THEN 6
                WHEN s.by_time AND s.holds THEN 3
                WHEN s.by_time AND s.expired >= s.max_expirations THEN 3
                WHEN s.end_kind = 4 THEN 5
                WHEN s.used >= s.max_attempts THEN 5
                ELSE 1 END::smallint AS outcome,
           CASE WHEN s.by_time AND s.expired <= 1 THEN k.now
                WHEN s.by_time THEN k.now + leasehold.backoff(s.backoff_initial, s.backoff_factor, s.backoff_cap, s.backoff_jitter, s.expired - 1)
                WHEN s.counts THEN k.now + coalesce(s.delay, leasehold.backoff(s.backoff_initial, s.backoff_factor, s.backoff_cap, s.backoff_jitter, s.used))
                WHEN s.free AND s.given_back >= 4 THEN k.now + leasehold.backoff(s.backoff_initial, s.backoff_factor, s.backoff_cap, s.backoff_jitter, s.given_back - 3)
                ELSE k.now + coalesce(s.delay, interval '0') END AS next_run_at,
           CASE WHEN s.cancelled THEN ''
                WHEN s.by_time AND s.holds THEN 'its lease ended by time and the queue holds such jobs'
                WHEN s.by_time AND s.expired >= s.max_expirations THEN 'its lease ended by time ' || s.expired || ' times in a row'
                WHEN s.by_time AND s.used >= s.max_attempts THEN 'its last attempt ended by time'
                WHEN s.end_kind IN (8, 9) AND s.used >= s.max_attempts THEN 'given back 100 times in a row, on its last attempt'
                ELSE '' END AS reason,
           greatest(k.now - coalesce(s.beat_at, s.leased_at), interval '0') AS silence
    FROM summed s, clock k
), requeued AS (
    UPDATE leasehold.jobs j SET
        state = g.outcome, run_at = CASE WHEN g.outcome = 1 THEN g.next_run_at ELSE j.run_at END,
        lease_owner = NULL, lease_until = NULL, last_until = j.lease_until, cancel_requested_at = NULL,
        end_kind = g.end_kind, ended_at = g.now, counted = g.counts, sealed = false,
        largest_gap = greatest(j.largest_gap, g.silence), follow_ups = g.follow_ups,
        attempts_used = g.used, expirations = g.expired, free_ends = g.given_back, state_reason = g.reason
    FROM judged g
    WHERE j.id = g.id AND g.outcome IN (1, 3)
), moved AS (
    DELETE FROM leasehold.jobs j USING judged g
    WHERE j.id = g.id AND g.outcome IN (5, 6)
    RETURNING g.outcome, g.now, g.used, g.expired, g.end_kind AS g_end_kind, g.counts, g.reason, g.silence, g.follow_ups AS g_follow_ups,
        ` + movedColumns + `
), finished AS (
    INSERT INTO leasehold.finished_jobs (` + finishedColumns + `)
    SELECT m.id, m.queue_id, m.outcome, m.priority, m.run_at, m.created_at, m.now, m.bytes, m.used, m.expired, m.lease_no,
        m.cancel_requested_at, m.last_owner, m.leased_at, m.lease_length, m.lease_until, m.beat_at, m.beats,
        greatest(m.largest_gap, m.silence), m.changed_at, m.stage, m.stage_changes, m.progress, m.g_end_kind, m.now, m.counts, false,
        m.g_follow_ups, NULL, ` + policyOfMoved + `, m.subject, m.parent_id, m.reason
    FROM moved m
), errors AS (
    INSERT INTO leasehold.lease_errors (job_id, lease_no, at, code, message, details)
    SELECT g.id, g.lease_no, g.now, g.code, g.message, g.details FROM judged g WHERE g.code IS NOT NULL
    ON CONFLICT DO NOTHING
)
SELECT g.ord::int AS ord, g.id, g.lease_no, g.outcome AS state, g.end_kind, g.max_attempts - least(g.used, g.max_attempts) AS attempts_left,
       CASE WHEN g.outcome = 1 THEN g.next_run_at END AS next_run_at, greatest(g.next_run_at - g.now, interval '0') AS next_run_in,
       greatest(g.now - g.leased_at, interval '0') AS ran, g.queue
FROM judged g`

	// What a finishing statement takes out of jobs.
	movedColumns = `j.id, j.queue_id, j.priority, j.run_at, j.created_at, j.bytes, j.attempts_used, j.expirations, j.lease_no,
        j.cancel_requested_at, j.last_owner, j.leased_at, j.lease_length, j.lease_until, j.last_until, j.beat_at, j.beats,
        j.largest_gap, j.changed_at, j.stage, j.stage_changes, j.progress, j.end_kind, j.ended_at, j.counted, j.sealed, j.follow_ups,
        j.max_attempts, j.max_expirations, j.backoff_initial, j.backoff_factor, j.backoff_cap, j.backoff_jitter,
        j.lease_duration, j.max_runtime, j.stall_timeout, j.cancel_grace, j.idempotency_retention, j.subject, j.parent_id, j.state_reason`

	// Where it puts them, in this order.
	finishedColumns = `id, queue_id, state, priority, run_at, created_at, finished_at, bytes, attempts_used, expirations, lease_no,
        cancel_requested_at, last_owner, leased_at, lease_length, last_until, beat_at, beats,
        largest_gap, changed_at, stage, stage_changes, progress, end_kind, ended_at, counted, sealed,
        follow_ups, digest, max_attempts, max_expirations, backoff_initial, backoff_factor, backoff_cap, backoff_jitter,
        lease_duration, max_runtime, stall_timeout, cancel_grace, idempotency_retention, subject, parent_id, state_reason`
)

// movedAsItIs are the finishedColumns between state and state_reason of a job m that is
// finished without a lease being ended: its former lease stays as it is, sealed.
const movedAsItIs = `m.priority, m.run_at, m.created_at, m.now, m.bytes, m.attempts_used, m.expirations, m.lease_no,
        m.cancel_requested_at, m.last_owner, m.leased_at, m.lease_length, m.last_until, m.beat_at, m.beats,
        m.largest_gap, m.changed_at, m.stage, m.stage_changes, m.progress, m.end_kind, m.ended_at, m.counted, true,
        m.follow_ups, NULL, ` + policyOfMoved + `, m.subject, m.parent_id`

const policyOfMoved = `m.max_attempts, m.max_expirations, m.backoff_initial, m.backoff_factor, m.backoff_cap, m.backoff_jitter,
        m.lease_duration, m.max_runtime, m.stall_timeout, m.cancel_grace, m.idempotency_retention`
