package main

import (
	"slices"
	"testing"
	"time"
)

var full = shape{duration: 10 * time.Minute, pause: 700 * time.Millisecond, hands: 32, replicas: 3}

// TestSameSeedSamePlan: a seed that found something must find it again, and another must look
// elsewhere.
func TestSameSeedSamePlan(t *testing.T) {
	t.Parallel()
	one := plan(7, full)
	if !slices.Equal(one, plan(7, full)) {
		t.Error("one seed has two plans")
	}
	if slices.Equal(one, plan(8, full)) {
		t.Error("two seeds have one plan")
	}
}

func TestPlansAreFeasible(t *testing.T) {
	t.Parallel()
	seen := map[kind]bool{}
	for seed := range uint64(20) {
		busy := map[string]time.Duration{}
		for _, f := range plan(seed, full) {
			seen[f.kind] = true
			if f.at < warmUp || f.at >= full.duration || f.target < 0 || f.how < 0 || f.how >= 1 {
				t.Errorf("seed %d: %+v", seed, f)
			}
			for _, lane := range full.lanes(f) {
				if f.at < busy[lane] {
					t.Errorf("seed %d: %s begins while %s is busy until %s", seed, f, lane, busy[lane])
				}
				busy[lane] = f.at + f.length
			}
		}
	}
	for _, k := range kinds {
		if !seen[k.kind] {
			t.Errorf("no seed has: %s", k.kind)
		}
	}
}
