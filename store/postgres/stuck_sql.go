package postgres

// sqlListStuck reads the live jobs that may need a look, each kind by its partial index in
// the order of ids, at most scanBound rows: what is being worked on may be much, and healthy.
// As in the lists of jobs, the last row of a full bound is a marker, beyond which nothing was
// looked at. $1: after; $2: rows wanted; $3: the bound; $4: queue, NULL for all; $5:
// diagnoses, empty for all. Indexes: jobs_leased_ids, jobs_stuck_ids, jobs_crashed_ids.
const (
	sqlListStuck = `
WITH t AS MATERIALIZED (
    SELECT u.* FROM (` +
		stuckHead + `j.state = 2` + stuckTail + ` UNION ALL ` +
		stuckHead + `j.state = 3` + stuckTail + ` UNION ALL ` +
		stuckHead + `j.state = 1 AND (j.expirations >= 3 OR j.end_kind = 6)` + stuckTail + `) u
    ORDER BY u.id LIMIT $2::bigint
)
SELECT t.id, q.name AS queue, t.state, t.subject, t.diagnosis,
       CASE WHEN t.diagnosis = 2 THEN coalesce(
           (SELECT a.ended_at FROM leasehold.attempts a WHERE t.ended_at IS NULL AND a.job_id = t.id AND a.lease_no = t.lease_no - 1),
           t.since) ELSE t.since END AS since,
       t.last_owner, t.lease_no, t.lease_until, t.beat_at, t.stage, t.attempts_used, t.max_attempts, t.expirations, t.fits, t.marker
FROM t JOIN leasehold.queues q ON q.id = t.queue_id
ORDER BY t.id`

	stuckHead = `(SELECT n.* FROM (
        SELECT s.*, row_number() OVER (ORDER BY s.id) = $3 AS marker,
               (s.diagnosis IS NOT NULL AND ($4::int IS NULL OR s.queue_id = $4)
                AND (cardinality($5::smallint[]) = 0 OR s.diagnosis = ANY ($5))) AS fits
        FROM (SELECT j.id, j.queue_id, j.state, j.subject, leasehold.diagnosis(j) AS diagnosis,
                     leasehold.diagnosed_since(j, leasehold.diagnosis(j)) AS since, j.last_owner, j.lease_no, j.lease_until,
                     j.beat_at, j.stage, j.attempts_used, coalesce(j.max_attempts, 25) AS max_attempts, j.expirations, j.ended_at
              FROM leasehold.jobs j WHERE `
	stuckTail = ` AND j.id > $1 ORDER BY j.id LIMIT $3::bigint) s) n
        WHERE n.fits OR n.marker ORDER BY n.id LIMIT $2::bigint)`
)
