package main

import (
	"context"
	"time"

	"google.golang.org/grpc"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// workTogether works on all leases of an answer in step, by batch methods.
func (w *worker) workTogether(ctx context.Context, leases []*pb.Lease) {
	defer w.freeSlots(len(leases))
	g := &group{worker: w}
	for _, l := range leases {
		g.tasks = append(g.tasks, w.newTask(l))
	}
	rng := g.tasks[0].rng
	most := 3 * time.Second
	if w.calm.Load() {
		most = 300 * time.Millisecond
	} else if oneIn(rng, 12) {
		if !rest(ctx, leaseMost+upTo(rng, leaseMost)) { // it hangs
			return
		}
	}
	if !g.beat(ctx, upTo(rng, most)) {
		return
	}
	ends := map[way][]*task{}
	for _, t := range g.tasks {
		if how := t.choose(); how != toComplete || t.book(ctx) {
			ends[how] = append(ends[how], t)
		}
	}
	g.complete(ctx, ends[toComplete])
	g.fail(ctx, ends[toFail])
	g.release(ctx, ends[toRelease])
}

// group is the work on several leases in step.
type group struct {
	*worker
	tasks []*task // those whose leases are not known to be lost
}

// result is what a batch answers for one item.
type result interface{ GetError() *pb.ItemError }

// beat works for a time, with heartbeats for all.
func (g *group) beat(ctx context.Context, length time.Duration) bool {
	end := time.Now().Add(length)
	for len(g.tasks) > 0 {
		next := g.tasks[0].lease.GetNextHeartbeatIn().AsDuration() * 3 / 4
		if left := time.Until(end); left < next {
			return rest(ctx, left)
		}
		if !rest(ctx, next) {
			return false
		}
		req := &pb.BatchHeartbeatRequest{}
		for _, t := range g.tasks {
			item := &pb.HeartbeatRequest{LeaseToken: t.lease.GetLeaseToken()}
			t.report(item, 1-time.Until(end).Seconds()/length.Seconds())
			req.Items = append(req.Items, item)
		}
		resp, err := ask(ctx, g.clients, callTime, func(c client) func(context.Context, *pb.BatchHeartbeatRequest, ...grpc.CallOption) (*pb.BatchHeartbeatResponse, error) {
			return c.leases.BatchHeartbeat
		}, req)
		if err == nil {
			g.note(resp)
		}
	}
	return false
}

// note drops the leases that are lost.
func (g *group) note(resp *pb.BatchHeartbeatResponse) {
	var held []*task
	for i, t := range g.tasks {
		result := resp.GetResults()[i]
		t.cancelled = result.GetOk().GetCancelRequested()
		if result.GetError() == nil || itemRefusal(result.GetError()).nothingDone() {
			held = append(held, t)
		} else {
			g.lose(t.lease.GetJob().GetJobId())
		}
	}
	g.tasks = held
}

// undecided are the items of a batch that were not answered, or not now.
func undecided[R result](tasks []*task, results []R, err error) (left []*task) {
	if err != nil && maybeElsewhere(err) {
		return tasks
	}
	for i, r := range results {
		if e := r.GetError(); e != nil && itemRefusal(e).nothingDone() {
			left = append(left, tasks[i])
		}
	}
	return left
}

func (g *group) complete(ctx context.Context, tasks []*task) {
	for n := 0; len(tasks) > 0 && n < tasks[0].times(); n++ {
		req := &pb.BatchCompleteRequest{}
		for _, t := range tasks {
			req.Items = append(req.Items, t.completion)
		}
		resp, err := ask(ctx, g.clients, callTime, func(c client) func(context.Context, *pb.BatchCompleteRequest, ...grpc.CallOption) (*pb.BatchCompleteResponse, error) {
			return c.leases.BatchComplete
		}, req)
		tasks = g.again(ctx, undecided(tasks, resp.GetResults(), err))
	}
}

func (g *group) fail(ctx context.Context, tasks []*task) {
	for n := 0; len(tasks) > 0 && n < tasks[0].times(); n++ {
		req := &pb.BatchFailRequest{}
		for _, t := range tasks {
			req.Items = append(req.Items, t.failure)
		}
		resp, err := ask(ctx, g.clients, callTime, func(c client) func(context.Context, *pb.BatchFailRequest, ...grpc.CallOption) (*pb.BatchFailResponse, error) {
			return c.leases.BatchFail
		}, req)
		tasks = g.again(ctx, undecided(tasks, resp.GetResults(), err))
	}
}

func (g *group) release(ctx context.Context, tasks []*task) {
	for n := 0; len(tasks) > 0 && n < tasks[0].times(); n++ {
		req := &pb.BatchReleaseRequest{}
		for _, t := range tasks {
			req.Items = append(req.Items, t.giveBack)
		}
		resp, err := ask(ctx, g.clients, callTime, func(c client) func(context.Context, *pb.BatchReleaseRequest, ...grpc.CallOption) (*pb.BatchReleaseResponse, error) {
			return c.leases.BatchRelease
		}, req)
		tasks = g.again(ctx, undecided(tasks, resp.GetResults(), err))
	}
}

// again waits before what is left is tried once more.
func (g *group) again(ctx context.Context, left []*task) []*task {
	if len(left) > 0 && !rest(ctx, 50*time.Millisecond+upTo(left[0].rng, 400*time.Millisecond)) {
		return nil
	}
	return left
}
