package client_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold/leasehold/client"
	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/faultproxy"
)

// released checks that jobs were given back without using an attempt.
func (w *world) released(ids []string) {
	w.t.Helper()
	for _, id := range ids {
		got := w.job(id)
		if got.GetJob().GetState() != pb.JobState_JOB_STATE_PENDING || got.GetJob().GetAttemptsUsed() != 0 ||
			len(got.GetLeases()) != 1 || got.GetLeases()[0].GetEnd() != pb.LeaseEnd_LEASE_END_RELEASED {
			w.t.Errorf("job %s: %v", id, got)
		}
	}
}

// untouched checks that jobs wait as before: they may have crossed the shutdown, and been given back.
func (w *world) untouched(ids []string) {
	w.t.Helper()
	for _, id := range ids {
		if job := w.job(id).GetJob(); job.GetState() != pb.JobState_JOB_STATE_PENDING || job.GetAttemptsUsed() != 0 {
			w.t.Errorf("a job that came after the shutdown: %v", job)
		}
	}
}

// TestDrain: of five jobs two finish within the grace; the others are given back, unfinished and
// without using an attempt, and nothing is leased any more.
func TestDrain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	q := w.createQueue(&pb.Queue{Name: "q"})
	ids := w.enqueue(q, 5)
	began, draining := make(chan struct{}, 5), make(chan struct{})
	worker := start(t, w.straight, client.WorkerConfig{Queues: []string{q}, Grace: time.Second, Handler: client.JSON(
		func(ctx context.Context, _ *client.Job, in counted) error {
			began <- struct{}{}
			<-draining
			if in.N < 2 {
				return nil
			}
			<-ctx.Done()
			return errors.New("connection closed") // in whatever words the interrupted work says it
		})})
	for range ids {
		await(t, "a handler", began)
	}
	worker.Shutdown()
	late := w.enqueue(q, 3)
	close(draining)
	if err := worker.stop(); err != nil {
		t.Error(err)
	}
	w.oneLease(ids[:2])
	w.released(ids[2:])
	w.untouched(late)
	if n := len(began); n > 0 {
		t.Errorf("%d handlers began after the shutdown", n)
	}
}

// TestSecondSignal: the first lets handlers go on, the second cancels them; what they did not finish
// is given back all the same.
func TestSecondSignal(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	q := w.createQueue(&pb.Queue{Name: "q"})
	ids := w.enqueue(q, 3)
	p := startProcess(t, childConfig{Endpoints: w.proxied(), Queue: q, Concurrency: 3, Grace: time.Hour})
	p.awaitLines("began", 3)
	p.signal(syscall.SIGTERM)
	late := w.enqueue(q, 1)
	p.awaitLines("draining", 1)
	if cancelled := p.said("cancelled"); len(cancelled) > 0 {
		t.Errorf("the first signal: %v", cancelled)
	}
	p.signal(syscall.SIGTERM)
	p.awaitLines("cancelled", 3)
	p.awaitLines("ended <nil>", 1)
	await(t, "the end of the process", p.ended)
	w.released(ids)
	w.untouched(late)
	if n := len(p.said("began")); n != 3 {
		t.Errorf("%d handlers began", n)
	}
}

// TestThirdSignalKills: a handler that does not return cannot keep the process.
func TestThirdSignalKills(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	q := w.createQueue(&pb.Queue{Name: "q"})
	w.enqueue(q, 1)
	p := startProcess(t, childConfig{Endpoints: w.proxied(), Queue: q, Concurrency: 1, Grace: time.Hour})
	p.awaitLines("began", 1)
	for range 2 {
		p.signal(syscall.SIGINT)
	}
	eventually(t, "the process ends", func() bool {
		select {
		case <-p.ended:
			return true
		default:
			_ = p.cmd.Process.Signal(syscall.SIGINT) // it may end by itself before
			return false
		}
	})
}

// TestHandlerThatDoesNotReturn is left behind, and its job is not given to anybody while it works.
func TestHandlerThatDoesNotReturn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	q := w.createQueue(&pb.Queue{Name: "q"})
	id := w.enqueue(q, 1)[0]
	began, never := make(chan struct{}), make(chan struct{})
	worker := start(t, w.straight, client.WorkerConfig{Queues: []string{q}, Handler: func(context.Context, *client.Job) error {
		close(began)
		<-never
		return nil
	}})
	await(t, "the handler", began)
	var left *client.DrainError
	if err := worker.stopNow(); !errors.As(err, &left) || len(left.Running) != 1 || left.Running[0] != id || len(left.Unreported) != 0 {
		t.Errorf("Run returned %v", err)
	}
	if state := w.state(id); state != pb.JobState_JOB_STATE_PROCESSING {
		t.Errorf("the job is %v", state)
	}
	close(never)
}

// TestDrainWithoutTheService ends all the same, and says what could not be told.
func TestDrainWithoutTheService(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	q := w.createQueue(&pb.Queue{Name: "q"})
	id := w.enqueue(q, 1)[0]
	began := make(chan struct{})
	worker := start(t, connect(t, w.proxied()), client.WorkerConfig{Queues: []string{q}, Handler: func(ctx context.Context, _ *client.Job) error {
		close(began)
		<-ctx.Done()
		return context.Cause(ctx)
	}})
	await(t, "the handler", began)
	for _, direction := range []faultproxy.Direction{faultproxy.ToServer, faultproxy.ToClient} {
		w.proxies[0].Swallow(direction, true)
	}
	var left *client.DrainError
	if err := worker.stopNow(); !errors.As(err, &left) || len(left.Unreported) != 1 || left.Unreported[0] != id || len(left.Running) != 0 {
		t.Errorf("Run returned %v", err)
	}
}

// TestRunRunsOnce, because its parts do.
func TestRunRunsOnce(t *testing.T) {
	t.Parallel()
	w := over(t, newStub(), client.WorkerConfig{Handler: nop})
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	if err := w.Run(t.Context()); err == nil {
		t.Error("a second Run")
	}
}

// TestShutdownBeforeRun leases nothing.
func TestShutdownBeforeRun(t *testing.T) {
	t.Parallel()
	s := newStub()
	w, err := client.NewWorker(client.Over(s), client.WorkerConfig{Queues: []string{"q"}, Handler: nop})
	if err != nil {
		t.Fatal(err)
	}
	w.Shutdown()
	if err := w.Run(t.Context()); err != nil {
		t.Error(err)
	}
	if n := len(seen[*pb.AcquireLeaseRequest](s)); n != 0 {
		t.Errorf("%d polls", n)
	}
}

// TestAnswerThatCrossesTheShutdown: leases that are on their way when the poll is cut off are asked
// for again, and given back.
func TestAnswerThatCrossesTheShutdown(t *testing.T) {
	t.Parallel()
	s := newStub()
	polled := make(chan struct{})
	s.acquire = func(ctx context.Context, req *pb.AcquireLeaseRequest) (*pb.AcquireLeaseResponse, error) {
		if req.GetWait().AsDuration() > 0 {
			close(polled)
			return nothing(ctx, req)
		}
		return granted(2, time.Minute, time.Second), nil
	}
	worker := over(t, s, client.WorkerConfig{Handler: func(context.Context, *client.Job) error {
		t.Error("a handler began after the shutdown")
		return nil
	}})
	await(t, "the poll", polled)
	if err := worker.stop(); err != nil {
		t.Error(err)
	}
	polls := seen[*pb.AcquireLeaseRequest](s)
	if len(polls) != 2 || polls[0].GetRequestId() != polls[1].GetRequestId() || polls[0].GetMaxJobs() != polls[1].GetMaxJobs() {
		t.Errorf("polls %v", polls)
	}
	released := 0
	for _, req := range seen[*pb.BatchReleaseRequest](s) {
		released += len(req.GetItems())
	}
	if released != 2 {
		t.Errorf("%d leases released", released)
	}
}
