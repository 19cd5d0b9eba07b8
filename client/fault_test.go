package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasehold/leasehold/client"
	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/faultproxy"
)

// oneLease checks that every job is completed and had exactly one lease.
func (w *world) oneLease(ids []string) {
	w.t.Helper()
	for _, id := range ids {
		if got := w.job(id); got.GetJob().GetState() != pb.JobState_JOB_STATE_COMPLETED || len(got.GetLeases()) != 1 {
			w.t.Errorf("job %s is %v after %d leases", id, got.GetJob().GetState(), len(got.GetLeases()))
		}
	}
}

// TestLostAnswerOfAcquire: the leases in it are asked for again, by another connection, and run once.
func TestLostAnswerOfAcquire(t *testing.T) {
	t.Parallel()
	for _, replicas := range []int{1, 2} {
		t.Run(fmt.Sprint(replicas), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, replicas)
			q := w.createQueue(&pb.Queue{Name: "q"})
			ids := w.enqueue(q, 3)
			var lost []<-chan struct{}
			for _, p := range w.proxies {
				lost = append(lost, p.CutAt(faultproxy.ToClient, func(chunk []byte) bool { return bytes.Contains(chunk, []byte(`{"n":2}`)) }))
			}
			worker := start(t, connect(t, w.proxied()), client.WorkerConfig{Queues: []string{q}, Handler: nop})
			eventually(t, "the jobs are completed", func() bool { return w.count(q, "COMPLETED") == 3 })
			w.oneLease(ids)
			select {
			case <-lost[0]:
			case <-lost[len(lost)-1]:
			default:
				t.Error("no answer was lost")
			}
			if err := worker.stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestLostAnswersOfEnds: the service had ended the leases; asked again, it says so.
func TestLostAnswersOfEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	q := w.createQueue(&pb.Queue{Name: "q"})
	ids := w.enqueue(q, 3)
	var lost atomic.Int64
	losing := grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		err := next(ctx, method, req, reply, cc, opts...)
		for _, end := range []string{"/BatchComplete", "/BatchFail", "/BatchRelease"} {
			if strings.HasSuffix(method, end) && lost.Add(1)%2 == 1 {
				return status.Error(codes.Unavailable, "the answer was lost")
			}
		}
		return err
	})
	const later = time.Hour
	worker := start(t, connect(t, w.proxied(), losing), client.WorkerConfig{Queues: []string{q}, Concurrency: 1, Handler: client.JSON(
		func(_ context.Context, _ *client.Job, in counted) error {
			return []error{nil, client.RetryAfter(later, errors.New("sad")), client.Release(later)}[in.N]
		})})
	eventually(t, "three ends were lost once and repeated", func() bool { return lost.Load() >= 6 })
	if err := worker.stop(); err != nil {
		t.Error(err)
	}
	for i, want := range []pb.LeaseEnd{pb.LeaseEnd_LEASE_END_COMPLETED, pb.LeaseEnd_LEASE_END_FAILED, pb.LeaseEnd_LEASE_END_RELEASED} {
		leases := w.job(ids[i]).GetLeases()
		if len(leases) != 1 || leases[0].GetEnd() != want || leases[0].GetLateCalls().GetCount() != 0 {
			t.Errorf("job %d: %v", i, leases)
		}
	}
}

// TestReplicaKilledInTheMiddle: the work goes on by another, on the same lease.
func TestReplicaKilledInTheMiddle(t *testing.T) {
	t.Parallel()
	const jobs = 20
	w := newWorld(t, 2)
	q := w.createQueue(&pb.Queue{Name: "q"})
	ids := w.enqueue(q, jobs)
	began, goOn := make(chan struct{}, jobs), make(chan struct{})
	worker := start(t, connect(t, w.proxied()), client.WorkerConfig{
		Queues: []string{q}, Concurrency: jobs, LeaseDuration: 5 * time.Second,
		Handler: func(ctx context.Context, job *client.Job) error {
			began <- struct{}{}
			<-goOn
			return job.Stage(ctx, "after the crash")
		},
	})
	for range jobs {
		await(t, "a handler", began)
	}
	for _, victim := range w.replicas { // one after the other: each worker prefers one of them
		victim.Kill()
		killed := one[time.Time](w, `SELECT clock_timestamp()`)
		eventually(t, "heartbeats come in by the other", func() bool {
			return one[bool](w, `SELECT coalesce(bool_and(last_beat_at > $2), false) FROM leasehold.all_leases WHERE queue = $1`, q, killed)
		})
		if err := victim.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	close(goOn)
	eventually(t, "the jobs are completed", func() bool { return w.count(q, "COMPLETED") == jobs })
	w.oneLease(ids)
	if err := worker.stop(); err != nil {
		t.Error(err)
	}
}

// TestReplicaThatDrains: polls and heartbeats go on by the other, and no lease is lost.
func TestReplicaThatDrains(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	q := w.createQueue(&pb.Queue{Name: "q"})
	first := w.enqueue(q, 1)
	began, goOn := make(chan string, 2), make(chan struct{})
	worker := start(t, connect(t, w.proxied()), client.WorkerConfig{
		Queues: []string{q}, LeaseDuration: 5 * time.Second,
		Handler: func(_ context.Context, job *client.Job) error {
			began <- job.ID()
			<-goOn
			return nil
		},
	})
	await(t, "the first job", began)
	for _, r := range w.replicas {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		err := r.Stop(ctx)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		other := w.enqueue(q, 1)
		if got := await(t, "a job by the other replica", began); got != other[0] {
			t.Fatalf("job %s", got)
		}
		first = append(first, other...)
		if err := r.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	close(goOn)
	eventually(t, "the jobs are completed", func() bool { return w.count(q, "COMPLETED") == 3 })
	w.oneLease(first)
	if err := worker.stop(); err != nil {
		t.Error(err)
	}
}

// TestPanicFailsTheJob and nothing else.
func TestPanicFailsTheJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	q := w.createQueue(&pb.Queue{Name: "q"})
	ids := w.enqueue(q, 2)
	start(t, w.straight, client.WorkerConfig{Queues: []string{q}, Handler: client.JSON(func(_ context.Context, _ *client.Job, in counted) error {
		if in.N == 0 {
			panic(strings.Repeat("no good ", 5000))
		}
		return nil
	})})
	eventually(t, "the other job is completed", func() bool { return w.state(ids[1]) == pb.JobState_JOB_STATE_COMPLETED })
	eventually(t, "the job has failed", func() bool { return w.job(ids[0]).GetJob().GetAttemptsUsed() > 0 })
	said := w.job(ids[0]).GetLeases()[0].GetError()
	if said.GetCode() != "panic" || !strings.HasPrefix(said.GetMessage(), "panic: no good") || !strings.Contains(said.GetDetails(), "fault_test.go") {
		t.Errorf("on record: code %q, message %.40q, details %.400q", said.GetCode(), said.GetMessage(), said.GetDetails())
	}
}

// TestCancelRequest: the handler is told why, may tidy up, and the job is CANCELLED.
func TestCancelRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	q := w.createQueue(&pb.Queue{Name: "q"})
	id := w.enqueue(q, 1)[0]
	began, cause := make(chan struct{}), make(chan error, 1)
	start(t, w.straight, client.WorkerConfig{Queues: []string{q}, LeaseDuration: 3 * time.Second, Handler: func(ctx context.Context, job *client.Job) error {
		close(began)
		<-ctx.Done()
		cause <- errors.Join(context.Cause(ctx), job.Stage(context.WithoutCancel(ctx), "refunded"))
		return ctx.Err()
	}})
	await(t, "the handler", began)
	accepted(t, w.jobs.CancelJob, &pb.CancelJobRequest{JobId: id})
	var asked *client.CancelRequestedError
	if got := await(t, "the cancel request", cause); !errors.As(got, &asked) || asked.JobID != id {
		t.Errorf("cause %v", got)
	}
	eventually(t, "the job is cancelled", func() bool { return w.state(id) == pb.JobState_JOB_STATE_CANCELLED })
	if stage := w.job(id).GetLeases()[0].GetStage(); stage != "refunded" {
		t.Errorf("stage %q", stage)
	}
}

// TestWorkerSurvivesAnOutage: all replicas are away for longer than the lease; nobody is blamed, the
// worker comes back by itself, and what was done meanwhile is completed.
func TestWorkerSurvivesAnOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	// Held, or the worker itself might take the job again before its Complete arrives.
	q := w.createQueue(&pb.Queue{Name: "q", OnExpiry: pb.OnExpiry_ON_EXPIRY_HOLD})
	ids := w.enqueue(q, 1)
	began, cancelled := make(chan struct{}), make(chan struct{}, 10)
	var once sync.Once
	worker := start(t, connect(t, w.proxied()), client.WorkerConfig{
		Queues: []string{q}, LeaseDuration: shortLease, Handler: func(ctx context.Context, _ *client.Job) error {
			once.Do(func() { close(began) })
			<-ctx.Done()
			cancelled <- struct{}{}
			return nil // the payment went out before the lease was known to be in doubt
		},
	})
	await(t, "the handler", began)
	w.replicas[0].Kill()
	await(t, "the local end of the lease", cancelled)
	if err := w.replicas[0].Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the job is completed", func() bool { return w.state(ids[0]) == pb.JobState_JOB_STATE_COMPLETED })
	w.oneLease(ids)
	if err := worker.stop(); err != nil {
		t.Error(err)
	}
}
