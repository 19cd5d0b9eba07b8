-- What people read with SQL: states and ends as words. And the diagnosis of R21, so that the
-- service and the view cannot differ.

-- +goose Up

-- PENDING jobs that need a look: a few among millions that wait. Heartbeats write none of
-- these columns (R45).
CREATE INDEX jobs_crashed_ids ON leasehold.jobs (id) WHERE state = 1 AND (expirations >= 3 OR end_kind = 6);

-- diagnosis says what is wrong with a live job, as store.Diagnosis, or NULL. A third of a
-- lease is the advised time between heartbeats. Plain SQL, so that it is inlined.
-- +goose StatementBegin
CREATE FUNCTION leasehold.diagnosis(j leasehold.jobs) RETURNS smallint LANGUAGE sql STABLE AS $$
    SELECT CASE
        WHEN j.state = 3 THEN 1
        WHEN j.expirations >= 3 THEN 2
        WHEN j.state = 1 THEN CASE WHEN j.end_kind = 6 THEN 3 END
        WHEN j.leased_at + j.max_runtime - j.lease_length / 3 <= statement_timestamp() THEN 3
        WHEN j.lease_until < statement_timestamp() THEN 4
        WHEN j.changed_at + j.stall_timeout < statement_timestamp() THEN 5
        WHEN coalesce(j.beat_at, j.leased_at) + j.lease_length / 3 * 2 <= statement_timestamp()
            THEN CASE WHEN j.beats = 0 THEN 6 ELSE 7 END
    END::smallint
$$;
-- +goose StatementEnd

-- diagnosed_since is when that diagnosis began to hold. A crash loop of a leased job goes
-- back to the end of its former lease, which attempts has; the start of this one is the
-- nearest that the row knows. A job that never had a lease is STUCK since it was due. Never
-- NULL where there is a diagnosis.
-- +goose StatementBegin
CREATE FUNCTION leasehold.diagnosed_since(j leasehold.jobs, diagnosis smallint) RETURNS timestamptz LANGUAGE sql STABLE AS $$
    SELECT coalesce(CASE diagnosis
        WHEN 1 THEN j.ended_at
        WHEN 2 THEN coalesce(j.ended_at, j.leased_at)
        WHEN 3 THEN coalesce(j.ended_at, j.leased_at + j.max_runtime - j.lease_length / 3)
        WHEN 4 THEN j.lease_until
        WHEN 5 THEN j.changed_at + j.stall_timeout
        WHEN 6 THEN j.leased_at + j.lease_length / 3 * 2
        WHEN 7 THEN j.beat_at + j.lease_length / 3 * 2
    END, j.run_at)
$$;
-- +goose StatementEnd

-- bytes_as_text shows bytes: as they are where they are text of this database, else
-- escaped. It never fails: one odd payload must not end a query over all jobs.
-- +goose StatementBegin
CREATE FUNCTION leasehold.bytes_as_text(data bytea) RETURNS text
LANGUAGE plpgsql STABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN convert_from(data, 'UTF8');
EXCEPTION WHEN OTHERS THEN
    RETURN encode(data, 'escape');
END $$;
-- +goose StatementEnd

CREATE FUNCTION leasehold.state_word(state smallint) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT (ARRAY['PENDING', 'PROCESSING', 'STUCK', 'COMPLETED', 'DEAD', 'CANCELLED'])[state] $$;

-- NULL while the lease lives.
CREATE FUNCTION leasehold.end_word(end_kind smallint) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT (ARRAY['COMPLETED', 'COMPLETED_LATE', 'FAILED', 'FAILED_PERMANENTLY', 'EXPIRED', 'OVERRAN', 'STALLED', 'RELEASED', 'UNDELIVERED'])[end_kind] $$;

CREATE FUNCTION leasehold.diagnosis_word(diagnosis smallint) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT (ARRAY['HELD', 'CRASH_LOOP', 'OVERRUN', 'LEASE_EXPIRED', 'STALLED', 'NEVER_HEARTBEATED', 'WORKER_SILENT'])[diagnosis] $$;

-- Every job, live or finished, with its content. By id: the primary keys.
CREATE VIEW leasehold.all_jobs AS
SELECT t.id, q.name AS queue, leasehold.state_word(t.state) AS state, t.state_reason, t.subject, t.priority,
       t.run_at, t.created_at, t.finished_at, t.attempts_used, coalesce(t.max_attempts, 25) AS max_attempts, t.expirations,
       t.lease_no, t.lease_owner, t.lease_until, t.stage, t.progress, t.cancel_requested_at, t.parent_id,
       (SELECT k.key FROM leasehold.idempotency_keys k WHERE k.job_id = t.id) AS idempotency_key,
       e.code AS error_code, e.message AS error_message, e.details AS error_details,
       leasehold.bytes_as_text(d.payload) AS payload, d.content_type, d.headers,
       leasehold.bytes_as_text(r.result) AS result, r.content_type AS result_content_type,
       (SELECT leasehold.bytes_as_text(c.data) FROM leasehold.checkpoints c WHERE c.job_id = t.id) AS checkpoint
FROM (
    SELECT j.id, j.queue_id, j.state, j.state_reason, j.subject, j.priority, j.run_at, j.created_at, NULL::timestamptz AS finished_at,
           j.attempts_used, j.max_attempts, j.expirations, j.lease_no, j.lease_owner, j.lease_until, j.stage, j.progress,
           j.cancel_requested_at, j.parent_id
    FROM leasehold.jobs j
    UNION ALL
    SELECT f.id, f.queue_id, f.state, f.state_reason, f.subject, f.priority, f.run_at, f.created_at, f.finished_at,
           f.attempts_used, f.max_attempts, f.expirations, f.lease_no, NULL, NULL, f.stage, f.progress,
           f.cancel_requested_at, f.parent_id
    FROM leasehold.finished_jobs f
) t
JOIN leasehold.queues q ON q.id = t.queue_id
LEFT JOIN LATERAL (
    SELECT e.code, e.message, e.details FROM leasehold.lease_errors e
    WHERE e.job_id = t.id ORDER BY e.lease_no DESC LIMIT 1) e ON true
LEFT JOIN leasehold.job_data d ON d.job_id = t.id
LEFT JOIN leasehold.job_results r ON r.job_id = t.id;

-- Every lease ever handed out: the latest of live jobs, the last of finished ones, and those
-- before. ended_by is NULL while it lives. By job_id: the primary keys.
CREATE VIEW leasehold.all_leases AS
SELECT t.job_id, t.lease_no, q.name AS queue, t.owner, t.leased_at, t.lease_length, t.lease_until, t.ended_at,
       leasehold.end_word(t.end_kind) AS ended_by, t.cancelled, t.counted, t.beats, t.beat_at AS last_beat_at, t.largest_gap,
       t.stage, t.progress, t.follow_ups, e.code AS error_code, e.message AS error_message, e.details AS error_details,
       coalesce(l.count, 0) AS late_calls, l.first_at AS first_late_call_at, l.last_at AS last_late_call_at,
       l.last_call AS last_late_call, l.late_by
FROM (
    SELECT j.id AS job_id, j.queue_id, j.lease_no, j.last_owner AS owner, j.leased_at, j.lease_length,
           coalesce(j.lease_until, j.last_until) AS lease_until, j.ended_at, j.end_kind, false AS cancelled, j.counted,
           j.beats, j.beat_at, j.largest_gap, CASE WHEN j.stage_changes > 0 THEN j.stage END AS stage, j.progress, j.follow_ups
    FROM leasehold.jobs j WHERE j.lease_no > 0
    UNION ALL
    SELECT f.id, f.queue_id, f.lease_no, f.last_owner, f.leased_at, f.lease_length,
           f.last_until, f.ended_at, f.end_kind, f.state = 6 AND f.cancel_requested_at IS NOT NULL, f.counted,
           f.beats, f.beat_at, f.largest_gap, CASE WHEN f.stage_changes > 0 THEN f.stage END, f.progress, f.follow_ups
    FROM leasehold.finished_jobs f WHERE f.lease_no > 0
    UNION ALL
    SELECT a.job_id, coalesce((SELECT j.queue_id FROM leasehold.jobs j WHERE j.id = a.job_id),
                              (SELECT f.queue_id FROM leasehold.finished_jobs f WHERE f.id = a.job_id)),
           a.lease_no, a.owner, a.leased_at, a.lease_length,
           a.last_until, a.ended_at, a.end_kind, false, a.counted,
           a.beats, a.beat_at, a.largest_gap, a.stage, a.progress, a.follow_ups
    FROM leasehold.attempts a
) t
LEFT JOIN leasehold.queues q ON q.id = t.queue_id
LEFT JOIN leasehold.lease_errors e ON e.job_id = t.job_id AND e.lease_no = t.lease_no
LEFT JOIN leasehold.late_calls l ON l.job_id = t.job_id AND l.lease_no = t.lease_no;

-- Jobs that need a look, as ListStuck lists them. Each branch has its partial index, so that
-- the jobs that wait are not read.
CREATE VIEW leasehold.stuck_jobs AS
SELECT t.id, q.name AS queue, leasehold.state_word(t.state) AS state, leasehold.diagnosis_word(t.diagnosis) AS diagnosis, t.since,
       t.subject::text AS subject, t.last_owner AS owner, t.lease_no, t.lease_until, t.last_beat_at, t.stage::text AS stage,
       t.attempts_used::integer AS attempts_used, t.max_attempts, t.expirations::integer AS expirations, t.state_reason
FROM (
    SELECT j.id, j.queue_id, j.state, leasehold.diagnosis(j) AS diagnosis, leasehold.diagnosed_since(j, leasehold.diagnosis(j)) AS since,
           j.subject, j.last_owner, j.lease_no, j.lease_until, j.beat_at AS last_beat_at, j.stage,
           j.attempts_used, coalesce(j.max_attempts, 25) AS max_attempts, j.expirations, j.state_reason
    FROM leasehold.jobs j WHERE j.state = 2
    UNION ALL
    SELECT j.id, j.queue_id, j.state, leasehold.diagnosis(j), leasehold.diagnosed_since(j, leasehold.diagnosis(j)),
           j.subject, j.last_owner, j.lease_no, j.lease_until, j.beat_at, j.stage,
           j.attempts_used, coalesce(j.max_attempts, 25), j.expirations, j.state_reason
    FROM leasehold.jobs j WHERE j.state = 3
    UNION ALL
    SELECT j.id, j.queue_id, j.state, leasehold.diagnosis(j), leasehold.diagnosed_since(j, leasehold.diagnosis(j)),
           j.subject, j.last_owner, j.lease_no, j.lease_until, j.beat_at, j.stage,
           j.attempts_used, coalesce(j.max_attempts, 25), j.expirations, j.state_reason
    FROM leasehold.jobs j WHERE j.state = 1 AND (j.expirations >= 3 OR j.end_kind = 6)
) t
JOIN leasehold.queues q ON q.id = t.queue_id
WHERE t.diagnosis IS NOT NULL;

-- How each queue stands now. dead counts the history that is kept.
CREATE VIEW leasehold.queue_stats AS
SELECT q.name AS queue, q.paused_at IS NOT NULL AS paused,
       coalesce(l.ready, 0) AS ready, coalesce(l.scheduled, 0) AS scheduled, coalesce(l.processing, 0) AS processing,
       coalesce(l.stuck, 0) AS stuck, coalesce(d.dead, 0) AS dead, l.oldest_ready_age
FROM leasehold.queues q
LEFT JOIN (
    SELECT j.queue_id,
           count(*) FILTER (WHERE j.state = 1 AND j.run_at <= statement_timestamp()) AS ready,
           count(*) FILTER (WHERE j.state = 1 AND j.run_at > statement_timestamp()) AS scheduled,
           count(*) FILTER (WHERE j.state = 2) AS processing,
           count(*) FILTER (WHERE j.state = 3) AS stuck,
           statement_timestamp() - min(j.run_at) FILTER (WHERE j.state = 1 AND j.run_at <= statement_timestamp()) AS oldest_ready_age
    FROM leasehold.jobs j GROUP BY j.queue_id
) l ON l.queue_id = q.id
LEFT JOIN (
    SELECT f.queue_id, count(*) AS dead FROM leasehold.finished_jobs f WHERE f.state = 5 GROUP BY f.queue_id
) d ON d.queue_id = q.id
WHERE q.deleted_at IS NULL;

-- +goose Down
-- Forward only.
SELECT 1;
