package postgres

// sqlExplainJob reads what decides whether a job may run now, live or finished, under one
// snapshot. ahead stops at $2. The last lease of a queue has no index: the newest $3 rows of
// each table tell. Indexes: primary keys, jobs_ready, jobs_leased_ids.
const sqlExplainJob = `
WITH t AS MATERIALIZED (
    SELECT j.id, j.queue_id, j.state, j.priority, j.run_at, j.lease_owner, j.lease_until FROM leasehold.jobs j WHERE j.id = $1
    UNION ALL
    SELECT f.id, f.queue_id, f.state, f.priority, f.run_at, NULL, NULL FROM leasehold.finished_jobs f WHERE f.id = $1
)
SELECT statement_timestamp() AS at, q.name AS queue, t.state, q.paused_at, q.paused_by, q.pause_note, t.lease_owner,
       CASE WHEN t.state = 1 THEN greatest(t.run_at - statement_timestamp(), interval '0') ELSE interval '0' END AS due_in,
       EXISTS (SELECT FROM leasehold.job_data d WHERE d.job_id = t.id) AS whole,
       coalesce(t.lease_until - statement_timestamp(), interval '0') AS lease_remaining,
       (SELECT count(*) FROM (
            SELECT FROM generate_series(1, t.priority) AS p(priority)
            CROSS JOIN LATERAL (
                SELECT FROM leasehold.jobs a
                WHERE a.queue_id = t.queue_id AND a.state = 1 AND a.priority = p.priority::smallint AND a.run_at <= statement_timestamp()
                  AND (p.priority < t.priority OR (a.run_at, a.id) < (t.run_at, t.id))
                LIMIT $2) x
            WHERE t.state = 1 AND t.run_at <= statement_timestamp()
            LIMIT $2) y) AS ahead,
       greatest(
           (SELECT max(n.leased_at) FROM (SELECT a.queue_id, a.leased_at FROM leasehold.jobs a WHERE a.state = 2 ORDER BY a.id DESC LIMIT $3) n
            WHERE n.queue_id = t.queue_id),
           (SELECT max(n.leased_at) FROM (SELECT a.queue_id, a.leased_at FROM leasehold.jobs a ORDER BY a.id DESC LIMIT $3) n
            WHERE n.queue_id = t.queue_id),
           (SELECT max(n.leased_at) FROM (SELECT f.queue_id, f.leased_at FROM leasehold.finished_jobs f ORDER BY f.id DESC LIMIT $3) n
            WHERE n.queue_id = t.queue_id)) AS last_lease_at
FROM t JOIN leasehold.queues q ON q.id = t.queue_id`

// sqlQueueStats counts up to $2 jobs of each kind and queue. Indexes: queues_name, jobs_ready,
// jobs_leased_ids and jobs_stuck_ids (what is being worked on, and what waits for people, for
// all queues at once), finished_jobs_not_completed.
const sqlQueueStats = `
WITH wanted AS MATERIALIZED (
    SELECT u.n, u.name, q.id FROM unnest($1::text[]) WITH ORDINALITY AS u(name, n)
    LEFT JOIN leasehold.queues q ON q.name = u.name AND q.deleted_at IS NULL
), leased AS MATERIALIZED (
    SELECT j.queue_id, count(*) AS jobs FROM leasehold.jobs j WHERE j.state = 2 GROUP BY j.queue_id
), held AS MATERIALIZED (
    SELECT j.queue_id, count(*) AS jobs FROM leasehold.jobs j WHERE j.state = 3 GROUP BY j.queue_id
)
SELECT w.name AS queue,
       least((SELECT count(*) FROM generate_series(1, 9) AS p(priority) CROSS JOIN LATERAL (
            SELECT FROM leasehold.jobs j WHERE j.queue_id = w.id AND j.priority = p.priority::smallint AND j.state = 1
              AND j.run_at <= statement_timestamp() LIMIT $2) x), $2) AS ready,
       least((SELECT count(*) FROM generate_series(1, 9) AS p(priority) CROSS JOIN LATERAL (
            SELECT FROM leasehold.jobs j WHERE j.queue_id = w.id AND j.priority = p.priority::smallint AND j.state = 1
              AND j.run_at > statement_timestamp() LIMIT $2) x), $2) AS scheduled,
       least(coalesce((SELECT l.jobs FROM leased l WHERE l.queue_id = w.id), 0), $2) AS processing,
       least(coalesce((SELECT h.jobs FROM held h WHERE h.queue_id = w.id), 0), $2) AS stuck,
       (SELECT count(*) FROM (SELECT FROM leasehold.finished_jobs f WHERE f.queue_id = w.id AND f.state = 5 LIMIT $2) x) AS dead,
       (SELECT statement_timestamp() - min(x.run_at) FROM generate_series(1, 9) AS p(priority) CROSS JOIN LATERAL (
            SELECT j.run_at FROM leasehold.jobs j WHERE j.queue_id = w.id AND j.priority = p.priority::smallint AND j.state = 1
              AND j.run_at <= statement_timestamp() ORDER BY j.run_at, j.id LIMIT 1) x) AS oldest_age
FROM wanted w ORDER BY w.n`
