package servertest

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// TestR13_WaitedIsTheTimeBeforeTheClaim: a worker that counts a lease from when it sent the
// poll, plus waited, neither gives up a lease that has just begun nor keeps one that is over.
func TestR13_WaitedIsTheTimeBeforeTheClaim(t *testing.T) {
	t.Parallel()
	const delay, slack = time.Second, 500 * time.Millisecond
	w := newWorld(t)
	q := w.queue(t)
	enqueued := time.Now()
	job := w.enqueue(t, &pb.EnqueueRequest{Queue: q, Delay: durationpb.New(delay)})
	sent := time.Now()
	resp := accepted(t, w.leases.AcquireLease, &pb.AcquireLeaseRequest{
		JobId: &job, LeaseOwner: "worker-1", Wait: durationpb.New(20 * time.Second),
	})
	answered := time.Now()
	if len(resp.GetLeases()) != 1 {
		t.Fatalf("%d leases", len(resp.GetLeases()))
	}
	began := sent.Add(resp.GetWaited().AsDuration())
	if began.After(answered) {
		t.Errorf("the lease began %v after it was answered", began.Sub(answered))
	}
	if due := enqueued.Add(delay); began.Before(due.Add(-slack)) {
		t.Errorf("by waited the lease began %v before the job was due", due.Sub(began))
	}
}
