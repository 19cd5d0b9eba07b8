package server

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

// herd parks n polls on a queue and returns a channel of those that end.
func (h *handlers) herd(ctx context.Context, n int, queue string) <-chan polled {
	ended := make(chan polled, n)
	for range n {
		start := time.Now()
		go func() {
			resp, err := h.leases.AcquireLease(ctx, waiting(time.Minute, queue))
			ended <- polled{resp, err, time.Since(start)}
		}()
	}
	synctest.Wait()
	return ended
}

func TestR41_OneJobWakesOneOfTwoThousandPolls(t *testing.T) {
	for name, put := range map[string]func(*testing.T, *handlers, *hookedStore){
		"enqueue on this replica": func(t *testing.T, h *handlers, _ *hookedStore) {
			h.put(t, &pb.EnqueueRequest{Queue: "q"})
		},
		"hint of another replica": func(t *testing.T, _ *handlers, st *hookedStore) {
			other := st.Replica()
			if _, err := other.Enqueue(t.Context(), []store.NewJob{{Queue: "q"}}); err != nil {
				t.Fatal(err)
			}
			if err := other.Hint(t.Context(), []string{"q"}); err != nil {
				t.Fatal(err)
			}
		},
		"SQL, found by the poll": func(t *testing.T, _ *handlers, st *hookedStore) {
			if _, err := st.Memory.Enqueue(t.Context(), []store.NewJob{{Queue: "q"}}); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := newStore(t, "q")
				h := newHandlers(t, st, Config{})
				defer h.loops(t)()
				ctx, cancel := context.WithCancel(t.Context())
				ended := h.herd(ctx, 2000, "q")
				claims, start := st.acquires.Load(), time.Now()
				put(t, h, st)
				if end := <-ended; end.leased() != 1 {
					t.Errorf("got %v %v", end.resp, end.err)
				}
				if late := time.Since(start); late > pollInterval {
					t.Errorf("woken after %v", late)
				}
				synctest.Wait()
				if n := st.acquires.Load() - claims; n < 1 || n > fanOut+1 {
					t.Errorf("one job cost %d claims", n)
				}
				cancel()
				for range 1999 {
					<-ended
				}
				if n := h.polls.waiters.count() + len(h.polls.waiters.queues); n != 0 {
					t.Errorf("the registry still has %d entries", n)
				}
			})
		})
	}
}

// TestR41_ParkedPollsCostOneStatementASecond whatever their number.
func TestR41_ParkedPollsCostOneStatementASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, "a", "b")
		h := newHandlers(t, st, Config{})
		var asked []string
		st.ready = func(ctx context.Context, queues []string) ([]store.QueueReadiness, error) {
			asked = queues
			return st.Memory.ReadyQueues(ctx, queues)
		}
		defer h.loops(t)()
		elapse(10 * time.Second)
		if n := st.polls.Load(); n != 0 {
			t.Errorf("%d polls of an idle replica", n)
		}
		ctx, cancel := context.WithCancel(t.Context())
		a, b := h.herd(ctx, 100, "a"), h.herd(ctx, 100, "b")
		claims := st.acquires.Load()
		elapse(10*time.Second + time.Millisecond)
		if n := st.polls.Load(); n < 9 || n > 10 {
			t.Errorf("%d polls in 10 s", n)
		}
		if !slices.Equal(asked, []string{"a", "b"}) {
			t.Errorf("asked for %v", asked)
		}
		if n := st.acquires.Load() - claims; n != 0 {
			t.Errorf("%d claims with nothing ready", n)
		}
		cancel()
		for range 100 {
			<-a
			<-b
		}
	})
}

// TestR41_BacklogIsDrainedByParkedPolls: where nobody knows the number of jobs, each poll
// that finds one wakes the next.
func TestR41_BacklogIsDrainedByParkedPolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, "q")
		h := newHandlers(t, st, Config{})
		defer h.loops(t)()
		ctx, cancel := context.WithCancel(t.Context())
		ended := h.herd(ctx, 200, "q")
		claims := st.acquires.Load()
		if _, err := st.Memory.Enqueue(ctx, make100Jobs("q")); err != nil {
			t.Fatal(err)
		}
		for range 100 {
			if end := <-ended; end.leased() != 1 || end.took > pollInterval {
				t.Errorf("got %v %v after %v", end.resp, end.err, end.took)
			}
		}
		synctest.Wait()
		if n := st.acquires.Load() - claims; n > 100+fanOut {
			t.Errorf("100 jobs cost %d claims", n)
		}
		cancel()
		for range 100 {
			<-ended
		}
	})
}

func make100Jobs(queue string) []store.NewJob {
	return slices.Repeat([]store.NewJob{{Queue: queue}}, 100)
}

// TestR41_BatchWakesAsManyPollsAsHaveSlots for the jobs of one BatchEnqueue.
func TestR41_BatchWakesAsManyPollsAsHaveSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, "q")
		h := newHandlers(t, st, Config{})
		ended := h.herd(t.Context(), 10, "q")
		claims := st.acquires.Load()
		req := &pb.BatchEnqueueRequest{Items: slices.Repeat([]*pb.EnqueueRequest{{Queue: "q"}}, 6)}
		if _, err := h.jobs.BatchEnqueue(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		for range 6 {
			if end := <-ended; end.leased() != 1 || end.took != 0 {
				t.Errorf("got %v %v after %v", end.resp, end.err, end.took)
			}
		}
		synctest.Wait()
		if n := st.acquires.Load() - claims; n > 6 {
			t.Errorf("6 jobs cost %d claims", n)
		}
		for range 4 {
			<-ended
		}
	})
}

func TestScheduledJobWakesItsPollWhenDue(t *testing.T) {
	for name, put := range map[string]func(*testing.T, *handlers, *hookedStore){
		"delay": func(t *testing.T, h *handlers, _ *hookedStore) {
			h.put(t, &pb.EnqueueRequest{Queue: "q", Delay: durationpb.New(300 * time.Millisecond)})
		},
		"run_at": func(t *testing.T, h *handlers, _ *hookedStore) {
			h.put(t, &pb.EnqueueRequest{Queue: "q", RunAt: timestamppb.New(time.Now().Add(300 * time.Millisecond))})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := newStore(t, "q")
				h := newHandlers(t, st, Config{})
				defer h.loops(t)()
				done := h.poll(t.Context(), waiting(time.Minute, "q"))
				put(t, h, st)
				end := <-done
				if late := end.took - 300*time.Millisecond; end.leased() != 1 || late < 0 || late > 10*time.Millisecond {
					t.Errorf("got %v %v after %v", end.resp, end.err, end.took)
				}
			})
		})
	}
}

// TestPollFindsWhenTheNextJobIsDue: of a job that this replica was not told of.
func TestPollFindsWhenTheNextJobIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, "q")
		h := newHandlers(t, st, Config{})
		defer h.loops(t)()
		delay := 1500 * time.Millisecond
		if _, err := st.Memory.Enqueue(t.Context(), []store.NewJob{{Queue: "q", Delay: &delay}}); err != nil {
			t.Fatal(err)
		}
		end := <-h.poll(t.Context(), waiting(time.Minute, "q"))
		if late := end.took - delay; end.leased() != 1 || late < 0 || late > 10*time.Millisecond {
			t.Errorf("got %v %v after %v", end.resp, end.err, end.took)
		}
	})
}

// TestEndsOfLeasesWakePolls: Release and Fail make jobs ready; the store does not say in
// which queue, so the poll looks at once.
func TestEndsOfLeasesWakePolls(t *testing.T) {
	for name, end := range map[string]func(context.Context, *handlers, string) error{
		"Release": func(ctx context.Context, h *handlers, token string) error {
			_, err := h.leases.Release(ctx, &pb.ReleaseRequest{LeaseToken: token})
			return err
		},
		"Fail": func(ctx context.Context, h *handlers, token string) error {
			_, err := h.leases.Fail(ctx, &pb.FailRequest{LeaseToken: token, RetryAfter: durationpb.New(0)})
			return err
		},
		"follow-up": func(ctx context.Context, h *handlers, token string) error {
			_, err := h.leases.Complete(ctx, &pb.CompleteRequest{LeaseToken: token, ThenEnqueue: []*pb.EnqueueRequest{{Queue: "q"}}})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := newStore(t, "q")
				h := newHandlers(t, st, Config{})
				defer h.loops(t)()
				h.put(t, &pb.EnqueueRequest{Queue: "q"})
				held := (<-h.poll(t.Context(), waiting(0, "q"))).resp.GetLeases()[0]
				done := h.poll(t.Context(), waiting(time.Minute, "q"))
				if err := end(t.Context(), h, held.GetLeaseToken()); err != nil {
					t.Fatal(err)
				}
				if got := <-done; got.leased() != 1 || got.took > lookInterval {
					t.Errorf("got %v %v after %v", got.resp, got.err, got.took)
				}
			})
		})
	}
}

func TestPollByJobID(t *testing.T) {
	byJob := func(id string) *pb.AcquireLeaseRequest {
		return &pb.AcquireLeaseRequest{JobId: &id, LeaseOwner: "w/2", Wait: durationpb.New(20 * time.Second)}
	}
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, "q")
		h := newHandlers(t, st, Config{}) // without loops
		id := h.put(t, &pb.EnqueueRequest{Queue: "q"})
		held := (<-h.poll(t.Context(), waiting(0, "q"))).resp.GetLeases()[0]

		if end := <-h.poll(t.Context(), byJob(id)); end.err != nil || end.took != 20*time.Second ||
			end.resp.GetEmptyReason() != pb.EmptyReason_EMPTY_REASON_JOB_LEASED {
			t.Errorf("of a leased job: %v %v after %v", end.resp, end.err, end.took)
		}
		if n := st.acquires.Load(); n > 25 {
			t.Errorf("%d claims in 20 s", n)
		}
		done := h.poll(t.Context(), byJob(id))
		if _, err := h.leases.Release(t.Context(), &pb.ReleaseRequest{LeaseToken: held.GetLeaseToken()}); err != nil {
			t.Fatal(err)
		}
		end := <-done
		if end.leased() != 1 || end.took != 0 {
			t.Fatalf("after its release: %v %v after %v", end.resp, end.err, end.took)
		}
		held = end.resp.GetLeases()[0]
		if _, err := h.leases.Complete(t.Context(), &pb.CompleteRequest{LeaseToken: held.GetLeaseToken()}); err != nil {
			t.Fatal(err)
		}
		if end := <-h.poll(t.Context(), byJob(id)); end.took != 0 || end.resp.GetEmptyReason() != pb.EmptyReason_EMPTY_REASON_JOB_FINISHED {
			t.Errorf("of a finished job: %v %v after %v", end.resp, end.err, end.took)
		}
		if len(h.polls.waiters.jobs) != 0 {
			t.Errorf("the registry still has %d jobs", len(h.polls.waiters.jobs))
		}
	})
}

// TestPollByJobIDLooksEachSecond, because another replica may have released the job.
func TestPollByJobIDLooksEachSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, "q")
		h, other := newHandlers(t, st, Config{}), newHandlers(t, st.Replica(), Config{})
		id := h.put(t, &pb.EnqueueRequest{Queue: "q"})
		held := (<-h.poll(t.Context(), waiting(0, "q"))).resp.GetLeases()[0]
		done := h.poll(t.Context(), &pb.AcquireLeaseRequest{JobId: &id, LeaseOwner: "w", Wait: durationpb.New(time.Minute)})
		if _, err := other.leases.Release(t.Context(), &pb.ReleaseRequest{LeaseToken: held.GetLeaseToken()}); err != nil {
			t.Fatal(err)
		}
		if end := <-done; end.leased() != 1 || end.took != time.Second {
			t.Errorf("got %v %v after %v", end.resp, end.err, end.took)
		}
	})
}

func TestPauseAndResumeOfAParkedPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, "q")
		h := newHandlers(t, st, Config{})
		defer h.loops(t)()
		pause := func() {
			t.Helper()
			if _, err := h.queues.PauseQueue(t.Context(), &pb.PauseQueueRequest{Name: "q"}); err != nil {
				t.Fatal(err)
			}
		}
		pausedLater := h.poll(t.Context(), waiting(10*time.Second, "q"))
		pause()
		h.put(t, &pb.EnqueueRequest{Queue: "q"})
		if end := <-pausedLater; end.leased() != 0 || end.resp.GetEmptyReason() != pb.EmptyReason_EMPTY_REASON_QUEUE_PAUSED {
			t.Errorf("paused while parked: %v %v", end.resp, end.err)
		}
		resumed := h.poll(t.Context(), waiting(10*time.Second, "q"))
		if _, err := h.queues.ResumeQueue(t.Context(), &pb.ResumeQueueRequest{Name: "q"}); err != nil {
			t.Fatal(err)
		}
		if end := <-resumed; end.leased() != 1 || end.took != 0 {
			t.Errorf("resumed while parked: %v %v after %v", end.resp, end.err, end.took)
		}
		pause()
		emptied := h.poll(t.Context(), waiting(10*time.Second, "q"))
		if _, err := st.ResumeQueue(t.Context(), "q"); err != nil { // on another replica
			t.Fatal(err)
		}
		if end := <-emptied; end.resp.GetEmptyReason() != pb.EmptyReason_EMPTY_REASON_NO_READY_JOBS {
			t.Errorf("resumed elsewhere, nothing ready: %v %v", end.resp, end.err)
		}
	})
}

// TestAnOutageLeavesPollsParked: they are not answered with an error each second, and are
// woken again when the database is back.
func TestAnOutageLeavesPollsParked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, "q")
		h := newHandlers(t, st, Config{})
		var down atomic.Bool
		st.ready = func(ctx context.Context, queues []string) ([]store.QueueReadiness, error) {
			if down.Load() {
				return nil, &store.UnavailableError{Cause: errors.New("down")}
			}
			return st.Memory.ReadyQueues(ctx, queues)
		}
		defer h.loops(t)()
		done := h.poll(t.Context(), waiting(time.Minute, "q"))
		down.Store(true)
		elapse(20 * time.Second)
		if n := st.polls.Load(); n < 4 || n > 10 {
			t.Errorf("%d polls in an outage of 20 s", n)
		}
		if _, err := st.Memory.Enqueue(t.Context(), []store.NewJob{{Queue: "q"}}); err != nil {
			t.Fatal(err)
		}
		down.Store(false)
		if end := <-done; end.leased() != 1 || end.took > 26*time.Second {
			t.Errorf("got %v %v after %v", end.resp, end.err, end.took)
		}
	})
}
