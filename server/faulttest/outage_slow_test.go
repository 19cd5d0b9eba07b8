package faulttest

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// slowCallTime is the deadline of calls whose statement would take much longer.
const slowCallTime = 3 * time.Second

// sqlSlow makes every statement that writes jobs sleep, before it does anything.
const sqlSlow = `
CREATE FUNCTION public.sleep_long() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_sleep(300); RETURN NULL; END $$;
CREATE TRIGGER slow BEFORE INSERT OR UPDATE OR DELETE ON leasehold.jobs FOR EACH STATEMENT EXECUTE FUNCTION public.sleep_long()`

// TestR34_StatementsEndBeforeTheirCallers: a statement that hangs is ended by the database
// before its caller gives up. So the caller hears that nothing was done and may try again,
// and no session works on for somebody who is gone.
func TestR34_StatementsEndBeforeTheirCallers(t *testing.T) {
	// Not parallel: it is about answers half a second ahead of a deadline.
	f := newFleet(t, database(t), 1, "--watcher-interval", "1s")
	m := f.members[0]
	accepted(t, m.queues.CreateQueue, &pb.CreateQueueRequest{Queue: &pb.Queue{Name: "q", Policy: policyOf(time.Minute, 0, 0)}})
	accepted(t, m.jobs.BatchEnqueue, &pb.BatchEnqueueRequest{Items: []*pb.EnqueueRequest{{Queue: "q"}, {Queue: "q"}, {Queue: "q"}}})
	leases := accepted(t, m.leases.AcquireLease, &pb.AcquireLeaseRequest{Queues: []string{"q"}, LeaseOwner: "w", MaxJobs: to(int32(2))}).GetLeases()
	calls := map[string]func(context.Context) error{
		"Heartbeat": func(ctx context.Context) error {
			_, err := m.leases.Heartbeat(ctx, &pb.HeartbeatRequest{LeaseToken: leases[0].GetLeaseToken()})
			return err
		},
		"Complete": func(ctx context.Context) error {
			_, err := m.leases.Complete(ctx, &pb.CompleteRequest{LeaseToken: leases[1].GetLeaseToken()})
			return err
		},
		"AcquireLease": func(ctx context.Context) error {
			_, err := m.leases.AcquireLease(ctx, &pb.AcquireLeaseRequest{Queues: []string{"q"}, LeaseOwner: "w"})
			return err
		},
		"Enqueue": func(ctx context.Context) error {
			_, err := m.jobs.Enqueue(ctx, &pb.EnqueueRequest{Queue: "q"})
			return err
		},
		"Enqueue with a key": func(ctx context.Context) error {
			_, err := m.jobs.Enqueue(ctx, &pb.EnqueueRequest{Queue: "q", IdempotencyKey: to("k")})
			return err
		},
	}
	f.db.Exec(t, sqlSlow)
	for name, call := range calls {
		wantToldInTime(t, name, call)
	}
	eventually(t, "no session sleeps for a caller who is gone", func() bool {
		return f.number(t, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
    AND wait_event = 'PgSleep' AND query_start < clock_timestamp() - interval '8 seconds'`) == 0
	})
	eventually(t, "a replica that says that it cannot write", func() bool {
		ready, why := m.probe("/readyz")
		return !ready && strings.Contains(why, "database takes no writes")
	})
	f.db.Exec(t, `DROP TRIGGER slow ON leasehold.jobs`)
	if n := f.number(t, `SELECT count(*) FROM leasehold.all_jobs`); n != 3 {
		t.Errorf("%d jobs are stored, of which 3 were acknowledged", n)
	}
	for name, call := range calls {
		eventually(t, name+" works again", func() bool { return call(t.Context()) == nil })
	}
	if n := f.number(t, `SELECT count(*) FROM leasehold.all_jobs`); n != 5 {
		t.Errorf("%d jobs are stored, want 3 and 2", n)
	}
}

// wantToldInTime calls until an answer comes in time, which on a machine that is busy need
// not be the first: that the database is busy, or away.
func wantToldInTime(t *testing.T, name string, call func(context.Context) error) {
	t.Helper()
	eventually(t, name+" is answered before its deadline", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), slowCallTime)
		defer cancel()
		err := call(ctx)
		switch reason := reasonIn(err); {
		case status.Code(err) == codes.DeadlineExceeded:
			return false
		case reason != "JOB_BUSY" && reason != "DATABASE_UNAVAILABLE":
			t.Fatalf("%s while statements hang: %v", name, err)
		}
		return true
	})
}
