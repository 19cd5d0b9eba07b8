package faulttest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// TestJobsThatFailAtOnceStarveNoOthers: jobs that go back to the head whenever they fail are
// all that is ever leased.
func TestJobsThatFailAtOnceStarveNoOthers(t *testing.T) {
	t.Parallel()
	f := newFleet(t, database(t), 1)
	m := f.members[0]
	q := opened(t, f, &pb.Queue{Name: "q"})
	bad := &pb.EnqueueRequest{Queue: q, Subject: to("bad"), Policy: &pb.JobPolicy{
		MaxAttempts: to(int32(1000)), Backoff: &pb.Backoff{Initial: durationpb.New(0)},
	}}
	stored(t, m, 20, bad)
	stored(t, m, 500, &pb.EnqueueRequest{Queue: q})
	good, retries := 0, 0
	for n := 0; good < 500; n++ {
		if n > 200 {
			t.Fatalf("after %d acquires of 10 only %d of 500 jobs were leased, and %d that fail", n, good, retries)
		}
		resp := accepted(t, m.leases.AcquireLease, &pb.AcquireLeaseRequest{Queues: []string{q}, LeaseOwner: "w", MaxJobs: to(int32(10))})
		for _, l := range resp.GetLeases() {
			if l.GetJob().GetSubject() == "bad" {
				accepted(t, m.leases.Fail, &pb.FailRequest{LeaseToken: l.GetLeaseToken()})
				retries++
			} else {
				good++
			}
		}
	}
	// And the other way round: what failed comes again beside what is new.
	if retries < 20 {
		t.Errorf("the jobs that fail were leased %d times", retries)
	}
	stored(t, m, 500, &pb.EnqueueRequest{Queue: q})
	resp := accepted(t, m.leases.AcquireLease, &pb.AcquireLeaseRequest{Queues: []string{q}, LeaseOwner: "w", MaxJobs: to(int32(30))})
	again := 0
	for _, l := range resp.GetLeases() {
		if l.GetJob().GetSubject() == "bad" {
			again++
		}
	}
	if again != 20 {
		t.Errorf("%d of 20 jobs that were due before came before those that were new", again)
	}
}

// TestPriorityIsStrictAlsoForWhatComesBack: a lease that expired goes first again, before
// thousands of lower priority; and as documented those wait while there is anything above.
func TestPriorityIsStrictAlsoForWhatComesBack(t *testing.T) {
	t.Parallel()
	f := newFleet(t, database(t), 1, "--watcher-interval", "200ms")
	m := f.members[0]
	q := opened(t, f, &pb.Queue{Name: "q"})
	stored(t, m, 2000, &pb.EnqueueRequest{Queue: q, Priority: to(int32(9))})
	high := stored(t, m, 1, &pb.EnqueueRequest{Queue: q, Priority: to(int32(1))})[0]
	take := func(n int32) []string {
		return idsOf(accepted(t, m.leases.AcquireLease, &pb.AcquireLeaseRequest{Queues: []string{q}, LeaseOwner: "w", MaxJobs: &n}).GetLeases())
	}
	if got := take(1); !slices.Equal(got, []string{high}) {
		t.Fatalf("leased %q, want job %s", got, high)
	}
	f.db.Exec(t, sqlOverdue)
	mayExpire(t, f)
	eventually(t, "the lease expires", func() bool { return stateOf(t, f, high) == "PENDING" })
	more := stored(t, m, 5, &pb.EnqueueRequest{Queue: q, Priority: to(int32(2))})
	if got, want := take(6), append([]string{high}, more...); !slices.Equal(got, want) {
		t.Errorf("leased %q, want %q", got, want)
	}
}

// TestWhatBecameDueDuringADowntimeRunsOnceInOrder, however long ago that was.
func TestWhatBecameDueDuringADowntimeRunsOnceInOrder(t *testing.T) {
	t.Parallel()
	f := newFleet(t, database(t), 2)
	q := opened(t, f, &pb.Queue{Name: "q"})
	req := &pb.BatchEnqueueRequest{}
	at := time.Now().Add(time.Hour)
	for i := range 300 {
		req.Items = append(req.Items, &pb.EnqueueRequest{
			Queue: q, Priority: to(int32(1 + i%9)), RunAt: timestamppb.New(at.Add(time.Duration(i) * time.Millisecond)),
		})
	}
	accepted(t, f.members[0].jobs.BatchEnqueue, req)
	past := accepted(t, f.members[0].jobs.Enqueue, &pb.EnqueueRequest{Queue: q, RunAt: timestamppb.New(time.Unix(0, 0))}).GetJobId()
	future := accepted(t, f.members[0].jobs.Enqueue, &pb.EnqueueRequest{Queue: q, RunAt: timestamppb.New(time.Now().AddDate(4, 11, 0))}).GetJobId()
	if got := taken(t, f.members[0], q, 1, time.Hour); got[0].GetJob().GetJobId() != past {
		t.Errorf("a run_at of 1970 counts as now, and job %s was leased", got[0].GetJob().GetJobId())
	}
	if n := len(accepted(t, f.members[0].leases.AcquireLease, &pb.AcquireLeaseRequest{Queues: []string{q}, LeaseOwner: "w", MaxJobs: to(int32(1000))}).GetLeases()); n != 0 {
		t.Fatalf("%d jobs were leased ahead of their time", n)
	}
	for _, m := range f.members {
		m.Kill()
	}
	f.db.Exec(t, `UPDATE leasehold.jobs SET run_at = run_at - interval '2 hours', created_at = created_at - interval '2 hours' WHERE run_at < now() + interval '1 day'`)
	for _, m := range f.members {
		if err := m.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]bool{}
	last := ""
	for n := 0; len(seen) < 300; n++ {
		leases := accepted(t, f.members[n%2].leases.AcquireLease, &pb.AcquireLeaseRequest{Queues: []string{q}, LeaseOwner: "w", MaxJobs: to(int32(70))}).GetLeases()
		if len(leases) == 0 {
			t.Fatalf("only %d of 300 jobs that are overdue were leased", len(seen))
		}
		for _, l := range leases {
			j := l.GetJob()
			place := fmt.Sprintf("%d %s", j.GetPriority(), j.GetRunAt().AsTime().Format("2006-01-02T15:04:05.000000"))
			if seen[j.GetJobId()] || place < last {
				t.Errorf("job %s (%s) was leased after %s, before: %t", j.GetJobId(), place, last, seen[j.GetJobId()])
			}
			seen[j.GetJobId()], last = true, place
		}
	}
	if got := stateOf(t, f, future); got != "PENDING" || seen[future] {
		t.Errorf("the job of years ahead is %s", got)
	}
	wantSound(t, f, false)
}

// TestJobsThatFailTogetherDoNotComeBackTogether: in no tenth of the time over which the jitter
// spreads them come more than three times as many as in the mean.
func TestJobsThatFailTogetherDoNotComeBackTogether(t *testing.T) {
	t.Parallel()
	const jobs = 2000
	f := newFleet(t, database(t), 1)
	m := f.members[0]
	q := opened(t, f, &pb.Queue{Name: "q", Policy: &pb.JobPolicy{
		Backoff: &pb.Backoff{Initial: durationpb.New(100 * time.Minute), Cap: durationpb.New(100 * time.Minute), Jitter: to(0.5)},
	}})
	stored(t, m, jobs, &pb.EnqueueRequest{Queue: q})
	exact := 3 * time.Hour
	for n := range 2 {
		fail := &pb.BatchFailRequest{}
		for i, token := range tokensOf(taken(t, m, q, 1000, time.Hour)) {
			item := &pb.FailRequest{LeaseToken: token}
			if n == 1 && i < 100 {
				item.RetryAfter = durationpb.New(exact)
			}
			fail.Items = append(fail.Items, item)
		}
		for i, r := range accepted(t, m.leases.BatchFail, fail).GetResults() {
			in := r.GetOk().GetNextRunIn().AsDuration()
			if r.GetError() != nil || fail.GetItems()[i].GetRetryAfter() != nil && in < exact {
				t.Fatalf("BatchFail: %v, runs again in %v", r.GetError(), in)
			}
		}
	}
	tenths := lookAll(t, f, `
SELECT count(*)::text FROM leasehold.jobs WHERE run_at < ended_at + interval '2 hours'
GROUP BY floor(extract(epoch FROM run_at) / 300) ORDER BY count(*) DESC`)
	if len(tenths) < 10 {
		t.Errorf("they come back in %d spans of 5 minutes, want 10", len(tenths))
	}
	var most int
	if _, err := fmt.Sscan(tenths[0], &most); err != nil || most > 3*jobs/10 {
		t.Errorf("%d of %d come back within 5 of 50 minutes", most, jobs)
	}
}
