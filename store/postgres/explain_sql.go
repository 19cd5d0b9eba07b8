package postgres

// sqlExplainLeases finds what became of leases that a statement did not find: a new
// statement with a new snapshot over all tables at once, because one that waited for a lock
// sees a moved job in neither table (R31). Indexes: primary keys only.
const sqlExplainLeases = `
SELECT u.n::int AS ord,
       coalesce(j.state, f.state) AS state, coalesce(j.lease_no, f.lease_no) AS latest,
       coalesce(j.end_kind, f.end_kind) AS end_kind, coalesce(j.sealed, f.sealed) AS sealed,
       coalesce(j.follow_ups, f.follow_ups) AS follow_ups, f.digest,
       coalesce(j.max_attempts, f.max_attempts, 25) - coalesce(j.attempts_used, f.attempts_used) AS attempts_left,
       CASE WHEN j.state = 1 THEN j.run_at END AS run_at, greatest(j.run_at - statement_timestamp(), interval '0') AS run_in,
       a.end_kind AS former_end, a.follow_ups AS former_follow_ups
FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS u(job_id, lease_no, n)
LEFT JOIN leasehold.jobs j ON j.id = u.job_id
LEFT JOIN leasehold.finished_jobs f ON f.id = u.job_id
LEFT JOIN leasehold.attempts a ON a.job_id = u.job_id AND a.lease_no = u.lease_no
    AND u.lease_no < coalesce(j.lease_no, f.lease_no)`

// sqlNoteLateCalls keeps one record per superseded lease (R18), and tells which are new.
const sqlNoteLateCalls = `
INSERT INTO leasehold.late_calls AS l (job_id, lease_no, count, first_at, last_at, last_call, late_by)
SELECT u.job_id, u.lease_no, 1, statement_timestamp(), statement_timestamp(), $3, statement_timestamp() - a.ended_at
FROM unnest($1::bigint[], $2::bigint[]) AS u(job_id, lease_no)
JOIN leasehold.attempts a ON a.job_id = u.job_id AND a.lease_no = u.lease_no
ORDER BY u.job_id, u.lease_no
ON CONFLICT (job_id, lease_no) DO UPDATE SET
    count = l.count + 1, last_at = EXCLUDED.last_at, last_call = EXCLUDED.last_call, late_by = EXCLUDED.late_by
RETURNING l.count = 1`

// sqlNoteErrors keeps what a holder reported after its lease was ended by time (R17).
const sqlNoteErrors = `
INSERT INTO leasehold.lease_errors (job_id, lease_no, at, code, message, details)
SELECT u.job_id, u.lease_no, statement_timestamp(), u.code, u.message, u.details
FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[]) AS u(job_id, lease_no, code, message, details)
ORDER BY u.job_id
ON CONFLICT DO NOTHING`
