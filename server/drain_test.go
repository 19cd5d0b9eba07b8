package server

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

func TestHealthStartsNotServing(t *testing.T) {
	s := serve(t, newStore(t), Config{})
	client := grpc_health_v1.NewHealthClient(s.conn)
	for _, serving := range []bool{false, true} {
		s.SetServing(serving)
		want := grpc_health_v1.HealthCheckResponse_NOT_SERVING
		if serving {
			want = grpc_health_v1.HealthCheckResponse_SERVING
		}
		for _, name := range []string{"", "leasehold.v1.LeaseService", "leasehold.v1.JobService", "leasehold.v1.QueueService"} {
			got, err := client.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: name})
			if err != nil || got.GetStatus() != want {
				t.Errorf("%q: %v %v, want %v", name, got, err, want)
			}
		}
	}
	fresh := newHandlers(t, newStore(t), Config{})
	got, err := fresh.health.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil || got.GetStatus() != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("before SetServing: %v %v", got, err)
	}
	_, err = client.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "unknown"})
	if status.Code(err) != codes.NotFound {
		t.Errorf("an unknown service: %v", err)
	}
}

var listServices = &grpc_reflection_v1.ServerReflectionRequest{
	MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{},
}

// TestReflectionListsTheServices, for grpcurl.
func TestReflectionListsTheServices(t *testing.T) {
	s := serve(t, newStore(t), Config{})
	stream, err := grpc_reflection_v1.NewServerReflectionClient(s.conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(listServices); err != nil {
		t.Fatal(err)
	}
	resp, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, svc := range resp.GetListServicesResponse().GetService() {
		found[svc.GetName()] = true
	}
	for _, name := range healthServices[1:] {
		if !found[name] {
			t.Errorf("%s is not listed: %v", name, found)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Error(err)
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the end of the stream: %v", err)
	}
}

// TestDrainDoesNotWaitForStreams: a watcher of health and an idle reflection client would
// hold up every shutdown until it cuts calls off.
func TestDrainDoesNotWaitForStreams(t *testing.T) {
	s := serve(t, newStore(t), Config{})
	watch, err := grpc_health_v1.NewHealthClient(s.conn).Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if first, err := watch.Recv(); err != nil || first.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Fatalf("%v %v", first, err)
	}
	idle, err := grpc_reflection_v1.NewServerReflectionClient(s.conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := idle.Send(listServices); err != nil {
		t.Fatal(err)
	}
	if _, err := idle.Recv(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := s.Drain(ctx); err != nil {
		t.Errorf("drain: %v", err)
	}
	if last, err := watch.Recv(); err != nil || last.GetStatus() != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("the watcher of health sees %v %v", last, err)
	}
	if _, err := watch.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the end of the watch: %v", err)
	}
}

// TestDrainAnswersCallsUnderWay and tells parked polls and heartbeats.
func TestDrainAnswersCallsUnderWay(t *testing.T) {
	st := newStore(t, "q", "empty")
	s := serve(t, st, Config{})
	s.enqueueOne(t, &pb.EnqueueRequest{Queue: "q"})
	token := s.acquireOne(t, "q").GetLeaseToken()
	parked := make(chan error, 1)
	go func() {
		_, err := s.leases.AcquireLease(t.Context(), &pb.AcquireLeaseRequest{
			Queues: []string{"empty"}, LeaseOwner: "w", Wait: durationpb.New(time.Minute),
		})
		parked <- err
	}()
	eventually(t, "the poll is parked", func() bool { return s.polls.waiters.count() == 1 })

	begun, release := make(chan struct{}), make(chan struct{})
	st.heartbeat = func(ctx context.Context, items []store.Heartbeat) ([]store.Beaten, error) {
		close(begun)
		<-release
		return st.Memory.Heartbeat(ctx, items)
	}
	beaten := make(chan *pb.HeartbeatResponse, 1)
	go func() {
		resp, err := s.leases.Heartbeat(t.Context(), &pb.HeartbeatRequest{LeaseToken: token})
		if err != nil {
			t.Error(err)
		}
		beaten <- resp
	}()
	<-begun
	drained := make(chan error, 1)
	go func() { drained <- s.Drain(t.Context()) }()
	if st := status.Convert(<-parked); st.Code() != codes.Unavailable || detailsOf(st).reason != "DRAINING" {
		t.Errorf("the parked poll: %v", st)
	}
	close(release)
	if resp := <-beaten; !resp.GetServerDraining() || resp.GetRemaining().AsDuration() <= 0 {
		t.Errorf("the heartbeat under way: %v", resp)
	}
	if err := <-drained; err != nil {
		t.Error(err)
	}
}

// TestDrainCutsOffWhatDoesNotEnd, and still waits until its leases are given back.
func TestDrainCutsOffWhatDoesNotEnd(t *testing.T) {
	st := newStore(t, "q")
	s := serve(t, st, Config{})
	id := s.enqueueOne(t, &pb.EnqueueRequest{Queue: "q"})
	begun, release := make(chan struct{}), make(chan struct{})
	st.acquire = func(ctx context.Context, items []store.Acquire) ([]store.Acquired, error) {
		got, err := st.Memory.Acquire(ctx, items)
		close(begun)
		<-release
		return got, err
	}
	called := make(chan error, 1)
	go func() {
		_, err := s.leases.AcquireLease(t.Context(), &pb.AcquireLeaseRequest{Queues: []string{"q"}, LeaseOwner: "w"})
		called <- err
	}()
	<-begun
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	drained := make(chan error, 1)
	go func() { drained <- s.Drain(ctx) }()
	st.undeliver = func(ctx context.Context, refs []store.LeaseRef, requestID *string) error {
		select {
		case err := <-drained:
			t.Errorf("drain returned (%v) and the store may be gone, while leases are given back", err)
			drained <- err
		case <-time.After(50 * time.Millisecond):
		}
		return st.Memory.Undeliver(ctx, refs, requestID)
	}
	if err := <-called; status.Code(err) != codes.Unavailable {
		t.Errorf("the call that was cut off: %v", err)
	}
	close(release)
	if err := <-drained; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("drain: %v", err)
	}
	job, err := st.GetJob(t.Context(), mustID(t, id), false)
	if err != nil || job.State != store.Pending {
		t.Errorf("after the drain the job is %v, %v", job.State, err)
	}
}

func mustID(t *testing.T, id string) store.JobID {
	t.Helper()
	in := &intake{}
	n := in.jobID("job_id", id)
	if err := in.err(); err != nil {
		t.Fatal(err)
	}
	return n
}
