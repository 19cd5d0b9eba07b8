package servertest

import (
	"bytes"
	"context"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/faultproxy"
	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
	"github.com/leasehold/leasehold/server/servertest/remote"
)

// busyRetry and awayRetry are what RetryInfo advises.
const (
	busyRetry  = 200 * time.Millisecond
	awayRetry  = time.Second
	drainRetry = 100 * time.Millisecond
)

// bug is the subject of jobs that PostgreSQL cannot store, for a reason of its own.
const bug = "SELECT secret FROM pgx"

var sqlBug = []string{
	`CREATE FUNCTION leasehold.bug() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN RAISE EXCEPTION '%', NEW.subject USING ERRCODE = 'XX000'; END $$`,
	`CREATE TRIGGER bug BEFORE INSERT ON leasehold.jobs FOR EACH ROW WHEN (NEW.subject = '` + bug + `') EXECUTE FUNCTION leasehold.bug()`,
}

// troubleCases are what is wrong with the service, or with what it stands on.
var troubleCases = []reasonCase{
	{pb.ErrorReason_ERROR_REASON_DATABASE_UNAVAILABLE, codes.Unavailable, "stopped", func(t *testing.T, _ *world) (*seen, want) {
		w, l := overStoppedDatabase(t)
		got := refused(t, w.leases.Heartbeat, beat(l))
		refused(t, w.queues.GetQueue, &pb.GetQueueRequest{Name: l.GetJob().GetQueue()}).assert(t, want{
			code: codes.Unavailable, reason: "DATABASE_UNAVAILABLE", retry: awayRetry,
		})
		return got, want{retry: awayRetry}
	}},
	{pb.ErrorReason_ERROR_REASON_DATABASE_UNAVAILABLE, codes.Unavailable, "not_writable", func(t *testing.T, _ *world) (*seen, want) {
		w := newWorld(t)
		q := w.queue(t)
		u, err := url.Parse(w.db.URL)
		if err != nil {
			t.Fatal(err)
		}
		w.db.Exec(t, `ALTER DATABASE `+u.Path[1:]+` SET default_transaction_read_only = on`)
		w.store.Pool().Reset() // as after the failover that makes a server read-only
		return refused(t, w.jobs.Enqueue, &pb.EnqueueRequest{Queue: q}), want{retry: awayRetry}
	}},
	{pb.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN, codes.Unknown, "answer_lost", func(t *testing.T, w *world) (*seen, want) {
		return w.enqueueThroughCut(t, faultproxy.ToClient, isEndOfAnswer, 2), want{}
	}},
	{pb.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN, codes.Unknown, "request_lost", func(t *testing.T, w *world) (*seen, want) {
		return w.enqueueThroughCut(t, faultproxy.ToServer, func([]byte) bool { return true }, 1), want{}
	}},
	{pb.ErrorReason_ERROR_REASON_JOB_BUSY, codes.Unavailable, "a_stranger_holds_the_job", func(t *testing.T, w *world) (*seen, want) {
		l := w.leased(t)
		w.stranger(t, `SELECT id FROM leasehold.jobs WHERE id = $1 FOR UPDATE`, int64(remote.JobID(l.GetJob().GetJobId())))
		got := refused(t, w.leases.Complete, &pb.CompleteRequest{LeaseToken: l.GetLeaseToken()})
		return got, want{facts: map[string]string{"job_id": l.GetJob().GetJobId()}, retry: busyRetry}
	}},
	{pb.ErrorReason_ERROR_REASON_JOB_BUSY, codes.Unavailable, "a_stranger_holds_the_queue", func(t *testing.T, w *world) (*seen, want) {
		q := w.queue(t)
		w.stranger(t, `SELECT id FROM leasehold.queues WHERE name = $1 FOR UPDATE`, q)
		return refused(t, w.queues.PauseQueue, &pb.PauseQueueRequest{Name: q}), want{retry: busyRetry}
	}},
	{pb.ErrorReason_ERROR_REASON_DRAINING, codes.Unavailable, "a_parked_poll", func(t *testing.T, w *world) (*seen, want) {
		r := startReplica(t, w.db.URL) // another replica of the same service
		req := &pb.AcquireLeaseRequest{Queues: []string{w.queue(t)}, LeaseOwner: "w", Wait: seconds(60)}
		var trailer metadata.MD
		polled := make(chan error, 1)
		go func() {
			_, err := r.leases.AcquireLease(t.Context(), req, grpc.Trailer(&trailer))
			polled <- err
		}()
		eventually(t, "the poll is parked", func() bool { return r.parked(t) == 1 })
		ctx, cancel := context.WithTimeout(t.Context(), drainPatience)
		defer cancel()
		if err := r.server.Drain(ctx); err != nil {
			t.Error(err)
		}
		return see(t, <-polled, trailer), want{retry: drainRetry}
	}},
	{pb.ErrorReason_ERROR_REASON_INTERNAL, codes.Internal, "a_bug_in_the_database", func(t *testing.T, w *world) (*seen, want) {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "x-request-id", "the-id-to-quote")
		var trailer metadata.MD
		_, err := w.jobs.Enqueue(ctx, &pb.EnqueueRequest{Queue: w.queue(t), Subject: to(bug)}, grpc.Trailer(&trailer))
		got := see(t, err, trailer)
		if got.status.Message() != "internal error; quote request id the-id-to-quote" {
			t.Errorf("the message is %q", got.status.Message())
		}
		return got, want{facts: map[string]string{"request_id": "the-id-to-quote"}}
	}},
}

// overStoppedDatabase is a replica with a lease whose database server has gone.
func overStoppedDatabase(t *testing.T) (*world, *pb.Lease) {
	t.Helper()
	pg := pgtest.Server(t)
	database := pg.URL("postgres")
	if err := migrate(t.Context(), database); err != nil {
		t.Fatal(err)
	}
	w := &world{replica: startReplica(t, database)}
	l := w.leased(t)
	if err := pg.Halt(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w, l
}

// stranger runs a statement in a transaction that stays open until the end of the test.
func (w *world) stranger(t *testing.T, sql string, args ...any) {
	t.Helper()
	tx, err := w.db.SQL.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tx.Rollback(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if tag, err := tx.Exec(t.Context(), sql, args...); err != nil || tag.RowsAffected() != 1 {
		t.Fatalf("%d rows, %v", tag.RowsAffected(), err)
	}
}

// isEndOfAnswer tells a message of PostgreSQL that ends with ReadyForQuery, outside a
// transaction: the statement before it is committed.
func isEndOfAnswer(chunk []byte) bool {
	return bytes.HasSuffix(chunk, []byte{'Z', 0, 0, 0, 5, 'I'})
}

// behindProxy is another replica, whose connections to the database go through a proxy.
func (w *world) behindProxy(t *testing.T) (*world, *faultproxy.Proxy) {
	t.Helper()
	u, err := url.Parse(w.db.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := faultproxy.New(u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	through, err := proxy.Through(w.db.URL)
	if err != nil {
		t.Fatal(err)
	}
	return &world{replica: startReplica(t, through), db: w.db}, proxy
}

// stored counts the jobs of a queue, whoever says that they are there.
func (d *database) stored(t *testing.T, queue string) int64 {
	t.Helper()
	return d.count(t, `SELECT count(*) FROM leasehold.jobs j JOIN leasehold.queues q ON q.id = j.queue_id WHERE q.name = $1`, queue)
}

// enqueueThroughCut enqueues without a key over a connection that is cut at a message, and
// counts what is stored in the end: one job from before, and the second if it happened.
func (w *world) enqueueThroughCut(t *testing.T, d faultproxy.Direction, at func([]byte) bool, want int64) *seen {
	t.Helper()
	r, proxy := w.behindProxy(t)
	q := r.queue(t)
	r.enqueue(t, &pb.EnqueueRequest{Queue: q}) // the connection has prepared the statement
	cut := proxy.CutAt(d, at)
	got := refused(t, r.jobs.Enqueue, &pb.EnqueueRequest{Queue: q})
	<-cut
	if n := w.db.stored(t, q); n != want {
		t.Errorf("%d jobs are stored, want %d: a write whose outcome is unknown must not be repeated", n, want)
	}
	return got
}

// keyThroughCut: the same cut is no error with a key, because then the server may repeat
// the write (R34), and makes one job.
func (w *world) keyThroughCut(t *testing.T) {
	t.Helper()
	r, proxy := w.behindProxy(t)
	q := r.queue(t)
	r.enqueue(t, &pb.EnqueueRequest{Queue: q, IdempotencyKey: to("before")})
	cut := proxy.CutAt(faultproxy.ToClient, isEndOfAnswer)
	id := r.enqueue(t, &pb.EnqueueRequest{Queue: q, IdempotencyKey: to("k")})
	<-cut
	if n := w.db.stored(t, q); n != 2 {
		t.Errorf("%d jobs are stored, want 2", n)
	}
	req := &pb.GetJobRequest{By: &pb.GetJobRequest_Key{Key: &pb.JobKey{Queue: q, IdempotencyKey: "k"}}}
	if got := accepted(t, w.jobs.GetJob, req).GetJob().GetJobId(); got != id {
		t.Errorf("the key belongs to job %s, the answer was %s", got, id)
	}
}

func (d *database) count(t testing.TB, sql string, args ...any) int64 {
	t.Helper()
	rows, err := d.SQL.Query(context.Background(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	n, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[int64])
	if err != nil {
		t.Fatal(err)
	}
	return n
}
