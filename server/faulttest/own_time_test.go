package faulttest

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// sqlEndedLate tells, of each job, the time from the end of its first lease by its own length
// to when it was ended, in seconds.
const sqlEndedLate = `
SELECT extract(epoch FROM l.ended_at - (l.leased_at + l.lease_length))::float8
FROM leasehold.all_leases l WHERE l.job_id = $1::text::bigint AND l.ended_by = 'EXPIRED' ORDER BY l.lease_no DESC LIMIT 1`

// TestEachJobComesBackAfterItsOwnLease, whichever way it was enqueued: a recovery that knows
// one length for all ends long jobs too early, and short ones too late.
func TestEachJobComesBackAfterItsOwnLease(t *testing.T) {
	t.Parallel()
	f := newFleet(t, database(t), 1, "--watcher-interval", "200ms")
	m := f.members[0]
	q := opened(t, f, &pb.Queue{Name: "q", Policy: &pb.JobPolicy{MaxAttempts: to(int32(1))}})
	mayExpire(t, f)
	lengths := []time.Duration{time.Second, 3 * time.Second, 5 * time.Second}
	ways := map[string]func(*pb.EnqueueRequest) string{
		"Enqueue": func(job *pb.EnqueueRequest) string { return accepted(t, m.jobs.Enqueue, job).GetJobId() },
		"BatchEnqueue": func(job *pb.EnqueueRequest) string {
			return stored(t, m, 1, job)[0]
		},
		"scheduled": func(job *pb.EnqueueRequest) string {
			job.Delay = durationpb.New(time.Millisecond)
			return accepted(t, m.jobs.Enqueue, job).GetJobId()
		},
		"follow-up": func(job *pb.EnqueueRequest) string {
			stored(t, m, 1, &pb.EnqueueRequest{Queue: q})
			parent := taken(t, m, q, 1, time.Hour)[0]
			return accepted(t, m.leases.Complete, &pb.CompleteRequest{
				LeaseToken: parent.GetLeaseToken(), ThenEnqueue: []*pb.EnqueueRequest{job},
			}).GetThenEnqueueJobIds()[0]
		},
		"retried": func(job *pb.EnqueueRequest) string {
			job.Policy.MaxAttempts, job.Policy.Backoff = to(int32(2)), &pb.Backoff{Initial: durationpb.New(0)}
			id := accepted(t, m.jobs.Enqueue, job).GetJobId()
			resp := accepted(t, m.leases.AcquireLease, &pb.AcquireLeaseRequest{JobId: &id, LeaseOwner: "w"})
			accepted(t, m.leases.Fail, &pb.FailRequest{LeaseToken: resp.GetLeases()[0].GetLeaseToken()})
			return id
		},
		"driven again": func(job *pb.EnqueueRequest) string {
			id := accepted(t, m.jobs.Enqueue, job).GetJobId()
			resp := accepted(t, m.leases.AcquireLease, &pb.AcquireLeaseRequest{JobId: &id, LeaseOwner: "w"})
			accepted(t, m.leases.Fail, &pb.FailRequest{LeaseToken: resp.GetLeases()[0].GetLeaseToken(), Permanent: true})
			accepted(t, m.queues.RetryJobs, &pb.RetryJobsRequest{Selection: &pb.JobSelection{JobIds: []string{id}}})
			return id
		},
	}
	jobs := map[string]string{}
	for way, enqueue := range ways {
		for _, d := range lengths {
			id := enqueue(&pb.EnqueueRequest{Queue: q, Policy: &pb.JobPolicy{LeaseDuration: durationpb.New(d)}})
			eventually(t, "the lease of the job", func() bool {
				resp := accepted(t, m.leases.AcquireLease, &pb.AcquireLeaseRequest{JobId: &id, LeaseOwner: "w"})
				return len(resp.GetLeases()) == 1 && resp.GetLeases()[0].GetRemaining().AsDuration() == d
			})
			jobs[way+" "+d.String()] = id
		}
	}
	for name, id := range jobs {
		eventually(t, name+" is given up", func() bool { return stateOf(t, f, id) == "DEAD" })
		// Two passes and a machine that is busy with other tests.
		if late := look[float64](t, f, sqlEndedLate, id); late < 0 || late > 10 {
			t.Errorf("%s: the lease was ended %.3f s after its time", name, late)
		}
	}
	wantSound(t, f, true)
}
