//go:build full

package faulttest

import (
	"context"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
	"github.com/leasehold/leasehold/internal/replica"
	"github.com/leasehold/leasehold/store/postgres/backdoor"
)

// newPooledFleet starts n replicas that reach their database through PgBouncer in
// transaction mode, and LISTEN straight.
func newPooledFleet(t *testing.T, n int, args ...string) *fleet {
	t.Helper()
	direct := database(t)
	f := &fleet{db: backdoor.Open(t, direct)}
	for range n {
		f.members = append(f.members, newMember(t, replica.Config{
			DatabaseURL: pgtest.Pooled(t, direct), Args: append([]string{"--direct-database-url", direct}, args...),
		}))
	}
	return f
}

// TestR40_ReplicasBehindPgBouncerWakeEachOther: the hint of one replica reaches the other
// over its direct connection, and a poll that is parked there gets the job.
func TestR40_ReplicasBehindPgBouncerWakeEachOther(t *testing.T) {
	t.Parallel()
	f := newPooledFleet(t, 2)
	accepted(t, f.members[0].queues.CreateQueue, &pb.CreateQueueRequest{Queue: &pb.Queue{Name: "q"}})
	eventually(t, "both replicas listen", func() bool {
		return f.number(t, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN %'`) == 2
	})
	for n := range 20 {
		got := make(chan *pb.AcquireLeaseResponse, 1)
		at, from := f.members[n%2], f.members[(n+1)%2]
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			resp, _ := at.leases.AcquireLease(ctx, &pb.AcquireLeaseRequest{Queues: []string{"q"}, LeaseOwner: "w", Wait: durationpb.New(30 * time.Second)})
			got <- resp // nil: the check below says so
		}()
		eventually(t, "the poll is parked", func() bool { return at.metric(t, "leasehold_parked_polls") == 1 })
		id := accepted(t, from.jobs.Enqueue, &pb.EnqueueRequest{Queue: "q"}).GetJobId()
		if ids := idsOf((<-got).GetLeases()); len(ids) != 1 || ids[0] != id {
			t.Fatalf("round %d: the poll was answered with jobs %v, want %s", n, ids, id)
		}
	}
}

// TestR40_OutagesBehindPgBouncer: an outage blames nobody behind a pooler, either.
func TestR40_OutagesBehindPgBouncer(t *testing.T) {
	t.Parallel()
	for _, form := range outageForms {
		if form.ownServer {
			continue // the pooler stands in front of the server that the tests share
		}
		t.Run(form.name, func(t *testing.T) {
			t.Parallel()
			o := &outage{fleet: newPooledFleet(t, 3, "--watcher-interval", outageSweep.String())}
			o.makeQueue(t)
			o.through(t, form)
		})
	}
}

// TestR40_ParkedPollsBehindPgBouncer: they hold no connection of the pooler's, either.
func TestR40_ParkedPollsBehindPgBouncer(t *testing.T) {
	// Not parallel: what other tests take from the machine would count as the polls'.
	f := newPooledFleet(t, 1, parkedArgs...)
	f.parkedPollsTakeNothing(t, 100)
}

// TestR10_TwoThousandWorkersWithAConnectionEach is the long form: each poll over a connection
// of its own, as workers have them.
func TestR10_TwoThousandWorkersWithAConnectionEach(t *testing.T) {
	// Not parallel: what other tests take from the machine would count as the polls'.
	newFleet(t, database(t), 1, parkedArgs...).parkedPollsTakeNothing(t, parkedPolls)
}
