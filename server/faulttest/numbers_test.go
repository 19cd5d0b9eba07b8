package faulttest

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// TestIDsBeyondWhatOthersCanCountTo: 32 bits, and the 53 of a JSON number. Every verb gets
// such an id, and gives it back as it is.
func TestIDsBeyondWhatOthersCanCountTo(t *testing.T) {
	t.Parallel()
	f := newFleet(t, database(t), 1, "--watcher-interval", "300ms")
	m := f.members[0]
	f.db.Exec(t, `ALTER SEQUENCE leasehold.queues_id_seq RESTART WITH 2147483640`)
	q := opened(t, f, &pb.Queue{Name: "q"})
	for _, next := range []int64{1<<31 - 5, 1<<53 - 1} {
		f.db.Exec(t, `SELECT setval('leasehold.job_id_seq', $1)`, next)
		ids := stored(t, m, 10, &pb.EnqueueRequest{Queue: q, Policy: &pb.JobPolicy{LeaseDuration: durationpb.New(time.Second)}})
		for i, id := range ids {
			if n, err := strconv.ParseInt(id, 10, 64); err != nil || n <= next || i > 0 && id == ids[i-1] {
				t.Fatalf("after %d comes job %q, %v", next, id, err)
			}
		}
		leases := taken(t, m, q, 8, time.Hour)
		token := func(i int) string { return leases[i].GetLeaseToken() }
		if got := fmt.Sprint(idsOf(leases)); got != fmt.Sprint(ids[:8]) {
			t.Errorf("enqueued %q, leased %s", ids, got)
		}
		accepted(t, m.leases.BatchHeartbeat, &pb.BatchHeartbeatRequest{Items: []*pb.HeartbeatRequest{{LeaseToken: token(0), Stage: to("s"), Checkpoint: []byte("c")}}})
		followed := accepted(t, m.leases.Complete, &pb.CompleteRequest{LeaseToken: token(0), ThenEnqueue: []*pb.EnqueueRequest{{Queue: q}}})
		accepted(t, m.leases.Fail, &pb.FailRequest{LeaseToken: token(1), Permanent: true, Error: &pb.JobError{Code: "c"}})
		accepted(t, m.leases.Release, &pb.ReleaseRequest{LeaseToken: token(2)})
		accepted(t, m.queues.RetryJobs, &pb.RetryJobsRequest{Selection: &pb.JobSelection{JobIds: ids[1:2]}})
		accepted(t, m.jobs.CancelJob, &pb.CancelJobRequest{JobId: ids[3]})
		accepted(t, m.leases.BatchFail, &pb.BatchFailRequest{Items: []*pb.FailRequest{{LeaseToken: token(4), Error: &pb.JobError{Code: "c"}}}})
		f.db.Exec(t, `UPDATE leasehold.jobs SET lease_until = now() - interval '1 day' WHERE id = $1::text::bigint`, ids[5])
		eventually(t, "the watcher ends a lease", func() bool {
			mayExpire(t, f) // a stamp that came late has begun the grace anew: half of an hour
			return stateOf(t, f, ids[5]) == "PENDING"
		})
		again := accepted(t, m.leases.AcquireLease, &pb.AcquireLeaseRequest{JobId: &ids[5], LeaseOwner: "w"})
		if again.GetLeases()[0].GetJob().GetJobId() != ids[5] || again.GetLeases()[0].GetLeaseNo() != 2 {
			t.Errorf("leased again: %v", again)
		}
		page := accepted(t, m.jobs.ListJobs, &pb.ListJobsRequest{Filter: &pb.JobFilter{Queue: &q}, PageSize: to(int32(1000))})
		if n := len(page.GetJobs()); n < 11 || page.GetJobs()[n-1].GetJobId() != followed.GetThenEnqueueJobIds()[0] {
			t.Errorf("%d jobs are listed, the last is not the follow-up %q", n, followed.GetThenEnqueueJobIds())
		}
		accepted(t, m.leases.ListStuck, &pb.ListStuckRequest{Queue: &q})
		if leases := accepted(t, m.jobs.ListLeases, &pb.ListLeasesRequest{JobId: ids[5]}).GetLeases(); len(leases) != 2 || leases[1].GetJobId() != ids[5] {
			t.Errorf("its leases are %v", leases)
		}
		for _, l := range append(leases[3:4], append(leases[6:8], again.GetLeases()...)...) {
			accepted(t, m.leases.Complete, &pb.CompleteRequest{LeaseToken: l.GetLeaseToken()})
		}
		accepted(t, m.queues.CancelJobs, &pb.CancelJobsRequest{Selection: &pb.JobSelection{Filter: &pb.JobFilter{Queue: &q}}, BatchSize: to(int32(1000))})
	}
	wantSound(t, f, false)
}

// TestNumbersOfAQueueAreNotUsedUpByItsJobs: an insert that finds its row there already takes a
// number all the same, and a small table may run out of them.
func TestNumbersOfAQueueAreNotUsedUpByItsJobs(t *testing.T) {
	t.Parallel()
	f := newFleet(t, database(t), 1, "--auto-create-queues")
	m := f.members[0]
	used := func() int64 { return look[int64](t, f, `SELECT last_value FROM leasehold.queues_id_seq`) }
	stored(t, m, 1, &pb.EnqueueRequest{Queue: "q"})
	before := used()
	for range 50 {
		stored(t, m, 1, &pb.EnqueueRequest{Queue: "q", IdempotencyKey: to("k")})
		stored(t, m, 20, &pb.EnqueueRequest{Queue: "q"})
		taken(t, m, "q", 1, time.Hour)
	}
	if after := used(); after != before {
		t.Errorf("150 calls on one queue took %d numbers of queues", after-before)
	}
}

// TestBackoffAndRetryAfterAtTheirBounds, at counts where a power overflows: Fail is accepted,
// and the next run is a sane time from now.
func TestBackoffAndRetryAfterAtTheirBounds(t *testing.T) {
	t.Parallel()
	f := newFleet(t, database(t), 1)
	m := f.members[0]
	q := opened(t, f, &pb.Queue{Name: "q"})
	const day = 24 * time.Hour
	for _, c := range []struct {
		initial, limit time.Duration
		factor         float64
		after          *durationpb.Duration
		least, most    time.Duration
	}{
		{time.Nanosecond, 30 * day, 10, nil, 0, 30 * day}, // is rounded up to a microsecond
		{day, 30 * day, 10, nil, 0, 30 * day},
		{0, 0, 1, nil, 0, 0},
		{day, 30 * day, 10, durationpb.New(0), 0, 0},
		{time.Nanosecond, 0, 1, durationpb.New(1827 * day), 1827 * day, 1827 * day},
	} {
		id := accepted(t, m.jobs.Enqueue, &pb.EnqueueRequest{Queue: q, Policy: &pb.JobPolicy{
			MaxAttempts: to(int32(1000)), Backoff: &pb.Backoff{Initial: durationpb.New(c.initial), Factor: &c.factor, Cap: durationpb.New(c.limit)},
		}}).GetJobId()
		for _, used := range []int{0, 1, 30, 31, 32, 62, 63, 64, 998} {
			f.db.Exec(t, `UPDATE leasehold.jobs SET attempts_used = $2, run_at = now() - interval '1 minute' WHERE id = $1::text::bigint`, id, used)
			resp := accepted(t, m.leases.AcquireLease, &pb.AcquireLeaseRequest{JobId: &id, LeaseOwner: "w"})
			ended := accepted(t, m.leases.Fail, &pb.FailRequest{LeaseToken: resp.GetLeases()[0].GetLeaseToken(), RetryAfter: c.after})
			in := ended.GetNextRunIn().AsDuration()
			if ended.GetState() != pb.JobState_JOB_STATE_PENDING || in < c.least-time.Second || in > c.most+time.Second {
				t.Errorf("backoff %v x %v up to %v, retry_after %v: after %d attempts it is %s and runs again in %v",
					c.initial, c.factor, c.limit, c.after.AsDuration(), used, ended.GetState(), in)
			}
		}
	}
	wantSound(t, f, false)
}
