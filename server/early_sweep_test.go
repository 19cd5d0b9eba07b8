package server

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

// TestR38_EmptyAcquireSweepsItsQueue: an expired lease is all there is, and the watcher has
// not been by.
func TestR38_EmptyAcquireSweepsItsQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, "q")
		h := newHandlers(t, st, Config{})
		h.put(t, &pb.EnqueueRequest{Queue: "q"})
		<-h.poll(t.Context(), waiting(0, "q"))
		elapse(2 * time.Minute) // the lease of 60 s runs out
		end := <-h.poll(t.Context(), waiting(0, "q"))
		if end.leased() != 1 || end.resp.GetLeases()[0].GetLeaseNo() != 2 {
			t.Errorf("got %v %v", end.resp, end.err)
		}
	})
}

// TestR38_ParkedPollSweepsItsQueue: workers that all wait take over what one of them left.
func TestR38_ParkedPollSweepsItsQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, "q")
		h := newHandlers(t, st, Config{})
		defer h.loops(t)()
		h.put(t, &pb.EnqueueRequest{Queue: "q"})
		<-h.poll(t.Context(), waiting(0, "q"))
		elapse(50 * time.Second)
		end := <-h.poll(t.Context(), waiting(30*time.Second, "q"))
		if late := end.took - 10*time.Second; end.leased() != 1 || late < 0 || late > 2*earlySweepInterval {
			t.Errorf("got %v %v after %v, the lease ran out after 10 s", end.resp, end.err, end.took)
		}
	})
}

func TestR38_EarlySweepsAreOnceASecondAndForgetNoQueue(t *testing.T) {
	st := newStore(t)
	now := time.Unix(1000, 0)
	var swept [][]string
	st.sweepPage = func(_ context.Context, after store.JobID, size int, queues []string) (store.Swept, error) {
		if after != 0 || size != earlySweepPage {
			t.Errorf("page of %d after %d", size, after)
		}
		slices.Sort(queues)
		swept = append(swept, queues)
		return store.Swept{Ended: 1}, nil
	}
	told := 0
	e := newEarlySweep(st, newWaiters(), quiet(), func() { told++ })
	e.now = func() time.Time { return now }
	run := func(want int, queues ...string) {
		t.Helper()
		if got := e.run(t.Context(), queues); got != want {
			t.Errorf("ended %d, want %d", got, want)
		}
	}
	run(1, "a")
	run(0, "b")
	now = now.Add(earlySweepInterval - 1)
	run(0, "c", "b")
	now = now.Add(1)
	run(1, "a")
	e.running = true // and so slow that the next would come before its rest is over
	e.last = now.Add(-time.Second)
	e.finish()
	now = now.Add(earlySweepShare*time.Second - 1)
	run(0, "d")
	if want := [][]string{{"a"}, {"a", "b", "c"}}; !slices.EqualFunc(swept, want, slices.Equal) {
		t.Errorf("swept %v, want %v", swept, want)
	}
	if told != 2 {
		t.Errorf("told %d times of ended leases", told)
	}
}

func TestR38_EarlySweepRunsOneAtATime(t *testing.T) {
	st := newStore(t)
	now := time.Unix(1000, 0)
	var e *earlySweep
	st.sweepPage = func(ctx context.Context, _ store.JobID, _ int, _ []string) (store.Swept, error) {
		now = now.Add(time.Hour) // a slow one
		if n := e.run(ctx, []string{"b"}); n != 0 {
			t.Error("a second sweep ran beside the first")
		}
		return store.Swept{}, nil
	}
	e = newEarlySweep(st, newWaiters(), quiet(), func() {})
	e.now = func() time.Time { return now }
	e.run(t.Context(), []string{"a"})
}

// TestEarlySweepFails: the acquire that asked for it is answered all the same, and the next
// one has its turn.
func TestEarlySweepFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, "q")
		sweeps := 0
		st.sweepPage = func(context.Context, store.JobID, int, []string) (store.Swept, error) {
			sweeps++
			return store.Swept{}, errors.New("no")
		}
		h := newHandlers(t, st, Config{})
		for range 2 {
			if end := <-h.poll(t.Context(), waiting(0, "q")); end.err != nil {
				t.Error(end.err)
			}
			elapse(earlySweepInterval)
		}
		if sweeps != 2 {
			t.Errorf("%d sweeps", sweeps)
		}
	})
}

func TestEarlySweepOfTooManyQueuesTakesAll(t *testing.T) {
	e := newEarlySweep(nil, newWaiters(), quiet(), nil)
	e.running, e.last = true, time.Now()
	for i := range 2 * maxSweepQueues {
		e.begin([]string{time.Duration(i).String()})
	}
	e.finish()
	e.next = time.Time{}
	if names, turn := e.begin(nil); !turn || len(names) != 0 {
		t.Errorf("%d names, turn %v", len(names), turn)
	}
	e.finish()
	e.next = time.Time{}
	if names, _ := e.begin([]string{"a"}); !slices.Equal(names, []string{"a"}) {
		t.Errorf("remembered %v", names)
	}
}
