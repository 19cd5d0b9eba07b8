//go:build full

package faulttest

import "testing"

// TestLinearizableBehindPgBouncer is TestLinearizableUnderFaults of replicas that reach the
// database through a pooler in transaction mode: nothing rests on what a session remembers.
func TestLinearizableBehindPgBouncer(t *testing.T) {
	t.Parallel()
	linearizable(t, newPooledFleet(t, linearReplicas, linearArgs...))
}
