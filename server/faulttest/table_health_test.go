package faulttest

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// sqlOldestTransaction is the age of the oldest transaction of the service, in seconds.
const sqlOldestTransaction = `
SELECT coalesce(extract(epoch FROM max(clock_timestamp() - a.xact_start)), 0)::float8 FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.application_name = 'leasehold'`

// TestWorkGoesOnBesideASnapshotThatIsHeld: a reader that never ends keeps dead rows alive.
// How fast the work goes then is the benchmark's; here it goes on, and the service itself
// never holds a transaction for long.
func TestWorkGoesOnBesideASnapshotThatIsHeld(t *testing.T) {
	t.Parallel()
	f := newFleet(t, database(t), 1)
	m := f.members[0]
	q := opened(t, f, &pb.Queue{Name: "q"})
	stored(t, m, 2000, &pb.EnqueueRequest{Queue: q})
	reader, err := pgx.Connect(t.Context(), f.db.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close(context.Background())
	if _, err := reader.Exec(t.Context(), `BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM leasehold.jobs`); err != nil {
		t.Fatal(err)
	}
	longest := 0.0
	for done := 0; done < 2000; {
		leases := taken(t, m, q, 100, time.Minute)
		beats, ends := &pb.BatchHeartbeatRequest{}, &pb.BatchCompleteRequest{}
		for _, token := range tokensOf(leases) {
			beats.Items = append(beats.Items, &pb.HeartbeatRequest{LeaseToken: token, Stage: to("s")})
			ends.Items = append(ends.Items, &pb.CompleteRequest{LeaseToken: token})
		}
		accepted(t, m.leases.BatchHeartbeat, beats)
		for _, r := range accepted(t, m.leases.BatchComplete, ends).GetResults() {
			if r.GetError() != nil {
				t.Fatalf("BatchComplete: %v", r.GetError())
			}
		}
		done += len(leases)
		longest = max(longest, look[float64](t, f, sqlOldestTransaction))
	}
	if longest > 5 {
		t.Errorf("the service held a transaction for %.1f s", longest)
	}
	if idle := look[int](t, f, `SELECT count(*)::int FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'leasehold' AND state LIKE 'idle in%'`); idle > 0 {
		t.Errorf("%d sessions of the service are idle in a transaction", idle)
	}
	var seen int
	if err := reader.QueryRow(t.Context(), `SELECT count(*) FROM leasehold.jobs`).Scan(&seen); err != nil || seen != 2000 {
		t.Errorf("the reader sees %d jobs, %v: it held no snapshot, and this proves nothing", seen, err)
	}
}

const (
	// sqlMany makes jobs of a queue: $2 of them due, or far ahead.
	sqlMany = `
WITH made AS (
    INSERT INTO leasehold.jobs (id, queue_id, run_at)
    SELECT nextval('leasehold.job_id_seq'), q.id, now() + $3::interval FROM leasehold.queues q, generate_series(1, $2::int) WHERE q.name = $1 RETURNING id
)
INSERT INTO leasehold.job_data (job_id, payload) SELECT id, '' FROM made`

	// What was read of the tables since the counts were reset: scans from end to end of tables
	// that grow, and rows by whatever scan.
	sqlScansOfAll = `
SELECT s.relname || ' ' || s.seq_scan FROM pg_stat_user_tables s
WHERE s.schemaname = 'leasehold' AND s.relname NOT IN ('service', 'secrets', 'queues', 'schema_versions') AND s.seq_scan > 0`
	sqlRowsRead = `
SELECT coalesce(sum(s.seq_tup_read + coalesce(s.idx_tup_fetch, 0)), 0)::bigint FROM pg_stat_user_tables s WHERE s.schemaname = 'leasehold'`
)

// TestPlansStayOnTheirIndexesWhateverTheStatisticsSay: statistics that were taken while the
// tables were empty, or of another queue, let the planner take a scan of all for cheap.
func TestPlansStayOnTheirIndexesWhateverTheStatisticsSay(t *testing.T) {
	t.Parallel()
	f := newFleet(t, database(t), 1, "--watcher-interval", "1h")
	m := f.members[0]
	few, most := opened(t, f, &pb.Queue{Name: "few"}), opened(t, f, &pb.Queue{Name: "most"})
	f.db.Exec(t, `ANALYZE`) // of empty tables
	f.db.Exec(t, `ALTER TABLE leasehold.jobs SET (autovacuum_enabled = false)`)
	f.db.Exec(t, sqlMany, most, 30_000, "0")
	f.db.Exec(t, sqlMany, most, 5_000, "1 year")
	f.db.Exec(t, sqlMany, few, 60, "0")
	// Sessions report what they read when they end, at the latest.
	quiet := func() {
		t.Helper()
		m.Kill()
		f.db.SQL.Reset()
		eventually(t, "all sessions are gone", func() bool {
			return look[int](t, f, `SELECT count(*)::int FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'`) == 1
		})
	}
	start := func() {
		t.Helper()
		if err := m.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	count := func(what string) {
		t.Helper()
		quiet()
		f.db.Exec(t, `SELECT pg_stat_reset()`)
		start()
		for range 10 {
			for i, token := range tokensOf(taken(t, m, few, 2, time.Minute)) {
				accepted(t, m.leases.Heartbeat, &pb.HeartbeatRequest{LeaseToken: token})
				if i == 0 {
					accepted(t, m.leases.Complete, &pb.CompleteRequest{LeaseToken: token})
				} else {
					accepted(t, m.leases.Fail, &pb.FailRequest{LeaseToken: token, RetryAfter: durationpb.New(time.Hour)})
				}
			}
			accepted(t, m.leases.ListStuck, &pb.ListStuckRequest{})
			taken(t, m, most, 1, time.Minute)
		}
		quiet()
		if scans := lookAll(t, f, sqlScansOfAll); len(scans) > 0 {
			t.Errorf("%s: scans from end to end: %q", what, scans)
		}
		// 30 jobs through all verbs, some hundred rows; and up to two passes of the loop that counts the
		// jobs of queues, each number up to 10,000. A statement that reads all reads ten times as much.
		if rows := look[int64](t, f, sqlRowsRead); rows < 100 || rows > 60_000 {
			t.Errorf("%s: %d rows were read for 30 jobs", what, rows)
		}
		start()
	}
	count("statistics of empty tables")
	f.db.Exec(t, `ANALYZE`)
	f.db.Exec(t, `DELETE FROM leasehold.job_data WHERE job_id IN (SELECT id FROM leasehold.jobs WHERE queue_id = 2 AND state = 1 ORDER BY id LIMIT 25000)`)
	f.db.Exec(t, `DELETE FROM leasehold.jobs WHERE queue_id = 2 AND state = 1 AND id NOT IN (SELECT job_id FROM leasehold.job_data)`)
	count("statistics of tables that were full")
	f.db.Exec(t, `UPDATE pg_class SET reltuples = 1e9, relpages = 1 WHERE relnamespace = 'leasehold'::regnamespace AND relkind IN ('r', 'i', 'p')`)
	count("statistics that are nonsense")
}
