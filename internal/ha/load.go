package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

const (
	queue     = "work"
	producers = 3
	callTime  = 10 * time.Second
	retryWait = 50 * time.Millisecond
	// each producer stores a job so often.
	produceEvery = 20 * time.Millisecond
)

// grantKey is one lease.
type grantKey struct{ job, no int64 }

// grant is what a worker was told of a lease.
type grant struct {
	owner string
	ended string // how the service has confirmed that it ended; "" is unknown
	began time.Time
}

// load is producers and workers at all replicas, and what they were told.
type load struct {
	addresses []string
	conns     []*grpc.ClientConn
	opened    atomic.Int64 // connections
	ended     atomic.Int64 // leases that workers ended
	lastWrite atomic.Int64 // when a job was last stored, in nanoseconds

	producing, working       sync.WaitGroup
	noProduction, noWork     context.CancelFunc
	producerStop, workerStop context.Context
	mu                       sync.Mutex
	answers                  map[answer]int
	stored                   map[string]int64 // job by idempotency key
	grants                   map[grantKey]*grant
	doubled                  []string
	longest                  time.Duration // without a stored job
	lease                    time.Duration // length of the leases
}

// answer is how a call was answered; reached tells that it was handed to the worker as an error.
type answer struct {
	method, word string
	reached      bool
}

func newLoad(addresses []string, lease time.Duration) *load {
	l := &load{
		addresses: addresses, lease: lease, answers: map[answer]int{}, stored: map[string]int64{}, grants: map[grantKey]*grant{},
	}
	l.producerStop, l.noProduction = context.WithCancel(context.Background())
	l.workerStop, l.noWork = context.WithCancel(context.Background())
	return l
}

// dial makes a connection that spreads its calls over all replicas.
func (l *load) dial() (*grpc.ClientConn, error) {
	r := manual.NewBuilderWithScheme("replicas")
	var state resolver.State
	for _, a := range l.addresses {
		state.Endpoints = append(state.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: a}}})
	}
	r.InitialState(state)
	conn, err := grpc.NewClient("replicas:///all", grpc.WithResolvers(r),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStatsHandler(connections{&l.opened}),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"round_robin":{}}]}`),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 2 * time.Second,
		}))
	if err == nil {
		l.mu.Lock()
		l.conns = append(l.conns, conn)
		l.mu.Unlock()
	}
	return conn, err
}

// connections counts those that are made.
type connections struct{ n *atomic.Int64 }

func (connections) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (connections) HandleRPC(context.Context, stats.RPCStats)                         {}
func (connections) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (c connections) HandleConn(_ context.Context, s stats.ConnStats) {
	if _, is := s.(*stats.ConnBegin); is {
		c.n.Add(1)
	}
}

func (l *load) createQueue(ctx context.Context) error {
	conn, err := l.dial()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err = pb.NewQueueServiceClient(conn).CreateQueue(ctx, &pb.CreateQueueRequest{Queue: &pb.Queue{
		Name: queue, Policy: &pb.JobPolicy{
			LeaseDuration: durationpb.New(l.lease), Backoff: &pb.Backoff{Initial: durationpb.New(100 * time.Millisecond)},
		},
	}}, grpc.WaitForReady(true))
	return err
}

func (l *load) start(workers int) {
	for i := range producers {
		l.producing.Go(func() { l.produce(fmt.Sprint("p", i)) })
	}
	for i := range workers {
		l.working.Go(func() { l.work(fmt.Sprint("w", i)) })
	}
}

func (l *load) endProducers() { l.noProduction(); l.producing.Wait() }
func (l *load) endWorkers()   { l.noWork(); l.working.Wait() }

func (l *load) close() {
	l.endProducers()
	l.endWorkers()
	for _, c := range l.conns {
		_ = c.Close() // nothing uses it any more
	}
}

// wordOf is a refusal in the report: the service's reason, else gRPC's code.
func wordOf(err error) string {
	if err == nil {
		return "OK"
	}
	if reason := reasonIn(err); reason != "" {
		return reason
	}
	return "(" + status.Code(err).String() + ")"
}

// retryable is what the contract says may be repeated, for calls that are idempotent by a key, a
// request id or their lease, as all are here.
func retryable(err error) bool {
	switch reasonIn(err) {
	case "DATABASE_UNAVAILABLE", "DRAINING", "JOB_BUSY", "OVERLOADED", "RATE_LIMITED", "OUTCOME_UNKNOWN":
		return true
	case "":
		return slices.Contains([]codes.Code{codes.Unavailable, codes.DeadlineExceeded}, status.Code(err))
	}
	return false
}

// insist repeats a call until it is answered, or refused for good.
func insist[Req, Resp any](l *load, method string, call func(context.Context, Req, ...grpc.CallOption) (Resp, error), req Req) (Resp, error) {
	for began := time.Now(); ; {
		ctx, cancel := context.WithTimeout(context.Background(), callTime)
		resp, err := call(ctx, req)
		cancel()
		again := err != nil && retryable(err) && time.Since(began) < patience
		l.mu.Lock()
		l.answers[answer{method: method, word: wordOf(err), reached: err != nil && !again}]++
		l.mu.Unlock()
		if !again {
			return resp, err
		}
		rest(context.Background(), retryWait)
	}
}

// produce stores jobs, each under a key of its own.
func (l *load) produce(name string) {
	conn, err := l.dial()
	if err != nil {
		return
	}
	jobs := pb.NewJobServiceClient(conn)
	for n := 0; l.producerStop.Err() == nil; n++ {
		key := fmt.Sprint(name, "/", n)
		resp, err := insist(l, "Enqueue", jobs.Enqueue, &pb.EnqueueRequest{Queue: queue, IdempotencyKey: &key})
		if err == nil {
			now := time.Now().UnixNano()
			before := l.lastWrite.Swap(now)
			l.mu.Lock()
			l.stored[key] = number(resp.GetJobId())
			if gap := time.Duration(now - before); before > 0 {
				l.longest = max(l.longest, gap)
			}
			l.mu.Unlock()
		}
		rest(l.producerStop, produceEvery)
	}
}
