package faulttest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// tired are workers whose jobs take about as long as a lease, with heartbeats.
type tired struct {
	t        *testing.T
	m        *member
	queue    string
	lease    time.Duration
	done     atomic.Int64
	rejected atomic.Int64
}

// work does one job after the other until ctx ends, as a killed process does: in the middle,
// without a word.
func (w *tired) work(ctx context.Context, name string) {
	for ctx.Err() == nil {
		resp, err := w.m.leases.AcquireLease(ctx, &pb.AcquireLeaseRequest{
			Queues: []string{w.queue}, LeaseOwner: name, LeaseDuration: durationpb.New(w.lease), Wait: durationpb.New(5 * time.Second),
		})
		if err != nil {
			if ctx.Err() == nil {
				w.t.Errorf("AcquireLease: %v", err)
			}
			return
		}
		for _, l := range resp.GetLeases() {
			// 0.4 to 1.4 leases.
			w.one(ctx, l.GetLeaseToken(), time.Duration(float64(w.lease)*(0.4+rand.Float64())))
		}
	}
}

func (w *tired) one(ctx context.Context, token string, takes time.Duration) {
	end := time.NewTimer(takes)
	defer end.Stop()
	beats := time.NewTicker(w.lease / 3)
	defer beats.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-beats.C:
			if _, err := w.m.leases.Heartbeat(ctx, &pb.HeartbeatRequest{LeaseToken: token}); err != nil && ctx.Err() == nil {
				w.rejected.Add(1)
				return
			}
		case <-end.C:
			if _, err := w.m.leases.Complete(ctx, &pb.CompleteRequest{LeaseToken: token}); err == nil {
				w.done.Add(1)
			} else if ctx.Err() == nil {
				w.rejected.Add(1)
			}
			return
		}
	}
}

// TestOverloadDoesNotFeedItself: twice as much work comes as the workers can do, each job
// takes about as long as its lease, and half of the workers die in the middle and come back.
// Work that is repeated because it was given up too early would eat what can be done.
func TestOverloadDoesNotFeedItself(t *testing.T) {
	t.Parallel()
	const workers, lease, phase = 40, 3 * time.Second, 6 * time.Second
	f := newFleet(t, database(t), 1, "--watcher-interval", "300ms")
	mayExpire(t, f)
	w := &tired{t: t, m: f.members[0], queue: opened(t, f, &pb.Queue{Name: "q"}), lease: lease}
	stored(t, w.m, 1000, &pb.EnqueueRequest{Queue: w.queue})
	staying, leave := context.WithCancel(t.Context())
	defer leave()
	dying, die := context.WithCancel(staying)
	defer die()
	var all sync.WaitGroup
	start := func(ctx context.Context, n int, life int) {
		for i := range n {
			all.Go(func() { w.work(ctx, fmt.Sprint("w", i, "/", life)) })
		}
	}
	during := func() int64 {
		before := w.done.Load()
		over := time.NewTimer(phase)
		defer over.Stop()
		<-over.C
		return w.done.Load() - before
	}
	start(staying, workers/2, 1)
	start(dying, workers/2, 1)
	first := during()
	die() // the leases of half of the workers are left to themselves
	start(staying, workers/2, 2)
	second := during()
	leave()
	all.Wait()
	// 40 workers do a job in 0.9 leases on average. The bound leaves room for a busy machine.
	capacity := int64(workers * phase / (lease * 9 / 10))
	t.Logf("of a capacity of %d were done %d, then %d", capacity, first, second)
	if second < capacity/5 {
		t.Errorf("after half of the workers had been started anew, %d jobs were done, of a capacity of %d", second, capacity)
	}
	if n := w.rejected.Load(); n > 2 {
		t.Errorf("%d workers that beat in time lost their lease", n)
	}
	if n := look[int](t, f, `SELECT count(*)::int FROM leasehold.all_leases WHERE ended_by = 'EXPIRED'`); n > workers/2 {
		t.Errorf("%d leases expired, and %d workers died", n, workers/2)
	}
	wantSound(t, f, false)
}
