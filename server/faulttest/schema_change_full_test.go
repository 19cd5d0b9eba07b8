//go:build full

package faulttest

import "testing"

// TestColumnsThatAppearUnderLoadBehindPgBouncer, which hands prepared statements of one
// session to another, and whose own restart breaks all connections at once.
func TestColumnsThatAppearUnderLoadBehindPgBouncer(t *testing.T) {
	t.Parallel()
	changeUnderLoad(t, newPooledFleet(t, 2))
}
