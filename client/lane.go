package client

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

const (
	// avoidFirst and avoidMost bound for how long a replica is passed over after a failure. It is
	// then tried again by one call, so that workers come back to a replica that was restarted.
	avoidFirst = time.Second
	avoidMost  = 30 * time.Second
)

// lane is some connections that lead to the same service, for one kind of calls. Calls go by the
// first that has not just failed.
type lane struct {
	channels []*channel // in the order of preference

	mu sync.Mutex // guards what the channels remember
}

// channel is one connection of a lane. It remembers how its calls fare.
type channel struct {
	grpc.ClientConnInterface
	lane   *lane
	leases pb.LeaseServiceClient

	failures int
	avoid    time.Time
}

var _ grpc.ClientConnInterface = (*lane)(nil)

func newLane(conns []grpc.ClientConnInterface) *lane {
	l := &lane{}
	for _, conn := range conns {
		c := &channel{ClientConnInterface: conn, lane: l}
		c.leases = pb.NewLeaseServiceClient(c)
		l.channels = append(l.channels, c)
	}
	return l
}

// pick chooses the connection for the next call: where all have just failed, the one that is to be
// tried again first.
func (l *lane) pick() *channel {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	best := l.channels[0]
	for _, c := range l.channels {
		if !c.avoid.After(now) {
			return c
		}
		if c.avoid.Before(best.avoid) {
			best = c
		}
	}
	return best
}

// size is how many ways there are.
func (l *lane) size() int { return len(l.channels) }

// Invoke makes one call by the connection that pick chooses.
func (l *lane) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return l.pick().Invoke(ctx, method, args, reply, opts...)
}

// NewStream opens a stream by the connection that pick chooses.
func (l *lane) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return l.pick().NewStream(ctx, desc, method, opts...)
}

// Invoke makes one call and remembers how it went.
func (c *channel) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	err := c.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
	switch {
	case err == nil:
		c.praise()
	case callError(err).elsewhere():
		c.blame()
	}
	return err
}

func (c *channel) praise() {
	c.lane.mu.Lock()
	defer c.lane.mu.Unlock()
	c.failures, c.avoid = 0, time.Time{}
}

// blame lets the next calls go by another connection.
func (c *channel) blame() {
	c.lane.mu.Lock()
	defer c.lane.mu.Unlock()
	now := time.Now()
	if c.avoid.After(now) {
		return // calls that were under way together fail together: that is one failure
	}
	d := backoff(c.failures, avoidFirst, avoidMost)
	c.failures++
	c.avoid = now.Add(d)
}

// backoff is the wait after so many failures before this one: it doubles from first to most, and a
// half of it is random, so that clients which failed together do not come back together.
func backoff(failures int, first, most time.Duration) time.Duration {
	d := most
	if failures < 30 {
		d = min(first<<failures, most)
	}
	return d/2 + rand.N(d/2+1)
}
