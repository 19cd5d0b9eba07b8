package client_test

import (
	"context"
	"fmt"
	"path"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/leasehold/leasehold/client"
	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// stub is a service that says what a test tells it to. Without a word of the test it has no jobs,
// renews every lease for a minute and accepts every end.
type stub struct {
	acquire  func(context.Context, *pb.AcquireLeaseRequest) (*pb.AcquireLeaseResponse, error)
	beat     func(context.Context, *pb.BatchHeartbeatRequest) (*pb.BatchHeartbeatResponse, error)
	complete func(context.Context, *pb.BatchCompleteRequest) (*pb.BatchCompleteResponse, error)
	fail     func(context.Context, *pb.BatchFailRequest) (*pb.BatchFailResponse, error)
	enqueue  func(context.Context, *pb.BatchEnqueueRequest) (*pb.BatchEnqueueResponse, error)

	quiet bool // remember no calls

	mu    sync.Mutex
	calls []proto.Message
}

func newStub() *stub { return &stub{} }

func (s *stub) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	if s.quiet {
		resp, err := s.answer(ctx, method, args.(proto.Message))
		if err == nil {
			proto.Merge(reply.(proto.Message), resp)
		}
		return err
	}
	req := proto.Clone(args.(proto.Message))
	s.mu.Lock()
	s.calls = append(s.calls, req)
	s.mu.Unlock()
	resp, err := s.answer(ctx, method, req)
	if err == nil {
		proto.Merge(reply.(proto.Message), resp)
	}
	return err
}

func (*stub) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Error(codes.Unimplemented, "no streams")
}

func (s *stub) answer(ctx context.Context, method string, req proto.Message) (proto.Message, error) {
	switch r := req.(type) {
	case *pb.AcquireLeaseRequest:
		return orElse(s.acquire, nothing)(ctx, r)
	case *pb.BatchHeartbeatRequest:
		return orElse(s.beat, renewAll)(ctx, r)
	case *pb.BatchCompleteRequest:
		return orElse(s.complete, completeAll)(ctx, r)
	case *pb.BatchFailRequest:
		return orElse(s.fail, failAll)(ctx, r)
	case *pb.BatchReleaseRequest:
		resp := &pb.BatchReleaseResponse{}
		for range r.GetItems() {
			resp.Results = append(resp.Results, &pb.BatchReleaseResult{Result: &pb.BatchReleaseResult_Ok{Ok: &pb.ReleaseResponse{}}})
		}
		return resp, nil
	case *pb.BatchEnqueueRequest:
		return s.enqueue(ctx, r)
	}
	return nil, status.Error(codes.Unimplemented, path.Base(method))
}

func orElse[Req, Resp any](f, otherwise func(context.Context, Req) (Resp, error)) func(context.Context, Req) (Resp, error) {
	if f != nil {
		return f
	}
	return otherwise
}

// nothing is a long poll that finds nothing.
func nothing(ctx context.Context, req *pb.AcquireLeaseRequest) (*pb.AcquireLeaseResponse, error) {
	if req.GetWait().AsDuration() == 0 {
		return &pb.AcquireLeaseResponse{EmptyReason: pb.EmptyReason_EMPTY_REASON_NO_READY_JOBS}, nil
	}
	<-ctx.Done()
	return nil, status.FromContextError(ctx.Err()).Err()
}

func renewAll(_ context.Context, req *pb.BatchHeartbeatRequest) (*pb.BatchHeartbeatResponse, error) {
	return renewed(req, time.Minute), nil
}

func renewed(req *pb.BatchHeartbeatRequest, remaining time.Duration) *pb.BatchHeartbeatResponse {
	resp := &pb.BatchHeartbeatResponse{}
	for range req.GetItems() {
		resp.Results = append(resp.Results, &pb.BatchHeartbeatResult{Result: &pb.BatchHeartbeatResult_Ok{Ok: &pb.HeartbeatResponse{
			Remaining: durationpb.New(remaining), NextHeartbeatIn: durationpb.New(remaining / 3),
		}}})
	}
	return resp
}

func completeAll(_ context.Context, req *pb.BatchCompleteRequest) (*pb.BatchCompleteResponse, error) {
	resp := &pb.BatchCompleteResponse{}
	for range req.GetItems() {
		resp.Results = append(resp.Results, &pb.BatchCompleteResult{Result: &pb.BatchCompleteResult_Ok{Ok: &pb.CompleteResponse{}}})
	}
	return resp, nil
}

func failAll(_ context.Context, req *pb.BatchFailRequest) (*pb.BatchFailResponse, error) {
	resp := &pb.BatchFailResponse{}
	for range req.GetItems() {
		resp.Results = append(resp.Results, &pb.BatchFailResult{Result: &pb.BatchFailResult_Ok{Ok: &pb.FailResponse{}}})
	}
	return resp, nil
}

// once answers the first poll with leases of that length on so many jobs, and later ones with none.
func once(jobs int, length time.Duration) func(context.Context, *pb.AcquireLeaseRequest) (*pb.AcquireLeaseResponse, error) {
	return answers(granted(jobs, length, length/3))
}

// granted are leases of that length, which are to be renewed after next.
func granted(jobs int, length, next time.Duration) *pb.AcquireLeaseResponse {
	resp := &pb.AcquireLeaseResponse{}
	for i := range jobs {
		resp.Leases = append(resp.Leases, &pb.Lease{
			Job:        &pb.Job{JobId: fmt.Sprint(i + 1), Queue: "q"},
			LeaseToken: fmt.Sprintf("token-%d", i+1), LeaseNo: 1, Attempt: 1, MaxAttempts: 25,
			Remaining: durationpb.New(length), NextHeartbeatIn: durationpb.New(next),
		})
	}
	return resp
}

// soon answers the first poll with leases of a minute that are to be renewed at once.
func soon(jobs int) func(context.Context, *pb.AcquireLeaseRequest) (*pb.AcquireLeaseResponse, error) {
	return answers(granted(jobs, time.Minute, time.Millisecond))
}

// answers gives one answer to each poll, and then nothing.
func answers(list ...*pb.AcquireLeaseResponse) func(context.Context, *pb.AcquireLeaseRequest) (*pb.AcquireLeaseResponse, error) {
	var mu sync.Mutex
	return func(ctx context.Context, req *pb.AcquireLeaseRequest) (*pb.AcquireLeaseResponse, error) {
		mu.Lock()
		if len(list) > 0 {
			defer mu.Unlock()
			next := list[0]
			list = list[1:]
			return next, nil
		}
		mu.Unlock()
		return nothing(ctx, req)
	}
}

// seen are the calls of one kind so far.
func seen[M proto.Message](s *stub) []M {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []M
	for _, c := range s.calls {
		if m, ok := c.(M); ok {
			out = append(out, m)
		}
	}
	return out
}

// awaitCalls waits for so many calls of one kind.
func awaitCalls[M proto.Message](t testing.TB, s *stub, n int) (got []M) {
	t.Helper()
	var m M
	eventually(t, fmt.Sprintf("%d calls of %T", n, m), func() bool {
		got = seen[M](s)
		return len(got) >= n
	})
	return got
}

// refusal is a status as the service makes it.
func refusal(code codes.Code, reason pb.ErrorReason, retryAfter time.Duration) error {
	details := []protoadapt.MessageV1{protoadapt.MessageV1Of(&errdetails.ErrorInfo{Domain: "leasehold", Reason: reasonWord(reason)})}
	if retryAfter > 0 {
		details = append(details, protoadapt.MessageV1Of(&errdetails.RetryInfo{RetryDelay: durationpb.New(retryAfter)}))
	}
	s, err := status.New(code, "refused").WithDetails(details...)
	if err != nil {
		panic(err)
	}
	return s.Err()
}

func reasonWord(reason pb.ErrorReason) string { return reason.String()[len("ERROR_REASON_"):] }

// over runs a worker on a stub.
func over(t testing.TB, s *stub, cfg client.WorkerConfig) *worker {
	t.Helper()
	cfg.Queues = []string{"q"}
	return start(t, client.Over(s), cfg)
}

// idle is a handler that waits for the end of its context.
func idle(ctx context.Context, _ *client.Job) error {
	<-ctx.Done()
	return context.Cause(ctx)
}
