package faulttest

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// poison is a job that kills whoever works on it.
type poison struct {
	f     *fleet
	queue string
	id    string
	waits int // how often it was found waiting for its backoff
}

// victim asks as a worker that dies at once if it gets the job: its process is gone, and with
// it its connection; and then the time of its lease passes.
func (p *poison) victim(t *testing.T, req *pb.AcquireLeaseRequest) (took bool) {
	t.Helper()
	conn := dial(t, p.f.members[0].outer.Addr())
	defer conn.Close()
	req.LeaseOwner = "victim"
	took = len(accepted(t, pb.NewLeaseServiceClient(conn).AcquireLease, req).GetLeases()) > 0
	if took {
		p.f.db.Exec(t, sqlOverdue)
		mayExpire(t, p.f)
	}
	return took
}

// othersGoOn works on a job that stands behind the poison one.
func (p *poison) othersGoOn(t *testing.T) {
	t.Helper()
	m := p.f.members[0]
	id := stored(t, m, 1, &pb.EnqueueRequest{Queue: p.queue})[0]
	resp := accepted(t, m.leases.AcquireLease, &pb.AcquireLeaseRequest{JobId: &id, LeaseOwner: "w"})
	accepted(t, m.leases.Complete, &pb.CompleteRequest{LeaseToken: resp.GetLeases()[0].GetLeaseToken()})
}

// passBackoff lets the wait be over, if the job waits.
func (p *poison) passBackoff(t *testing.T) {
	t.Helper()
	job := accepted(t, p.f.members[0].jobs.GetJob, &pb.GetJobRequest{By: &pb.GetJobRequest_JobId{JobId: p.id}}).GetJob()
	if job.GetState() == pb.JobState_JOB_STATE_PENDING && time.Until(job.GetRunAt().AsTime()) > 20*time.Minute {
		p.waits++
		p.f.db.Exec(t, `UPDATE leasehold.jobs SET run_at = run_at - interval '1 day' WHERE id = $1::text::bigint`, p.id)
	}
}

func (p *poison) wantBuried(t *testing.T) {
	t.Helper()
	job := accepted(t, p.f.members[0].jobs.GetJob, &pb.GetJobRequest{
		By: &pb.GetJobRequest_JobId{JobId: p.id}, RecentLeases: to(int32(10)),
	})
	if j := job.GetJob(); j.GetState() != pb.JobState_JOB_STATE_DEAD || j.GetAttemptsUsed() != 3 || j.GetStateReason() == "" {
		t.Errorf("the poison job is %s after %d attempts, because %q", j.GetState(), j.GetAttemptsUsed(), j.GetStateReason())
	}
	if len(job.GetLeases()) != 3 || p.waits != 1 {
		t.Errorf("it was leased %d times and waited %d times; want 3 and 1: not after the first crash, but after the second", len(job.GetLeases()), p.waits)
	}
	for _, l := range job.GetLeases() {
		if l.GetEnd() != pb.LeaseEnd_LEASE_END_EXPIRED || !l.GetCounted() || l.GetLeaseOwner() != "victim" {
			t.Errorf("a lease is on record as %v", l)
		}
	}
}

// TestAJobThatKillsItsWorkersIsBuriedWhicheverWayItComesBack: a crash is never reported, so
// each way back must count it: the watcher, a worker that asks for the job, one that asks for
// the queue, one that waits, and replicas that are killed in between.
func TestAJobThatKillsItsWorkersIsBuriedWhicheverWayItComesBack(t *testing.T) {
	t.Parallel()
	byID := func(t *testing.T, p *poison) bool {
		t.Helper()
		return p.victim(t, &pb.AcquireLeaseRequest{JobId: &p.id})
	}
	for name, way := range map[string]struct {
		interval string
		try      func(t *testing.T, p *poison) (took bool)
	}{
		"watcher": {"200ms", func(t *testing.T, p *poison) bool {
			t.Helper()
			return stateOf(t, p.f, p.id) == "PENDING" && byID(t, p)
		}},
		"watcher of a replica that was killed": {"200ms", func(t *testing.T, p *poison) bool {
			t.Helper()
			p.f.members[0].Kill()
			if err := p.f.members[0].Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			return stateOf(t, p.f, p.id) == "PENDING" && byID(t, p)
		}},
		"asking for the job": {"1h", byID},
		"asking for the queue": {"1h", func(t *testing.T, p *poison) bool {
			t.Helper()
			return p.victim(t, &pb.AcquireLeaseRequest{Queues: []string{p.queue}})
		}},
		"waiting": {"1h", func(t *testing.T, p *poison) bool {
			t.Helper()
			return p.victim(t, &pb.AcquireLeaseRequest{Queues: []string{p.queue}, Wait: durationpb.New(2 * time.Second)})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, database(t), 1, "--watcher-interval", way.interval)
			p := &poison{f: f, queue: opened(t, f, &pb.Queue{Name: "q", Policy: &pb.JobPolicy{
				MaxAttempts: to(int32(3)), Backoff: &pb.Backoff{Initial: durationpb.New(30 * time.Minute), Jitter: to(0.0)},
			}})}
			p.id = stored(t, f.members[0], 1, &pb.EnqueueRequest{Queue: p.queue})[0]
			eventually(t, "the job is given up", func() bool {
				if way.try(t, p) {
					p.othersGoOn(t)
				}
				p.passBackoff(t)
				return stateOf(t, f, p.id) == "DEAD"
			})
			p.wantBuried(t)
			wantSound(t, f, true)
		})
	}
}
