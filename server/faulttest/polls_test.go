package faulttest

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// TestAProxyThatCutsSilentPollsLosesNoJob: proxies end what was silent for a while. The poll
// that was cut gets nothing, and the next one all.
func TestAProxyThatCutsSilentPollsLosesNoJob(t *testing.T) {
	t.Parallel()
	f := newFleet(t, database(t), 1)
	m := f.members[0]
	q := opened(t, f, &pb.Queue{Name: "q"})
	for range 20 {
		cut := make(chan error, 1)
		go func() {
			_, err := m.leases.AcquireLease(t.Context(), &pb.AcquireLeaseRequest{Queues: []string{q}, LeaseOwner: "cut", Wait: durationpb.New(time.Minute)})
			cut <- err
		}()
		eventually(t, "a parked poll", func() bool { return gauges(t, m)["leasehold_parked_polls"] == 1 })
		m.outer.Cut()
		if err := <-cut; status.Code(err) != codes.Unavailable {
			t.Errorf("a poll that was cut ended with %v", err)
		}
		id := stored(t, m, 1, &pb.EnqueueRequest{Queue: q})[0]
		resp := accepted(t, m.leases.AcquireLease, &pb.AcquireLeaseRequest{Queues: []string{q}, LeaseOwner: "next", Wait: durationpb.New(5 * time.Second)})
		if got := idsOf(resp.GetLeases()); len(got) != 1 || got[0] != id {
			t.Fatalf("the next poll got %q, want job %s", got, id)
		}
	}
	if n := look[int](t, f, `SELECT count(*)::int FROM leasehold.all_leases WHERE owner = 'cut' AND ended_by IS DISTINCT FROM 'UNDELIVERED'`); n > 0 {
		t.Errorf("%d leases were given to polls that were gone", n)
	}
	for _, wait := range []time.Duration{61 * time.Second, 5 * time.Minute} {
		_, err := m.leases.AcquireLease(t.Context(), &pb.AcquireLeaseRequest{Queues: []string{q}, LeaseOwner: "w", Wait: durationpb.New(wait)})
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("a wait of %v, which no proxy lets live, is answered %v", wait, err)
		}
	}
}

// TestPollsThatLeaveAtAnyMomentLeaveNothingBehind: before they park, while they are parked,
// while they claim, and while they are answered.
func TestPollsThatLeaveAtAnyMomentLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	f := newFleet(t, database(t), 1, "--watcher-interval", "300ms")
	m := f.members[0]
	q := opened(t, f, &pb.Queue{Name: "q"})
	poll := func(ctx context.Context, d time.Duration) {
		ctx, cancel := context.WithTimeout(ctx, d)
		defer cancel()
		_, _ = m.leases.AcquireLease(ctx, &pb.AcquireLeaseRequest{
			Queues: []string{q}, LeaseOwner: "w", Wait: durationpb.New(10 * time.Second), LeaseDuration: durationpb.New(time.Second),
		})
	}
	many := func(n int) {
		var all sync.WaitGroup
		numbers := make(chan int)
		for range 100 {
			all.Go(func() {
				for i := range numbers {
					poll(t.Context(), rand.N(40*time.Millisecond))
					if i%10 == 0 {
						stored(t, m, 1, &pb.EnqueueRequest{Queue: q})
					}
				}
			})
		}
		for i := range n {
			numbers <- i
		}
		close(numbers)
		all.Wait()
	}
	rest := func() (goroutines, heap float64) {
		eventually(t, "no poll is parked", func() bool { return gauges(t, m)["leasehold_parked_polls"] == 0 })
		least := gauges(t, m)
		eventually(t, "the goroutines of ended calls are gone", func() bool {
			now := gauges(t, m)
			fewer := now["go_goroutines"] < least["go_goroutines"]
			least = now
			return !fewer
		})
		return least["go_goroutines"], least["go_memstats_heap_inuse_bytes"]
	}
	many(500) // pools, caches and the connection are made
	goroutines, heap := rest()
	many(2500)
	var after, heapAfter float64
	eventually(t, "goroutines and memory are back where they were", func() bool {
		after, heapAfter = rest()
		return after <= goroutines+5 && heapAfter < heap+32<<20
	})
	t.Logf("goroutines %v, then %v; heap %v MiB, then %v MiB", goroutines, after, heap/(1<<20), heapAfter/(1<<20))
	if conns := look[int](t, f, `SELECT count(*)::int FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'leasehold'`); conns > 9 {
		t.Errorf("%d connections, with a pool of 8", conns)
	}
	mayExpire(t, f)
	f.db.Exec(t, sqlOverdue)
	eventually(t, "nothing is leased", func() bool { return look[int](t, f, `SELECT count(*)::int FROM leasehold.jobs WHERE state = 2`) == 0 })
	wantSound(t, f, true)
}
