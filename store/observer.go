package store

import "time"

// Observer hears what a Store of this replica did to leases, once it is committed: a repeated
// call that was applied before is not told again. Its methods are called between statements,
// from many goroutines, and must return at once.
type Observer interface {
	// Leased is one lease that was granted, so long after its job was due.
	Leased(queue string, waited time.Duration)
	// Beaten is one heartbeat that renewed a lease, so long after the last sign of life.
	Beaten(gap time.Duration)
	// Ended is one lease that ended, so long after it was granted.
	Ended(queue string, end End, ran time.Duration)
	// DoubleRun is a call of a holder after another lease of its job had begun: the first such
	// call of a lease. Two workers had the job at once.
	DoubleRun()
}

// Unobserved is an Observer that does nothing.
type Unobserved struct{}

// Leased implements Observer.
func (Unobserved) Leased(string, time.Duration) {}

// Beaten implements Observer.
func (Unobserved) Beaten(time.Duration) {}

// Ended implements Observer.
func (Unobserved) Ended(string, End, time.Duration) {}

// DoubleRun implements Observer.
func (Unobserved) DoubleRun() {}

// Ends are all ends of a lease, with their names in metrics.
var Ends = map[End]string{
	EndCompleted: "completed", EndCompletedLate: "completed_late", EndFailed: "failed", EndFailedPermanently: "failed_permanently",
	EndExpired: "expired", EndOverran: "overran", EndStalled: "stalled", EndReleased: "released", EndUndelivered: "undelivered",
}
