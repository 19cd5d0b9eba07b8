// Package model is the life of one job as a pure function:
//
//	Step(state, request, now) (state', outcome)
//
// It does no I/O, reads no clock and keeps nothing: a State is a value that is never
// changed in place, so a caller may hold on to as many as it likes and go on from any of
// them. That makes it three things at once: the oracle that a Store's answers are compared
// with, the core of the in-memory Store, and the sequential specification under which a
// concurrent history must be linearizable.
//
//	Enqueue ─► PENDING ──Acquire──► PROCESSING ──Complete──► COMPLETED
//	             ▲  ▲                 │  │  └──Fail for good, last attempt──► DEAD
//	             │  └──Fail, Release──┘  └─────expired on the last attempt──► DEAD
//	             └─────expired─────────────────expired, hold or crash loop──► STUCK
//
// The two tables that decide everything are written as tables: R17 (what the token of a
// lease answers) in standing.go, section 6 (which end uses what) in ends.go.
//
// Chance is not drawn here. A time that jitter decides is a Window from the earliest to
// the latest that the rules allow; whoever knows the time, because it was drawn or
// observed, narrows it by Settle.
package model
