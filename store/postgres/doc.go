// Package postgres keeps the jobs of package store in PostgreSQL. It is the only place that
// knows SQL.
//
// # Where a job is
//
//	            enqueue                    complete, fail for good, cancel
//	  caller ─────────────► jobs ──────────────────────────────► finished_jobs
//	                        │  ▲        (DELETE … RETURNING into INSERT)   │
//	                 claim  │  │ fail, release, expiry                     │ RetryJobs
//	                        ▼  │                                           ▼
//	                  the same row, PROCESSING                      back into jobs
//
//	job_data, job_results   payload and result: written once, never moved
//	checkpoints             the last one of each job
//	attempts                one row per former lease, written when the next one starts
//	stages, lease_errors    appended as they come in
//	idempotency_keys        survive the move of the job
//
// jobs holds live jobs only and its rows are narrow, because a heartbeat rewrites the whole
// row. The latest lease stands in the job's row, live or ended, until the next one starts:
// that is what makes a late Complete and the retry of a Fail exact. No column that a
// heartbeat writes is in an index, so that heartbeats are heap-only.
//
// # Statements
//
// A transition is one statement: it locks its rows in the order of their ids with SKIP
// LOCKED, in a MATERIALIZED CTE that matches by id and lease_no; reads the clock once
// behind the locks; decides; and writes. Each travels with its settings in one round trip
// and one implicit transaction (exec.go). Nobody waits for a row: what was locked is tried
// again alone, without a connection while it waits, until the caller's time is up (waves.go).
//
// What a statement did not find is looked at afresh by a new statement, over all tables
// under one snapshot, before anything is refused (explain.go): a statement that waited sees
// a job that moved meanwhile in neither table.
//
// # Failures
//
// SQLSTATEs are classified in sqlstate.go and nowhere else. A clean rollback is repeated; a
// broken connection is repeated only where the unit is idempotent (a key, a lease, a request
// id), else the caller is told that the outcome is unknown. A session on a read-only server
// is closed, so that the next one finds the new primary. Driver text stays in the log.
//
// # Connections
//
// One pool, in three lanes: ends (heartbeats and ends of leases), work (acquires, enqueues,
// the loops) and reads (lists). Each has connections that the others cannot take. LISTEN has
// a connection of its own, straight to the server.
package postgres
