package faulttest

import (
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/status"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
)

// TestAServerThatTurnsReadOnlyUnderItsSessions is a primary that was demoted, as sessions see
// it which live on: they read, and none of them will ever write again.
func TestAServerThatTurnsReadOnlyUnderItsSessions(t *testing.T) {
	t.Parallel()
	url := pgtest.Server(t).URL("postgres")
	if err := migrate(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	f := newFleet(t, url, 2, "--watcher-interval", "300ms")
	q := opened(t, f, &pb.Queue{Name: "q"})
	stored(t, f.members[0], 40, &pb.EnqueueRequest{Queue: q})
	leases := taken(t, f.members[0], q, 40, 3*time.Second)
	mayExpire(t, f)
	turn := func(how string) {
		f.db.Exec(t, `ALTER SYSTEM SET default_transaction_read_only = `+how)
		f.db.Exec(t, `SELECT pg_reload_conf()`)
	}
	pids := []int{f.members[0].PID(), f.members[1].PID()}
	beatAll := func(m *member) (failed int, last error) {
		var all sync.WaitGroup
		var mu sync.Mutex
		for _, l := range leases {
			all.Go(func() {
				_, err := m.leases.Heartbeat(t.Context(), &pb.HeartbeatRequest{LeaseToken: l.GetLeaseToken()})
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					failed, last = failed+1, err
				}
			})
		}
		all.Wait()
		return failed, last
	}
	if failed, err := beatAll(f.members[1]); failed > 0 { // all sessions are open then
		t.Fatal(err)
	}
	turn("on")
	for _, m := range f.members {
		eventually(t, "no heartbeat is taken", func() bool {
			failed, err := beatAll(m)
			if err != nil && reasonIn(err) != "DATABASE_UNAVAILABLE" {
				t.Errorf("a heartbeat on a read-only server answers %v: %v", status.Code(err), err)
			}
			return failed == len(leases)
		})
		_, err := m.jobs.Enqueue(t.Context(), &pb.EnqueueRequest{Queue: q})
		if reasonIn(err) != "DATABASE_UNAVAILABLE" {
			t.Errorf("Enqueue on a read-only server answers %v", err)
		}
		accepted(t, m.queues.GetQueue, &pb.GetQueueRequest{Name: q})
		eventually(t, "it is not ready", func() bool { return saysWhyNot(m, "takes no writes") })
	}
	turn("off")
	for i, m := range f.members {
		eventually(t, "all heartbeats are taken", func() bool { failed, _ := beatAll(m); return failed == 0 })
		eventually(t, "it is ready", func() bool { return isReady(m) })
		accepted(t, m.jobs.Enqueue, &pb.EnqueueRequest{Queue: q})
		if m.PID() != pids[i] {
			t.Error("a replica was started anew")
		}
	}
	if n := look[int](t, f, `SELECT count(*)::int FROM leasehold.jobs WHERE state = 2 AND lease_no = 1`); n != len(leases) {
		t.Errorf("%d of %d leases outlived the time in which nobody could renew them", n, len(leases))
	}
	wantSound(t, f, false)
}
