package server

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

// handlers are the services of a server without a network, for tests in a bubble of
// testing/synctest, where time passes at once when everybody waits.
type handlers struct {
	*Server
	leases *leaseService
	jobs   *jobService
	queues *queueService
}

func newHandlers(t *testing.T, st store.Store, cfg Config) *handlers {
	t.Helper()
	cfg.Log = slog.New(slog.DiscardHandler)
	s, err := New(t.Context(), st, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &handlers{s, &leaseService{Server: s}, &jobService{Server: s}, &queueService{Server: s}}
}

// loops runs the waking loops until the returned function is called.
func (h *handlers) loops(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- h.RunWaking(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("waking loops: %v", err)
		}
	}
}

// elapse lets time pass on the bubble's clock, and everybody come to rest.
func elapse(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// polled is the end of a poll.
type polled struct {
	resp *pb.AcquireLeaseResponse
	err  error
	took time.Duration
}

func (p polled) leased() int { return len(p.resp.GetLeases()) }

// poll starts an AcquireLease and waits until it has answered or parked.
func (h *handlers) poll(ctx context.Context, req *pb.AcquireLeaseRequest) <-chan polled {
	done, start := make(chan polled, 1), time.Now()
	go func() {
		resp, err := h.leases.AcquireLease(ctx, req)
		done <- polled{resp, err, time.Since(start)}
	}()
	synctest.Wait()
	return done
}

func waiting(wait time.Duration, queues ...string) *pb.AcquireLeaseRequest {
	return &pb.AcquireLeaseRequest{Queues: queues, LeaseOwner: "w/1", Wait: durationpb.New(wait)}
}

func (h *handlers) put(t *testing.T, req *pb.EnqueueRequest) string {
	t.Helper()
	resp, err := h.jobs.Enqueue(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetJobId()
}

func (h *handlers) state(t *testing.T, id string) pb.JobState {
	t.Helper()
	resp, err := h.jobs.GetJob(t.Context(), &pb.GetJobRequest{By: &pb.GetJobRequest_JobId{JobId: id}})
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetJob().GetState()
}

func TestR10_PollEndsEmptyAtWaitOrBeforeTheDeadline(t *testing.T) {
	for name, c := range map[string]struct{ wait, deadline, want time.Duration }{
		"wait":                       {20 * time.Second, time.Minute, 20 * time.Second},
		"no wait":                    {0, time.Minute, 0},
		"no deadline":                {60 * time.Second, 0, 60 * time.Second},
		"deadline less 500 ms":       {60 * time.Second, 10 * time.Second, 9500 * time.Millisecond},
		"deadline just above":        {10 * time.Second, 10*time.Second + 499*time.Millisecond, 9999 * time.Millisecond},
		"deadline within the 500 ms": {60 * time.Second, 400 * time.Millisecond, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHandlers(t, newStore(t, "q"), Config{})
				ctx := t.Context()
				if c.deadline > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.deadline)
					defer cancel()
				}
				end := <-h.poll(ctx, waiting(c.wait, "q"))
				if end.err != nil || end.leased() != 0 || end.took != c.want {
					t.Errorf("got %v, %v after %v, want an empty answer after %v", end.resp, end.err, end.took, c.want)
				}
				if end.resp.GetEmptyReason() != pb.EmptyReason_EMPTY_REASON_NO_READY_JOBS {
					t.Errorf("reason %v", end.resp.GetEmptyReason())
				}
				if n := h.polls.waiters.count(); n != 0 {
					t.Errorf("%d polls are still parked", n)
				}
			})
		})
	}
}

func TestR41_EnqueueWakesAParkedPollAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHandlers(t, newStore(t, "a", "q"), Config{}) // no loops: in memory only
		done := h.poll(t.Context(), waiting(time.Minute, "a", "q"))
		id := h.put(t, &pb.EnqueueRequest{Queue: "q"})
		end := <-done
		if end.leased() != 1 || end.took != 0 || end.resp.GetLeases()[0].GetJob().GetJobId() != id {
			t.Errorf("got %v %v after %v", end.resp, end.err, end.took)
		}
	})
}

// TestR10_JobThatComesDuringTheClaimIsNotMissed: the poll registers before the claim whose
// emptiness makes it wait.
func TestR10_JobThatComesDuringTheClaimIsNotMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, "q")
		h := newHandlers(t, st, Config{})
		var once sync.Once
		st.acquire = func(ctx context.Context, items []store.Acquire) ([]store.Acquired, error) {
			got, err := st.Memory.Acquire(ctx, items)
			once.Do(func() { h.put(t, &pb.EnqueueRequest{Queue: "q"}) }) // behind its snapshot
			return got, err
		}
		if end := <-h.poll(t.Context(), waiting(time.Minute, "q")); end.leased() != 1 || end.took != 0 {
			t.Errorf("got %v %v after %v", end.resp, end.err, end.took)
		}
	})
}

func TestR10_CancelledWaiterNeverClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, "q")
		h := newHandlers(t, st, Config{})
		ctx, cancel := context.WithCancel(t.Context())
		gone := h.poll(ctx, waiting(time.Minute, "q"))
		alive := h.poll(t.Context(), waiting(time.Minute, "q"))
		before := st.acquires.Load()
		cancel() // and, before its goroutine can run, a job for the longest parked
		h.put(t, &pb.EnqueueRequest{Queue: "q"})
		if end := <-gone; !errors.Is(end.err, context.Canceled) || end.leased() != 0 {
			t.Errorf("the cancelled poll got %v %v", end.resp, end.err)
		}
		if end := <-alive; end.leased() != 1 || end.took != 0 {
			t.Errorf("the live poll got %v %v after %v", end.resp, end.err, end.took)
		}
		if n := st.acquires.Load() - before; n != 1 || st.undelivered.Load() != 0 {
			t.Errorf("%d claims and %d undelivered for one live waiter", n, st.undelivered.Load())
		}
	})
}

// TestR10_CallerGoneBeforeItsClaimDoesNotClaim, however often it is tried.
func TestR10_CallerGoneBeforeItsClaimDoesNotClaim(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := &claims{acquire: func(context.Context, []store.Acquire) ([]store.Acquired, error) {
		t.Fatal("claimed for a caller that is gone")
		return nil, nil
	}}
	for range 100 {
		if _, err := c.claim(ctx, nil, store.Acquire{}, func() { t.Fatal("begun") }); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
}

func TestR10_CallerGoneDuringItsClaimGivesTheLeasesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, "q")
		h := newHandlers(t, st, Config{})
		id := h.put(t, &pb.EnqueueRequest{Queue: "q"})
		ctx, cancel := context.WithCancel(t.Context())
		st.acquire = func(ctx context.Context, items []store.Acquire) ([]store.Acquired, error) {
			got, err := st.Memory.Acquire(ctx, items)
			cancel() // committed; the caller hangs up before the answer
			return got, err
		}
		var request *string
		st.undeliver = func(ctx context.Context, refs []store.LeaseRef, requestID *string) error {
			request = requestID
			if ctx.Err() != nil {
				t.Error("the give-back was started with a context that is done")
			}
			return st.Memory.Undeliver(ctx, refs, requestID)
		}
		req := waiting(time.Minute, "q")
		req.RequestId = proto.String("r1")
		if end := <-h.poll(ctx, req); !errors.Is(end.err, context.Canceled) {
			t.Errorf("got %v %v", end.resp, end.err)
		}
		if got := h.state(t, id); got != pb.JobState_JOB_STATE_PENDING {
			t.Errorf("the job is %v", got)
		}
		if request == nil || *request != "r1" {
			t.Errorf("undelivered with request id %v, a replay could lose its leases", request)
		}
	})
}

func TestR10_GivenBackJobWakesTheNextWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, "q")
		h := newHandlers(t, st, Config{})
		ctx, cancel := context.WithCancel(t.Context())
		gone := h.poll(ctx, waiting(time.Minute, "q"))
		alive := h.poll(t.Context(), waiting(time.Minute, "q"))
		var once sync.Once
		st.acquire = func(ctx context.Context, items []store.Acquire) ([]store.Acquired, error) {
			got, err := st.Memory.Acquire(ctx, items)
			once.Do(cancel)
			return got, err
		}
		h.put(t, &pb.EnqueueRequest{Queue: "q"})
		if end := <-gone; end.err == nil {
			t.Errorf("the cancelled poll got %v", end.resp)
		}
		if end := <-alive; end.leased() != 1 || end.took != 0 || end.resp.GetLeases()[0].GetLeaseNo() != 2 {
			t.Errorf("the live poll got %v %v after %v", end.resp, end.err, end.took)
		}
	})
}

// TestR10_BegunClaimIsNotCutOff: cut off, nobody would know whether it committed.
func TestR10_BegunClaimIsNotCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, "q")
		h := newHandlers(t, st, Config{})
		h.put(t, &pb.EnqueueRequest{Queue: "q"})
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		st.acquire = func(claim context.Context, items []store.Acquire) ([]store.Acquired, error) {
			<-ctx.Done()
			if claim.Err() != nil {
				t.Error("the claim ended with its caller")
			}
			if deadline, ok := claim.Deadline(); !ok || time.Until(deadline) != claimGrace {
				t.Errorf("the claim has %v left", time.Until(deadline))
			}
			return st.Memory.Acquire(claim, items)
		}
		if end := <-h.poll(ctx, waiting(0, "q")); !errors.Is(end.err, context.DeadlineExceeded) {
			t.Errorf("got %v %v", end.resp, end.err)
		}
		if st.undelivered.Load() != 1 {
			t.Errorf("%d leases were given back, want 1", st.undelivered.Load())
		}
	})
}

func TestDrainEndsPollsAndRefusesNewOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, "q")
		h := newHandlers(t, st, Config{})
		byQueue := h.poll(t.Context(), waiting(time.Minute, "q"))
		id := h.put(t, &pb.EnqueueRequest{Queue: "q", Delay: durationpb.New(time.Hour)})
		byJob := h.poll(t.Context(), &pb.AcquireLeaseRequest{JobId: &id, LeaseOwner: "w", Wait: durationpb.New(time.Minute)})
		claims := st.acquires.Load()
		if err := h.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		after := h.poll(t.Context(), waiting(time.Minute, "q"))
		for _, done := range []<-chan polled{byQueue, byJob, after} {
			if end := <-done; !isDraining(end.err) || end.took != 0 {
				t.Errorf("got %v %v after %v, want DRAINING at once", end.resp, end.err, end.took)
			}
		}
		if n := st.acquires.Load() - claims; n != 0 {
			t.Errorf("%d claims while draining", n)
		}
	})
}

func isDraining(err error) bool {
	_, ok := errors.AsType[*DrainingError](err)
	return ok
}

// TestClaimsAreBoundedAndBeatsPass: acquires never take every connection, and a heartbeat
// does not wait for them.
func TestClaimsAreBoundedAndBeatsPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, "q")
		h := newHandlers(t, st, Config{ConcurrentClaims: 2})
		h.put(t, &pb.EnqueueRequest{Queue: "q"})
		lease := (<-h.poll(t.Context(), waiting(0, "q"))).resp.GetLeases()[0]
		gate := make(chan struct{})
		running, most := 0, 0
		var mu sync.Mutex
		st.acquire = func(context.Context, []store.Acquire) ([]store.Acquired, error) {
			mu.Lock()
			running++
			most = max(most, running)
			mu.Unlock()
			<-gate
			mu.Lock()
			running--
			mu.Unlock()
			return []store.Acquired{{Empty: store.NoReadyJobs}}, nil
		}
		var polls []<-chan polled
		for range 10 {
			polls = append(polls, h.poll(t.Context(), waiting(0, "q")))
		}
		if _, err := h.leases.Heartbeat(t.Context(), &pb.HeartbeatRequest{LeaseToken: lease.GetLeaseToken()}); err != nil {
			t.Error(err)
		}
		if _, err := h.leases.Complete(t.Context(), &pb.CompleteRequest{LeaseToken: lease.GetLeaseToken()}); err != nil {
			t.Error(err)
		}
		close(gate)
		for _, done := range polls {
			<-done
		}
		if most != 2 {
			t.Errorf("%d claims at a time, want 2", most)
		}
	})
}

// TestSlowClaimsDoNotHoldAPollBeyondItsEnd: a woken poll whose claim waits still
// answers in time.
func TestSlowClaimsDoNotHoldAPollBeyondItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, "q", "slow")
		h := newHandlers(t, st, Config{ConcurrentClaims: 1})
		gate := make(chan struct{})
		st.acquire = func(ctx context.Context, items []store.Acquire) ([]store.Acquired, error) {
			if items[0].Queues[0] == "slow" {
				<-gate
			}
			return st.Memory.Acquire(ctx, items)
		}
		parked := h.poll(t.Context(), waiting(5*time.Second, "q"))
		slow := h.poll(t.Context(), waiting(0, "slow"))
		h.put(t, &pb.EnqueueRequest{Queue: "q"})
		if end := <-parked; end.err != nil || end.leased() != 0 || end.took != 5*time.Second {
			t.Errorf("got %v %v after %v", end.resp, end.err, end.took)
		}
		close(gate)
		<-slow
	})
}
