package clienttest

import (
	"bytes"
	"cmp"
	"context"
	"path"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/leasehold/leasehold/client"
	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

const (
	leaseLength = time.Hour
	// beatEvery is short, so that what a test lets happen is told at once.
	beatEvery = 10 * time.Millisecond
)

// service is a LeaseService in memory that has one job.
type service struct {
	lease *pb.Lease

	mu        sync.Mutex
	given     bool
	cancelled bool
	lost      bool
	got       Outcome
	more      chan struct{} // closed, and made anew, where got changes
}

func newService(job Job) *service {
	attempt := cmp.Or(job.Attempt, 1)
	lease := &pb.Lease{
		Job: &pb.Job{
			JobId: cmp.Or(job.ID, "1"), Queue: cmp.Or(job.Queue, "test"), State: pb.JobState_JOB_STATE_PROCESSING,
			Payload: wireOf(job.Payload), Headers: job.Headers, LeaseNo: cmp.Or(job.LeaseNo, int64(attempt)), AttemptsUsed: int32(attempt - 1),
		},
		LeaseToken: "clienttest", LeaseNo: cmp.Or(job.LeaseNo, int64(attempt)),
		Attempt: int32(attempt), MaxAttempts: int32(cmp.Or(job.MaxAttempts, 25)),
		Remaining: durationpb.New(leaseLength), NextHeartbeatIn: durationpb.New(beatEvery), LastCheckpoint: job.LastCheckpoint,
	}
	if job.Subject != "" {
		lease.Job.Subject = &job.Subject
	}
	if job.LastStage != "" {
		lease.LastStage = &job.LastStage
	}
	return &service{lease: lease, got: Outcome{End: Silent}, more: make(chan struct{})}
}

// Invoke answers the calls that a worker makes.
func (s *service) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	resp, err := s.answer(ctx, method, args)
	if err == nil {
		proto.Merge(reply.(proto.Message), resp)
	}
	return err
}

// NewStream refuses: a worker opens none.
func (*service) NewStream(_ context.Context, _ *grpc.StreamDesc, method string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Error(codes.Unimplemented, method)
}

func (s *service) answer(ctx context.Context, method string, args any) (proto.Message, error) {
	switch req := args.(type) {
	case *pb.AcquireLeaseRequest:
		return s.acquire(ctx, req)
	case *pb.BatchHeartbeatRequest:
		return s.beat(req), nil
	case *pb.BatchCompleteRequest:
		for _, item := range req.GetItems() {
			s.set(func(s *service) {
				s.got.End, s.got.Result, s.got.ThenEnqueue = Completed, payloadOf(item.GetResult()), jobsOf(item.GetThenEnqueue())
			})
		}
		return &pb.BatchCompleteResponse{Results: repeat(req.GetItems(), &pb.BatchCompleteResult{
			Result: &pb.BatchCompleteResult_Ok{Ok: &pb.CompleteResponse{}},
		})}, nil
	case *pb.BatchFailRequest:
		for _, item := range req.GetItems() {
			s.set(func(s *service) { s.failed(item) })
		}
		return &pb.BatchFailResponse{Results: repeat(req.GetItems(), &pb.BatchFailResult{Result: &pb.BatchFailResult_Ok{Ok: &pb.FailResponse{}}})}, nil
	case *pb.BatchReleaseRequest:
		for _, item := range req.GetItems() {
			s.set(func(s *service) { s.got.End, s.got.RetryAfter = Released, durationOf(item.GetDelay()) })
		}
		return &pb.BatchReleaseResponse{Results: repeat(req.GetItems(), &pb.BatchReleaseResult{
			Result: &pb.BatchReleaseResult_Ok{Ok: &pb.ReleaseResponse{}},
		})}, nil
	}
	return nil, status.Errorf(codes.Unimplemented, "clienttest has no %s", path.Base(method))
}

// repeat is one result for each item.
func repeat[Item, Result any](items []Item, r Result) []Result {
	return slices.Repeat([]Result{r}, len(items))
}

// acquire gives the job to the first poll; later ones wait in vain.
func (s *service) acquire(ctx context.Context, req *pb.AcquireLeaseRequest) (proto.Message, error) {
	s.mu.Lock()
	first := !s.given
	s.given = true
	s.mu.Unlock()
	if first {
		return &pb.AcquireLeaseResponse{Leases: []*pb.Lease{s.lease}}, nil
	}
	if req.GetWait().AsDuration() > 0 {
		<-ctx.Done()
	}
	return &pb.AcquireLeaseResponse{EmptyReason: pb.EmptyReason_EMPTY_REASON_NO_READY_JOBS}, nil
}

func (s *service) beat(req *pb.BatchHeartbeatRequest) proto.Message {
	resp := &pb.BatchHeartbeatResponse{}
	for _, item := range req.GetItems() {
		s.set(func(s *service) { resp.Results = append(resp.Results, s.renew(item)) })
	}
	return resp
}

// renew answers one heartbeat, and notes what it carries.
func (s *service) renew(item *pb.HeartbeatRequest) *pb.BatchHeartbeatResult {
	if s.lost {
		return &pb.BatchHeartbeatResult{Result: &pb.BatchHeartbeatResult_Error{Error: &pb.ItemError{
			Reason: pb.ErrorReason_ERROR_REASON_LEASE_SUPERSEDED, Code: int32(codes.FailedPrecondition), Message: "clienttest: another worker has it",
		}}}
	}
	if item.Stage != nil && (len(s.got.Stages) == 0 || s.got.Stages[len(s.got.Stages)-1] != item.GetStage()) {
		s.got.Stages = append(s.got.Stages, item.GetStage())
	}
	if item.Progress != nil {
		s.got.Progress = item.Progress
	}
	if n := len(s.got.Checkpoints); item.Checkpoint != nil && (n == 0 || !bytes.Equal(s.got.Checkpoints[n-1], item.GetCheckpoint())) {
		s.got.Checkpoints = append(s.got.Checkpoints, bytes.Clone(item.GetCheckpoint()))
	}
	return &pb.BatchHeartbeatResult{Result: &pb.BatchHeartbeatResult_Ok{Ok: &pb.HeartbeatResponse{
		Remaining: durationpb.New(leaseLength), NextHeartbeatIn: durationpb.New(beatEvery), CancelRequested: s.cancelled,
	}}}
}

func (s *service) failed(item *pb.FailRequest) {
	s.got.End, s.got.Permanent, s.got.RetryAfter = Failed, item.GetPermanent(), durationOf(item.GetRetryAfter())
	s.got.Code, s.got.Message, s.got.Details = item.GetError().GetCode(), item.GetError().GetMessage(), item.GetError().GetDetails()
	s.got.ThenEnqueue = jobsOf(item.GetThenEnqueue())
}

func durationOf(d *durationpb.Duration) *time.Duration {
	if d == nil {
		return nil
	}
	out := d.AsDuration()
	return &out
}

func jobsOf(reqs []*pb.EnqueueRequest) []client.NewJob {
	var jobs []client.NewJob
	for _, req := range reqs {
		jobs = append(jobs, newJobOf(req))
	}
	return jobs
}

// set changes the service, and tells those who wait for a change.
func (s *service) set(change func(*service)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
	close(s.more)
	s.more = make(chan struct{})
}

func (s *service) stages() ([]string, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.got.Stages), s.more
}

func (s *service) outcome() Outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got
}
