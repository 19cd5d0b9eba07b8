package faulttest

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// melee is everything at once on the same jobs: batches of all kinds in any order of ids, at
// three replicas whose watchers end leases all the time, and operators who cancel and retry
// by filter.
type melee struct {
	t     *testing.T
	f     *fleet
	queue string

	mu     sync.Mutex
	tokens []string
	odd    map[string]int
}

// answered notes what is neither an answer nor a row that was locked for a moment.
func (a *melee) answered(call string, code uint32, reason pb.ErrorReason) {
	switch codes.Code(code) {
	case codes.OK, codes.FailedPrecondition:
		return
	case codes.Unavailable:
		if reason == pb.ErrorReason_ERROR_REASON_JOB_BUSY {
			return
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.odd[call+": "+reason.String()]++
}

func (a *melee) failed(call string, err error) {
	if err != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.odd[call+": "+err.Error()]++
	}
}

// some are tokens of the latest 300 leases in any order.
func (a *melee) some() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tokens = a.tokens[max(0, len(a.tokens)-300):]
	some := append([]string{}, a.tokens...)
	rand.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
	return some
}

func (a *melee) acquire(m *member) {
	resp, err := m.leases.AcquireLease(a.t.Context(), &pb.AcquireLeaseRequest{
		Queues: []string{a.queue}, LeaseOwner: "w", MaxJobs: to(int32(50)), LeaseDuration: durationpb.New(time.Second),
	})
	a.failed("AcquireLease", err)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tokens = append(a.tokens, tokensOf(resp.GetLeases())...)
}

func (a *melee) beat(m *member) {
	req := &pb.BatchHeartbeatRequest{}
	for _, token := range a.some() {
		req.Items = append(req.Items, &pb.HeartbeatRequest{LeaseToken: token, Stage: to("s")})
	}
	if len(req.GetItems()) == 0 {
		return
	}
	resp, err := m.leases.BatchHeartbeat(a.t.Context(), req)
	a.failed("BatchHeartbeat", err)
	for _, r := range resp.GetResults() {
		a.answered("BatchHeartbeat", uint32(r.GetError().GetCode()), r.GetError().GetReason())
	}
}

func (a *melee) complete(m *member) {
	req := &pb.BatchCompleteRequest{}
	for _, token := range a.some() {
		if rand.N(6) == 0 {
			req.Items = append(req.Items, &pb.CompleteRequest{LeaseToken: token})
		}
	}
	if len(req.GetItems()) == 0 {
		return
	}
	resp, err := m.leases.BatchComplete(a.t.Context(), req)
	a.failed("BatchComplete", err)
	for _, r := range resp.GetResults() {
		a.answered("BatchComplete", uint32(r.GetError().GetCode()), r.GetError().GetReason())
	}
}

func (a *melee) fail(m *member) {
	req := &pb.BatchFailRequest{}
	for _, token := range a.some() {
		if rand.N(4) == 0 {
			req.Items = append(req.Items, &pb.FailRequest{LeaseToken: token, RetryAfter: durationpb.New(0), Error: &pb.JobError{Code: "c"}})
		}
	}
	if len(req.GetItems()) == 0 {
		return
	}
	resp, err := m.leases.BatchFail(a.t.Context(), req)
	a.failed("BatchFail", err)
	for _, r := range resp.GetResults() {
		a.answered("BatchFail", uint32(r.GetError().GetCode()), r.GetError().GetReason())
	}
}

func (a *melee) release(m *member) {
	req := &pb.BatchReleaseRequest{}
	for _, token := range a.some() {
		if rand.N(4) == 0 {
			req.Items = append(req.Items, &pb.ReleaseRequest{LeaseToken: token})
		}
	}
	if len(req.GetItems()) == 0 {
		return
	}
	resp, err := m.leases.BatchRelease(a.t.Context(), req)
	a.failed("BatchRelease", err)
	for _, r := range resp.GetResults() {
		a.answered("BatchRelease", uint32(r.GetError().GetCode()), r.GetError().GetReason())
	}
}

// operate cancels a part of the jobs, retries what can be, and stores as many anew.
func (a *melee) operate(m *member) {
	selection := &pb.JobSelection{Filter: &pb.JobFilter{Queue: &a.queue, Subject: to("drop")}}
	cancelled, err := m.queues.CancelJobs(a.t.Context(), &pb.CancelJobsRequest{Selection: selection})
	a.failed("CancelJobs", err)
	for _, r := range cancelled.GetResults() {
		a.answered("CancelJobs", uint32(r.GetError().GetCode()), r.GetError().GetReason())
	}
	retried, err := m.queues.RetryJobs(a.t.Context(), &pb.RetryJobsRequest{Selection: &pb.JobSelection{Filter: &pb.JobFilter{Queue: &a.queue}}, BatchSize: to(int32(500))})
	a.failed("RetryJobs", err)
	for _, r := range retried.GetResults() {
		a.answered("RetryJobs", uint32(r.GetError().GetCode()), r.GetError().GetReason())
	}
	req := &pb.BatchEnqueueRequest{}
	for i := range 50 {
		job := &pb.EnqueueRequest{Queue: a.queue}
		if i%10 == 0 {
			job.Subject = to("drop")
		}
		if i%2 == 0 {
			job.IdempotencyKey = to(string(rune('a' + rand.N(20))))
		}
		req.Items = append(req.Items, job)
	}
	enqueued, err := m.jobs.BatchEnqueue(a.t.Context(), req)
	a.failed("BatchEnqueue", err)
	for _, r := range enqueued.GetResults() {
		a.answered("BatchEnqueue", uint32(r.GetError().GetCode()), r.GetError().GetReason())
	}
}

// TestEverythingAtOnceOnTheSameJobsNeverDeadlocks: two statements that take the same rows in
// different orders end each other; what a worker said is lost, or said again and again.
func TestEverythingAtOnceOnTheSameJobsNeverDeadlocks(t *testing.T) {
	t.Parallel()
	f := newFleet(t, database(t), 3, "--watcher-interval", "100ms")
	q := opened(t, f, &pb.Queue{Name: "q", Policy: &pb.JobPolicy{
		MaxExpirations: to(int32(1000)), MaxAttempts: to(int32(1000)), Backoff: &pb.Backoff{Initial: durationpb.New(0)},
	}})
	mayExpire(t, f)
	stored(t, f.members[0], 400, &pb.EnqueueRequest{Queue: q})
	a := &melee{t: t, f: f, queue: q, odd: map[string]int{}}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	var all sync.WaitGroup
	for n, act := range []func(*member){a.acquire, a.beat, a.complete, a.fail, a.release, a.operate, a.acquire, a.beat, a.beat} {
		all.Go(func() {
			for n := n; ctx.Err() == nil; n++ {
				act(f.members[n%3])
			}
		})
	}
	all.Wait()
	for what, times := range a.odd {
		t.Errorf("%s, %d times", what, times)
	}
	ends := lookAll(t, f, `SELECT DISTINCT ended_by FROM leasehold.all_leases WHERE ended_by IS NOT NULL ORDER BY 1`)
	if len(ends) < 4 {
		t.Errorf("leases ended as %q only: this proves nothing", ends)
	}
	for _, m := range f.members {
		m.Kill() // sessions report at their end
	}
	eventually(t, "the sessions are gone", func() bool {
		return look[int](t, f, `SELECT count(*)::int FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'leasehold'`) == 0
	})
	if n := look[int](t, f, `SELECT deadlocks::int FROM pg_stat_database WHERE datname = current_database()`); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
	if n := look[int](t, f, `SELECT count(*)::int FROM pg_locks l JOIN pg_database d ON d.oid = l.database WHERE d.datname = current_database() AND l.pid <> pg_backend_pid()`); n > 0 {
		t.Errorf("%d locks are left", n)
	}
	wantSound(t, f, false)
}
