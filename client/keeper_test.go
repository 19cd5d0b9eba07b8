package client_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/leasehold/leasehold/client"
	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// sleeper is a machine that sleeps when its test says so.
type sleeper struct{ slept atomic.Int64 }

func (s *sleeper) sleep(d time.Duration) { s.slept.Add(int64(d)) }
func (s *sleeper) ahead() time.Duration  { return time.Duration(s.slept.Load()) }
func (s *sleeper) over(t *testing.T, stub *stub, handler client.Handler) *worker {
	t.Helper()
	w, err := client.NewWorkerWithClock(client.Over(stub), client.WorkerConfig{Queues: []string{"q"}, Handler: handler}, s.ahead)
	if err != nil {
		t.Fatal(err)
	}
	return run(t, w)
}

// TestSleepEndsTheLease: a machine that slept past the end of a lease cancels its handler, though
// the clock that timers go by stood still meanwhile. The first look of the handler at its context
// tells already; one that only waits is told within a second.
func TestSleepEndsTheLease(t *testing.T) {
	t.Parallel()
	var machine sleeper
	s := newStub()
	s.acquire = once(1, time.Hour)
	began, slept := make(chan struct{}), make(chan struct{})
	type seen struct {
		atOnce, cause error
	}
	result := make(chan seen, 1)
	machine.over(t, s, func(ctx context.Context, job *client.Job) error {
		close(began)
		<-slept
		atOnce := ctx.Err()
		<-ctx.Done()
		result <- seen{atOnce, context.Cause(ctx)}
		return nil // it was done all the same
	})
	await(t, "the handler", began)
	machine.sleep(2 * time.Hour)
	close(slept)
	got := await(t, "the end of its context", result)
	var expired *client.ExpiredError
	if !errors.Is(got.atOnce, context.Canceled) || !errors.As(got.cause, &expired) || expired.JobID != "1" || expired.LeaseNo != 1 {
		t.Errorf("at once %v, cause %v", got.atOnce, got.cause)
	}
	// Nobody else may have begun: the service decides whether it comes too late.
	awaitCalls[*pb.BatchCompleteRequest](t, s, 1)
}

// TestSleepWakesWhoOnlyWaits: a handler that never looks at its context is cancelled by the keeper.
func TestSleepWakesWhoOnlyWaits(t *testing.T) {
	t.Parallel()
	var machine sleeper
	s := newStub()
	s.acquire = once(1, time.Hour)
	waits, woken := make(chan struct{}), make(chan error, 1)
	machine.over(t, s, func(ctx context.Context, job *client.Job) error {
		done := ctx.Done()
		close(waits)
		<-done
		woken <- context.Cause(ctx)
		return context.Cause(ctx)
	})
	await(t, "the handler", waits)
	machine.sleep(2 * time.Hour)
	var expired *client.ExpiredError
	if cause := await(t, "the end of its context", woken); !errors.As(cause, &expired) {
		t.Errorf("cause %v", cause)
	}
	// Interrupted, not failed: it is given back in case that nobody else has it.
	awaitCalls[*pb.BatchReleaseRequest](t, s, 1)
}

// TestCancelledBeforeTheEnd: where no heartbeat succeeds, the handler is cancelled while the lease
// cannot be another's yet.
func TestCancelledBeforeTheEnd(t *testing.T) {
	t.Parallel()
	var machine sleeper
	s := newStub()
	s.acquire = once(1, time.Hour)
	s.beat = func(context.Context, *pb.BatchHeartbeatRequest) (*pb.BatchHeartbeatResponse, error) {
		return nil, refusal(codes.Unavailable, pb.ErrorReason_ERROR_REASON_DATABASE_UNAVAILABLE, 0)
	}
	began, left := make(chan struct{}), make(chan time.Duration, 1)
	machine.over(t, s, func(ctx context.Context, job *client.Job) error {
		close(began)
		<-ctx.Done()
		left <- job.Remaining()
		return context.Cause(ctx)
	})
	await(t, "the handler", began)
	machine.sleep(time.Hour - 3*time.Second/2) // the margin is 3 s
	if left := await(t, "the end of its context", left); left <= 0 {
		t.Errorf("cancelled %v before the end", left)
	}
}

// TestR13_RemainingIsCountedFromSentPlusWaited: a lease that came after a long wait is not taken for
// as good as over.
func TestR13_RemainingIsCountedFromSentPlusWaited(t *testing.T) {
	t.Parallel()
	s := newStub()
	answer := granted(1, time.Hour, time.Minute)
	answer.Waited = durationpb.New(time.Hour)
	s.acquire = answers(answer)
	left := make(chan time.Duration, 1)
	over(t, s, client.WorkerConfig{Handler: func(_ context.Context, job *client.Job) error { left <- job.Remaining(); return nil }})
	if left := await(t, "the handler", left); left <= time.Hour || left > 2*time.Hour {
		t.Errorf("%v remain", left)
	}
}

// TestAllLeasesBeatInOneCall: also those that were to beat a little later.
func TestAllLeasesBeatInOneCall(t *testing.T) {
	t.Parallel()
	s := newStub()
	answer := granted(200, time.Minute, time.Second)
	for i, l := range answer.GetLeases() {
		l.NextHeartbeatIn = durationpb.New(time.Second + time.Duration(i)*time.Millisecond)
	}
	s.acquire = answers(answer)
	over(t, s, client.WorkerConfig{Handler: idle, Concurrency: 200})
	if got := awaitCalls[*pb.BatchHeartbeatRequest](t, s, 1); len(got[0].GetItems()) != 200 {
		t.Errorf("%d leases in the first call", len(got[0].GetItems()))
	}
}

// TestHungHeartbeatDoesNotSuppressTheNext, nor does it on the way that hangs.
func TestHungHeartbeatDoesNotSuppressTheNext(t *testing.T) {
	t.Parallel()
	first, second := newStub(), newStub()
	hang := make(chan struct{})
	defer close(hang)
	first.acquire = soon(1)
	first.beat = func(context.Context, *pb.BatchHeartbeatRequest) (*pb.BatchHeartbeatResponse, error) {
		<-hang // whatever its deadline says
		return nil, status.Error(codes.Canceled, "")
	}
	cancelled := make(chan error, 1)
	w := start(t, client.Over(first, second), client.WorkerConfig{Queues: []string{"q"}, Handler: func(ctx context.Context, _ *client.Job) error {
		<-ctx.Done()
		cancelled <- context.Cause(ctx)
		return nil
	}})
	awaitCalls[*pb.BatchHeartbeatRequest](t, second, 1)
	if n := len(seen[*pb.BatchHeartbeatRequest](first)); n != 1 {
		t.Errorf("%d heartbeats on the way that hangs", n)
	}
	w.Hurry()
	var shutdown *client.ShutdownError
	if cause := await(t, "the end of the handler", cancelled); !errors.As(cause, &shutdown) {
		t.Errorf("cancelled by %v", cause)
	}
}

// TestHeartbeatsChangeReplica: at once where a call fails, and where the replica says that it drains.
func TestHeartbeatsChangeReplica(t *testing.T) {
	t.Parallel()
	draining := renewed(&pb.BatchHeartbeatRequest{Items: make([]*pb.HeartbeatRequest, 1)}, time.Minute)
	draining.Results[0].GetOk().ServerDraining = true
	draining.Results[0].GetOk().NextHeartbeatIn = durationpb.New(time.Millisecond)
	for name, beat := range map[string]func(context.Context, *pb.BatchHeartbeatRequest) (*pb.BatchHeartbeatResponse, error){
		"broken": func(context.Context, *pb.BatchHeartbeatRequest) (*pb.BatchHeartbeatResponse, error) {
			return nil, status.Error(codes.Unavailable, "connection reset")
		},
		"overload": func(context.Context, *pb.BatchHeartbeatRequest) (*pb.BatchHeartbeatResponse, error) {
			return nil, refusal(codes.ResourceExhausted, pb.ErrorReason_ERROR_REASON_OVERLOADED, 0)
		},
		"draining": func(context.Context, *pb.BatchHeartbeatRequest) (*pb.BatchHeartbeatResponse, error) {
			return draining, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, second := newStub(), newStub()
			first.acquire, first.beat = soon(1), beat
			start(t, client.Over(first, second), client.WorkerConfig{Queues: []string{"q"}, Handler: idle})
			awaitCalls[*pb.BatchHeartbeatRequest](t, second, 1)
		})
	}
}

// TestStagesAreMerged: stages that come while others are under way go together.
func TestStagesAreMerged(t *testing.T) {
	t.Parallel()
	const jobs = 300
	s := newStub()
	s.acquire = once(jobs, time.Hour)
	all := make(chan struct{})
	var called atomic.Int64
	s.beat = func(ctx context.Context, req *pb.BatchHeartbeatRequest) (*pb.BatchHeartbeatResponse, error) {
		<-all
		return renewAll(ctx, req)
	}
	results := make(chan error, jobs)
	over(t, s, client.WorkerConfig{Concurrency: jobs, Handler: func(ctx context.Context, job *client.Job) error {
		if called.Add(1) == jobs {
			close(all)
		}
		err := job.Stage(ctx, "psp_call")
		results <- err
		return err
	}})
	for range jobs {
		if err := await(t, "a stage", results); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(seen[*pb.BatchHeartbeatRequest](s)); n > jobs/3 {
		t.Errorf("%d calls for %d stages", n, jobs)
	}
}

// TestNoteOfALostHeartbeatIsCarriedAgain: what was sent first may arrive last, and undo newer notes.
func TestNoteOfALostHeartbeatIsCarriedAgain(t *testing.T) {
	t.Parallel()
	s := newStub()
	s.acquire = soon(1)
	var n atomic.Int64
	s.beat = func(_ context.Context, req *pb.BatchHeartbeatRequest) (*pb.BatchHeartbeatResponse, error) {
		if req.GetItems()[0].GetCheckpoint() != nil && n.Add(1) == 1 {
			return nil, status.Error(codes.Unavailable, "connection reset")
		}
		resp := renewed(req, time.Minute)
		resp.Results[0].GetOk().NextHeartbeatIn = durationpb.New(time.Millisecond)
		return resp, nil
	}
	over(t, s, client.WorkerConfig{Handler: func(ctx context.Context, job *client.Job) error {
		if err := job.Checkpoint(ctx, []byte("A1")); err != nil {
			t.Errorf("checkpoint: %v", err)
		}
		<-ctx.Done()
		return nil
	}})
	eventually(t, "it was carried by one call that failed and three that did not, and then no more", func() bool {
		carried, after := 0, 0
		for _, req := range seen[*pb.BatchHeartbeatRequest](s) {
			if req.GetItems()[0].GetCheckpoint() != nil {
				carried++
			} else if carried > 0 {
				after++
			}
		}
		return carried == 4 && after > 0
	})
}

// TestReleaseWaitsForHeartbeatUnderWay: one that came behind the release would look as if the job,
// leased by another meanwhile, was worked on twice.
func TestReleaseWaitsForHeartbeatUnderWay(t *testing.T) {
	t.Parallel()
	s := newStub()
	s.acquire = soon(1)
	under, answer := make(chan struct{}), make(chan struct{})
	var once sync.Once
	s.beat = func(ctx context.Context, req *pb.BatchHeartbeatRequest) (*pb.BatchHeartbeatResponse, error) {
		once.Do(func() { close(under) })
		<-answer
		if n := len(seen[*pb.BatchReleaseRequest](s)); n > 0 {
			t.Errorf("%d releases before the heartbeat was answered", n)
		}
		return renewAll(ctx, req)
	}
	over(t, s, client.WorkerConfig{Handler: func(context.Context, *client.Job) error {
		<-under
		time.AfterFunc(50*time.Millisecond, func() { close(answer) })
		return client.Release(0)
	}})
	awaitCalls[*pb.BatchReleaseRequest](t, s, 1)
}
