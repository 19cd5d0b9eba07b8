package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// way is how a worker ends a lease.
type way int

const (
	toComplete way = iota
	toFail
	toRelease
)

// task is the work on one lease. The requests that end it are made once: a repetition with
// another result would be refused, rightly.
type task struct {
	*worker
	lease *pb.Lease
	rng   *rand.Rand
	// cancelled tells that a heartbeat said that the job is to be cancelled.
	cancelled bool
	beats     int

	completion *pb.CompleteRequest
	failure    *pb.FailRequest
	giveBack   *pb.ReleaseRequest
}

func (w *worker) newTask(l *pb.Lease) *task {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, l.GetJob().GetJobId(), "/", l.GetLeaseNo()) // it never fails
	t := &task{worker: w, lease: l, rng: w.chance(h.Sum64())}
	job, token := l.GetJob(), l.GetLeaseToken()
	t.completion = &pb.CompleteRequest{
		LeaseToken: token, Result: jsonOf(fmt.Sprintf(`{"done_by":%q,"lease_no":%d}`, w.name, l.GetLeaseNo())),
	}
	if job.GetQueue() != queueReceipts && oneIn(t.rng, 8) {
		t.completion.ThenEnqueue = []*pb.EnqueueRequest{
			{Queue: queueReceipts, Subject: to("job/" + job.GetJobId()), Payload: jsonOf(fmt.Sprintf(`{"of":%q,"lease_no":%d}`, job.GetJobId(), l.GetLeaseNo()))},
			{Queue: queueReceipts, IdempotencyKey: to("receipt/" + job.GetJobId()), Payload: jsonOf(fmt.Sprintf(`{"receipt":%q}`, job.GetJobId()))},
		}
	}
	t.failure = &pb.FailRequest{
		LeaseToken: token, Error: &pb.JobError{Code: "no_luck", Message: "the work did not work"}, Permanent: oneIn(t.rng, 7),
	}
	if oneIn(t.rng, 3) {
		t.failure.RetryAfter = durationpb.New(500 * time.Millisecond)
	}
	if job.GetQueue() != queueReceipts && oneIn(t.rng, 8) {
		t.failure.ThenEnqueue = []*pb.EnqueueRequest{{Queue: queueReceipts, Payload: jsonOf(fmt.Sprintf(`{"failed":%q,"lease_no":%d}`, job.GetJobId(), l.GetLeaseNo()))}}
	}
	t.giveBack = &pb.ReleaseRequest{LeaseToken: token}
	if oneIn(t.rng, 2) {
		t.giveBack.Delay = durationpb.New(300 * time.Millisecond)
	}
	return t
}

// work does what its chance says: mostly work with heartbeats and an end, but some workers
// hang, some die silently, some oversleep and come back.
func (w *worker) work(ctx context.Context, l *pb.Lease) {
	t := w.newTask(l)
	length := l.GetRemaining().AsDuration()
	mishap := t.rng.IntN(100)
	if w.calm.Load() {
		mishap = 99
	}
	switch {
	case mishap < 5: // it forgets the job
		w.lose(l.GetJob().GetJobId())
		return
	case mishap < 13: // it says nothing until its time is over, mostly
		if !rest(ctx, length+upTo(t.rng, length)) {
			return
		}
	case mishap < 17: // it beats and gets nowhere, until it stalls or overruns
		if !t.beat(ctx, 8*time.Second, false) {
			return
		}
	case mishap < 30: // it is quick
	default:
		most := 3 * time.Second
		if w.calm.Load() {
			most = 300 * time.Millisecond
		}
		if !t.beat(ctx, upTo(t.rng, most), true) {
			return
		}
	}
	t.finish(ctx)
}

// beat works for a time with heartbeats; false where the lease is lost.
func (t *task) beat(ctx context.Context, length time.Duration, progress bool) bool {
	end := time.Now().Add(length)
	next := t.lease.GetNextHeartbeatIn().AsDuration()
	for {
		left := time.Until(end)
		if left < next {
			return rest(ctx, left)
		}
		if !rest(ctx, next/2+upTo(t.rng, next/2+1)) {
			return false
		}
		req := &pb.HeartbeatRequest{LeaseToken: t.lease.GetLeaseToken()}
		if progress {
			t.report(req, 1-time.Until(end).Seconds()/length.Seconds())
		}
		resp, err := ask(ctx, t.clients, callTime, heartbeat, req)
		switch {
		case err == nil:
			next = resp.GetNextHeartbeatIn().AsDuration()
			if t.cancelled = resp.GetCancelRequested(); t.cancelled {
				return true
			}
		case !maybeElsewhere(err):
			t.lose(t.lease.GetJob().GetJobId())
			// Some do not believe it, and try to end the lease all the same.
			return oneIn(t.rng, 3)
		default:
			next = min(next, 300*time.Millisecond)
		}
	}
}

// report tells how far the work is.
func (t *task) report(req *pb.HeartbeatRequest, done float64) {
	t.beats++
	if oneIn(t.rng, 2) {
		req.Stage = to(fmt.Sprint("step ", t.beats/2))
	}
	if oneIn(t.rng, 2) {
		req.Progress = to(max(0, min(1, done)))
	}
	if oneIn(t.rng, 3) {
		req.Checkpoint = []byte(fmt.Sprintf("%s/%d/%d", t.name, t.lease.GetLeaseNo(), t.beats))
	}
}

// finish books what was done and ends the lease, in one way or in two.
func (t *task) finish(ctx context.Context) {
	how := t.choose()
	if how == toComplete && !t.book(ctx) {
		return
	}
	t.end(ctx, how)
	if oneIn(t.rng, 10) {
		t.end(ctx, how) // as one that has not heard the answer
	}
	if oneIn(t.rng, 20) && !t.calm.Load() {
		// As one that has lost its mind. It never completes without having booked: that would
		// look like an effect that was lost.
		t.end(ctx, toFail+way(t.rng.IntN(2)))
	}
}

// choose draws how the lease is to end.
func (t *task) choose() way {
	switch n := t.rng.IntN(100); {
	case n < 12:
		return toFail
	case n < 20, t.cancelled && n < 70:
		return toRelease
	}
	return toComplete
}

// book tells the ledger what was done. A ledger that has seen a later lease refuses; half of
// the workers then try to complete the job all the same, as one does that has no ledger.
func (t *task) book(ctx context.Context) bool {
	err := book(ctx, t.ledger, t.lease.GetJob().GetJobId(), t.lease.GetLeaseNo())
	return err == nil || errors.Is(err, errFenced) && oneIn(t.rng, 2)
}

// times is how often an end is tried.
func (t *task) times() int {
	if t.stubborn || t.calm.Load() {
		return 6
	}
	return 1
}

// end ends the lease in a way.
func (t *task) end(ctx context.Context, how way) {
	switch how {
	case toComplete:
		_, _ = insist(ctx, t.clients, t.rng, t.times(), complete, t.completion) // what became of it is in the journal
	case toFail:
		_, _ = insist(ctx, t.clients, t.rng, t.times(), fail, t.failure)
	case toRelease:
		_, _ = insist(ctx, t.clients, t.rng, t.times(), release, t.giveBack)
	}
}

func heartbeat(c client) func(context.Context, *pb.HeartbeatRequest, ...grpc.CallOption) (*pb.HeartbeatResponse, error) {
	return c.leases.Heartbeat
}

func complete(c client) func(context.Context, *pb.CompleteRequest, ...grpc.CallOption) (*pb.CompleteResponse, error) {
	return c.leases.Complete
}

func fail(c client) func(context.Context, *pb.FailRequest, ...grpc.CallOption) (*pb.FailResponse, error) {
	return c.leases.Fail
}

func release(c client) func(context.Context, *pb.ReleaseRequest, ...grpc.CallOption) (*pb.ReleaseResponse, error) {
	return c.leases.Release
}

func jsonOf(text string) *pb.Payload {
	return &pb.Payload{Content: &pb.Payload_Json{Json: text}}
}
