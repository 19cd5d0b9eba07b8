package server

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/server/identity"
	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/storetest"
)

// TestBatchesAreCheckedItemByItem: an item of another queue is refused, the others are done.
func TestBatchesAreCheckedItemByItem(t *testing.T) {
	s := serveSecured(t, newStore(t, "a", "b"), "")
	admin := s.as(t, s.entry(t, adminToken))
	caller := s.as(t, s.entry(t, identity.NewToken{Name: "c", Roles: []string{"worker", "producer", "operator"}, Queues: []string{"a"}}))
	s.access.Pass(t.Context())
	a, b := scene{t, admin, "a"}, scene{t, admin, "b"}

	enqueued, err := caller.jobs.BatchEnqueue(t.Context(), &pb.BatchEnqueueRequest{Items: []*pb.EnqueueRequest{{Queue: "b"}, {Queue: "a"}, {Queue: "Not A Name"}, {Queue: "b"}}})
	if err != nil {
		t.Fatal(err)
	}
	wantReasons(t, enqueued.GetResults(), "ROLE_MISSING", "OK", "INVALID_REQUEST", "ROLE_MISSING")

	completed, err := caller.leases.BatchComplete(t.Context(), &pb.BatchCompleteRequest{Items: []*pb.CompleteRequest{
		{LeaseToken: b.token()}, {LeaseToken: a.token()}, {LeaseToken: "garbage"},
		{LeaseToken: a.token(), ThenEnqueue: []*pb.EnqueueRequest{{Queue: "a"}, {Queue: "b"}}},
		{LeaseToken: a.token(), ThenEnqueue: []*pb.EnqueueRequest{{Queue: "a"}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	wantReasons(t, completed.GetResults(), "ROLE_MISSING", "OK", "INVALID_TOKEN", "ROLE_MISSING", "OK")
	if facts := completed.GetResults()[3].GetError().GetMetadata(); facts["then_enqueue_index"] != "1" || facts["queue"] != "b" || facts["role"] != "PRODUCER" {
		t.Errorf("the refused follow-up tells %v", facts)
	}

	mine, foreign := a.dead(), b.dead()
	retried, err := caller.queues.RetryJobs(t.Context(), &pb.RetryJobsRequest{Selection: &pb.JobSelection{JobIds: []string{foreign, mine, "999999"}}})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, r := range retried.GetResults() {
		got[r.GetJobId()], _, _ = refusal(refusedError(r.GetError()))
	}
	if len(got) != 3 || got[mine] != "OK" || got[foreign] != "ROLE_MISSING" || got["999999"] != "JOB_NOT_FOUND" {
		t.Errorf("RetryJobs: %v", got)
	}
	none, err := caller.queues.CancelJobs(t.Context(), &pb.CancelJobsRequest{Selection: &pb.JobSelection{JobIds: []string{foreign}}})
	if err != nil || len(none.GetResults()) != 1 || none.GetResults()[0].GetError() == nil {
		t.Errorf("CancelJobs of another's job alone: %v, %v", none, err)
	}
	for _, filter := range []*pb.JobFilter{{}, {States: []pb.JobState{pb.JobState_JOB_STATE_DEAD}}} {
		if _, err := caller.queues.CancelJobs(t.Context(), &pb.CancelJobsRequest{Selection: &pb.JobSelection{Filter: filter}}); reasonOf(err) != "ROLE_MISSING" {
			t.Errorf("a filter over all queues: %v", err)
		}
	}
}

func wantReasons[R interface{ GetError() *pb.ItemError }](t *testing.T, results []R, want ...string) {
	t.Helper()
	for i, r := range results {
		if got, _, _ := refusal(refusedError(r.GetError())); got != want[i] {
			t.Errorf("item %d: %s, want %s (%v)", i, got, want[i], r.GetError())
		}
	}
	if len(results) != len(want) {
		t.Errorf("%d results, want %d", len(results), len(want))
	}
}

// TestHeartbeatsOfALimitedWorkerCostNoStatement where this replica gave the lease, nor a
// second one where it did not.
func TestHeartbeatsOfALimitedWorkerCostNoStatement(t *testing.T) {
	st := &countingStore{hookedStore: newStore(t, "q")}
	s := serveSecured(t, st, "")
	admin := s.as(t, s.entry(t, adminToken))
	caller := s.as(t, s.token(t, "worker", "q"))
	sc := scene{t, admin, "q"}
	sc.job()
	got, err := caller.leases.AcquireLease(t.Context(), &pb.AcquireLeaseRequest{Queues: []string{"q"}, LeaseOwner: "w"})
	if err != nil || len(got.GetLeases()) != 1 {
		t.Fatalf("%v, %v", got, err)
	}
	beat := func(token string) {
		t.Helper()
		if _, err := caller.leases.Heartbeat(t.Context(), &pb.HeartbeatRequest{LeaseToken: token}); err != nil {
			t.Fatal(err)
		}
	}
	beat(got.GetLeases()[0].GetLeaseToken())
	if n := st.lookups.Load(); n != 0 {
		t.Errorf("%d look-ups for a lease of this replica", n)
	}
	other := sc.token()
	beat(other)
	beat(other)
	if n := st.lookups.Load(); n != 1 {
		t.Errorf("%d look-ups for a lease of another replica, want 1", n)
	}
}

type countingStore struct {
	*hookedStore
	lookups atomic.Int64
}

func (c *countingStore) JobQueues(ctx context.Context, ids []store.JobID) (map[store.JobID]string, error) {
	c.lookups.Add(1)
	return c.hookedStore.JobQueues(ctx, ids)
}

// TestJobQueuesForgetsTheOldest and stays right: what is forgotten is read again.
func TestJobQueuesForgetsTheOldest(t *testing.T) {
	st := &countingStore{hookedStore: newStore(t)}
	q := newJobQueues(st)
	for id := range store.JobID(3 * maxKnownJobs) {
		q.remember(id, "q"+strconv.Itoa(int(id)%7))
	}
	if n := len(q.young) + len(q.old); n > 2*maxKnownJobs {
		t.Errorf("%d are remembered", n)
	}
	got, err := q.of(t.Context(), 3*maxKnownJobs-1, 1)
	if err != nil || got[3*maxKnownJobs-1] != "q"+strconv.Itoa((3*maxKnownJobs-1)%7) || st.lookups.Load() != 1 {
		t.Errorf("got %v, %v after %d look-ups", got, err, st.lookups.Load())
	}
}

// BenchmarkAuthorize is what a heartbeat costs on top of its handler: a token found by its
// hash, the role, and for a limited identity the queue of the lease's job.
func BenchmarkAuthorize(b *testing.B) {
	memory := storetest.NewMemory(nil)
	for name, queues := range map[string][]string{"every queue": {"*"}, "some queues": {"pay*", "q"}} {
		token, line, err := identity.NewToken{Name: "n", Roles: []string{"worker"}, Queues: queues}.Make()
		if err != nil {
			b.Fatal(err)
		}
		path := filepath.Join(b.TempDir(), "access.yaml")
		if err := os.WriteFile(path, []byte("tokens:\n"+line), 0o600); err != nil {
			b.Fatal(err)
		}
		access, err := identity.OpenAccess(b.Context(), path, slog.New(slog.DiscardHandler))
		if err != nil {
			b.Fatal(err)
		}
		s, err := New(b.Context(), memory, Config{Log: slog.New(slog.DiscardHandler), Access: access})
		if err != nil {
			b.Fatal(err)
		}
		s.queuesOf.remember(1, "q")
		ctx := metadata.NewIncomingContext(b.Context(), metadata.Pairs("authorization", "Bearer "+token))
		items := []store.Heartbeat{{Lease: store.LeaseRef{JobID: 1, LeaseNo: 1}}}
		beat := ofLeases(s, func(context.Context, []store.Heartbeat) ([]store.Beaten, error) { return make([]store.Beaten, 1), nil },
			func(h *store.Heartbeat) (store.LeaseRef, []store.NewJob) { return h.Lease, nil }, func(r *store.Beaten) *error { return &r.Err })
		handler := func(ctx context.Context, _ any) (any, error) { _, err := beat.do(ctx, items); return nil, err }
		info := &grpc.UnaryServerInfo{FullMethod: pb.LeaseService_Heartbeat_FullMethodName}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.authUnary(ctx, &pb.HeartbeatRequest{}, info, handler); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
