package servertest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// upstream is the way from a sidecar to a replica, on which a test counts, holds and fails calls.
type upstream struct {
	grpc.ClientConnInterface
	mu     sync.Mutex
	counts map[string]int
	before map[string]func(context.Context) error
	after  map[string]func(context.Context) error
	seen   metadata.MD // of the last call
}

func newUpstream(conn grpc.ClientConnInterface) *upstream {
	return &upstream{
		ClientConnInterface: conn, counts: map[string]int{},
		before: map[string]func(context.Context) error{}, after: map[string]func(context.Context) error{},
	}
}

func (u *upstream) Invoke(ctx context.Context, method string, req, resp any, opts ...grpc.CallOption) error {
	u.mu.Lock()
	u.counts[method]++
	before, after := u.before[method], u.after[method]
	u.seen, _ = metadata.FromOutgoingContext(ctx)
	u.mu.Unlock()
	if before != nil {
		if err := before(ctx); err != nil {
			return err
		}
	}
	err := u.ClientConnInterface.Invoke(ctx, method, req, resp, opts...)
	if err == nil && after != nil {
		err = after(ctx)
	}
	return err
}

func (u *upstream) count(method string) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.counts[method]
}

// once is a hook that fails the first call.
func once(err error) func(context.Context) error {
	var first sync.Once
	return func(context.Context) (failed error) {
		first.Do(func() { failed = err })
		return failed
	}
}

// broken is what gRPC says of a connection that broke.
var broken = status.Error(codes.Unavailable, "error reading from server: EOF")

// sidecarRig is a replica with a queue, a sidecar before it, and the way between.
type sidecarRig struct {
	*replica
	up     *upstream
	gauges *prometheus.Registry // of the sidecar
	beside *replicaClients
}

// started is how many heartbeats have come to the sidecar.
func (r *sidecarRig) started(t *testing.T) (n float64) {
	t.Helper()
	families, err := r.gauges.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, label := range m.GetLabel() {
				if f.GetName() == "grpc_server_started_total" && label.GetValue() == "Heartbeat" {
					n += m.GetCounter().GetValue()
				}
			}
		}
	}
	return n
}

type replicaClients struct {
	leases pb.LeaseServiceClient
	jobs   pb.JobServiceClient
}

func newSidecarRig(t *testing.T) *sidecarRig {
	t.Helper()
	r := startReplica(t, newDatabase(t).URL)
	if _, err := r.queues.CreateQueue(t.Context(), &pb.CreateQueueRequest{Queue: &pb.Queue{Name: "q"}}); err != nil {
		t.Fatal(err)
	}
	up := newUpstream(r.conn)
	gauges := prometheus.NewRegistry()
	conn := besideSidecar(t, up, gauges)
	return &sidecarRig{replica: r, up: up, gauges: gauges, beside: &replicaClients{pb.NewLeaseServiceClient(conn), pb.NewJobServiceClient(conn)}}
}

// lease enqueues a job and takes it.
func (r *sidecarRig) lease(t *testing.T) *pb.Lease {
	t.Helper()
	if _, err := r.beside.jobs.Enqueue(t.Context(), &pb.EnqueueRequest{Queue: "q"}); err != nil {
		t.Fatal(err)
	}
	got, err := r.beside.leases.AcquireLease(t.Context(), acquireOne())
	if err != nil || len(got.GetLeases()) != 1 {
		t.Fatal(got, err)
	}
	return got.GetLeases()[0]
}

func acquireOne() *pb.AcquireLeaseRequest {
	return &pb.AcquireLeaseRequest{Queues: []string{"q"}, LeaseOwner: "w/1"}
}

// TestSidecarMergesCalls: what comes while calls run goes together, and who gets an error gets
// that of a single call, with its details.
func TestSidecarMergesCalls(t *testing.T) {
	t.Parallel()
	r := newSidecarRig(t)
	good := make([]*pb.Lease, 20)
	for i := range good {
		good[i] = r.lease(t)
	}
	ended := r.lease(t)
	if _, err := r.leases.Release(t.Context(), &pb.ReleaseRequest{LeaseToken: ended.GetLeaseToken()}); err != nil {
		t.Fatal(err)
	}
	// The first calls are held until all others wait.
	let := make(chan struct{})
	r.up.before[pb.LeaseService_Heartbeat_FullMethodName] = func(context.Context) error { <-let; return nil }
	var all sync.WaitGroup
	errs := make(chan error, len(good)+1)
	for _, l := range append([]*pb.Lease{ended}, good...) {
		all.Go(func() {
			_, err := r.beside.leases.Heartbeat(t.Context(), &pb.HeartbeatRequest{LeaseToken: l.GetLeaseToken()})
			errs <- err
		})
	}
	eventually(t, "all heartbeats at the sidecar", func() bool { return r.started(t) == 21 })
	close(let)
	all.Wait()
	close(errs)
	var refused []error
	for err := range errs {
		if err != nil {
			refused = append(refused, err)
		}
	}
	if len(refused) != 1 || len(status.Convert(refused[0]).Details()) == 0 {
		t.Errorf("of 21 heartbeats, one for a lease that ended, these were refused: %v", refused)
	}
	if n := r.up.count(pb.LeaseService_Heartbeat_FullMethodName) + r.up.count(pb.LeaseService_BatchHeartbeat_FullMethodName); n > 15 {
		t.Errorf("21 heartbeats that came together took %d calls", n)
	}
}

// TestSidecarRepeats: a lost answer and a broken connection are not the worker's business.
func TestSidecarRepeats(t *testing.T) {
	t.Parallel()
	r := newSidecarRig(t)
	t.Run("the answer of an acquire is lost", func(t *testing.T) {
		if _, err := r.beside.jobs.Enqueue(t.Context(), &pb.EnqueueRequest{Queue: "q"}); err != nil {
			t.Fatal(err)
		}
		r.up.after[pb.LeaseService_AcquireLease_FullMethodName] = once(broken)
		got, err := r.beside.leases.AcquireLease(t.Context(), acquireOne())
		if err != nil || len(got.GetLeases()) != 1 || got.GetLeases()[0].GetJob().GetLeaseNo() != 1 {
			t.Errorf("got %v, %v; want the lease that was given", got, err)
		}
	})
	t.Run("the answer of a complete is lost", func(t *testing.T) {
		l := r.lease(t)
		r.up.after[pb.LeaseService_Complete_FullMethodName] = once(broken)
		if _, err := r.beside.leases.Complete(t.Context(), &pb.CompleteRequest{LeaseToken: l.GetLeaseToken()}); err != nil {
			t.Error(err)
		}
	})
	t.Run("an enqueue without a key is not repeated", func(t *testing.T) {
		r.up.after[pb.JobService_Enqueue_FullMethodName] = once(broken)
		if _, err := r.beside.jobs.Enqueue(t.Context(), &pb.EnqueueRequest{Queue: "q"}); status.Code(err) != codes.Unavailable {
			t.Errorf("got %v; a job might be there twice", err)
		}
	})
	t.Run("an enqueue with a key is", func(t *testing.T) {
		r.up.after[pb.JobService_Enqueue_FullMethodName] = once(broken)
		key := "order-17"
		got, err := r.beside.jobs.Enqueue(t.Context(), &pb.EnqueueRequest{Queue: "q", IdempotencyKey: &key})
		if err != nil || got.GetCreated() {
			t.Errorf("got %v, %v; want the job that was stored", got, err)
		}
	})
}

// TestSidecarKeepsItsOwnIdentity: what a worker sends as its authorization stays in the sidecar,
// its request id goes on.
func TestSidecarKeepsItsOwnIdentity(t *testing.T) {
	t.Parallel()
	r := newSidecarRig(t)
	var header metadata.MD
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer stolen", "x-request-id", "r-17")
	if _, err := r.beside.jobs.Enqueue(ctx, &pb.EnqueueRequest{Queue: "q"}, grpc.Header(&header)); err != nil {
		t.Fatal(err)
	}
	if got := r.up.seen.Get("authorization"); len(got) != 0 {
		t.Errorf("the service was sent %v", got)
	}
	if got := header.Get("x-request-id"); len(got) != 1 || got[0] != "r-17" {
		t.Errorf("the request id came back as %v", got)
	}
}

// TestSidecarGivesBackForTheGone: a lease that comes for a worker that has gone runs again at once.
func TestSidecarGivesBackForTheGone(t *testing.T) {
	t.Parallel()
	r := newSidecarRig(t)
	if _, err := r.jobs.Enqueue(t.Context(), &pb.EnqueueRequest{Queue: "q"}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r.up.after[pb.LeaseService_AcquireLease_FullMethodName] = func(up context.Context) error {
		cancel()
		<-up.Done() // the worker's going away has arrived
		return nil
	}
	if _, err := r.beside.leases.AcquireLease(ctx, acquireOne()); status.Code(err) != codes.Canceled {
		t.Fatal(err)
	}
	eventually(t, "the job to be free", func() bool {
		got, err := r.leases.AcquireLease(t.Context(), acquireOne())
		return err == nil && len(got.GetLeases()) == 1
	})
}

// TestSidecarPollsInPieces: a poll that is longer than a piece, over a replica that restarts, is
// one poll to the worker.
func TestSidecarPollsInPieces(t *testing.T) {
	t.Parallel()
	r := newSidecarRig(t)
	r.up.before[pb.LeaseService_AcquireLease_FullMethodName] = once(broken)
	answered := make(chan *pb.AcquireLeaseResponse, 1)
	go func() {
		req := acquireOne()
		req.Wait = durationpb.New(50 * time.Second)
		got, err := r.beside.leases.AcquireLease(t.Context(), req)
		if err != nil {
			t.Error(err)
		}
		answered <- got
	}()
	// The first piece ends empty after 15 s, and another begins.
	eventually(t, "another piece", func() bool { return r.up.count(pb.LeaseService_AcquireLease_FullMethodName) >= 3 && r.parked(t) == 1 })
	if _, err := r.beside.jobs.Enqueue(t.Context(), &pb.EnqueueRequest{Queue: "q"}); err != nil {
		t.Fatal(err)
	}
	got := <-answered
	if len(got.GetLeases()) != 1 || got.GetWaited().AsDuration() < 10*time.Second {
		t.Errorf("got %v; want a lease, and what was waited in all", got)
	}
}

// TestSidecarDrains: no lease is given any more, parked polls end, and a lease can be completed
// until the worker has gone.
func TestSidecarDrains(t *testing.T) {
	t.Parallel()
	r := startReplica(t, newDatabase(t).URL)
	if _, err := r.queues.CreateQueue(t.Context(), &pb.CreateQueueRequest{Queue: &pb.Queue{Name: "q"}}); err != nil {
		t.Fatal(err)
	}
	s, conn, served := sidecarBefore(t, r.conn, prometheus.NewRegistry())
	leases := pb.NewLeaseServiceClient(conn)
	if _, err := r.jobs.Enqueue(t.Context(), &pb.EnqueueRequest{Queue: "q"}); err != nil {
		t.Fatal(err)
	}
	held, err := leases.AcquireLease(t.Context(), acquireOne())
	if err != nil || len(held.GetLeases()) != 1 {
		t.Fatal(held, err)
	}
	parked := make(chan error, 1)
	go func() {
		req := acquireOne()
		req.Wait = durationpb.New(50 * time.Second)
		_, err := leases.AcquireLease(t.Context(), req)
		parked <- err
	}()
	eventually(t, "a parked poll", func() bool { return r.parked(t) == 1 })
	drained := make(chan struct{})
	go func() { defer close(drained); s.Drain(t.Context()) }()
	if err := <-parked; status.Code(err) != codes.Unavailable {
		t.Errorf("a parked poll ended with %v", err)
	}
	var trailer metadata.MD
	if _, err := leases.AcquireLease(t.Context(), acquireOne(), grpc.Trailer(&trailer)); status.Code(err) != codes.Unavailable || trailer.Get("leasehold-reason")[0] != "DRAINING" {
		t.Errorf("an acquire got %v, %v", err, trailer)
	}
	if _, err := leases.Complete(t.Context(), &pb.CompleteRequest{LeaseToken: held.GetLeases()[0].GetLeaseToken()}); err != nil {
		t.Errorf("a complete during the drain: %v", err)
	}
	conn.Close()
	<-drained
	if err := <-served; err != nil {
		t.Error(err)
	}
}
