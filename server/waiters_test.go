package server

import (
	"testing"
	"time"

	"github.com/leasehold/leasehold/store"
)

func parkedOn(ws *waiters, slots int, queues ...string) *waiter {
	w := newWaiter(store.Acquire{Queues: queues, MaxJobs: slots})
	ws.park(w)
	return w
}

// woken tells whether w has a grant, without taking it.
func woken(w *waiter) bool { return len(w.signal) > 0 }

func leasesOf(queues ...string) []store.Lease {
	out := make([]store.Lease, len(queues))
	for i, q := range queues {
		out[i].Job.Queue = q
	}
	return out
}

func TestWakeGivesAsManyJobsAsThereAreSlots(t *testing.T) {
	ws := newWaiters()
	a, b, c := parkedOn(ws, 2, "q"), parkedOn(ws, 5, "q"), parkedOn(ws, 1, "q")
	if left := ws.wake("q", 4, 0); left != 0 {
		t.Errorf("%d jobs left", left)
	}
	if g := ws.take(a); g == nil || g.jobs != 2 {
		t.Errorf("the first got %+v", g)
	}
	if g := ws.take(b); g == nil || g.jobs != 2 {
		t.Errorf("the second got %+v", g)
	}
	if woken(c) {
		t.Error("the third was woken for nothing")
	}
	if left := ws.wake("q", 3, 0); left != 2 {
		t.Errorf("%d jobs left, want 2", left)
	}
	if left := ws.wake("other", 3, 0); left != 3 {
		t.Errorf("%d jobs of a queue without waiters left", left)
	}
}

// TestGrantIsNotLostWithItsWaiter, who left between the wake and its turn to run.
func TestGrantIsNotLostWithItsWaiter(t *testing.T) {
	ws := newWaiters()
	gone, next := parkedOn(ws, 1, "q"), parkedOn(ws, 1, "q")
	ws.wake("q", 1, 0)
	if left := ws.passUnused(ws.leave(gone)); left != 0 || !woken(next) {
		t.Errorf("left %d, next woken %v", left, woken(next))
	}
	if left := ws.passUnused(ws.leave(next)); left != 1 {
		t.Errorf("%d jobs are left when nobody waits, want 1", left)
	}
	some, after := parkedOn(ws, 1, "q"), parkedOn(ws, 1, "q")
	ws.wakeSome("q", 1)
	ws.passUnused(ws.leave(some))
	if !woken(after) {
		t.Error("a wake for an unknown number was lost")
	}
}

func TestPassOnAfterTheClaim(t *testing.T) {
	for name, c := range map[string]struct {
		grant     grant
		leases    []store.Lease
		woken     int
		uncovered int
	}{
		"found it":                        {grant{queue: "q", jobs: 1}, leasesOf("q"), 0, 0},
		"found another queue's job":       {grant{queue: "q", jobs: 1}, leasesOf("p"), 1, 0},
		"found fewer":                     {grant{queue: "q", jobs: 3}, leasesOf("q"), 2, 0},
		"found more":                      {grant{queue: "q", jobs: 1}, leasesOf("q", "q"), 0, 0},
		"found nothing":                   {grant{queue: "q", jobs: 2}, nil, 1, 0},
		"found nothing after another":     {grant{queue: "q", jobs: 1, hops: 1}, nil, 0, 0},
		"found fewer than all wait for":   {grant{queue: "q", jobs: 9}, leasesOf("q"), 4, 4},
		"one of unknown many":             {grant{queue: "q", jobs: 1, more: true}, leasesOf("q"), 1, 0},
		"none of unknown many":            {grant{queue: "q", jobs: 1, more: true}, nil, 0, 0},
		"another's, then of unknown many": {grant{queue: "q", jobs: 1, more: true}, leasesOf("p"), 0, 0},
		"woken for its job":               {grant{}, leasesOf("q"), 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			ws := newWaiters()
			var others []*waiter
			for range 4 {
				others = append(others, parkedOn(ws, 1, "q"))
			}
			uncovered := ws.passOn(&c.grant, c.leases)
			n := 0
			for _, w := range others {
				if woken(w) {
					n++
				}
			}
			if n != c.woken || uncovered != c.uncovered {
				t.Errorf("woke %d and left %d, want %d and %d", n, uncovered, c.woken, c.uncovered)
			}
		})
	}
}

// TestHopsEnd: a job that is gone does not walk through every parked poll.
func TestHopsEnd(t *testing.T) {
	ws := newWaiters()
	var all []*waiter
	for range 100 {
		all = append(all, parkedOn(ws, 1, "q"))
	}
	ws.wake("q", 1, 0)
	looked := 0
	for _, w := range all { // in the order in which they are woken
		if woken(w) {
			looked++
			ws.passOn(ws.take(w), nil)
		}
	}
	if looked != 1+maxHops {
		t.Errorf("%d waiters looked, want %d", looked, 1+maxHops)
	}
}

func TestWaiterOfManyQueuesIsWokenOnceAndLeavesNoTrace(t *testing.T) {
	ws := newWaiters()
	w := parkedOn(ws, 1, "a", "b", "c")
	if left := ws.wake("b", 1, 0); left != 0 {
		t.Fatal("not woken")
	}
	if left := ws.wake("a", 1, 0); left != 1 {
		t.Error("woken twice")
	}
	if n := len(ws.queues) + ws.count(); n != 0 {
		t.Errorf("%d entries left after the wake", n)
	}
	if g := ws.take(w); g.queue != "b" {
		t.Errorf("woken for %q", g.queue)
	}
	ws.park(w)
	ws.park(w) // by a claim after a claim
	if ws.count() != 1 || ws.queues["a"].parked.Len() != 1 {
		t.Errorf("parked twice: %d", ws.count())
	}
	ws.leave(w)
	if n := len(ws.queues) + ws.count(); n != 0 {
		t.Errorf("%d entries left after leaving", n)
	}
}

func TestTheLongestParkedIsWokenFirst(t *testing.T) {
	ws := newWaiters()
	first, second := parkedOn(ws, 1, "q"), parkedOn(ws, 1, "q")
	ws.wake("q", 1, 0)
	if !woken(first) || woken(second) {
		t.Error("the later poll was woken")
	}
}

func TestDueTimes(t *testing.T) {
	ws, now := newWaiters(), time.Unix(1000, 0)
	parkedOn(ws, 1, "a", "b", "c")
	in := func(d time.Duration) *time.Duration { return &d }
	ws.polled(store.QueueReadiness{Queue: "a", Next: in(3 * time.Second)}, now)
	ws.polled(store.QueueReadiness{Queue: "b", Next: in(5 * time.Second)}, now)
	ws.polled(store.QueueReadiness{Queue: "c", Next: in(time.Second), Paused: true}, now)
	ws.noteDue("b", now.Add(2*time.Second))
	ws.noteDue("b", now.Add(9*time.Second)) // later than what is known
	ws.noteDue("nobody", now)
	due, next := ws.takeDue(now)
	if len(due) != 0 || !next.Equal(now.Add(2*time.Second)) {
		t.Errorf("due %v, next %v", due, next)
	}
	due, next = ws.takeDue(now.Add(2 * time.Second))
	if len(due) != 1 || due[0] != "b" || !next.Equal(now.Add(3*time.Second)) {
		t.Errorf("due %v, next %v", due, next)
	}
}

func TestPauseOfAnEmptyAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		claimed store.EmptyReason
		polled  map[string]bool // paused
		want    store.EmptyReason
	}{
		"never polled":      {store.QueuePaused, nil, store.QueuePaused},
		"half polled":       {store.NoReadyJobs, map[string]bool{"a": true}, store.NoReadyJobs},
		"paused since":      {store.NoReadyJobs, map[string]bool{"a": true, "b": true}, store.QueuePaused},
		"one paused":        {store.NoReadyJobs, map[string]bool{"a": true, "b": false}, store.NoReadyJobs},
		"one resumed since": {store.QueuePaused, map[string]bool{"a": true, "b": false}, store.NoReadyJobs},
	} {
		t.Run(name, func(t *testing.T) {
			ws := newWaiters()
			parkedOn(ws, 1, "a", "b")
			for queue, paused := range c.polled {
				ws.polled(store.QueueReadiness{Queue: queue, Paused: paused}, time.Now())
			}
			if got := ws.pauseOf([]string{"a", "b"}, c.claimed); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

// BenchmarkParkAndLeave is what a poll costs that finds a job at once.
func BenchmarkParkAndLeave(b *testing.B) {
	ws := newWaiters()
	for range 2000 {
		parkedOn(ws, 1, "q")
	}
	for b.Loop() {
		w := parkedOn(ws, 1, "q")
		ws.leave(w)
	}
}
