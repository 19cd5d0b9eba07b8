package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// producer stores jobs at a steady rate. What it stores is told apart by its payload, so that
// a job that was stored twice, or never, is noticed also where its answer was lost.
type producer struct {
	*hand
	rng    *rand.Rand
	n      int // of the latest job
	shared int // of the latest job that every producer stores
}

func newProducer(h *hand) *producer { return &producer{hand: h, rng: h.chance(0)} }

// longestLag is how far a producer falls behind before it gives up what it has missed: an
// outage must not be followed by a flood that nobody works off within the run.
const longestLag = 3 * time.Second

func (p *producer) run(ctx context.Context) error {
	due := time.Now()
	for rest(ctx, time.Until(due)) {
		size := 1
		if oneIn(p.rng, 8) {
			size += p.rng.IntN(12)
		}
		p.store(ctx, size)
		due = due.Add(time.Duration(float64(size) / p.rate * float64(time.Second)))
		if now := time.Now(); now.Sub(due) > longestLag {
			due = now
		}
	}
	return nil
}

// store stores so many jobs by one call, and repeats what may be repeated: what has a key,
// and what was refused with nothing done.
func (p *producer) store(ctx context.Context, size int) {
	var items []*pb.EnqueueRequest
	for range size {
		items = append(items, p.next())
	}
	if len(items) > 1 {
		p.storeBatch(ctx, items)
		return
	}
	for range 1 + p.rng.IntN(5) {
		_, err := ask(ctx, p.clients, callTime, func(c client) func(context.Context, *pb.EnqueueRequest, ...grpc.CallOption) (*pb.EnqueueResponse, error) {
			return c.jobs.Enqueue
		}, items[0])
		if !p.mayRepeat(items[0], refusalOf(err)) || !rest(ctx, 50*time.Millisecond+upTo(p.rng, 300*time.Millisecond)) {
			return
		}
	}
}

func (p *producer) storeBatch(ctx context.Context, items []*pb.EnqueueRequest) {
	for range 1 + p.rng.IntN(5) {
		resp, err := ask(ctx, p.clients, callTime, func(c client) func(context.Context, *pb.BatchEnqueueRequest, ...grpc.CallOption) (*pb.BatchEnqueueResponse, error) {
			return c.jobs.BatchEnqueue
		}, &pb.BatchEnqueueRequest{Items: items})
		var again []*pb.EnqueueRequest
		for i, item := range items {
			r := refusalOf(err)
			if e := resp.GetResults(); err == nil && e[i].GetError() != nil {
				r = itemRefusal(e[i].GetError())
			}
			if p.mayRepeat(item, r) {
				again = append(again, item)
			}
		}
		if items = again; len(items) == 0 || !rest(ctx, 50*time.Millisecond+upTo(p.rng, 300*time.Millisecond)) {
			return
		}
	}
}

// mayRepeat tells whether a producer should, and now and then does without any need, where
// a key makes that harmless.
func (p *producer) mayRepeat(item *pb.EnqueueRequest, r *refusal) bool {
	if r.nothingDone() {
		return true
	}
	return item.IdempotencyKey != nil && (r.ambiguous() || r == nil && oneIn(p.rng, 20))
}

// next makes a job.
func (p *producer) next() *pb.EnqueueRequest {
	p.n++
	item := &pb.EnqueueRequest{
		Queue:   queueNames[p.rng.IntN(4)], // receipts are follow-ups only
		Payload: jsonOf(fmt.Sprintf(`{"by":%q,"n":%d}`, p.name, p.n)), Subject: to(fmt.Sprint("subject/", p.rng.IntN(100))),
	}
	switch p.rng.IntN(10) {
	case 0, 1, 2, 3:
	case 4: // all producers store it, as those that were told of one order
		p.shared++
		item.Queue, item.IdempotencyKey = queueOrders, to(fmt.Sprint("shared/", p.shared))
		item.Payload = jsonOf(fmt.Sprintf(`{"shared":%d}`, p.shared))
	case 5: // a mistake: one key for several
		item.Queue, item.IdempotencyKey = queueOrders, to(fmt.Sprint("mistaken/", p.rng.IntN(20)))
	default:
		item.IdempotencyKey = to(fmt.Sprint(p.name, "/", p.n))
	}
	if oneIn(p.rng, 3) {
		item.Priority = to(int32(1 + p.rng.IntN(9)))
	}
	switch p.rng.IntN(12) {
	case 0, 1:
		item.Delay = durationpb.New(upTo(p.rng, 3*time.Second))
	case 2:
		item.RunAt = timestamppb.New(time.Now().Add(upTo(p.rng, 4*time.Second) - 2*time.Second))
	}
	if oneIn(p.rng, 6) {
		item.Policy = &pb.JobPolicy{MaxAttempts: to(int32(1 + p.rng.IntN(3)))}
	}
	return item
}
