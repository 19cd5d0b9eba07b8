package main

// sqlBenchFillPending makes jobs that are due as Enqueue leaves them: $1 queue, $2 how many,
// $3 payload.
const sqlBenchFillPending = `
WITH made AS (
    INSERT INTO leasehold.jobs (id, queue_id, run_at, bytes)
    SELECT nextval('leasehold.job_id_seq'), q.id, clock_timestamp(), octet_length($3::bytea)
    FROM leasehold.queues q, generate_series(1, $2::int)
    WHERE q.name = $1
    RETURNING id
)
INSERT INTO leasehold.job_data (job_id, payload) SELECT id, $3::bytea FROM made`

// sqlBenchFillFinished makes jobs as Complete leaves them, with the same parameters.
const sqlBenchFillFinished = `
WITH made AS (
    INSERT INTO leasehold.finished_jobs (id, queue_id, state, priority, run_at, created_at, finished_at, bytes,
        attempts_used, expirations, lease_no, last_owner, leased_at, lease_length, last_until, changed_at, beats,
        stage_changes, end_kind, ended_at, counted, sealed, state_reason)
    SELECT nextval('leasehold.job_id_seq'), q.id, 4, 5, clock_timestamp(), clock_timestamp(), clock_timestamp(), octet_length($3::bytea),
        0, 0, 1, 'bench-worker/1', clock_timestamp(), interval '1 minute', clock_timestamp() + interval '1 minute', clock_timestamp(), 0,
        0, 1, clock_timestamp(), false, false, ''
    FROM leasehold.queues q, generate_series(1, $2::int)
    WHERE q.name = $1
    RETURNING id
)
INSERT INTO leasehold.job_data (job_id, payload) SELECT id, $3::bytea FROM made`

// sqlBenchCommit writes a record of a few bytes into the log and touches no table.
const sqlBenchCommit = `SELECT pg_logical_emit_message(true, 'bench', '')`

const sqlBenchTransactions = `
SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = $1`

// sqlBenchConnections leaves out the benchmark's own and the server's workers.
const sqlBenchConnections = `
SELECT count(*) FROM pg_stat_activity
WHERE datname = $1 AND backend_type = 'client backend' AND application_name <> $2`

const sqlBenchUpdates = `
SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = 'leasehold.jobs'::regclass`

const sqlBenchLiveLeases = `
SELECT count(*) FROM leasehold.jobs WHERE state = 2 AND lease_no = 1 AND lease_until > clock_timestamp()`
