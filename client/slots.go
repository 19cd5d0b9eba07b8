package client

import (
	"context"
	"sync"
	"time"
)

// counter counts what there is, and tells when there is nothing.
type counter struct {
	mu    sync.Mutex
	n     int
	empty chan struct{} // closed while n is 0
}

func newCounter() *counter {
	c := &counter{empty: make(chan struct{})}
	close(c.empty)
	return c
}

func (c *counter) add(n int) {
	if n == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.n
	c.n += n
	switch {
	case before == 0:
		c.empty = make(chan struct{})
	case c.n == 0:
		close(c.empty)
	}
}

func (c *counter) none() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.empty
}

// slots are the places for leases. A poll takes all that are free before it asks, so that it never
// gets more leases than there are places.
type slots struct {
	mu    sync.Mutex
	free  int
	freed chan struct{} // of size 1: there may be free ones
}

func newSlots(n int) *slots { return &slots{free: n, freed: make(chan struct{}, 1)} }

// take waits for a free slot and takes all that are free, at most most; 0 where ctx ends. Where
// fewer than least are free it waits so long for others.
func (s *slots) take(ctx context.Context, most, least int, patience time.Duration) int {
	var enough <-chan time.Time
	for ctx.Err() == nil {
		s.mu.Lock()
		n := min(s.free, most)
		if n < least {
			n = 0
		}
		s.free -= n
		waiting := s.free > 0
		s.mu.Unlock()
		if n > 0 {
			return n
		}
		if waiting && enough == nil {
			timer := time.NewTimer(patience)
			defer timer.Stop()
			enough = timer.C
		}
		select {
		case <-s.freed:
		case <-enough:
			least = 0
		case <-ctx.Done():
		}
	}
	return 0
}

func (s *slots) give(n int) {
	if n == 0 {
		return
	}
	s.mu.Lock()
	s.free += n
	s.mu.Unlock()
	select {
	case s.freed <- struct{}{}:
	default:
	}
}
