package faulttest

import (
	"context"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// TestNothingIsLeasedFromAPausedQueueByAnyWay: parked polls, polls by id, jobs that become
// due, leases that expire, replicas that start anew. Other queues go on, and so do leases
// that were there before.
func TestNothingIsLeasedFromAPausedQueueByAnyWay(t *testing.T) {
	t.Parallel()
	f := newFleet(t, database(t), 2, "--watcher-interval", "200ms")
	q, other := opened(t, f, &pb.Queue{Name: "q"}), opened(t, f, &pb.Queue{Name: "other"})
	stored(t, f.members[0], 3, &pb.EnqueueRequest{Queue: q})
	running := taken(t, f.members[0], q, 3, time.Hour)

	ctx, leave := context.WithCancel(t.Context())
	c := &clients{t: t, f: f, ctx: ctx, odd: map[string]int{}}
	defer c.all.Wait()
	defer leave()
	got := make(chan string, 100)
	for n := range 50 {
		c.all.Go(func() {
			for empty := true; empty && ctx.Err() == nil; {
				c.retry(n, "a poll", func(m *member) error {
					resp, err := m.leases.AcquireLease(ctx, &pb.AcquireLeaseRequest{
						Queues: []string{q, other}, LeaseOwner: "parked", Wait: durationpb.New(20 * time.Second),
					})
					for _, l := range resp.GetLeases() {
						got <- l.GetJob().GetQueue()
						empty = false
					}
					return err
				})
			}
		})
	}
	next := func() string {
		select {
		case queue := <-got:
			return queue
		case <-time.After(patience):
			t.Fatal("no poll gets a job")
			return ""
		}
	}
	parkedPolls := func() (n float64) {
		for _, m := range f.members {
			n += gauges(t, m)["leasehold_parked_polls"]
		}
		return n
	}
	eventually(t, "all polls are parked", func() bool { return parkedPolls() == 50 })
	accepted(t, f.members[0].queues.PauseQueue, &pb.PauseQueueRequest{Name: q})
	pausedAt := look[time.Time](t, f, `SELECT clock_timestamp()`)

	ids := stored(t, f.members[1], 30, &pb.EnqueueRequest{Queue: q})
	stored(t, f.members[1], 10, &pb.EnqueueRequest{Queue: q, Delay: durationpb.New(100 * time.Millisecond)})
	accepted(t, f.members[1].leases.Fail, &pb.FailRequest{LeaseToken: running[0].GetLeaseToken(), RetryAfter: durationpb.New(0)})
	f.db.Exec(t, `UPDATE leasehold.jobs SET lease_until = lease_until - interval '1 day' WHERE id = $1::text::bigint`, running[1].GetJob().GetJobId())
	mayExpire(t, f)
	eventually(t, "the lease expires all the same", func() bool { return stateOf(t, f, running[1].GetJob().GetJobId()) == "PENDING" })
	accepted(t, f.members[1].leases.Heartbeat, &pb.HeartbeatRequest{LeaseToken: running[2].GetLeaseToken()})
	byID := accepted(t, f.members[1].leases.AcquireLease, &pb.AcquireLeaseRequest{JobId: &ids[0], LeaseOwner: "w"})
	byQueue := accepted(t, f.members[0].leases.AcquireLease, &pb.AcquireLeaseRequest{Queues: []string{q}, LeaseOwner: "w", MaxJobs: to(int32(10))})
	for _, resp := range []*pb.AcquireLeaseResponse{byID, byQueue} {
		if len(resp.GetLeases()) > 0 || resp.GetEmptyReason() != pb.EmptyReason_EMPTY_REASON_QUEUE_PAUSED {
			t.Errorf("an acquire answers %v", resp)
		}
	}
	for _, m := range f.members {
		m.Kill()
		if err := m.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		eventually(t, "its clients reach it", func() bool {
			_, err := m.queues.GetQueue(ctx, &pb.GetQueueRequest{Name: q})
			return err == nil
		})
	}
	stored(t, f.members[0], 1, &pb.EnqueueRequest{Queue: other})
	if from := next(); from != other {
		t.Errorf("a poll got a job of queue %s", from)
	}
	accepted(t, f.members[0].leases.Complete, &pb.CompleteRequest{LeaseToken: running[2].GetLeaseToken()})
	// A claim whose statement began before the pause may still commit after it.
	if n := look[int](t, f, `SELECT count(*)::int FROM leasehold.all_leases WHERE queue = 'q' AND leased_at > $1::timestamptz + interval '1 second'`, pausedAt); n > 0 {
		t.Errorf("%d leases were given while the queue was paused", n)
	}
	accepted(t, f.members[1].queues.ResumeQueue, &pb.ResumeQueueRequest{Name: q})
	for range 30 {
		if from := next(); from != q {
			t.Errorf("after the pause a poll got a job of queue %s", from)
		}
	}
	leave()
	c.all.Wait()
	for what, times := range c.odd {
		t.Errorf("%s, %d times", what, times)
	}
	wantSound(t, f, false)
}
