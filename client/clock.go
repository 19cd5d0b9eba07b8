package client

import (
	"math"
	"sync"
	"time"
)

// instant is a reading of a clock that nobody sets and that goes on while the machine sleeps.
// Go's monotonic clock stands still then, on Linux: a lease counted down on it would seem to live
// for as much longer as the machine slept, while somebody else has the job.
type instant time.Duration

const never = instant(math.MaxInt64)

func (i instant) add(d time.Duration) instant {
	if d > 0 && i > never-instant(d) {
		return never
	}
	return i + instant(d)
}

func (i instant) sub(o instant) time.Duration { return time.Duration(i - o) }

// clock reads the time. All times of one worker are of one clock.
type clock func() instant

// suspicion is how much further the wall clock must have gone than the monotonic one before the
// machine is taken to have slept; less is the wall clock being steered.
const suspicion = time.Second

// pairedClock tells a sleep from the wall clock, where the system has no clock that counts it. A
// wall clock that is set forward looks the same and lets handlers be cancelled too early, which
// costs a run and is safe.
func pairedClock(monotonic, wall func() time.Duration) clock {
	var mu sync.Mutex
	now := instant(time.Second) // never 0, which stands for no time
	mono, clockOnTheWall := monotonic(), wall()
	return func() instant {
		mu.Lock()
		defer mu.Unlock()
		m, w := monotonic(), wall()
		step, onTheWall := m-mono, w-clockOnTheWall
		if onTheWall-step > suspicion {
			step = onTheWall
		}
		mono, clockOnTheWall = m, w
		now = now.add(max(step, 0))
		return now
	}
}

// goClock is pairedClock over Go's own two readings of the time.
func goClock() clock {
	start := time.Now()
	return pairedClock(
		func() time.Duration { return time.Since(start) },
		func() time.Duration { return time.Now().Round(0).Sub(start.Round(0)) },
	)
}
