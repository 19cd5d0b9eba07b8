package client

import "time"

// NewWorkerWithClock is NewWorker over a clock that is ahead of the system's by what ahead says.
func NewWorkerWithClock(service *Service, cfg WorkerConfig, ahead func() time.Duration) (*Worker, error) {
	system := systemClock()
	return newWorker(service, cfg, func() instant { return system().add(ahead()) })
}

// PairedClock is the clock of systems that have none which counts sleep.
func PairedClock(monotonic, wall func() time.Duration) func() time.Duration {
	c := pairedClock(monotonic, wall)
	return func() time.Duration { return time.Duration(c()) }
}

// SystemClock reads the system's clock.
func SystemClock() func() time.Duration {
	c := systemClock()
	return func() time.Duration { return time.Duration(c()) }
}

// Ways are the connections of a lane for tests of the choice between them.
type Ways struct{ lane *lane }

// PollWays are those of the long polls.
func PollWays(s *Service) Ways { return Ways{s.polls} }

// Pick is the index of the connection that the next call goes by.
func (w Ways) Pick() int {
	c := w.lane.pick()
	for i, other := range w.lane.channels {
		if c == other {
			return i
		}
	}
	return -1
}

// Forgive ends all avoidance, as time does.
func (w Ways) Forgive() {
	w.lane.mu.Lock()
	defer w.lane.mu.Unlock()
	for _, c := range w.lane.channels {
		c.avoid = time.Time{}
	}
}
