package faulttest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// clients are workers and parked polls at all replicas, which go to the next one where they
// are asked to try again.
type clients struct {
	t     *testing.T
	f     *fleet
	queue string
	ctx   context.Context
	all   sync.WaitGroup
	mu    sync.Mutex
	odd   map[string]int // errors that no worker should see
}

// retry makes a call at one replica after the other until it is answered.
func (c *clients) retry(first int, call string, try func(*member) error) bool {
	for n := first; c.ctx.Err() == nil; n++ {
		err := try(c.f.members[n%len(c.f.members)])
		if err == nil {
			return true
		}
		if c.ctx.Err() == nil && !isTransient(err) {
			c.mu.Lock()
			c.odd[fmt.Sprintf("%s: %v %s", call, status.Code(err), reasonIn(err))]++
			c.mu.Unlock()
			return false
		}
		pause := time.NewTimer(50 * time.Millisecond)
		<-pause.C
	}
	return false
}

// park holds polls on a queue that never has a job.
func (c *clients) park(n int) {
	for i := range n {
		c.all.Go(func() {
			for c.ctx.Err() == nil {
				c.retry(i, "a parked poll", func(m *member) error {
					_, err := m.leases.AcquireLease(c.ctx, &pb.AcquireLeaseRequest{
						Queues: []string{"empty"}, LeaseOwner: "parked", Wait: durationpb.New(time.Minute),
					})
					return err
				})
			}
		})
	}
}

// work enqueues, leases, beats and completes until the end.
func (c *clients) work(n int) {
	for i := range n {
		c.all.Go(func() {
			for round := 0; c.ctx.Err() == nil; round++ {
				key := fmt.Sprint("w", i, "/", round)
				c.retry(i, "Enqueue", func(m *member) error {
					_, err := m.jobs.Enqueue(c.ctx, &pb.EnqueueRequest{Queue: c.queue, IdempotencyKey: &key})
					return err
				})
				var leases []*pb.Lease
				c.retry(i, "AcquireLease", func(m *member) error {
					resp, err := m.leases.AcquireLease(c.ctx, &pb.AcquireLeaseRequest{
						Queues: []string{c.queue}, LeaseOwner: key, RequestId: &key, LeaseDuration: durationpb.New(30 * time.Second), Wait: durationpb.New(time.Second),
					})
					leases = resp.GetLeases()
					return err
				})
				for _, l := range leases {
					c.retry(i, "Heartbeat", func(m *member) error {
						_, err := m.leases.Heartbeat(c.ctx, &pb.HeartbeatRequest{LeaseToken: l.GetLeaseToken()})
						return err
					})
					c.retry(i+1, "Complete", func(m *member) error {
						_, err := m.leases.Complete(c.ctx, &pb.CompleteRequest{LeaseToken: l.GetLeaseToken()})
						return err
					})
				}
			}
		})
	}
}

// TestARollingRestartLosesNothing: 500 polls are parked and calls are under way when each
// replica in turn is told to end, twice. Parked polls must not keep it from ending, calls must
// not be cut off, and no lease may be lost.
func TestARollingRestartLosesNothing(t *testing.T) {
	t.Parallel()
	const drain = 10 * time.Second
	f := newFleet(t, database(t), 3, "--watcher-interval", "300ms", "--drain-timeout", drain.String())
	opened(t, f, &pb.Queue{Name: "empty"})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := &clients{t: t, f: f, queue: opened(t, f, &pb.Queue{Name: "q"}), ctx: ctx, odd: map[string]int{}}
	c.park(500)
	c.work(6)
	for range 2 {
		for _, m := range f.members {
			eventually(t, "polls are parked", func() bool { return gauges(t, m)["leasehold_parked_polls"] > 20 })
			began := time.Now()
			bounded, stop := context.WithTimeout(t.Context(), patience)
			if err := m.Stop(bounded); err != nil {
				t.Error(err)
			}
			stop()
			if took := time.Since(began); took > drain {
				t.Errorf("the replica took %v to end, and calls were cut off", took)
			}
			if err := m.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	done := look[int](t, f, `SELECT count(*)::int FROM leasehold.finished_jobs`)
	eventually(t, "work goes on", func() bool {
		return look[int](t, f, `SELECT count(*)::int FROM leasehold.finished_jobs`) > done+20
	})
	cancel()
	c.all.Wait()
	for what, times := range c.odd {
		t.Errorf("%s, %d times", what, times)
	}
	if ends := lookAll(t, f, `SELECT DISTINCT ended_by FROM leasehold.all_leases WHERE ended_by NOT IN ('COMPLETED', 'UNDELIVERED')`); len(ends) > 0 {
		t.Errorf("leases ended as %q", ends)
	}
	if n := look[int](t, f, `SELECT count(*)::int FROM leasehold.late_calls`); n > 0 {
		t.Errorf("%d leases were called for after somebody else had begun", n)
	}
	wantSound(t, f, false)
}
