package server

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/server/identity"
	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/storetest"
)

// fuzzMethods are all methods in a fixed order, so that a seed stays one for the same method.
var fuzzMethods = slices.Sorted(maps.Keys(requiredRoles))

// FuzzRequests sends any bytes that are a message to any method: through authentication,
// validation and handler, as an identity that may do all and as one that may do little.
// Whatever comes in, the answer is a status of the contract, never INTERNAL.
func FuzzRequests(f *testing.F) {
	for i := range fuzzMethods {
		f.Add(uint8(i), true, []byte{})
		f.Add(uint8(i), false, []byte{0x0a, 0x01, 'q'})
	}
	token := store.NewTokens(make([]byte, 32)).Seal(store.LeaseRef{JobID: 1, LeaseNo: 1})
	for method, m := range map[string]proto.Message{
		pb.JobService_Enqueue_FullMethodName: &pb.EnqueueRequest{
			Queue: "q", Payload: &pb.Payload{Content: &pb.Payload_Json{Json: `{"a":[1]}`}}, Headers: map[string]string{"a": "b"},
			Priority: proto.Int32(3), RunAt: timestamppb.New(time.Unix(1<<40, 0)), IdempotencyKey: proto.String("k"),
			Policy: &pb.JobPolicy{MaxAttempts: proto.Int32(1), Backoff: &pb.Backoff{Initial: durationpb.New(1)}},
		},
		pb.LeaseService_AcquireLease_FullMethodName: &pb.AcquireLeaseRequest{Queues: []string{"q", "r"}, LeaseOwner: "w", MaxJobs: proto.Int32(1000), RequestId: proto.String("r")},
		pb.LeaseService_BatchFail_FullMethodName: &pb.BatchFailRequest{Items: []*pb.FailRequest{
			{LeaseToken: token, Error: &pb.JobError{Code: "c", Message: "\x00"}, ThenEnqueue: []*pb.EnqueueRequest{{Queue: "r"}}}, {},
		}},
		pb.QueueService_RetryJobs_FullMethodName: &pb.RetryJobsRequest{Selection: &pb.JobSelection{JobIds: []string{"1", "9223372036854775807", "9999999999999999999"}}},
		pb.JobService_ListJobs_FullMethodName:    &pb.ListJobsRequest{Filter: &pb.JobFilter{States: []pb.JobState{2, 3}}, PageToken: "AQ"},
	} {
		wire, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(slices.Index(fuzzMethods, method)), false, wire)
	}
	few := fewRights(f)
	var rig *fuzzRig
	calls := 0
	f.Fuzz(func(t *testing.T, method uint8, all bool, wire []byte) {
		// Jobs pile up: a fresh store now and then keeps the calls quick.
		if calls++; calls%2000 == 1 {
			rig = newFuzzRig(t, few)
		}
		rig.send(t, fuzzMethods[int(method)%len(fuzzMethods)], all, wire)
	})
}

// fuzzRig calls methods without a network: what gRPC does with bytes is its own business.
type fuzzRig struct {
	*handlers
	layers []grpc.UnaryServerInterceptor
	all    *identity.Identity
	few    *identity.Identity
}

func newFuzzRig(t *testing.T, few *identity.Identity) *fuzzRig {
	t.Helper()
	memory := storetest.NewMemory(nil)
	memory.AlwaysWritable()
	if err := memory.EnsureQueues(t.Context(), []string{"q", "r"}); err != nil {
		t.Fatal(err)
	}
	s, err := New(t.Context(), memory, Config{Log: slog.New(slog.DiscardHandler), Access: &identity.Access{}})
	if err != nil {
		t.Fatal(err)
	}
	r := &fuzzRig{handlers: &handlers{s, &leaseService{Server: s}, &jobService{Server: s}, &queueService{Server: s}}, all: identity.Anyone(), few: few}
	r.layers = []grpc.UnaryServerInterceptor{errorsUnary, r.authorize, s.validateUnary, recoverUnary}
	return r
}

// fewRights is an identity of an access file that may act on some queues.
func fewRights(f *testing.F) *identity.Identity {
	f.Helper()
	token, line, err := identity.NewToken{Name: "few", Roles: []string{"worker", "producer", "operator"}, Queues: []string{"q*"}}.Make()
	if err != nil {
		f.Fatal(err)
	}
	path := filepath.Join(f.TempDir(), "access.yaml")
	if err := os.WriteFile(path, []byte("tokens:\n"+line), 0o600); err != nil {
		f.Fatal(err)
	}
	access, err := identity.OpenAccess(f.Context(), path, slog.New(slog.DiscardHandler))
	if err != nil {
		f.Fatal(err)
	}
	id, err := access.Authenticate(f.Context(), token, nil)
	if err != nil {
		f.Fatal(err)
	}
	return id
}

// method finds a method of the generated services, and the handler that implements it.
func (r *fuzzRig) method(t *testing.T, full string) (service any, handler grpc.MethodHandler) {
	t.Helper()
	for desc, service := range map[*grpc.ServiceDesc]any{
		&pb.LeaseService_ServiceDesc: r.leases, &pb.JobService_ServiceDesc: r.jobs, &pb.QueueService_ServiceDesc: r.queues,
	} {
		for _, m := range desc.Methods {
			if full == "/"+desc.ServiceName+"/"+m.MethodName {
				return service, m.Handler
			}
		}
	}
	t.Fatalf("no service has %s", full)
	return nil, nil
}

// authorize is authUnary behind authentication.
func (r *fuzzRig) authorize(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	resp, err := r.authorized(ctx, req, info.FullMethod, handler)
	r.audit(ctx, info.FullMethod, req, resp, err)
	return resp, err
}

// chained runs a handler behind the layers, the first outermost.
func (r *fuzzRig) chained(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	for _, layer := range slices.Backward(r.layers) {
		next := handler
		handler = func(ctx context.Context, req any) (any, error) { return layer(ctx, req, info, next) }
	}
	return handler(ctx, req)
}

func (r *fuzzRig) send(t *testing.T, method string, all bool, wire []byte) {
	t.Helper()
	service, handle := r.method(t, method)
	id := r.few
	if all {
		id = r.all
	}
	// A poll must not wait for longer than a fuzzer does.
	ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), identityKey{}, id), deadlineReserve+50*time.Millisecond)
	defer cancel()
	decoded := true
	decode := func(m any) error {
		err := proto.Unmarshal(wire, m.(proto.Message))
		decoded = err == nil
		return err
	}
	resp, err := handle(service, ctx, decode, r.chained)
	if !decoded {
		return // gRPC itself answers that
	}
	if code := status.Code(err); err != nil && (code == codes.Internal || code == codes.Unknown) {
		t.Fatalf("%s: %v", method, err)
	}
	if m, ok := resp.(proto.Message); ok && err == nil {
		if out, err := proto.Marshal(m); err != nil || len(out) > maxRequestBytes {
			t.Fatalf("%s: an answer of %d bytes, %v", method, len(out), err)
		}
	}
}
