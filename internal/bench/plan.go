package bench

import (
	"fmt"
	"time"
)

// Plan is how long and on what tables is measured.
type Plan struct {
	// Rounds is how many pairs of rounds a figure has, at least 1.
	Rounds int
	// Warm runs before the clock of a round, Round is its length.
	Warm, Round time.Duration
	// WarmStretch is Warm for each stretch of a round between which a queue is filled.
	WarmStretch time.Duration
	// Spare is how many jobs are left in a queue, so that no caller ever finds it empty: more
	// than all callers take at once.
	Spare int64
	// Pickup is the length of a round of pick-up latency.
	Pickup time.Duration
	// PendingSmall is the backlog that PendingLarge and PendingHuge are compared with.
	PendingSmall, PendingLarge, PendingHuge int64
	// Stretch is how many jobs are drained before a backlog is filled up again, so that it stays
	// about as large as it is said to be.
	Stretch int64
	// Finished is the history of drain_finished_5m.
	Finished int64
	// SnapshotRunIn is drained under the snapshot before Snapshot is measured.
	SnapshotRunIn, Snapshot time.Duration
	// LeasesFew and LeasesMany are kept alive, each beaten once in BeatEvery.
	LeasesFew, LeasesMany int
	BeatEvery             time.Duration
	// Idle is the length of a round in which nothing is done.
	Idle time.Duration
}

// Full is the plan that counts.
func Full() Plan {
	return Plan{
		Rounds: 3, Warm: time.Second, Round: 10 * time.Second, WarmStretch: 200 * time.Millisecond,
		Spare: 5_000, Pickup: 20 * time.Second,
		PendingSmall: 50_000, PendingLarge: 1_000_000, PendingHuge: 10_000_000, Stretch: 30_000, Finished: 5_000_000,
		SnapshotRunIn: time.Minute, Snapshot: time.Minute,
		LeasesFew: 10_000, LeasesMany: 100_000, BeatEvery: 20 * time.Second,
		Idle: 10 * time.Second,
	}
}

// Quick is a plan whose whole run takes less than 3 minutes. Leases are beaten at the rate of
// the full plan: fewer of them, each more often.
func Quick() Plan {
	return Plan{
		Rounds: 3, Warm: 100 * time.Millisecond, Round: 300 * time.Millisecond, WarmStretch: 100 * time.Millisecond,
		Spare: 3_000, Pickup: 700 * time.Millisecond,
		PendingSmall: 20_000, PendingLarge: 50_000, PendingHuge: 100_000, Stretch: 10_000, Finished: 50_000,
		SnapshotRunIn: 500 * time.Millisecond, Snapshot: 500 * time.Millisecond,
		LeasesFew: 1_000, LeasesMany: 10_000, BeatEvery: 2 * time.Second,
		Idle: time.Second,
	}
}

func (p Plan) String() string {
	n := func(v int64) string { return number(float64(v)) }
	return fmt.Sprintf("%d rounds of %v; backlogs of %s and %s against %s; %s finished; snapshot held for %v, measured for the last %v; "+
		"%s and %s leases, each beaten every %v; pick-up for %v; idle for %v",
		p.Rounds, p.Round, n(p.PendingLarge), n(p.PendingHuge), n(p.PendingSmall), n(p.Finished),
		p.SnapshotRunIn+p.Snapshot, p.Snapshot, n(int64(p.LeasesFew)), n(int64(p.LeasesMany)), p.BeatEvery, p.Pickup, p.Idle)
}
