package postgres

// Leases of one job: the latest stands in the job's row, live or finished, those before in
// attempts. All three are read under one snapshot, so that a lease is found exactly once.
// $1: the job; $2: exclusive bound of lease_no; $3: how many. Indexes: primary keys only.
const (
	sqlLeasesAfter = leasesHead + `WHERE l.lease_no > $2)
        UNION ALL
        (SELECT ` + formerColumns + ` FROM leasehold.attempts a
         WHERE a.job_id = $1 AND a.lease_no > $2 ORDER BY a.lease_no LIMIT $3)
    ) u ORDER BY u.lease_no LIMIT $3` + leasesTail + `ORDER BY p.lease_no`

	sqlLeasesBefore = leasesHead + `WHERE l.lease_no < $2)
        UNION ALL
        (SELECT ` + formerColumns + ` FROM leasehold.attempts a
         WHERE a.job_id = $1 AND a.lease_no < $2 ORDER BY a.lease_no DESC LIMIT $3)
    ) u ORDER BY u.lease_no DESC LIMIT $3` + leasesTail + `ORDER BY p.lease_no DESC`

	leasesHead = `
WITH latest AS MATERIALIZED (
    SELECT ` + latestColumns + `, coalesce(j.lease_until, j.last_until, j.ended_at) AS until, false AS cancelled
    FROM leasehold.jobs j WHERE j.id = $1 AND j.lease_no > 0
    UNION ALL
    SELECT ` + latestColumns + `, coalesce(j.last_until, j.ended_at), j.state = 6 AND j.cancel_requested_at IS NOT NULL
    FROM leasehold.finished_jobs j WHERE j.id = $1 AND j.lease_no > 0
), page AS MATERIALIZED (
    SELECT u.* FROM (
        (SELECT l.* FROM latest l `

	// The same columns in the same order. The stage of a job outlives its lease: it is that
	// of the latest lease only if that has named one.
	latestColumns = `j.lease_no, j.last_owner AS owner, j.leased_at, j.ended_at, j.end_kind, j.counted, j.beats, j.beat_at,
        j.largest_gap, CASE WHEN j.stage_changes > 0 THEN j.stage END AS stage, j.progress, j.follow_ups`
	formerColumns = `a.lease_no, a.owner, a.leased_at, a.ended_at, a.end_kind, a.counted, a.beats, a.beat_at,
        a.largest_gap, a.stage, a.progress, a.follow_ups, coalesce(a.last_until, a.ended_at), false`

	leasesTail = `
)
SELECT p.lease_no, p.owner, p.leased_at, p.until, p.ended_at, p.end_kind, p.cancelled, p.counted, p.beats, p.beat_at, p.largest_gap,
       p.stage, p.progress, p.follow_ups, e.code AS error_code, e.message AS error_message, e.details AS error_details,
       c.count AS late_count, c.first_at AS late_first_at, c.last_at AS late_last_at, c.last_call AS late_last_call, c.late_by,
       t.times AS stage_times, t.names AS stage_names
FROM page p
LEFT JOIN LATERAL (
    SELECT e.code, e.message, e.details FROM leasehold.lease_errors e
    WHERE e.job_id = $1 AND e.lease_no = p.lease_no LIMIT 1) e ON true
LEFT JOIN LATERAL (
    SELECT c.count, c.first_at, c.last_at, c.last_call, c.late_by FROM leasehold.late_calls c
    WHERE c.job_id = $1 AND c.lease_no = p.lease_no LIMIT 1) c ON true
LEFT JOIN LATERAL (
    SELECT array_agg(s.at ORDER BY s.n) AS times, array_agg(s.stage ORDER BY s.n) AS names
    FROM leasehold.stages s WHERE s.job_id = $1 AND s.lease_no = p.lease_no) t ON true
`
)

// sqlJobExists tells a job without leases from none; both tables under one snapshot.
const sqlJobExists = `
SELECT EXISTS (SELECT FROM leasehold.jobs j WHERE j.id = $1) OR EXISTS (SELECT FROM leasehold.finished_jobs f WHERE f.id = $1)`

// sqlOperatorActs reads the latest acts. Index: operator_acts_job.
const sqlOperatorActs = `
SELECT o.at, o.act, o.actor, o.note FROM leasehold.operator_acts o
WHERE o.job_id = $1 ORDER BY o.id DESC LIMIT 100`
