package server

import (
	"context"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hookedStore is a store in memory whose calls a test can count, replace and hold up.
type hookedStore struct {
	*storetest.Memory
	acquires    atomic.Int64
	enqueues    atomic.Int64
	undelivered atomic.Int64
	polls       atomic.Int64
	hints       chan []string

	acquire   func(context.Context, []store.Acquire) ([]store.Acquired, error)
	enqueue   func(context.Context, []store.NewJob) ([]store.Enqueued, error)
	heartbeat func(context.Context, []store.Heartbeat) ([]store.Beaten, error)
	complete  func(context.Context, []store.Complete) ([]store.Completion, error)
	fail      func(context.Context, []store.Fail) ([]store.Ended, error)
	getQueue  func(context.Context, string) (*store.Queue, error)
	listJobs  func(context.Context, store.JobFilter, bool, store.Page) (store.JobPage, error)
	last      func(context.Context, store.JobID, int, int) ([]store.LeaseRecord, error)
	sweepPage func(context.Context, store.JobID, int, []string) (store.Swept, error)
	ready     func(context.Context, []string) ([]store.QueueReadiness, error)
	undeliver func(context.Context, []store.LeaseRef, *string) error
}

func newStore(t *testing.T, queues ...string) *hookedStore {
	t.Helper()
	h := &hookedStore{Memory: storetest.NewMemory(nil), hints: make(chan []string, 1000)}
	h.AlwaysWritable()
	if err := h.EnsureQueues(t.Context(), queues); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *hookedStore) Acquire(ctx context.Context, items []store.Acquire) ([]store.Acquired, error) {
	h.acquires.Add(1)
	if h.acquire != nil {
		return h.acquire(ctx, items)
	}
	return h.Memory.Acquire(ctx, items)
}

func (h *hookedStore) Enqueue(ctx context.Context, items []store.NewJob) ([]store.Enqueued, error) {
	h.enqueues.Add(1)
	if h.enqueue != nil {
		return h.enqueue(ctx, items)
	}
	return h.Memory.Enqueue(ctx, items)
}

func (h *hookedStore) Heartbeat(ctx context.Context, items []store.Heartbeat) ([]store.Beaten, error) {
	if h.heartbeat != nil {
		return h.heartbeat(ctx, items)
	}
	return h.Memory.Heartbeat(ctx, items)
}

func (h *hookedStore) Complete(ctx context.Context, items []store.Complete) ([]store.Completion, error) {
	if h.complete != nil {
		return h.complete(ctx, items)
	}
	return h.Memory.Complete(ctx, items)
}

func (h *hookedStore) Fail(ctx context.Context, items []store.Fail) ([]store.Ended, error) {
	if h.fail != nil {
		return h.fail(ctx, items)
	}
	return h.Memory.Fail(ctx, items)
}

func (h *hookedStore) GetQueue(ctx context.Context, name string) (*store.Queue, error) {
	if h.getQueue != nil {
		return h.getQueue(ctx, name)
	}
	return h.Memory.GetQueue(ctx, name)
}

func (h *hookedStore) ListJobs(ctx context.Context, f store.JobFilter, full bool, p store.Page) (store.JobPage, error) {
	if h.listJobs != nil {
		return h.listJobs(ctx, f, full, p)
	}
	return h.Memory.ListJobs(ctx, f, full, p)
}

func (h *hookedStore) LastLeases(ctx context.Context, id store.JobID, n, bytes int) ([]store.LeaseRecord, error) {
	if h.last != nil {
		return h.last(ctx, id, n, bytes)
	}
	return h.Memory.LastLeases(ctx, id, n, bytes)
}

func (h *hookedStore) SweepPage(ctx context.Context, after store.JobID, size int, queues []string) (store.Swept, error) {
	if h.sweepPage != nil {
		return h.sweepPage(ctx, after, size, queues)
	}
	return h.Memory.SweepPage(ctx, after, size, queues)
}

func (h *hookedStore) ReadyQueues(ctx context.Context, queues []string) ([]store.QueueReadiness, error) {
	h.polls.Add(1)
	if h.ready != nil {
		return h.ready(ctx, queues)
	}
	return h.Memory.ReadyQueues(ctx, queues)
}

func (h *hookedStore) Undeliver(ctx context.Context, leases []store.LeaseRef, requestID *string) error {
	h.undelivered.Add(int64(len(leases)))
	if h.undeliver != nil {
		return h.undeliver(ctx, leases, requestID)
	}
	return h.Memory.Undeliver(ctx, leases, requestID)
}

func (h *hookedStore) Hint(ctx context.Context, queues []string) error {
	select {
	case h.hints <- queues:
	default:
	}
	return h.Memory.Hint(ctx, queues)
}

// served is a server behind a real gRPC connection in memory, and its clients.
type served struct {
	*Server
	conn   *grpc.ClientConn
	leases pb.LeaseServiceClient
	jobs   pb.JobServiceClient
	queues pb.QueueServiceClient
}

// serve starts a server without its loops.
func serve(t *testing.T, st store.Store, cfg Config) *served {
	t.Helper()
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Registry == nil {
		cfg.Registry = prometheus.NewRegistry()
	}
	s, err := New(t.Context(), st, cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.SetServing(true)
	l := bufconn.Listen(1 << 20)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	out := &served{Server: s, conn: dial(t, l)}
	out.leases = pb.NewLeaseServiceClient(out.conn)
	out.jobs = pb.NewJobServiceClient(out.conn)
	out.queues = pb.NewQueueServiceClient(out.conn)
	t.Cleanup(func() {
		out.conn.Close()
		stopped, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.Drain(stopped); err != nil {
			t.Errorf("drain: %v", err)
		}
		if err := <-ended; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return out
}

func dial(t *testing.T, l *bufconn.Listener) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:bufconn",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// withLoops runs the waking loops of s until the test ends.
func (s *served) withLoops(t *testing.T) *served {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.RunWaking(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("waking loops: %v", err)
		}
	})
	return s
}

// eventually waits for a condition that another goroutine brings about.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("never came about: %s", what)
		}
	}
}

// enqueueOne stores a job through the API and returns its id.
func (s *served) enqueueOne(t *testing.T, req *pb.EnqueueRequest) string {
	t.Helper()
	resp, err := s.jobs.Enqueue(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetJobId()
}

// acquireOne leases one job through the API.
func (s *served) acquireOne(t *testing.T, queue string) *pb.Lease {
	t.Helper()
	resp, err := s.leases.AcquireLease(t.Context(), &pb.AcquireLeaseRequest{Queues: []string{queue}, LeaseOwner: "w/1"})
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.GetLeases()) != 1 {
		t.Fatalf("got %d leases, %v", len(resp.GetLeases()), resp.GetEmptyReason())
	}
	return resp.GetLeases()[0]
}
