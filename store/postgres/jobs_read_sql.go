package postgres

// Reads of jobs. A job is live or finished, and moves between the tables: each statement
// reads both under one snapshot, so that it is found exactly once (R31).
//
// A statement is a set t of rows (id, state and so on, fits, marker), and sqlJobTail, which
// adds what stands in other tables. $1: with content; $2: bytes of content that may be read.
const (
	sqlGetJob = `
WITH t AS MATERIALIZED (
    SELECT ` + liveColumns + `, true AS fits, false AS marker FROM leasehold.jobs j WHERE j.id = $3
    UNION ALL
    SELECT ` + doneColumns + `, true, false FROM leasehold.finished_jobs j WHERE j.id = $3
)` + sqlJobTail

	// The key of a finished job is its own until its time is over (R33).
	// Indexes: queues_name, idempotency_keys_pkey.
	sqlGetJobByKey = `
WITH owner AS MATERIALIZED (
    SELECT k.job_id FROM leasehold.queues q JOIN leasehold.idempotency_keys k ON k.queue_id = q.id
    WHERE q.name = $3 AND q.deleted_at IS NULL AND k.key = $4
), t AS MATERIALIZED (
    SELECT ` + liveColumns + `, true AS fits, false AS marker FROM leasehold.jobs j WHERE j.id = (SELECT o.job_id FROM owner o)
    UNION ALL
    SELECT ` + doneColumns + `, true, false FROM leasehold.finished_jobs j WHERE j.id = (SELECT o.job_id FROM owner o)
        AND ` + keyLives + `
)` + sqlJobTail

	sqlQueueID = `SELECT q.id FROM leasehold.queues q WHERE q.name = $1 AND q.deleted_at IS NULL`

	keyLives = `j.finished_at + coalesce(j.idempotency_retention, interval '7 days') > statement_timestamp()`

	// What both tables have, under the alias j.
	commonColumns = `j.id, j.queue_id, j.state, j.subject, j.priority, j.run_at, j.created_at, j.bytes, j.attempts_used, j.expirations,
        j.lease_no, j.stage, j.progress, j.cancel_requested_at, j.end_kind, j.state_reason, j.parent_id,
        j.max_attempts, j.max_expirations, j.backoff_initial, j.backoff_factor, j.backoff_cap, j.backoff_jitter,
        j.lease_duration, j.max_runtime, j.stall_timeout, j.cancel_grace, j.idempotency_retention`
	liveColumns = commonColumns + `, j.lease_owner, j.lease_until, NULL::timestamptz AS finished_at, true AS key_lives`
	doneColumns = commonColumns + `, NULL::text AS lease_owner, NULL::timestamptz AS lease_until, j.finished_at, ` + keyLives + ` AS key_lives`

	// The joins are LATERAL with LIMIT 1, because a plain one may be planned as a hash over
	// the whole of a table whose rows hold the content of all jobs. Content is looked up by
	// content_id, which is NULL where it is not wanted. running is what the rows up to this
	// one weigh in an answer. Indexes: primary keys, idempotency_keys_job.
	sqlJobTail = `, weighed AS MATERIALIZED (
    SELECT t.*, e.code AS error_code, e.message AS error_message, e.details AS error_details,
           row_number() OVER (ORDER BY t.id) AS nth,
           sum(1024 + coalesce(octet_length(e.message) + octet_length(e.details), 0) + CASE WHEN $1::boolean THEN t.bytes
               + coalesce((SELECT octet_length(r.result) FROM leasehold.job_results r WHERE r.job_id = t.id), 0)
               + coalesce((SELECT octet_length(k.data) FROM leasehold.checkpoints k WHERE k.job_id = t.id), 0) ELSE 0 END)
               OVER (ORDER BY t.id) AS running
    FROM t
    LEFT JOIN LATERAL (
        SELECT e.code, e.message, e.details FROM leasehold.lease_errors e
        WHERE e.job_id = t.id ORDER BY e.lease_no DESC LIMIT 1) e ON true
), chosen AS MATERIALIZED (
    SELECT w.*, CASE WHEN $1 AND w.fits AND (w.nth = 1 OR w.running <= $2::bigint) THEN w.id END AS content_id FROM weighed w
)
SELECT c.id, q.name AS queue, c.state, c.subject, c.priority, c.run_at, c.created_at, c.attempts_used, c.expirations,
       c.lease_no, c.lease_owner, c.lease_until, c.stage, c.progress, c.cancel_requested_at, c.finished_at, c.end_kind,
       c.state_reason, c.parent_id, c.max_attempts, c.max_expirations, c.backoff_initial, c.backoff_factor, c.backoff_cap,
       c.backoff_jitter, c.lease_duration, c.max_runtime, c.stall_timeout, c.cancel_grace, c.idempotency_retention,
       CASE WHEN c.key_lives THEN i.key END AS idempotency_key, c.error_code, c.error_message, c.error_details,
       d.payload, d.is_json, d.content_type, d.headers, r.result, r.is_json AS result_is_json, r.content_type AS result_content_type,
       k.data AS checkpoint, c.running::bigint AS running, c.fits, c.marker
FROM chosen c
JOIN leasehold.queues q ON q.id = c.queue_id
LEFT JOIN LATERAL (SELECT i.key FROM leasehold.idempotency_keys i WHERE i.job_id = c.id LIMIT 1) i ON true
LEFT JOIN LATERAL (
    SELECT d.payload, d.is_json, d.content_type, d.headers FROM leasehold.job_data d WHERE d.job_id = c.content_id LIMIT 1) d ON true
LEFT JOIN LATERAL (
    SELECT r.result, r.is_json, r.content_type FROM leasehold.job_results r WHERE r.job_id = c.content_id LIMIT 1) r ON true
LEFT JOIN LATERAL (SELECT k.data FROM leasehold.checkpoints k WHERE k.job_id = c.content_id LIMIT 1) k ON true
ORDER BY c.id`
)

// Lists of jobs: a union of branches, each of which reads at most scanBound rows of one
// index in the order of ids, and stops early when the page is full. The last row of a full
// bound is a marker, returned whether it fits or not: beyond it nothing was looked at, so
// the list stops at the first marker of any branch.
//
// $3: after; $4: rows wanted; $5: the bound; $6..$11: the filter, NULL or empty where unset.
const (
	sqlListAll              = sqlListHead + scanLive + ` UNION ALL ` + scanFinished + sqlListTail
	sqlListLive             = sqlListHead + scanLive + sqlListTail
	sqlListLeased           = sqlListHead + scanLeased + ` UNION ALL ` + scanStuck + sqlListTail
	sqlListHeld             = sqlListHead + scanStuck + sqlListTail
	sqlListFinished         = sqlListHead + scanFinished + sqlListTail
	sqlListNotCompleted     = sqlListHead + scanDead + ` UNION ALL ` + scanCancelled + sqlListTail
	sqlListLiveNotCompleted = sqlListHead + scanLive + ` UNION ALL ` + scanDead + ` UNION ALL ` + scanCancelled + sqlListTail
	sqlListSubject          = sqlListHead + scanSubjectLive + ` UNION ALL ` + scanSubjectFinished + sqlListTail

	sqlListHead = `
WITH t AS MATERIALIZED (
    SELECT u.* FROM (`
	sqlListTail = `) u ORDER BY u.id LIMIT $4::bigint
)` + sqlJobTail

	// Indexes: jobs_pkey; jobs_leased_ids; jobs_stuck_ids; the primary key of finished_jobs;
	// finished_jobs_not_completed.
	scanLive      = scanHead + liveColumns + scanFits + `FROM leasehold.jobs j WHERE j.id > $3` + scanTail
	scanLeased    = scanHead + liveColumns + scanFits + `FROM leasehold.jobs j WHERE j.state = 2 AND j.id > $3` + scanTail
	scanStuck     = scanHead + liveColumns + scanFits + `FROM leasehold.jobs j WHERE j.state = 3 AND j.id > $3` + scanTail
	scanFinished  = scanHead + doneColumns + scanFits + `FROM leasehold.finished_jobs j WHERE j.id > $3` + scanTail
	scanDead      = scanHead + doneColumns + scanFits + `FROM leasehold.finished_jobs j WHERE j.queue_id = $6 AND j.state = 5 AND j.id > $3` + scanTail
	scanCancelled = scanHead + doneColumns + scanFits + `FROM leasehold.finished_jobs j WHERE j.queue_id = $6 AND j.state = 6 AND j.id > $3` + scanTail

	scanHead = `(SELECT n.* FROM (SELECT s.*, row_number() OVER (ORDER BY s.id) = $5 AS marker FROM (SELECT `
	scanFits = `, ` + jobFits + ` AS fits `
	scanTail = ` ORDER BY j.id LIMIT $5::bigint) s) n WHERE n.fits OR n.marker ORDER BY n.id LIMIT $4::bigint)`

	// By subject the index does not give the order of ids, and the sort needs all of them. A
	// subject of more jobs than the bound is marked, and read in the order of ids instead.
	// Indexes: jobs_subject, finished_jobs_subject.
	scanSubjectLive     = subjectHead + liveColumns + scanFits + `FROM leasehold.jobs j WHERE j.subject = $8` + subjectTail
	scanSubjectFinished = subjectHead + doneColumns + scanFits + `FROM leasehold.finished_jobs j WHERE j.subject = $8` + subjectTail

	subjectHead = `(SELECT n.* FROM (SELECT s.*, count(*) OVER () >= $5 AS marker FROM (SELECT `
	subjectTail = ` AND j.id > $3 LIMIT $5::bigint) s) n WHERE n.fits OR n.marker ORDER BY n.id LIMIT $4::bigint)`

	// The columns of fits come after those of the scan, marker last: the order of t.
	jobFits = `(($6::int IS NULL OR j.queue_id = $6)
        AND (cardinality($7::smallint[]) = 0 OR j.state = ANY ($7))
        AND ($8::text IS NULL OR j.subject = $8)
        AND ($9::timestamptz IS NULL OR j.created_at >= $9)
        AND ($10::timestamptz IS NULL OR j.created_at < $10)
        AND ($11::text IS NULL OR coalesce(
            (SELECT e.code FROM leasehold.lease_errors e WHERE e.job_id = j.id ORDER BY e.lease_no DESC LIMIT 1) = $11, false))) IS TRUE`
)
