package faulttest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

const (
	// crewRetry is how soon a worker tries another replica.
	crewRetry = time.Second
	// crewReconnect bounds gRPC's pause between two connections. Its default grows to two
	// minutes, far beyond any lease.
	crewReconnect = time.Second
)

// crew are workers that hold leases. They renew each a third of its duration after the last
// time, go to the next replica where one does not answer, and never give up before they are
// told that a lease is over.
type crew struct {
	replicas []pb.LeaseServiceClient
	third    time.Duration
	stop     context.CancelFunc
	ctx      context.Context
	working  sync.WaitGroup

	mu   sync.Mutex
	over map[string]string // by lease token: why the lease is over
	took []time.Duration   // single heartbeats since the last look
}

// newCrew makes a crew at the replicas of f, for leases of that length. It works until the
// end of the test.
func newCrew(t *testing.T, f *fleet, length time.Duration) *crew {
	t.Helper()
	c := &crew{third: length / 3, over: map[string]string{}}
	c.ctx, c.stop = context.WithCancel(context.Background())
	for _, m := range f.members {
		c.replicas = append(c.replicas, pb.NewLeaseServiceClient(dialEagerly(t, m.outer.Addr())))
	}
	t.Cleanup(c.end)
	return c
}

// end ends the workers, which leave their leases as they are.
func (c *crew) end() {
	c.stop()
	c.working.Wait()
}

// dialEagerly connects again soon after an outage, as a worker must whose lease runs out.
func dialEagerly(t *testing.T, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:"+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: crewReconnect},
			MinConnectTimeout: crewReconnect,
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// renewEach starts a worker for each lease, which sends Heartbeat.
func (c *crew) renewEach(leases []*pb.Lease) {
	for i, l := range leases {
		c.work(i, []string{l.GetLeaseToken()}, c.third, c.heartbeat)
	}
}

// renewTogether starts one worker for all leases, which sends BatchHeartbeat.
func (c *crew) renewTogether(first int, leases []*pb.Lease) {
	c.work(first, tokensOf(leases), c.third, c.batchHeartbeat)
}

// completeEach starts a worker for each lease, which sends Complete until it is answered.
func (c *crew) completeEach(leases []*pb.Lease) {
	for i, l := range leases {
		c.work(i, []string{l.GetLeaseToken()}, 0, c.complete)
	}
}

// completeTogether starts one worker for all leases, which sends BatchComplete.
func (c *crew) completeTogether(first int, leases []*pb.Lease) {
	c.work(first, tokensOf(leases), 0, c.batchComplete)
}

// work makes calls about tokens, every so often, until none is left. A call returns those
// that go on, and whether it was answered.
func (c *crew) work(first int, tokens []string, every time.Duration, call func(pb.LeaseServiceClient, []string) ([]string, bool)) {
	c.working.Go(func() {
		// Workers do not start in the same moment, and do not stay in step.
		for wait := rand.N(c.third); len(tokens) > 0 && c.pause(wait); {
			left, answered := call(c.replicas[first%len(c.replicas)], tokens)
			tokens, wait = left, every
			if !answered {
				first++
				wait = crewRetry/2 + rand.N(crewRetry/2)
			}
		}
	})
}

func (c *crew) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-c.ctx.Done():
		return false
	}
}

func (c *crew) heartbeat(at pb.LeaseServiceClient, tokens []string) ([]string, bool) {
	ctx, cancel := context.WithTimeout(c.ctx, c.third)
	defer cancel()
	started := time.Now()
	_, err := at.Heartbeat(ctx, &pb.HeartbeatRequest{LeaseToken: tokens[0]})
	if err == nil {
		c.mu.Lock()
		c.took = append(c.took, time.Since(started))
		c.mu.Unlock()
		return tokens, true
	}
	return c.refused(tokens, err)
}

func (c *crew) batchHeartbeat(at pb.LeaseServiceClient, tokens []string) ([]string, bool) {
	ctx, cancel := context.WithTimeout(c.ctx, c.third)
	defer cancel()
	req := &pb.BatchHeartbeatRequest{}
	for _, token := range tokens {
		req.Items = append(req.Items, &pb.HeartbeatRequest{LeaseToken: token})
	}
	resp, err := at.BatchHeartbeat(ctx, req)
	if err != nil {
		return tokens, false
	}
	var left []string
	answered := true
	for i, r := range resp.GetResults() {
		if code := codes.Code(r.GetError().GetCode()); code == codes.FailedPrecondition {
			c.note(tokens[i], r.GetError().GetReason().String())
			continue
		} else if code != codes.OK {
			answered = false
		}
		left = append(left, tokens[i])
	}
	return left, answered
}

func (c *crew) complete(at pb.LeaseServiceClient, tokens []string) ([]string, bool) {
	ctx, cancel := context.WithTimeout(c.ctx, c.third)
	defer cancel()
	if _, err := at.Complete(ctx, &pb.CompleteRequest{LeaseToken: tokens[0]}); err != nil {
		return c.refused(tokens, err)
	}
	return nil, true
}

func (c *crew) batchComplete(at pb.LeaseServiceClient, tokens []string) ([]string, bool) {
	ctx, cancel := context.WithTimeout(c.ctx, c.third)
	defer cancel()
	req := &pb.BatchCompleteRequest{}
	for _, token := range tokens {
		req.Items = append(req.Items, &pb.CompleteRequest{LeaseToken: token})
	}
	resp, err := at.BatchComplete(ctx, req)
	if err != nil {
		return tokens, false
	}
	var left []string
	for i, r := range resp.GetResults() {
		switch codes.Code(r.GetError().GetCode()) {
		case codes.OK:
		case codes.FailedPrecondition:
			c.note(tokens[i], r.GetError().GetReason().String())
		default:
			left = append(left, tokens[i])
		}
	}
	return left, len(left) == 0
}

// refused tells a lease that is over from a service that could not answer.
func (c *crew) refused(tokens []string, err error) ([]string, bool) {
	if status.Code(err) != codes.FailedPrecondition {
		return tokens, false
	}
	c.note(tokens[0], reasonIn(err))
	return nil, true
}

func (c *crew) note(token, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over[token] = why
}

// told are the reasons that the crew was told of leases that are over.
func (c *crew) told() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var reasons []string
	for _, why := range c.over {
		reasons = append(reasons, why)
	}
	slices.Sort(reasons)
	return fmt.Sprintf("%d leases are over: %s", len(reasons), strings.Join(slices.Compact(reasons), ", "))
}

// latencies takes the times of the single heartbeats since the last look, sorted.
func (c *crew) latencies() []time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	took := c.took
	c.took = nil
	slices.Sort(took)
	return took
}

func tokensOf(leases []*pb.Lease) (tokens []string) {
	for _, l := range leases {
		tokens = append(tokens, l.GetLeaseToken())
	}
	return tokens
}

func idsOf(leases []*pb.Lease) (ids []string) {
	for _, l := range leases {
		ids = append(ids, l.GetJob().GetJobId())
	}
	return ids
}

// reasonIn is the reason that the service gave for an error, "" for none.
func reasonIn(err error) string {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return ""
}
