package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

const (
	// callPatience is the deadline of a call, as a careful client sets one.
	callPatience = 30 * time.Second
	// pollWait is how long an AcquireLease waits.
	pollWait = 20 * time.Second
	// refusedPause is what a caller waits after the service asked it to try again.
	refusedPause = 5 * time.Millisecond
	maxBatch     = 1000
)

// tryAgain tells the refusals that a client repeats.
func tryAgain(err error) bool {
	code := status.Code(err)
	return code == codes.Unavailable || code == codes.ResourceExhausted
}

// persist repeats a call as long as the service asks for it.
func persist[T any](ctx context.Context, call func(ctx context.Context) (T, error)) (T, error) {
	for {
		once, cancel := context.WithTimeout(ctx, callPatience)
		out, err := call(once)
		cancel()
		if err == nil || !tryAgain(err) {
			return out, err
		}
		if stopped := pause(ctx, refusedPause); stopped != nil {
			return out, errors.Join(err, stopped)
		}
	}
}

// acquire takes up to n leases.
func (c *clients) acquire(ctx context.Context, caller, n int, wait time.Duration) ([]*pb.Lease, error) {
	most := int32(n)
	resp, err := persist(ctx, func(ctx context.Context) (*pb.AcquireLeaseResponse, error) {
		return c.lease(caller).AcquireLease(ctx, &pb.AcquireLeaseRequest{
			Queues: []string{queueName}, LeaseOwner: workerName, MaxJobs: &most, Wait: durationpb.New(wait),
		})
	})
	return resp.GetLeases(), err
}

func (c *clients) complete(ctx context.Context, caller int, token string) error {
	_, err := persist(ctx, func(ctx context.Context) (*pb.CompleteResponse, error) {
		return c.lease(caller).Complete(ctx, &pb.CompleteRequest{LeaseToken: token})
	})
	return err
}

// oneJob is a worker that leases one job a call and completes it.
func (c *clients) oneJob(callers int) load {
	return turns(callers, func(ctx context.Context, caller int) (int, error) {
		leases, err := c.acquire(ctx, caller, 1, pollWait)
		if err != nil || len(leases) == 0 {
			return 0, err
		}
		return 1, c.complete(ctx, caller, leases[0].GetLeaseToken())
	})
}

// enqueue is a producer that stores one job a call.
func (c *clients) enqueue(callers int, payload []byte) load {
	return turns(callers, func(ctx context.Context, caller int) (int, error) {
		_, err := persist(ctx, func(ctx context.Context) (*pb.EnqueueResponse, error) {
			return c.job(caller).Enqueue(ctx, newJob(payload))
		})
		return 1, err
	})
}

func newJob(payload []byte) *pb.EnqueueRequest {
	return &pb.EnqueueRequest{Queue: queueName, Payload: &pb.Payload{Content: &pb.Payload_Data{Data: payload}}}
}

// enqueueMany is a producer that stores many jobs a call.
func (c *clients) enqueueMany(callers, batch int, payload []byte) load {
	return turns(callers, func(ctx context.Context, caller int) (int, error) {
		req := &pb.BatchEnqueueRequest{Items: make([]*pb.EnqueueRequest, batch)}
		for i := range req.Items {
			req.Items[i] = newJob(payload)
		}
		resp, err := persist(ctx, func(ctx context.Context) (*pb.BatchEnqueueResponse, error) {
			return c.job(caller).BatchEnqueue(ctx, req)
		})
		if err != nil {
			return 0, err
		}
		for _, r := range resp.GetResults() {
			if e := r.GetError(); e != nil {
				return 0, itemError("BatchEnqueue", e)
			}
		}
		return len(resp.GetResults()), nil
	})
}

func itemError(call string, e *pb.ItemError) error {
	return fmt.Errorf("%s: %s: %s", call, e.GetReason(), e.GetMessage())
}
