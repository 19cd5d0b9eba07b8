package faulttest

import (
	"strconv"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

// TestR28_AWorkerThatDiesOnItsLastAttempt leaves a job that is DEAD within the length of its
// lease and two sweeps, and a key that is free when its time is over, and not before.
func TestR28_AWorkerThatDiesOnItsLastAttempt(t *testing.T) {
	t.Parallel()
	const length, sweep, kept = 2 * time.Second, 3 * time.Second, time.Minute
	f := newFleet(t, database(t), 2, "--watcher-interval", sweep.String())
	accepted(t, f.members[0].queues.CreateQueue, &pb.CreateQueueRequest{Queue: &pb.Queue{Name: "q", Policy: &pb.JobPolicy{
		MaxAttempts: to(int32(2)), LeaseDuration: durationpb.New(length), IdempotencyRetention: durationpb.New(kept),
	}}})
	job := &pb.EnqueueRequest{Queue: "q", IdempotencyKey: to("payment-1")}
	id := accepted(t, f.members[0].jobs.Enqueue, job).GetJobId()
	f.mayBlame(t, length)
	for n, m := range f.members { // each attempt at another replica
		w := startWorker(t, m, "q", []string{"worker-1", "worker-2"}[n], "1")
		if got := w.leased(); got != id {
			t.Fatalf("attempt %d is one at job %s, want %s", n+1, got, id)
		}
		w.awaits("beat")
		w.kill()
	}
	var dead *pb.GetJobResponse
	eventually(t, "the job is dead", func() bool {
		dead = accepted(t, f.members[1].jobs.GetJob, &pb.GetJobRequest{By: &pb.GetJobRequest_JobId{JobId: id}, RecentLeases: to(int32(2))})
		return dead.GetJob().GetState() == pb.JobState_JOB_STATE_DEAD
	})
	f.wantDeadOnLastAttempt(t, dead, length+2*sweep)

	for name, m := range map[string]*member{"one replica": f.members[0], "the other": f.members[1]} {
		if again := accepted(t, m.jobs.Enqueue, job); again.GetJobId() != id || again.GetCreated() {
			t.Errorf("before the key's time is over, %s answers job %s, created %v", name, again.GetJobId(), again.GetCreated())
		}
	}
	f.db.Age(t, jobNumber(t, id), kept)
	fresh := accepted(t, f.members[0].jobs.Enqueue, job)
	if fresh.GetJobId() == id || !fresh.GetCreated() {
		t.Errorf("after the key's time it still is that of job %s", fresh.GetJobId())
	}
	if w := startWorker(t, f.members[1], "q", "worker-3", ""); w.leased() != fresh.GetJobId() {
		t.Error("the job that has the key now is not run")
	}
}

// wantDeadOnLastAttempt checks what the history says of a job both of whose attempts expired.
func (f *fleet) wantDeadOnLastAttempt(t *testing.T, dead *pb.GetJobResponse, within time.Duration) {
	t.Helper()
	job, leases := dead.GetJob(), dead.GetLeases()
	if job.GetAttemptsUsed() != 2 || job.GetExpirations() != 2 || job.GetLeaseNo() != 2 || job.GetStateReason() == "" || len(leases) != 2 {
		t.Fatalf("it is dead as %v with leases %v", job, leases)
	}
	for n, l := range leases {
		if l.GetEnd() != pb.LeaseEnd_LEASE_END_EXPIRED || !l.GetCounted() || l.GetLeaseOwner() != []string{"worker-1", "worker-2"}[n] || l.GetBeats() < 1 {
			t.Errorf("lease %d ended as %v", n+1, l)
		}
	}
	last := leases[1]
	if took := last.GetEndedAt().AsTime().Sub(last.GetLastBeatAt().AsTime()); took > within {
		t.Errorf("it died %v after the last sign of life, the bound is %v", took, within)
	}
}

// jobNumber is a job's id as the database has it.
func jobNumber(t *testing.T, id string) store.JobID {
	t.Helper()
	n, err := strconv.ParseInt(id, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return store.JobID(n)
}

// mayBlame waits until the service has been able to take heartbeats for so long that a lease
// of that length can expire (R35): before that a fresh service blames nobody.
func (f *fleet) mayBlame(t *testing.T, length time.Duration) {
	t.Helper()
	eventually(t, "leases can expire", func() bool {
		return look[bool](t, f, `SELECT leasehold.may_blame($1)`, length)
	})
}
