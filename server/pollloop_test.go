package server

import (
	"testing"
	"time"
)

// TestR41ParkingIsNotedOnce: a poll that is parked for a queue which has not been polled lately
// brings on a pass, so that those who enqueue by SQL soon know of it, and others bring none.
func TestR41ParkingIsNotedOnce(t *testing.T) {
	t.Parallel()
	l := newPollLoop(nil, newWaiters(), quiet())
	asks := func(queues ...string) bool {
		l.waitFor(queues)
		select {
		case <-l.parked:
			return true
		default:
			return false
		}
	}
	if asks() {
		t.Error("a poll for one job by its id waits for no queue")
	}
	for range 2 {
		if !asks("a") {
			t.Error("nobody has polled, and no pass is asked for")
		}
	}
	l.polling([]string{"a", "b"})
	if asks("a", "b") {
		t.Error("a pass is asked for that has just been")
	}
	if !asks("a", "c") {
		t.Error("nobody has polled for one of the queues, and no pass is asked for")
	}
	l.polled["a"] = time.Now().Add(-2 * notedFor)
	if !asks("a") {
		t.Error("it was polled too long ago, and no pass is asked for")
	}
	l.polling([]string{"b"})
	if _, there := l.polled["a"]; there {
		t.Error("queues that nobody waits for any more are not forgotten")
	}
}

// TestR41FailingPollsKeepTheirPause whoever asks for one.
func TestR41FailingPollsKeepTheirPause(t *testing.T) {
	t.Parallel()
	now := time.Now()
	next := now.Add(time.Second)
	if got := sooner(next, now, 0); !got.Equal(now) {
		t.Errorf("the pass comes at %v", got)
	}
	if got := sooner(next, now, 1); !got.Equal(next) {
		t.Errorf("after a failure the pass comes at %v", got)
	}
	if got := sooner(now, next, 0); !got.Equal(now) {
		t.Errorf("the pass is put off to %v", got)
	}
}
