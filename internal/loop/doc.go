// Package loop runs work that comes back: one pass, a wait, the next pass, until the
// context ends.
//
//	            ┌── ok ───────► wait until start + Interval, or a kick ──┐
//	start ─► pass                                                        ├─► pass
//	            └── error, ───► wait [d/2, d], d doubling to RetryMax ───┘
//	                panic       (a kick does not shorten this)
//
// The first pass comes a random moment after the start, and every wait after a failure is
// random in its length: replicas that started or failed together do not come back together.
// Each pass has its own timeout. A pass that panics is a pass that failed. Nothing but the
// end of the context ends a loop.
//
// The work itself is a function of its own (runOnce, by habit), which tests call directly;
// that the timing is right is this package's to test.
package loop
