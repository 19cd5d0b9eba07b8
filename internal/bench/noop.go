package bench

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// maxStreams is that of the service: a server with fewer would hold calls back.
const maxStreams = 10_000

// ServeNoop serves gRPC calls that do nothing, with answers of the size that the service
// gives, until ctx ends: the limit of what calls alone cost.
func ServeNoop(ctx context.Context, l net.Listener) error {
	s := grpc.NewServer(grpc.MaxConcurrentStreams(maxStreams))
	pb.RegisterLeaseServiceServer(s, noopLeases{})
	pb.RegisterJobServiceServer(s, noopJobs{})
	go func() {
		<-ctx.Done()
		s.Stop()
	}()
	return s.Serve(l)
}

type noopLeases struct {
	pb.UnimplementedLeaseServiceServer
}

type noopJobs struct {
	pb.UnimplementedJobServiceServer
}

// noopPayload is what a workload's jobs carry unless it says otherwise.
var noopPayload = []byte(`{"payment":"8c7c3f0a-5d1e-4e7e-9b59-7a0f4f1c2d3e","amount":"12.50","currency":"EUR"}`)

// noopLease is a lease as the service answers it, filled in as far.
func noopLease(n int) *pb.Lease {
	now := time.Now()
	seconds := func(n int64) *durationpb.Duration { return &durationpb.Duration{Seconds: n} }
	number := func(n int32) *int32 { return &n }
	factor, jitter, owner := 2.0, 0.2, workerName
	return &pb.Lease{
		Job: &pb.Job{
			JobId: fmt.Sprint(1_000_000 + n), Queue: queueName, State: pb.JobState_JOB_STATE_PROCESSING, Priority: 5,
			RunAt: timestamppb.New(now), CreatedAt: timestamppb.New(now),
			Policy: &pb.JobPolicy{
				MaxAttempts: number(25), MaxExpirations: number(5),
				Backoff:       &pb.Backoff{Initial: seconds(1), Factor: &factor, Cap: seconds(3600), Jitter: &jitter},
				LeaseDuration: seconds(60), CancelGrace: seconds(300), IdempotencyRetention: seconds(604800),
			},
			LeaseNo: 1, LeaseOwner: &owner, LeaseUntil: timestamppb.New(now.Add(time.Minute)),
			Payload: &pb.Payload{Content: &pb.Payload_Data{Data: noopPayload}},
		},
		LeaseToken: "AQAAAAAAD0JAAAAAAAAAAAGq6qrqquqq6qrqquqq6qrq", LeaseNo: 1, Attempt: 1, MaxAttempts: 25,
		LeaseUntil: timestamppb.New(now.Add(time.Minute)), Remaining: seconds(60), NextHeartbeatIn: seconds(20),
	}
}

func (noopLeases) AcquireLease(_ context.Context, req *pb.AcquireLeaseRequest) (*pb.AcquireLeaseResponse, error) {
	resp := &pb.AcquireLeaseResponse{Waited: &durationpb.Duration{}}
	for i := range max(1, int(req.GetMaxJobs())) {
		resp.Leases = append(resp.Leases, noopLease(i))
	}
	return resp, nil
}

func (noopLeases) Complete(context.Context, *pb.CompleteRequest) (*pb.CompleteResponse, error) {
	return &pb.CompleteResponse{}, nil
}

func (noopLeases) Heartbeat(context.Context, *pb.HeartbeatRequest) (*pb.HeartbeatResponse, error) {
	return &pb.HeartbeatResponse{
		Remaining: &durationpb.Duration{Seconds: 60}, NextHeartbeatIn: &durationpb.Duration{Seconds: 20}, LeaseUntil: timestamppb.Now(),
	}, nil
}

func (noopJobs) Enqueue(context.Context, *pb.EnqueueRequest) (*pb.EnqueueResponse, error) {
	return &pb.EnqueueResponse{JobId: "1000000", Created: true}, nil
}
