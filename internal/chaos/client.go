package main

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// client is a connection to one replica.
type client struct {
	leases pb.LeaseServiceClient
	jobs   pb.JobServiceClient
	queues pb.QueueServiceClient
}

// clients are connections to all replicas, of which one is used until it disappoints.
type clients struct {
	conns []*grpc.ClientConn
	all   []client
	used  atomic.Int64
}

const (
	// callTime is the deadline of a call that does not wait.
	callTime = 4 * time.Second
	// pingAfter and pingTime notice a replica that is gone without a word.
	pingAfter = 10 * time.Second
	pingTime  = 3 * time.Second
)

// reconnect is quick: a replica that is back is to be tormented again.
var reconnect = backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}

// dial connects to replicas; calls are written down in a journal.
func dial(addresses []string, j *journal, first int) (*clients, error) {
	c := &clients{}
	for _, address := range addresses {
		conn, err := grpc.NewClient("passthrough:"+address,
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithUnaryInterceptor(j.intercept),
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: pingTime}),
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: time.Second}),
		)
		if err != nil {
			c.close()
			return nil, err
		}
		c.conns = append(c.conns, conn)
		c.all = append(c.all, client{
			leases: pb.NewLeaseServiceClient(conn), jobs: pb.NewJobServiceClient(conn), queues: pb.NewQueueServiceClient(conn),
		})
	}
	c.used.Store(int64(first))
	return c, nil
}

func (c *clients) close() {
	for _, conn := range c.conns {
		conn.Close()
	}
}

// current is the replica in use.
func (c *clients) current() client { return c.all[int(c.used.Load())%len(c.all)] }

// ask makes one call on the replica in use, and changes to the next where it is of no help.
func ask[Req, Resp any](ctx context.Context, c *clients, limit time.Duration,
	method func(client) func(context.Context, Req, ...grpc.CallOption) (Resp, error), req Req,
) (Resp, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	used := c.used.Load()
	resp, err := method(c.current())(ctx, req)
	if err != nil && maybeElsewhere(err) {
		c.used.CompareAndSwap(used, used+1)
	}
	return resp, err
}

// maybeElsewhere tells errors that another replica may not answer, or that leave open whether
// the call was heard at all.
func maybeElsewhere(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Unknown, codes.Internal, codes.ResourceExhausted, codes.Canceled:
		return true
	}
	return false
}

// insist repeats a call up to so many times while another replica may answer it better.
func insist[Req, Resp any](ctx context.Context, c *clients, rng *rand.Rand, times int,
	method func(client) func(context.Context, Req, ...grpc.CallOption) (Resp, error), req Req,
) (resp Resp, err error) {
	for range times {
		if resp, err = ask(ctx, c, callTime, method, req); err == nil || !maybeElsewhere(err) {
			return resp, err
		}
		if !rest(ctx, 50*time.Millisecond+upTo(rng, 400*time.Millisecond)) {
			return resp, err
		}
	}
	return resp, err
}

// rest waits, and tells whether ctx still runs.
func rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
