//go:build large

package postgres

import (
	"context"
	"log/slog"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
	"github.com/leasehold/leasehold/store"
)

func migrateForLarge(ctx context.Context, url string) error {
	return Migrate(ctx, url, slog.New(slog.DiscardHandler))
}

// filling is how many jobs of each kind a table holds.
type filling struct{ pending, scheduled, leased, finished int }

// sqlFill makes jobs of one kind by the thousand, as the service would have left them.
const (
	sqlFillPending = `
WITH made AS (
    INSERT INTO leasehold.jobs (id, queue_id, run_at)
    SELECT nextval('leasehold.job_id_seq'), 1, clock_timestamp() + $2::interval FROM generate_series(1, $1::int) RETURNING id
)
INSERT INTO leasehold.job_data (job_id, payload) SELECT id, '\x7b7d' FROM made`
	sqlFillLeased = `
WITH made AS (
    INSERT INTO leasehold.jobs (id, queue_id, run_at, state, lease_no, lease_owner, lease_until, last_owner, leased_at, lease_length, changed_at)
    SELECT nextval('leasehold.job_id_seq'), 1, clock_timestamp(), 2, 1, 'w', clock_timestamp() + interval '1 hour', 'w',
           clock_timestamp(), interval '1 hour', clock_timestamp()
    FROM generate_series(1, $1::int) RETURNING id
)
INSERT INTO leasehold.job_data (job_id, payload) SELECT id, '\x7b7d' FROM made`
	sqlFillFinished = `
WITH made AS (
    INSERT INTO leasehold.finished_jobs (id, queue_id, state, priority, run_at, created_at, finished_at, bytes, attempts_used, expirations,
        lease_no, beats, stage_changes, end_kind, ended_at, counted, sealed, state_reason)
    SELECT nextval('leasehold.job_id_seq'), 1, 4, 5, clock_timestamp(), clock_timestamp(), clock_timestamp(), 2, 0, 0,
        1, 0, 0, 1, clock_timestamp(), false, false, '' FROM generate_series(1, $1::int) RETURNING id
)
INSERT INTO leasehold.job_data (job_id, payload) SELECT id, '\x7b7d' FROM made`
)

// sqlTouched counts, for this transaction, the buffers touched in the tables and indexes of
// the schema, and the sequential scans of the tables that grow.
const sqlTouched = `
SELECT sum(pg_stat_get_xact_blocks_fetched(c.oid))::bigint,
       coalesce(sum(pg_stat_get_xact_numscans(c.oid)) FILTER (WHERE c.relkind = 'r' AND c.relname NOT IN ('queues', 'service')), 0)::bigint
FROM pg_class c
WHERE c.relnamespace = 'leasehold'::regnamespace
   OR c.oid IN (SELECT t.reltoastrelid FROM pg_class t WHERE t.relnamespace = 'leasehold'::regnamespace)`

// largeBench is one database with a filling.
type largeBench struct {
	t    *testing.T
	s    *Store
	conn *pgx.Conn
}

func newLargeBench(t *testing.T, f filling) *largeBench {
	t.Helper()
	url := pgtest.Database(t, migrateForLarge)
	s, err := Open(t.Context(), Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	b := &largeBench{t: t, s: s, conn: conn}
	b.exec(`INSERT INTO leasehold.queues (name) VALUES ('q')`)
	for _, part := range []struct {
		sql  string
		n    int
		args []any
	}{
		{sqlFillFinished, f.finished, nil},
		{sqlFillLeased, f.leased, nil},
		{sqlFillPending, f.scheduled, []any{"30 days"}},
		{sqlFillPending, f.pending, []any{"-1 second"}},
	} {
		for left := part.n; left > 0; left -= 100_000 {
			b.exec(`SELECT leasehold.ensure_partitions()`)
			b.exec(part.sql, append([]any{min(left, 100_000)}, part.args...)...)
		}
	}
	b.exec(`VACUUM ANALYZE leasehold.jobs`)
	b.exec(`UPDATE leasehold.service SET writable_since = clock_timestamp() - interval '1 day', stamped_at = clock_timestamp() + interval '1 hour'`)
	return b
}

func (b *largeBench) exec(sql string, args ...any) {
	b.t.Helper()
	if _, err := b.conn.Exec(b.t.Context(), sql, args...); err != nil {
		b.t.Fatalf("%s: %v", sql, err)
	}
}

// touched runs one statement as the Store does, undoes it, and tells the buffers that it
// touched; it fails on a sequential scan of a table that grows.
func (b *largeBench) touched(name, sql string, wantRows int, args ...any) float64 {
	b.t.Helper()
	ctx := b.t.Context()
	tx, err := b.conn.Begin(ctx)
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if _, err := tx.Exec(ctx, sqlSettings, "60000", "1000"); err != nil {
		b.t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, `SELECT set_config('leasehold.request_locks', '', true)`); err != nil {
		b.t.Fatal(err)
	}
	// The counters run since the session last reported them, which it does between
	// transactions: only a difference within one is this statement's.
	buffersBefore, scansBefore := b.counters(tx)
	tag, err := tx.Exec(ctx, sql, args...)
	if err != nil {
		b.t.Fatalf("%s: %v", name, err)
	}
	if int(tag.RowsAffected()) != wantRows {
		b.t.Fatalf("%s: %d rows, want %d", name, tag.RowsAffected(), wantRows)
	}
	buffers, scans := b.counters(tx)
	if scans != scansBefore {
		b.t.Errorf("%s: %d sequential scans of tables that grow", name, scans-scansBefore)
	}
	return float64(buffers - buffersBefore)
}

func (b *largeBench) counters(tx pgx.Tx) (buffers, scans int64) {
	b.t.Helper()
	if err := tx.QueryRow(b.t.Context(), sqlTouched).Scan(&buffers, &scans); err != nil {
		b.t.Fatal(err)
	}
	return buffers, scans
}

// statements measures each hot statement for a batch of 100.
func (b *largeBench) statements() map[string]float64 {
	b.t.Helper()
	const n = 100
	var first int64
	if err := b.conn.QueryRow(b.t.Context(), `SELECT min(id) FROM leasehold.jobs WHERE state = 2`).Scan(&first); err != nil {
		b.t.Fatal(err)
	}
	beats := make([]any, 5)
	ids, numbers := make([]int64, n), make([]int64, n)
	completes := make([]store.Complete, n)
	ends := make([]endInput, n)
	for i := range ids {
		ids[i], numbers[i] = first+int64(i), 1
		ref := store.LeaseRef{JobID: store.JobID(ids[i]), LeaseNo: 1}
		completes[i].Lease = ref
		ends[i] = endInput{ref: ref, kind: store.EndFailed}
	}
	beats[0], beats[1], beats[2], beats[3], beats[4] = ids, numbers, make([]*string, n), make([]*float64, n), make([][]byte, n)
	claim, _ := claimUnit(b.s, []store.Acquire{{Queues: []string{"q"}, Owner: "w", MaxJobs: n}}, []int{0})
	start := b.s.marks.view([]string{"q"}, true)
	claim.args = append(claim.args, start.runAt, start.ids)
	byID, _ := claimUnit(b.s, []store.Acquire{{JobID: store.JobID(first), Owner: "w"}}, []int{0})
	out := map[string]float64{}
	for range 6 { // the first runs are planned with values; the settings take effect at once
		out["claim by queue"] = b.touched("claim by queue", claim.sql, n, claim.args...)
		out["heartbeat"] = b.touched("heartbeat", sqlHeartbeat, n, beats...)
		out["complete"] = b.touched("complete", sqlComplete, n, completeArgs(completes, nil)...)
		out["fail"] = b.touched("fail", sqlEndLeases, n, endArgs(ends)...)
		out["sweep page"] = b.touched("sweep page", sqlSweepCandidates, 1000, int64(0), 1000)
		out["claim by id"] = b.touched("claim by id", byID.sql, 0, byID.args...)
		out["ready queues"] = b.touched("ready queues", sqlReadyQueues, 1, []string{"q"}, start.runAt, start.ids)
		out["explain leases"] = b.touched("explain leases", sqlExplainLeases, n, ids, numbers)
	}
	return out
}

// TestLargeTablesTouchNoMoreBuffers asks that the hot statements touch, per job, at most 1.5
// times the buffers on tables of millions that they touch with a thousand jobs, by indexes
// only. Buffers and not time, so that a noisy machine cannot decide it.
func TestLargeTablesTouchNoMoreBuffers(t *testing.T) {
	small := newLargeBench(t, filling{pending: 1000, scheduled: 1000, leased: 1000, finished: 1000}).statements()
	large := newLargeBench(t, filling{pending: 1_000_000, scheduled: 1_000_000, leased: 100_000, finished: 1_000_000}).statements()
	for name, buffers := range large {
		ratio := buffers / small[name]
		t.Logf("%-16s %8.0f buffers small, %8.0f large, ratio %.2f", name, small[name], buffers, ratio)
		if ratio > 1.5 {
			t.Errorf("%s touches %.2f times the buffers on large tables", name, ratio)
		}
	}
}
