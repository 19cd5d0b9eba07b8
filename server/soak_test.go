package server

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// TestManyPollsOverTwoReplicas: workers poll two replicas through real connections, half of
// them hang up at random moments, and every job is completed once. What was leased to
// a caller that hung up is either given back by the server or held by nobody: the workers
// that stay find all jobs without waiting for a lease to expire, except those whose answer
// was on its way when the caller went.
func TestManyPollsOverTwoReplicas(t *testing.T) {
	const jobs, workers = 400, 40
	st := newStore(t, "a", "b")
	replicas := []*served{serve(t, st, Config{}).withLoops(t), serve(t, st.Replica(), Config{}).withLoops(t)}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w := &soak{t: t, completed: map[string]int{}, left: jobs, stop: cancel}
	var group sync.WaitGroup
	for i := range workers {
		group.Go(func() { w.work(ctx, replicas[i%2], i < workers/2) })
	}
	policy := &pb.JobPolicy{
		LeaseDuration: durationpb.New(time.Second), MaxExpirations: proto.Int32(1000),
		Backoff: &pb.Backoff{Initial: durationpb.New(0), Cap: durationpb.New(0)},
	}
	for i := range jobs {
		req := &pb.EnqueueRequest{Queue: []string{"a", "b"}[i%2], Policy: policy}
		if _, err := replicas[i/2%2].jobs.Enqueue(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	group.Wait()
	if len(w.completed) != jobs {
		t.Errorf("%d of %d jobs were completed", len(w.completed), jobs)
	}
	for id, n := range w.completed {
		if n != 1 {
			t.Errorf("job %s was completed %d times", id, n)
		}
	}
	for i, r := range replicas {
		eventually(t, "the registry is empty", func() bool { return r.polls.waiters.count() == 0 })
		if n := len(r.polls.waiters.waited()); n != 0 {
			t.Errorf("replica %d still waits for %d queues", i, n)
		}
	}
}

type soak struct {
	t    *testing.T
	stop func()

	mu        sync.Mutex
	completed map[string]int
	left      int
}

// work polls until all jobs are done; a fickle worker hangs up most of its first polls.
func (w *soak) work(ctx context.Context, s *served, fickle bool) {
	for n := 0; ctx.Err() == nil; n++ {
		call, hangUp := context.WithCancel(ctx)
		if fickle && n < 30 {
			time.AfterFunc(rand.N(3*time.Millisecond), hangUp)
		}
		resp, err := s.leases.AcquireLease(call, &pb.AcquireLeaseRequest{
			Queues: []string{"a", "b"}, LeaseOwner: "w", MaxJobs: proto.Int32(1 + rand.Int32N(3)), Wait: durationpb.New(20 * time.Second),
		})
		hangUp()
		if err != nil && status.Code(err) != codes.Canceled {
			w.t.Errorf("acquire: %v", err)
			return
		}
		for _, l := range resp.GetLeases() {
			w.complete(s, l)
		}
	}
}

func (w *soak) complete(s *served, l *pb.Lease) {
	resp, err := s.leases.Complete(w.t.Context(), &pb.CompleteRequest{LeaseToken: l.GetLeaseToken()})
	if err != nil || resp.GetAlreadyApplied() {
		w.t.Errorf("complete lease %d of job %s: %v %v", l.GetLeaseNo(), l.GetJob().GetJobId(), resp, err)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.completed[l.GetJob().GetJobId()]++
	if w.left--; w.left == 0 {
		w.stop()
	}
}
