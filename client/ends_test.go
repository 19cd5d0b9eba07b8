package client_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/leasehold/leasehold/client"
	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

func nop(context.Context, *client.Job) error { return nil }

// TestEndsAreMerged: what ends while others are under way goes together.
func TestEndsAreMerged(t *testing.T) {
	t.Parallel()
	const jobs = 300
	s := newStub()
	s.acquire = once(jobs, time.Minute)
	all := make(chan struct{})
	s.complete = func(ctx context.Context, req *pb.BatchCompleteRequest) (*pb.BatchCompleteResponse, error) {
		<-all
		return completeAll(ctx, req)
	}
	var done atomic.Int64
	w := over(t, s, client.WorkerConfig{Concurrency: jobs, Handler: func(context.Context, *client.Job) error {
		if done.Add(1) == jobs {
			close(all)
		}
		return nil
	}})
	await(t, "the handlers", all)
	if err := w.stop(); err != nil {
		t.Fatal(err)
	}
	items := 0
	calls := seen[*pb.BatchCompleteRequest](s)
	for _, req := range calls {
		items += len(req.GetItems())
	}
	if items != jobs || len(calls) > jobs/3 {
		t.Errorf("%d calls of %d items", len(calls), items)
	}
}

// TestLostAnswerOfAnEndIsAskedForAgain: the same words, because then the service knows them again.
func TestLostAnswerOfAnEndIsAskedForAgain(t *testing.T) {
	t.Parallel()
	s := newStub()
	s.acquire = once(1, time.Minute)
	var calls atomic.Int64
	s.complete = func(ctx context.Context, req *pb.BatchCompleteRequest) (*pb.BatchCompleteResponse, error) {
		if calls.Add(1) < 3 {
			return nil, status.Error(codes.Unavailable, "connection reset")
		}
		return completeAll(ctx, req)
	}
	w := over(t, s, client.WorkerConfig{Handler: func(_ context.Context, job *client.Job) error {
		job.SetResult(client.Payload{Data: []byte(`{"settled":true}`), JSON: true})
		job.ThenEnqueue(client.NewJob{Queue: "receipts"})
		return nil
	}})
	said := awaitCalls[*pb.BatchCompleteRequest](t, s, 3)
	if !proto.Equal(said[0], said[2]) || said[0].GetItems()[0].GetResult().GetJson() != `{"settled":true}` || len(said[0].GetItems()[0].GetThenEnqueue()) != 1 {
		t.Errorf("first %v, then %v", said[0], said[2])
	}
	if err := w.stop(); err != nil {
		t.Error(err)
	}
}

// TestPoisonousEndIsIsolated: a call that fails for what is in it does not take the others along.
func TestPoisonousEndIsIsolated(t *testing.T) {
	t.Parallel()
	for name, refused := range map[string]error{
		"a fault of the service": refusal(codes.Internal, pb.ErrorReason_ERROR_REASON_INTERNAL, 0),
		"a message too big":      status.Error(codes.ResourceExhausted, "received message larger than max"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStub()
			s.acquire = once(8, time.Minute)
			var completed atomic.Int64
			gate := make(chan struct{})
			s.complete = func(ctx context.Context, req *pb.BatchCompleteRequest) (*pb.BatchCompleteResponse, error) {
				<-gate
				for _, item := range req.GetItems() {
					if item.GetLeaseToken() == "token-5" {
						return nil, refused
					}
				}
				completed.Add(int64(len(req.GetItems())))
				return completeAll(ctx, req)
			}
			var done atomic.Int64
			over(t, s, client.WorkerConfig{Handler: func(context.Context, *client.Job) error {
				if done.Add(1) == 8 {
					close(gate)
				}
				return nil
			}})
			eventually(t, "the others are completed", func() bool { return completed.Load() == 7 })
		})
	}
}

// refuseComplete refuses the first Complete for good.
func refuseComplete(s *stub, reason pb.ErrorReason) {
	s.complete = func(context.Context, *pb.BatchCompleteRequest) (*pb.BatchCompleteResponse, error) {
		return &pb.BatchCompleteResponse{Results: []*pb.BatchCompleteResult{{Result: &pb.BatchCompleteResult_Error{Error: &pb.ItemError{
			Reason: reason, Code: int32(reasonCodes[reason]), Message: "no", FieldViolations: []*pb.FieldViolation{{Field: "then_enqueue[0].queue", Description: "too odd"}},
		}}}}}, nil
	}
}

// TestRefusedCompleteBecomesFail: the lease lives on, and would only expire.
func TestRefusedCompleteBecomesFail(t *testing.T) {
	t.Parallel()
	s := newStub()
	s.acquire = once(1, time.Minute)
	refuseComplete(s, pb.ErrorReason_ERROR_REASON_INVALID_REQUEST)
	over(t, s, client.WorkerConfig{Handler: nop})
	said := awaitCalls[*pb.BatchFailRequest](t, s, 1)[0].GetItems()[0]
	if said.GetError().GetCode() != "result_refused" || said.GetPermanent() || !strings.Contains(said.GetError().GetMessage(), "then_enqueue[0].queue: too odd") {
		t.Errorf("said %v", said)
	}
}

// TestResultThatCannotBeSentBecomesFail: gRPC would refuse the call, and every other in it.
func TestResultThatCannotBeSentBecomesFail(t *testing.T) {
	t.Parallel()
	for name, result := range map[string]client.Payload{
		"too big for any message": {Data: make([]byte, 4<<20)},
		"not UTF-8":               {Data: []byte("\"\xff\""), JSON: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStub()
			s.acquire = once(1, time.Minute)
			over(t, s, client.WorkerConfig{Handler: func(_ context.Context, job *client.Job) error { job.SetResult(result); return nil }})
			if said := awaitCalls[*pb.BatchFailRequest](t, s, 1)[0].GetItems()[0]; said.GetError().GetCode() != "result_refused" {
				t.Errorf("said %v", said)
			}
		})
	}
}

// TestRefusedFollowUpsOfFailAreLeftOut: the failure itself must be told.
func TestRefusedFollowUpsOfFailAreLeftOut(t *testing.T) {
	t.Parallel()
	s := newStub()
	s.acquire = once(1, time.Minute)
	s.fail = func(ctx context.Context, req *pb.BatchFailRequest) (*pb.BatchFailResponse, error) {
		if item := req.GetItems()[0]; len(item.GetThenEnqueue()) > 0 || item.GetRetryAfter() != nil {
			return &pb.BatchFailResponse{Results: []*pb.BatchFailResult{{Result: &pb.BatchFailResult_Error{Error: &pb.ItemError{
				Reason: pb.ErrorReason_ERROR_REASON_INVALID_REQUEST, Code: int32(codes.InvalidArgument),
			}}}}}, nil
		}
		return failAll(ctx, req)
	}
	w := over(t, s, client.WorkerConfig{Handler: func(context.Context, *client.Job) error {
		return client.RetryAfter(10_000*24*time.Hour, client.ThenEnqueue(errors.New("no money"), client.NewJob{Queue: "Odd"}))
	}})
	said := awaitCalls[*pb.BatchFailRequest](t, s, 3)[2].GetItems()[0]
	if said.GetError().GetMessage() != "no money" || !strings.Contains(said.GetError().GetDetails(), "follow-ups were refused") {
		t.Errorf("said %v", said)
	}
	if err := w.stop(); err != nil {
		t.Error(err)
	}
}

// TestWhatAnErrorMeans: the end that each kind of error makes.
func TestWhatAnErrorMeans(t *testing.T) {
	t.Parallel()
	sad := errors.New("sad")
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"plain":               {sad, `fail "sad"`},
		"permanent":           {client.Permanent(sad), `fail "sad" permanent`},
		"retry after":         {client.RetryAfter(time.Minute, sad), `fail "sad" after 1m0s`},
		"retry at once":       {client.RetryAfter(0, sad), `fail "sad" after 0s`},
		"combined":            {client.Permanent(client.WithCode("declined", sad)), `fail "sad" permanent code declined`},
		"the other way round": {client.WithCode("declined", client.Permanent(sad)), `fail "sad" permanent code declined`},
		"wrapped":             {fmt.Errorf("very %w", client.Permanent(sad)), `fail "very sad" permanent`},
		"with follow-ups":     {client.ThenEnqueue(sad, client.NewJob{Queue: "a"}, client.NewJob{Queue: "b"}), `fail "sad" then 2`},
		"by hand":             {&client.FailError{Err: sad, Code: "c", Details: "d"}, `fail "sad" code c details d`},
		"not UTF-8":           {errors.New("a\xffb"), `fail "a` + "\uFFFD" + `b"`},
		"released":            {fmt.Errorf("wrapped: %w", client.Release(time.Minute)), `release after 1m0s`},
		"released at once":    {client.Release(0), `release`},
		"none":                {nil, `complete`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStub()
			s.acquire = once(1, time.Minute)
			w := over(t, s, client.WorkerConfig{Handler: func(context.Context, *client.Job) error { return c.err }})
			eventually(t, "the job ends", func() bool { return endOf(s) != "" })
			if got := endOf(s); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			if err := w.stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// endOf describes the end of the only job.
func endOf(s *stub) string {
	if len(seen[*pb.BatchCompleteRequest](s)) > 0 {
		return "complete"
	}
	if released := seen[*pb.BatchReleaseRequest](s); len(released) > 0 {
		if d := released[0].GetItems()[0].GetDelay(); d != nil {
			return "release after " + d.AsDuration().String()
		}
		return "release"
	}
	if failed := seen[*pb.BatchFailRequest](s); len(failed) > 0 {
		f := failed[0].GetItems()[0]
		text := fmt.Sprintf("fail %q", f.GetError().GetMessage())
		if f.GetPermanent() {
			text += " permanent"
		}
		if f.GetRetryAfter() != nil {
			text += " after " + f.GetRetryAfter().AsDuration().String()
		}
		if c := f.GetError().GetCode(); c != "" {
			text += " code " + c
		}
		if d := f.GetError().GetDetails(); d != "" {
			text += " details " + d
		}
		if n := len(f.GetThenEnqueue()); n > 0 {
			text += fmt.Sprint(" then ", n)
		}
		return text
	}
	return ""
}

// TestLongTextsAreCut on the boundary of a character, so that gRPC carries them.
func TestLongTextsAreCut(t *testing.T) {
	t.Parallel()
	s := newStub()
	s.acquire = once(1, time.Minute)
	over(t, s, client.WorkerConfig{Handler: func(context.Context, *client.Job) error {
		return client.WithCode(strings.Repeat("c", 200), errors.New(strings.Repeat("ü", 10_000)))
	}})
	said := awaitCalls[*pb.BatchFailRequest](t, s, 1)[0].GetItems()[0].GetError()
	if len(said.GetMessage()) > 16<<10 || len(said.GetMessage()) < 16<<10-10 || !strings.HasSuffix(said.GetMessage(), "ü …cut") || len(said.GetCode()) > 128 {
		t.Errorf("%d bytes, %q", len(said.GetMessage()), said.GetMessage()[len(said.GetMessage())-20:])
	}
}
