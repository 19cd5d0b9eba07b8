package postgres

// sqlHeartbeat renews leases from now, capped by max_runtime and, after a cancel request, by
// cancel_grace (R16). Rows are locked FOR NO KEY UPDATE, so that assert_lease's FOR KEY SHARE
// lets the lease's own beats pass. Only columns that no index mentions are written, so the
// new row version is heap-only (R45). A beat at or behind its cap renews nothing.
//
// A stage is a change when it differs, or is the first of this lease. The 1,000th change
// replaces the one before it (R14).
//
// Indexes: jobs_pkey, the primary keys of stages and checkpoints.
const sqlHeartbeat = `
WITH input AS MATERIALIZED (
    SELECT i.ord, i.job_id, i.lease_no, i.stage, i.progress, i.checkpoint
    FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::float8[], $5::bytea[])
         WITH ORDINALITY AS i(job_id, lease_no, stage, progress, checkpoint, ord)
), locked AS MATERIALIZED (
    SELECT i.ord, i.stage AS new_stage, i.progress AS new_progress, i.checkpoint,
           j.id, j.lease_no, j.state, j.lease_length, j.leased_at, j.beat_at, j.stage, j.stage_changes, j.progress,
           j.max_runtime, j.cancel_requested_at, coalesce(j.cancel_grace, interval '5 minutes') AS cancel_grace
    FROM input i
    JOIN leasehold.jobs j ON j.id = i.job_id AND j.lease_no = i.lease_no
    ORDER BY j.id
    FOR NO KEY UPDATE OF j SKIP LOCKED
), clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now FROM (SELECT count(*) FROM locked) AS behind_the_locks
), held AS MATERIALIZED (
    SELECT l.*, c.now,
           least(c.now + l.lease_length, l.leased_at + l.max_runtime, l.cancel_requested_at + l.cancel_grace) AS until,
           l.new_stage IS NOT NULL AND (l.new_stage IS DISTINCT FROM l.stage OR l.stage_changes = 0) AS stage_changed
    FROM locked l, clock c
    WHERE l.state = 2
), kept AS (
    INSERT INTO leasehold.checkpoints AS k (job_id, data)
    SELECT h.id, h.checkpoint FROM held h WHERE h.checkpoint IS NOT NULL AND h.until > h.now
    ON CONFLICT (job_id) DO UPDATE SET data = EXCLUDED.data WHERE k.data IS DISTINCT FROM EXCLUDED.data
    RETURNING k.job_id
), timeline AS (
    INSERT INTO leasehold.stages AS t (job_id, lease_no, n, at, stage)
    SELECT h.id, h.lease_no, least(h.stage_changes + 1, 1000), h.now, h.new_stage
    FROM held h WHERE h.stage_changed AND h.until > h.now
    ON CONFLICT (job_id, lease_no, n) DO UPDATE SET at = EXCLUDED.at, stage = EXCLUDED.stage
), renewed AS (
    UPDATE leasehold.jobs j SET
        lease_until = h.until, beat_at = h.now, beats = least(j.beats, 9223372036854775806) + 1,
        largest_gap = greatest(j.largest_gap, h.now - coalesce(j.beat_at, j.leased_at)),
        stage = coalesce(h.new_stage, j.stage),
        stage_changes = CASE WHEN h.stage_changed THEN least(j.stage_changes + 1, 1000) ELSE j.stage_changes END,
        progress = coalesce(h.new_progress, j.progress),
        changed_at = CASE WHEN h.stage_changed OR coalesce(h.new_progress, j.progress) IS DISTINCT FROM j.progress
                            OR h.id IN (SELECT job_id FROM kept)
                          THEN h.now ELSE j.changed_at END
    FROM held h
    WHERE j.id = h.id AND h.until > h.now
)
SELECT h.ord::int AS ord, h.until, h.until - h.now AS remaining, h.until > h.now AS renewed,
       greatest(h.now - coalesce(h.beat_at, h.leased_at), interval '0') AS gap,
       h.cancel_requested_at IS NOT NULL AS cancel_requested
FROM held h`
