package postgres

// sqlComplete ends leases and moves their jobs to finished_jobs with the last lease's facts.
// Accepted are the job's latest lease while it is live, and one that was ended by time or as
// undelivered, while nobody else has begun and no operator has acted (R17). Locking and
// matching as in sqlEnd. A checkpoint came with a beat of this lease or with a former lease:
// most jobs have neither, and are not looked up. Indexes: jobs_pkey,
// checkpoints_pkey, queues_pkey.
const sqlComplete = `
WITH input AS MATERIALIZED (
    SELECT i.ord, i.job_id, i.lease_no, i.result, i.is_json, i.content_type, i.digest, i.follow_ups::bigint[] AS follow_ups
    FROM unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::boolean[], $5::text[], $6::bytea[], $7::text[])
         WITH ORDINALITY AS i(job_id, lease_no, result, is_json, content_type, digest, follow_ups, ord)
), locked AS MATERIALIZED (
    SELECT i.ord, i.result, i.is_json, i.content_type, i.digest, i.follow_ups, j.id, j.state, j.end_kind, j.sealed, j.queue_id, j.leased_at,
           j.lease_no > 1 OR j.beats > 0 AS may_have_checkpoint
    FROM input i
    JOIN leasehold.jobs j ON j.id = i.job_id AND j.lease_no = i.lease_no
    ORDER BY j.id
    FOR UPDATE OF j SKIP LOCKED
), clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now FROM (SELECT count(*) FROM locked) AS behind_the_locks
), accepted AS MATERIALIZED (
    SELECT l.*, c.now FROM locked l, clock c
    WHERE l.state = 2 OR (l.end_kind IN (5, 6, 7, 9) AND NOT l.sealed)
), moved AS (
    DELETE FROM leasehold.jobs j USING accepted a
    WHERE j.id = a.id
    RETURNING a.ord, a.now, a.digest, a.follow_ups AS a_follow_ups, j.state, ` + movedColumns + `
), finished AS (
    INSERT INTO leasehold.finished_jobs (` + finishedColumns + `)
    SELECT m.id, m.queue_id, 4, m.priority, m.run_at, m.created_at, m.now, m.bytes, m.attempts_used, m.expirations, m.lease_no,
        m.cancel_requested_at, m.last_owner, m.leased_at, m.lease_length, coalesce(m.lease_until, m.last_until), m.beat_at, m.beats,
        greatest(m.largest_gap, m.now - coalesce(m.beat_at, m.leased_at)), m.changed_at, m.stage, m.stage_changes, m.progress,
        CASE WHEN m.state = 2 THEN 1 ELSE 2 END, m.now, m.counted, false,
        m.a_follow_ups, m.digest, ` + policyOfMoved + `, m.subject, m.parent_id, ''
    FROM moved m
), results AS (
    INSERT INTO leasehold.job_results (job_id, result, is_json, content_type)
    SELECT a.id, a.result, a.is_json, a.content_type FROM accepted a WHERE a.result IS NOT NULL
), resumed AS (
    DELETE FROM leasehold.checkpoints c USING accepted a WHERE c.job_id = a.id AND a.may_have_checkpoint
)
SELECT a.ord::int AS ord, a.state <> 2 AS late, greatest(a.now - a.leased_at, interval '0') AS ran,
       (SELECT q.name FROM leasehold.queues q WHERE q.id = a.queue_id) AS queue
FROM accepted a`

// sqlCompleteDead completes a job that is DEAD by the very end of its last lease by time or
// as undelivered (R17). Its result is not kept where retention has dropped results of that
// age already. Index: the primary key of finished_jobs.
const sqlCompleteDead = `
WITH done AS (
    UPDATE leasehold.finished_jobs f SET
        state = 4, end_kind = 2, ended_at = clock_timestamp(), finished_at = clock_timestamp(),
        digest = $6, follow_ups = $7::text::bigint[], state_reason = ''
    WHERE f.id = $1 AND f.lease_no = $2 AND f.state = 5 AND f.end_kind IN (5, 6, 7, 9) AND NOT f.sealed
    RETURNING f.id, f.queue_id, f.finished_at, f.leased_at
), results AS (
    INSERT INTO leasehold.job_results (job_id, result, is_json, content_type)
    SELECT d.id, $3::bytea, $4::boolean, $5::text FROM done d
    WHERE $3::bytea IS NOT NULL AND leasehold.has_partition('job_results', d.id)
    ON CONFLICT (job_id) DO UPDATE SET result = EXCLUDED.result, is_json = EXCLUDED.is_json, content_type = EXCLUDED.content_type
), resumed AS (
    DELETE FROM leasehold.checkpoints c USING done d WHERE c.job_id = d.id
)
SELECT 1 AS ord, true AS late, greatest(d.finished_at - d.leased_at, interval '0') AS ran,
       (SELECT q.name FROM leasehold.queues q WHERE q.id = d.queue_id) AS queue
FROM done d`
