package postgres

import (
	"context"
	"testing"
	"time"
)

// TestR32ABatchOfOneThingIsBounded: a batch that names one thing a thousand times gives up what
// it has not come to, and does not run for as long as a thousand statements take.
func TestR32ABatchOfOneThingIsBounded(t *testing.T) {
	t.Parallel()
	s := &Store{ends: newLane(nil, 1, 5*time.Second, time.Second)}
	var ran, busy int
	do := func(context.Context, []int) ([]int, error) {
		ran++
		<-time.After(20 * time.Millisecond)
		return nil, nil
	}
	err := s.inWaves(t.Context(), indexes(1000), func(int) any { return "the one" }, do, func(_ int, err error) {
		if err != nil {
			t.Errorf("an item that was not come to fails with %v", err)
		}
		busy++
	})
	if err != nil || ran+busy != 1000 || busy == 0 || ran < 2 {
		t.Errorf("%d statements ran and %d items were answered busy, error %v", ran, busy, err)
	}
}
