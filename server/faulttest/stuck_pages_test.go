package faulttest

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// TestR21_PagesWhileRowsChange: each job that is stuck all the time is listed once, by pages
// from two replicas in turn, while jobs before, between and behind them get stuck, recover,
// are finished and are made.
func TestR21_PagesWhileRowsChange(t *testing.T) {
	t.Parallel()
	f := newFleet(t, database(t), 2, "--watcher-interval", "1h")
	m := f.members[0]
	accepted(t, m.queues.CreateQueue, &pb.CreateQueueRequest{Queue: &pb.Queue{Name: "q", Policy: policyOf(time.Second, 0, 0)}})
	jobs := &pb.BatchEnqueueRequest{}
	for range 300 {
		jobs.Items = append(jobs.Items, &pb.EnqueueRequest{Queue: "q"})
	}
	accepted(t, m.jobs.BatchEnqueue, jobs)
	leases := accepted(t, m.leases.AcquireLease, &pb.AcquireLeaseRequest{Queues: []string{"q"}, LeaseOwner: "w", MaxJobs: to(int32(300))}).GetLeases()
	var stay []string
	var change []*pb.Lease
	for i, l := range leases {
		if i%3 == 0 {
			change = append(change, l)
		} else {
			stay = append(stay, l.GetJob().GetJobId())
		}
	}
	eventually(t, "all leases have run out", func() bool {
		return f.number(t, `SELECT count(*) FROM leasehold.jobs WHERE lease_until < statement_timestamp()`) == 300
	})
	stop := f.keepChanging(t, change)
	defer stop()
	for pass, req := range []*pb.ListStuckRequest{
		{PageSize: to(int32(7))},
		{PageSize: to(int32(1)), Queue: to("q"), Diagnoses: []pb.Diagnosis{pb.Diagnosis_DIAGNOSIS_LEASE_EXPIRED}},
	} {
		listed := f.listStuck(t, req)
		if !slices.IsSortedFunc(listed, func(a, b string) int { return int(jobNumber(t, a) - jobNumber(t, b)) }) ||
			len(slices.Compact(slices.Clone(listed))) != len(listed) {
			t.Errorf("pass %d: not each once, in order: %v", pass, listed)
		}
		for _, id := range stay {
			if !slices.Contains(listed, id) {
				t.Errorf("pass %d: job %s, which is stuck all the time, is not listed", pass, id)
			}
		}
	}
}

// listStuck reads all pages, from one replica after the other.
func (f *fleet) listStuck(t *testing.T, req *pb.ListStuckRequest) (ids []string) {
	t.Helper()
	for n := 0; ; n++ {
		page := accepted(t, f.members[n%len(f.members)].leases.ListStuck, req)
		if len(page.GetJobs()) > int(req.GetPageSize()) {
			t.Fatalf("a page of %d jobs", len(page.GetJobs()))
		}
		for _, s := range page.GetJobs() {
			ids = append(ids, s.GetJobId())
		}
		if req.PageToken = page.GetNextPageToken(); req.PageToken == "" {
			return ids
		}
	}
}

// keepChanging renews some leases for a while, completes some, and makes other jobs, until
// the function that it returns is called.
func (f *fleet) keepChanging(t *testing.T, leases []*pb.Lease) (stop func()) {
	t.Helper()
	m := f.members[1]
	accepted(t, m.queues.CreateQueue, &pb.CreateQueueRequest{Queue: &pb.Queue{Name: "other", Policy: &pb.JobPolicy{LeaseDuration: durationpb.New(time.Second)}}})
	ctx, cancel := context.WithCancel(t.Context())
	var changing sync.WaitGroup
	for part := range 4 {
		changing.Go(func() {
			for n := part; ctx.Err() == nil; n += 4 {
				l := leases[n%len(leases)]
				// What has been completed is refused the second time.
				if n%8 == 0 {
					_, _ = m.leases.Complete(ctx, &pb.CompleteRequest{LeaseToken: l.GetLeaseToken()})
				} else {
					_, _ = m.leases.Heartbeat(ctx, &pb.HeartbeatRequest{LeaseToken: l.GetLeaseToken()})
				}
				if n > 400 {
					continue // a list that grows faster than it is read has no end
				}
				if _, err := m.jobs.Enqueue(ctx, &pb.EnqueueRequest{Queue: "other"}); err == nil {
					_, _ = m.leases.AcquireLease(ctx, &pb.AcquireLeaseRequest{Queues: []string{"other"}, LeaseOwner: "w"})
				}
			}
		})
	}
	return func() {
		cancel()
		changing.Wait()
	}
}
