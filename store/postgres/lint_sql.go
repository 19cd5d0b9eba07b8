package postgres

// Lint reads a bounded number of the newest leases, so that it costs the same on any history.
//
// sqlLintLeases: $1 is the queue or NULL, $2 the look-back, $3..$5 how many of the newest
// finished, live and former rows are looked at. A gap is that of a holder that was heard of
// again: its largest gap where it ended its lease itself, and the time until its first late
// call where that came after another had begun. The silence of a worker that died is none: no
// lease is long enough for that. Indexes: primary keys, jobs_leased_ids, jobs_stuck_ids.
const sqlLintLeases = `
WITH seen AS MATERIALIZED (
    (SELECT f.queue_id, f.id, f.lease_no, f.last_owner AS owner, f.leased_at, f.lease_length, f.end_kind, f.beats, f.beat_at, f.largest_gap
     FROM leasehold.finished_jobs f ORDER BY f.id DESC LIMIT $3)
    UNION ALL
    (SELECT j.queue_id, j.id, j.lease_no, j.last_owner, j.leased_at, j.lease_length, j.end_kind, j.beats, j.beat_at, j.largest_gap
     FROM leasehold.jobs j WHERE j.state = 2 ORDER BY j.id DESC LIMIT $4)
    UNION ALL
    (SELECT j.queue_id, j.id, j.lease_no, j.last_owner, j.leased_at, j.lease_length, j.end_kind, j.beats, j.beat_at, j.largest_gap
     FROM leasehold.jobs j WHERE j.state = 3 ORDER BY j.id DESC LIMIT $4)
    UNION ALL
    SELECT n.queue_id, n.id, n.lease_no, n.last_owner, n.leased_at, n.lease_length, n.end_kind, n.beats, n.beat_at, n.largest_gap
    FROM (SELECT j.queue_id, j.id, j.state, j.lease_no, j.last_owner, j.leased_at, j.lease_length, j.end_kind, j.beats, j.beat_at, j.largest_gap
          FROM leasehold.jobs j ORDER BY j.id DESC LIMIT $4) n WHERE n.state = 1
    UNION ALL
    SELECT coalesce((SELECT j.queue_id FROM leasehold.jobs j WHERE j.id = a.job_id),
                    (SELECT f.queue_id FROM leasehold.finished_jobs f WHERE f.id = a.job_id)),
           a.job_id, a.lease_no, a.owner, a.leased_at, a.lease_length, a.end_kind, a.beats, a.beat_at, a.largest_gap
    FROM (SELECT a.job_id, a.lease_no, a.owner, a.leased_at, a.lease_length, a.end_kind, a.beats, a.beat_at, a.largest_gap
          FROM leasehold.attempts a ORDER BY a.job_id DESC, a.lease_no DESC LIMIT $5) a
), leases AS MATERIALIZED (
    SELECT s.queue_id, s.owner, extract(epoch FROM s.lease_length)::float8 AS length, s.end_kind, s.beats, l.count AS late_calls,
           extract(epoch FROM CASE WHEN s.end_kind IN (1, 2, 3, 4) THEN s.largest_gap
               WHEN l.job_id IS NOT NULL THEN greatest(s.largest_gap, l.first_at - coalesce(s.beat_at, s.leased_at)) END)::float8 AS gap,
           btrim(s.owner) = '' OR lower(btrim(s.owner)) IN ('-', '.', '?', '0', 'none', 'null', 'nil', 'undefined', 'unknown', 'n/a', 'owner', 'lease_owner', 'localhost') AS blank
    FROM seen s
    LEFT JOIN leasehold.late_calls l ON l.job_id = s.id AND l.lease_no = s.lease_no
    WHERE s.lease_no > 0 AND s.leased_at >= statement_timestamp() - $2::interval
), judged AS (
    SELECT n.queue_id, count(*) AS leases, count(n.gap) AS answered,
           percentile_disc(0.99) WITHIN GROUP (ORDER BY n.gap) AS gap_p99, max(n.gap) AS gap_max,
           percentile_disc(0.99) WITHIN GROUP (ORDER BY n.gap / n.length) AS gap_share_p99,
           (array_agg(n.length ORDER BY n.gap DESC NULLS LAST))[1] AS lease_of_max,
           count(*) FILTER (WHERE n.gap >= n.length * 2 / 3) AS tight,
           count(*) FILTER (WHERE n.gap > n.length AND n.beats > 0) AS outlived_beating,
           count(*) FILTER (WHERE n.gap > n.length AND n.beats = 0) AS outlived_silent,
           max(n.gap) FILTER (WHERE n.gap > n.length AND n.beats = 0) AS longest_silent,
           min(n.length) FILTER (WHERE n.gap > n.length AND n.beats = 0) AS lease_of_silent,
           count(*) FILTER (WHERE n.end_kind IN (2, 5, 6, 7)) AS by_time,
           count(n.late_calls) AS double_runs, coalesce(sum(n.late_calls), 0)::bigint AS late_calls,
           count(DISTINCT n.owner) AS owners, mode() WITHIN GROUP (ORDER BY n.owner) AS main_owner,
           count(*) FILTER (WHERE n.blank) AS blank_owners, max(n.owner) FILTER (WHERE n.blank) AS blank_owner
    FROM leases n GROUP BY n.queue_id
)
SELECT q.name AS queue, q.on_expiry, coalesce(g.leases, 0) AS leases, coalesce(g.answered, 0) AS answered,
       coalesce(g.gap_p99, 0) AS gap_p99, coalesce(g.gap_max, 0) AS gap_max, coalesce(g.gap_share_p99, 0) AS gap_share_p99,
       coalesce(g.lease_of_max, 0) AS lease_of_max,
       coalesce(g.tight, 0) AS tight, coalesce(g.outlived_beating, 0) AS outlived_beating, coalesce(g.outlived_silent, 0) AS outlived_silent,
       coalesce(g.longest_silent, 0) AS longest_silent, coalesce(g.lease_of_silent, 0) AS lease_of_silent,
       coalesce(g.by_time, 0) AS by_time, coalesce(g.double_runs, 0) AS double_runs, coalesce(g.late_calls, 0) AS late_calls,
       coalesce(g.owners, 0) AS owners, coalesce(g.main_owner, '') AS main_owner,
       (SELECT count(*) FROM leases n WHERE n.queue_id = g.queue_id AND n.owner = g.main_owner) AS main_owner_leases,
       coalesce(g.blank_owners, 0) AS blank_owners, coalesce(g.blank_owner, '') AS blank_owner
FROM leasehold.queues q LEFT JOIN judged g ON g.queue_id = q.id
WHERE q.deleted_at IS NULL AND ($1::int IS NULL OR q.id = $1)
ORDER BY q.name`

// sqlLintService reads what is about no queue: the watcher, leases that it should have ended
// (among the oldest $1 leased jobs), and the pace of the newest $2 jobs. The pace is told only
// where they span ten minutes: a burst is none. A service that was away is late only since it
// is back. Indexes: jobs_leased_ids, primary keys.
const sqlLintService = `
SELECT statement_timestamp() AS at,
       greatest(extract(epoch FROM statement_timestamp() - greatest(s.swept_at, s.writable_since)), 0)::float8 AS sweep_age,
       (SELECT count(*) FROM (SELECT j.lease_until FROM leasehold.jobs j WHERE j.state = 2 ORDER BY j.id LIMIT $1) l
        WHERE l.lease_until < statement_timestamp() - interval '2 minutes') AS overdue,
       coalesce((SELECT count(*) * 86400 / nullif(extract(epoch FROM max(n.created_at) - min(n.created_at))::float8, 0)
                 FROM (SELECT f.created_at FROM leasehold.finished_jobs f ORDER BY f.id DESC LIMIT $2) n
                 HAVING max(n.created_at) - min(n.created_at) >= interval '10 minutes'), 0)::float8 AS jobs_per_day
FROM leasehold.service s`

// sqlLintHolders lists who holds back vacuum for longer than $1. A session in another database
// holds it back too if it has written: no snapshot taken here passes a transaction that was
// open anywhere. Autovacuum is left out: others do not wait for its snapshot. A slot has no time: one that nobody reads, or that is a million transactions
// behind, counts.
const sqlLintHolders = `
WITH held AS (
    SELECT CASE WHEN a.backend_type = 'walsender' THEN 'standby' ELSE 'session' END AS holder,
           a.pid::text || ' of ' || coalesce(a.usename, '') || ', application ' || coalesce(nullif(a.application_name, ''), '(none)')
               || ', database ' || coalesce(a.datname, '(none)') || ', ' || coalesce(a.state, 'state unknown') AS name,
           greatest(age(a.backend_xmin), age(a.backend_xid))::bigint AS transactions,
           coalesce(extract(epoch FROM clock_timestamp() - a.xact_start), 0)::float8 AS seconds, false AS whatever_its_time
    FROM pg_stat_activity a
    WHERE a.pid <> pg_backend_pid() AND a.backend_type <> 'autovacuum worker' AND (a.backend_xid IS NOT NULL
       OR a.backend_xmin IS NOT NULL AND (a.datname = current_database() OR a.backend_type = 'walsender'))
    UNION ALL
    SELECT 'slot', s.slot_name::text || CASE WHEN s.active THEN ', active' ELSE ', not active' END, age(s.xmin)::bigint, 0,
           NOT s.active OR age(s.xmin) > 1000000
    FROM pg_replication_slots s WHERE s.xmin IS NOT NULL
    UNION ALL
    SELECT 'prepared', p.gid || ' of ' || p.owner::text || ', database ' || p.database::text, age(p.transaction)::bigint,
           extract(epoch FROM clock_timestamp() - p.prepared)::float8, false
    FROM pg_prepared_xacts p
)
SELECT h.holder, h.name, h.transactions, h.seconds
FROM held h WHERE h.whatever_its_time OR h.seconds >= extract(epoch FROM $1::interval)
ORDER BY h.transactions DESC, h.name LIMIT 20`

// sqlLintTables measures each table with its partitions, indexes and TOAST.
const sqlLintTables = `
SELECT coalesce(p.relname, c.relname)::text AS "table", count(i.inhrelid) AS partitions,
       sum(pg_total_relation_size(c.oid))::bigint AS bytes,
       coalesce(sum(pg_stat_get_live_tuples(c.oid)), 0)::bigint AS live_rows,
       coalesce(sum(pg_stat_get_dead_tuples(c.oid)), 0)::bigint AS dead_rows,
       coalesce(sum(pg_stat_get_tuples_updated(c.oid)), 0)::bigint AS updates,
       coalesce(sum(pg_stat_get_tuples_hot_updated(c.oid)), 0)::bigint AS hot,
       clock_timestamp() - max(greatest(pg_stat_get_last_vacuum_time(c.oid), pg_stat_get_last_autovacuum_time(c.oid))) AS vacuumed_ago
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'leasehold'
LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
LEFT JOIN pg_class p ON p.oid = i.inhparent
WHERE c.relkind = 'r'
GROUP BY coalesce(p.relname, c.relname) ORDER BY 1`
