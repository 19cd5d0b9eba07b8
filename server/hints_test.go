package server

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func TestR41_HintsAreDebounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, "a", "b")
		h := newHandlers(t, st, Config{})
		defer h.loops(t)()
		for i := range 100 {
			h.put(t, &pb.EnqueueRequest{Queue: []string{"a", "b"}[i%2]})
			elapse(time.Millisecond)
		}
		elapse(time.Second)
		if n := len(st.hints); n < 2 || n > 4 {
			t.Errorf("%d hints for 100 enqueues in 100 ms", n)
		}
		if first := <-st.hints; !slices.Equal(first, []string{"a"}) {
			t.Errorf("the first hint names %v", first)
		}
		if second := <-st.hints; !slices.Equal(second, []string{"a", "b"}) {
			t.Errorf("the second hint names %v", second)
		}
	})
}

// TestR41_NoHintForJobsThatHaveAWaiterHere: one job must not wake a poll in every replica.
func TestR41_NoHintForJobsThatHaveAWaiterHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, "q")
		h := newHandlers(t, st, Config{})
		defer h.loops(t)()
		done := h.poll(t.Context(), waiting(time.Minute, "q"))
		h.put(t, &pb.EnqueueRequest{Queue: "q"})
		<-done
		elapse(time.Second)
		if len(st.hints) != 0 {
			t.Errorf("a hint for a job that was taken here: %v", <-st.hints)
		}
		h.put(t, &pb.EnqueueRequest{Queue: "q"})
		elapse(time.Second)
		if len(st.hints) != 1 {
			t.Errorf("%d hints for a job that nobody here waits for", len(st.hints))
		}
	})
}

func TestR41_ReplicasWakeEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, "q")
		one, two := newHandlers(t, st, Config{}), newHandlers(t, st.Replica(), Config{})
		defer one.loops(t)()
		defer two.loops(t)()
		done := two.poll(t.Context(), waiting(time.Minute, "q"))
		one.put(t, &pb.EnqueueRequest{Queue: "q"})
		if end := <-done; end.leased() != 1 || end.took > hintInterval {
			t.Errorf("got %v %v after %v", end.resp, end.err, end.took)
		}
	})
}

// listening is a store whose Listen a test directs.
type listening struct {
	store.Store
	listen func(ctx context.Context, onReady func(), onHint func([]string)) error
}

func (l *listening) Listen(ctx context.Context, onReady func(), onHint func([]string)) error {
	return l.listen(ctx, onReady, onHint)
}

func TestListenerComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tries atomic.Int64
		st := &listening{listen: func(ctx context.Context, onReady func(), _ func([]string)) error {
			switch n := tries.Add(1); {
			case n <= 5:
				return errors.New("refused")
			case n == 6:
				panic("a bug in the listener")
			default:
				onReady()
				<-ctx.Done()
				return ctx.Err()
			}
		}}
		ws := newWaiters()
		l := &hintListener{store: st, waiters: ws, poll: newPollLoop(st, ws, quiet()), log: quiet()}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- l.Run(ctx) }()
		elapse(time.Second)
		if n := tries.Load(); n < 2 || n > 4 {
			t.Errorf("%d tries in the first second", n)
		}
		elapse(time.Minute)
		if n := tries.Load(); n != 7 {
			t.Errorf("%d tries after a minute, want 7", n)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestListenerLooksForWhatItMissed: a hint that came while nobody listened.
func TestListenerLooksForWhatItMissed(t *testing.T) {
	ws := newWaiters()
	parkedOn(ws, 1, "q")
	ctx, cancel := context.WithCancel(t.Context())
	st := &listening{listen: func(_ context.Context, onReady func(), _ func([]string)) error {
		onReady()
		cancel()
		return errors.New("lost")
	}}
	poll := newPollLoop(st, ws, quiet())
	if err := (&hintListener{store: st, waiters: ws, poll: poll, log: quiet()}).Run(ctx); err != nil {
		t.Error(err)
	}
	if len(poll.asked) != 1 {
		t.Error("no look after listening began")
	}
}

func TestHintsHaveABound(t *testing.T) {
	h := newHintSender(nil, quiet())
	for i := range 3 * maxHinted {
		h.add(string(rune('a'+i%26)) + time.Duration(i).String())
	}
	if n := len(h.take()); n != maxHinted {
		t.Errorf("%d queues wait for a hint", n)
	}
	if n := len(h.take()); n != 0 {
		t.Errorf("%d queues are hinted twice", n)
	}
}

func TestBackoff(t *testing.T) {
	if got := backoff(time.Second, time.Minute, 0); got != time.Second {
		t.Errorf("without failure %v", got)
	}
	for failures, want := range map[int]time.Duration{1: 2 * time.Second, 3: 8 * time.Second, 7: time.Minute, 1000: time.Minute} {
		if got := backoff(time.Second, time.Minute, failures); got > want || got < want*4/5 {
			t.Errorf("after %d failures %v, want up to a fifth under %v", failures, got, want)
		}
	}
}
