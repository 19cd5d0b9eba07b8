package client_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasehold/leasehold/client"
	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// reasonCodes gives each reason of the contract its gRPC code.
var reasonCodes = map[pb.ErrorReason]codes.Code{
	pb.ErrorReason_ERROR_REASON_INVALID_REQUEST:        codes.InvalidArgument,
	pb.ErrorReason_ERROR_REASON_TOO_LARGE:              codes.InvalidArgument,
	pb.ErrorReason_ERROR_REASON_INVALID_TOKEN:          codes.InvalidArgument,
	pb.ErrorReason_ERROR_REASON_JOB_NOT_FOUND:          codes.NotFound,
	pb.ErrorReason_ERROR_REASON_QUEUE_NOT_FOUND:        codes.NotFound,
	pb.ErrorReason_ERROR_REASON_LEASE_SUPERSEDED:       codes.FailedPrecondition,
	pb.ErrorReason_ERROR_REASON_LEASE_EXPIRED:          codes.FailedPrecondition,
	pb.ErrorReason_ERROR_REASON_LEASE_ENDED:            codes.FailedPrecondition,
	pb.ErrorReason_ERROR_REASON_RESULT_CONFLICT:        codes.FailedPrecondition,
	pb.ErrorReason_ERROR_REASON_WRONG_STATE:            codes.FailedPrecondition,
	pb.ErrorReason_ERROR_REASON_IDEMPOTENCY_KEY_REUSED: codes.AlreadyExists,
	pb.ErrorReason_ERROR_REASON_REQUEST_ID_REUSED:      codes.AlreadyExists,
	pb.ErrorReason_ERROR_REASON_QUEUE_EXISTS:           codes.AlreadyExists,
	pb.ErrorReason_ERROR_REASON_OVERLOADED:             codes.ResourceExhausted,
	pb.ErrorReason_ERROR_REASON_RATE_LIMITED:           codes.ResourceExhausted,
	pb.ErrorReason_ERROR_REASON_DATABASE_UNAVAILABLE:   codes.Unavailable,
	pb.ErrorReason_ERROR_REASON_DRAINING:               codes.Unavailable,
	pb.ErrorReason_ERROR_REASON_JOB_BUSY:               codes.Unavailable,
	pb.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN:        codes.Unknown,
	pb.ErrorReason_ERROR_REASON_CREDENTIALS_MISSING:    codes.Unauthenticated,
	pb.ErrorReason_ERROR_REASON_CREDENTIALS_INVALID:    codes.Unauthenticated,
	pb.ErrorReason_ERROR_REASON_ROLE_MISSING:           codes.PermissionDenied,
	pb.ErrorReason_ERROR_REASON_INTERNAL:               codes.Internal,
}

func TestReasonsAreThoseOfTheContract(t *testing.T) {
	for number, name := range pb.ErrorReason_name {
		if _, known := reasonCodes[pb.ErrorReason(number)]; !known && number != 0 {
			t.Errorf("%s has no code here", name)
		}
	}
}

// refusals are all that a call can be answered instead of OK: each reason, and each code that gRPC
// makes by itself.
func refusals() map[string]error {
	all := map[string]error{}
	for reason, code := range reasonCodes {
		all[reasonWord(reason)] = refusal(code, reason, 0)
	}
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		all["bare "+code.String()] = status.Error(code, "made by gRPC")
	}
	return all
}

// TestNoAnswerStopsThePollLoop: whatever a poll is answered, the next one comes.
func TestNoAnswerStopsThePollLoop(t *testing.T) {
	t.Parallel()
	for name, refused := range refusals() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStub()
			job := once(1, time.Minute)
			var polls atomic.Int64
			s.acquire = func(ctx context.Context, req *pb.AcquireLeaseRequest) (*pb.AcquireLeaseResponse, error) {
				if polls.Add(1) == 1 {
					return nil, refused
				}
				return job(ctx, req)
			}
			done := make(chan struct{})
			over(t, s, client.WorkerConfig{Handler: func(context.Context, *client.Job) error { close(done); return nil }})
			await(t, "a job after the refusal", done)
		})
	}
}

// TestAnswersToHeartbeats: the lease that is over is lost, with its reason; all else is tried again
// and costs no lease.
func TestAnswersToHeartbeats(t *testing.T) {
	t.Parallel()
	over := []pb.ErrorReason{
		pb.ErrorReason_ERROR_REASON_LEASE_SUPERSEDED, pb.ErrorReason_ERROR_REASON_LEASE_EXPIRED, pb.ErrorReason_ERROR_REASON_LEASE_ENDED,
		pb.ErrorReason_ERROR_REASON_JOB_NOT_FOUND, pb.ErrorReason_ERROR_REASON_INVALID_TOKEN,
	}
	for reason, code := range reasonCodes {
		t.Run(reasonWord(reason), func(t *testing.T) {
			t.Parallel()
			if slices.Contains(over, reason) {
				losesTheLease(t, reason, code)
			} else {
				keepsTheLease(t, reason, code)
			}
		})
	}
}

// refuseOne is a heartbeat's answer that refuses the first of two leases.
func refuseOne(req *pb.BatchHeartbeatRequest, reason pb.ErrorReason, code codes.Code) *pb.BatchHeartbeatResponse {
	resp := renewed(req, time.Minute)
	for i, item := range req.GetItems() {
		if item.GetLeaseToken() == "token-1" {
			resp.Results[i] = &pb.BatchHeartbeatResult{Result: &pb.BatchHeartbeatResult_Error{Error: &pb.ItemError{
				Reason: reason, Code: int32(code), Metadata: map[string]string{"current_lease_no": "7"},
			}}}
		}
	}
	return resp
}

func losesTheLease(t *testing.T, reason pb.ErrorReason, code codes.Code) {
	s := newStub()
	s.acquire = soon(2)
	s.beat = func(_ context.Context, req *pb.BatchHeartbeatRequest) (*pb.BatchHeartbeatResponse, error) {
		return refuseOne(req, reason, code), nil
	}
	causes := make(chan error, 2)
	w := over(t, s, client.WorkerConfig{Concurrency: 2, Handler: func(ctx context.Context, job *client.Job) error {
		<-ctx.Done()
		if job.ID() == "1" {
			causes <- context.Cause(ctx)
			if err := job.Stage(context.Background(), "too late"); !errors.Is(err, context.Cause(ctx)) {
				t.Errorf("a stage of a lost lease: %v", err)
			}
		}
		return nil // the work is done all the same
	}})
	var lost *client.LostError
	if cause := await(t, "the loss", causes); !errors.As(cause, &lost) || lost.Reason != reason || lost.JobID != "1" || lost.CurrentLeaseNo != 7 {
		t.Fatalf("cause %v", cause)
	}
	if err := w.stopNow(); err != nil {
		t.Error(err)
	}
	// The other lease is completed. The lost one is not, unless that may be accepted, late.
	want := 1
	if reason == pb.ErrorReason_ERROR_REASON_LEASE_EXPIRED {
		want = 2
	}
	completed := 0
	for _, req := range seen[*pb.BatchCompleteRequest](s) {
		completed += len(req.GetItems())
	}
	if completed != want {
		t.Errorf("%d jobs completed, want %d", completed, want)
	}
}

func keepsTheLease(t *testing.T, reason pb.ErrorReason, code codes.Code) {
	s := newStub()
	s.acquire = soon(2)
	var beats atomic.Int64
	again := make(chan struct{})
	s.beat = func(_ context.Context, req *pb.BatchHeartbeatRequest) (*pb.BatchHeartbeatResponse, error) {
		if beats.Add(1) == 1 {
			return refuseOne(req, reason, code), nil
		}
		for _, item := range req.GetItems() {
			if item.GetLeaseToken() == "token-1" {
				close(again)
			}
		}
		return renewed(req, time.Minute), nil
	}
	w := over(t, s, client.WorkerConfig{Concurrency: 2, Handler: func(ctx context.Context, _ *client.Job) error {
		select {
		case <-again:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}})
	await(t, "the next heartbeat", again)
	awaitCalls[*pb.BatchCompleteRequest](t, s, 1)
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	if n := len(seen[*pb.BatchReleaseRequest](s)) + len(seen[*pb.BatchFailRequest](s)); n > 0 {
		t.Errorf("a handler was cancelled for %v", reason)
	}
}

// TestAnswersToComplete: whatever it is answered, the slot is free again in the end.
func TestAnswersToComplete(t *testing.T) {
	t.Parallel()
	for reason, code := range reasonCodes {
		t.Run(reasonWord(reason), func(t *testing.T) {
			t.Parallel()
			s := newStub()
			s.acquire = answers(granted(1, 10*time.Second, time.Second), granted(1, time.Minute, time.Minute))
			var calls atomic.Int64
			s.complete = func(ctx context.Context, req *pb.BatchCompleteRequest) (*pb.BatchCompleteResponse, error) {
				if calls.Add(1) == 1 {
					return &pb.BatchCompleteResponse{Results: []*pb.BatchCompleteResult{{Result: &pb.BatchCompleteResult_Error{
						Error: &pb.ItemError{Reason: reason, Code: int32(code)},
					}}}}, nil
				}
				return completeAll(ctx, req)
			}
			runs := make(chan struct{}, 2)
			over(t, s, client.WorkerConfig{Concurrency: 1, Handler: func(context.Context, *client.Job) error { runs <- struct{}{}; return nil }})
			await(t, "the first job", runs)
			await(t, "the second job", runs)
			awaitCalls[*pb.BatchCompleteRequest](t, s, 2)
		})
	}
}
