package servertest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/server/servertest/remote"
)

// world is a replica over a database, and what tests do with it that must succeed.
type world struct {
	*replica
	db *database
}

func newWorld(t testing.TB) *world {
	t.Helper()
	db := newDatabase(t)
	return &world{replica: startReplica(t, db.URL), db: db}
}

// accepted makes a call that must succeed.
func accepted[Req, Resp any](t *testing.T, method func(context.Context, Req, ...grpc.CallOption) (Resp, error), req Req) Resp {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTime)
	defer cancel()
	resp, err := method(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

var queueNumber atomic.Int64

// queue makes a queue of the test's own.
func (w *world) queue(t *testing.T) string {
	t.Helper()
	name := fmt.Sprint("q", queueNumber.Add(1))
	accepted(t, w.queues.CreateQueue, &pb.CreateQueueRequest{Queue: &pb.Queue{Name: name}})
	return name
}

func (w *world) enqueue(t *testing.T, req *pb.EnqueueRequest) string {
	t.Helper()
	return accepted(t, w.jobs.Enqueue, req).GetJobId()
}

// lease leases one job by its id.
func (w *world) lease(t *testing.T, jobID string) *pb.Lease {
	t.Helper()
	resp := accepted(t, w.leases.AcquireLease, &pb.AcquireLeaseRequest{JobId: &jobID, LeaseOwner: "worker-1"})
	if len(resp.GetLeases()) != 1 {
		t.Fatalf("%d leases, empty reason %s", len(resp.GetLeases()), resp.GetEmptyReason())
	}
	return resp.GetLeases()[0]
}

// leased makes a job in a queue of its own and leases it.
func (w *world) leased(t *testing.T) *pb.Lease {
	t.Helper()
	return w.lease(t, w.enqueue(t, &pb.EnqueueRequest{Queue: w.queue(t)}))
}

// expire lets a lease run out, and has the watcher end it.
func (w *world) expire(t *testing.T, l *pb.Lease) {
	t.Helper()
	w.db.Age(t, remote.JobID(l.GetJob().GetJobId()), time.Hour)
	for range 5 { // a machine that stands still makes the stamp too old
		w.db.SetWritable(t, 24*time.Hour, 0)
		swept, err := w.store.SweepPage(t.Context(), 0, 1000, []string{l.GetJob().GetQueue()})
		if err != nil {
			t.Fatal(err)
		}
		if swept.Ended == 1 {
			return
		}
	}
	t.Fatal("the watcher does not end the lease")
}

func (w *world) release(t *testing.T, l *pb.Lease) {
	t.Helper()
	accepted(t, w.leases.Release, &pb.ReleaseRequest{LeaseToken: l.GetLeaseToken()})
}

func (w *world) complete(t *testing.T, l *pb.Lease, result string) {
	t.Helper()
	accepted(t, w.leases.Complete, &pb.CompleteRequest{LeaseToken: l.GetLeaseToken(), Result: bytesOf(result)})
}

func beat(l *pb.Lease) *pb.HeartbeatRequest {
	return &pb.HeartbeatRequest{LeaseToken: l.GetLeaseToken()}
}

func bytesOf(content string) *pb.Payload {
	return &pb.Payload{Content: &pb.Payload_Data{Data: []byte(content)}}
}

func seconds(n int64) *durationpb.Duration { return &durationpb.Duration{Seconds: n} }

// subjectOf and factsOf are what every error about a lease says.
func subjectOf(l *pb.Lease) string {
	return fmt.Sprintf("jobs/%s/leases/%d", l.GetJob().GetJobId(), l.GetLeaseNo())
}

func factsOf(l *pb.Lease, more ...string) map[string]string {
	facts := map[string]string{"job_id": l.GetJob().GetJobId(), "lease_no": fmt.Sprint(l.GetLeaseNo())}
	for i := 0; i+1 < len(more); i += 2 {
		facts[more[i]] = more[i+1]
	}
	return facts
}

func byID(id string) *pb.GetJobRequest {
	return &pb.GetJobRequest{By: &pb.GetJobRequest_JobId{JobId: id}}
}
