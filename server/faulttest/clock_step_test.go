package faulttest

import (
	"testing"
	"time"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// TestAClockThatWasSetBackStopsNoWatcherAndNoGrace: what the service noted by the database's
// clock lies ahead then, as after a fail-over to a server whose clock is behind. It must not
// pass for fresh until the clock has caught up.
func TestAClockThatWasSetBackStopsNoWatcherAndNoGrace(t *testing.T) {
	t.Parallel()
	f := newFleet(t, database(t), 1, "--watcher-interval", "200ms")
	m := f.members[0]
	q := opened(t, f, &pb.Queue{Name: "q"})
	stored(t, m, 1, &pb.EnqueueRequest{Queue: q})
	lease := taken(t, m, q, 1, 2*time.Second)[0]
	f.db.Exec(t, `UPDATE leasehold.service SET writable_since = now() + interval '50 minutes', stamped_at = now() + interval '1 hour', swept_at = now() + interval '1 hour'`)
	eventually(t, "the lease of a worker that is gone ends", func() bool { return stateOf(t, f, lease.GetJob().GetJobId()) == "PENDING" })
	if !isReady(m) {
		t.Error("the replica is not ready")
	}

	// The grace of an outage that comes afterwards.
	held := taken(t, m, q, 1, 6*time.Second)[0]
	f.db.Exec(t, `UPDATE leasehold.service SET writable_since = now() - interval '1 day', stamped_at = now() + interval '1 hour', swept_at = now() + interval '1 hour'`)
	eventually(t, "a stamp by the clock as it is", func() bool {
		return look[bool](t, f, `SELECT stamped_at <= clock_timestamp() FROM leasehold.service`)
	})
	m.Freeze() // the only replica
	eventually(t, "the time of the lease is over", func() bool {
		return look[bool](t, f, `SELECT lease_until < now() - interval '3 seconds' FROM leasehold.jobs WHERE state = 2`)
	})
	m.Thaw()
	accepted(t, m.leases.Heartbeat, &pb.HeartbeatRequest{LeaseToken: held.GetLeaseToken()})
	accepted(t, m.leases.Complete, &pb.CompleteRequest{LeaseToken: held.GetLeaseToken()})
	if expired := look[int](t, f, `SELECT count(*)::int FROM leasehold.all_leases WHERE ended_by = 'EXPIRED'`); expired != 1 {
		t.Errorf("%d leases expired, want that of the worker that is gone", expired)
	}
	wantSound(t, f, true)
}
