package main

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/privatepg/pgtest"

	"google.golang.org/protobuf/types/known/durationpb"
)

// pickupBound is far above what a pick-up takes, and what a busy machine makes of it: the
// median is logged, and measured where nothing else runs (docs/decisions.md).
const pickupBound = 5 * time.Second

// TestR41AParkedWorkerGetsWhatATransactionEnqueued: an order and its job, rolled back and then
// committed, again and again, with a worker that waits.
func TestR41AParkedWorkerGetsWhatATransactionEnqueued(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t, nil)
	grpcAddress, _ := beginService(t, "serve", "--database-url", url, "--auto-create-queues").addresses(t)
	app, listener := connect(t, url), connect(t, url)
	mustSQL(t, app, `CREATE TABLE orders (id bigint PRIMARY KEY, job_id bigint)`)
	mustSQL(t, listener, `LISTEN leasehold_hint`)
	got := parkWorker(t, pb.NewLeaseServiceClient(dial(t, grpcAddress)), "orders")

	const rounds = 20
	var took []time.Duration
	for n := range rounds {
		eventually(t, "a parked poll that those who enqueue can see", func() bool {
			return sqlValue[bool](t, app, `SELECT EXISTS (SELECT FROM leasehold.queue_waits w JOIN leasehold.queues q ON q.id = w.queue_id
				WHERE q.name = 'orders' AND w.waited_until > clock_timestamp())`)
		})
		var committed time.Time
		for _, end := range []string{`ROLLBACK`, `COMMIT`} {
			mustSQL(t, app, `BEGIN`)
			mustSQL(t, app, `INSERT INTO orders SELECT $1, job_id FROM leasehold.enqueue('orders', jsonb_build_object('order', $1::bigint)::text)`, n)
			committed = time.Now()
			mustSQL(t, app, end)
		}
		lease := receive(t, got)
		took = append(took, time.Since(committed))
		if id := sqlValue[string](t, app, `SELECT job_id::text FROM orders WHERE id = $1`, n); lease.GetJob().GetJobId() != id {
			t.Fatalf("round %d: job %s was picked up, the order has %s", n, lease.GetJob().GetJobId(), id)
		}
		mustSQL(t, app, `SELECT leasehold.complete($1::text::bigint, $2)`, lease.GetJob().GetJobId(), lease.GetLeaseNo())
	}
	if n := sqlValue[int](t, app, `SELECT count(*)::int FROM leasehold.all_jobs WHERE state = 'COMPLETED'`); n != rounds {
		t.Errorf("%d jobs are completed, want %d", n, rounds)
	}
	slices.Sort(took)
	t.Logf("pick-up after the commit: median %v, slowest %v", took[rounds/2], took[rounds-1])
	if took[rounds/2] > pickupBound {
		t.Errorf("the median is %v", took[rounds/2])
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if note, err := listener.WaitForNotification(ctx); err != nil || note.Payload != "orders" {
		t.Errorf("nobody was notified: %v, %v", note, err)
	}
}

// parkWorker acquires from a queue, waiting, until the end of the test.
func parkWorker(t *testing.T, leases pb.LeaseServiceClient, queue string) <-chan *pb.Lease {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	got, ended := make(chan *pb.Lease), make(chan struct{})
	t.Cleanup(func() { cancel(); <-ended })
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			resp, err := leases.AcquireLease(ctx, &pb.AcquireLeaseRequest{Queues: []string{queue}, LeaseOwner: "parked", Wait: durationpb.New(20 * time.Second)})
			if err != nil {
				continue // the end of the test, or something that the test will miss
			}
			for _, lease := range resp.GetLeases() {
				select {
				case got <- lease:
				case <-ctx.Done():
				}
			}
		}
	}()
	return got
}

func receive(t *testing.T, got <-chan *pb.Lease) *pb.Lease {
	t.Helper()
	select {
	case lease := <-got:
		return lease
	case <-time.After(patience):
		t.Fatal("nothing is picked up")
		return nil
	}
}

func mustSQL(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func sqlValue[T any](t *testing.T, conn *pgx.Conn, sql string, args ...any) T {
	t.Helper()
	rows, err := conn.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	value, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}
