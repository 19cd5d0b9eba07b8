package model

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/leasehold/leasehold/store"
)

func TestEveryStandingHasARow(t *testing.T) {
	t.Parallel()
	for s := open; s <= former; s++ {
		if _, ok := r17[s]; !ok {
			t.Errorf("standing %d is not in the table of R17", s)
		}
	}
	if len(r17) != int(former)+1 {
		t.Errorf("the table of R17 has %d rows", len(r17))
	}
}

func TestEveryEndHasARow(t *testing.T) {
	t.Parallel()
	for e := store.EndCompleted; e <= store.EndUndelivered; e++ {
		row, ok := section6[e]
		if !ok {
			t.Errorf("end %d is not in section 6", e)
		}
		if row.expiration && !row.attempt {
			t.Errorf("end %d uses an expiration and no attempt", e)
		}
	}
}

func TestR29BackoffStaysInItsBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := Backoff{
			Initial: time.Duration(rapid.Int64Range(0, int64(24*time.Hour)).Draw(t, "initial")),
			Factor:  rapid.Float64Range(1, 10).Draw(t, "factor"),
			Cap:     time.Duration(rapid.Int64Range(0, int64(30*24*time.Hour)).Draw(t, "cap")),
			Jitter:  rapid.Float64Range(0, 1).Draw(t, "jitter"),
		}
		n := rapid.Int32Range(1, 2000).Draw(t, "n")
		shortest, longest := b.Bounds(n)
		_, after := b.Bounds(n + 1)
		if shortest < 0 || shortest > longest || longest > b.Cap || after < longest {
			t.Fatalf("after %d: %s to %s, then up to %s; cap %s", n, shortest, longest, after, b.Cap)
		}
	})
}

// drawCall draws what may happen to a job, without regard to its state.
func drawCall(t *rapid.T, s State) Call {
	no := rapid.Int64Range(0, s.LeaseNo+1).Draw(t, "lease_no")
	switch rapid.IntRange(0, 11).Draw(t, "call") {
	case 0, 1, 2:
		return Acquire{Owner: "w", ByID: rapid.Bool().Draw(t, "by_id")}
	case 3:
		return Heartbeat{LeaseNo: no, Stage: ptr("s"), Progress: ptr(0.5), Checkpoint: []byte("c")}
	case 4:
		return Complete{LeaseNo: no, Result: store.Payload{Data: []byte("r")}}
	case 5:
		return Fail{LeaseNo: no, Permanent: rapid.Bool().Draw(t, "permanent")}
	case 6:
		return Release{LeaseNo: no}
	case 7:
		return Undeliver{LeaseNo: no}
	case 8:
		return Cancel{}
	case 9:
		return Retry{}
	case 10:
		return Resolve{Result: &store.Payload{}}
	}
	return Sweep{}
}

// TestInvariantsOfTheModel: whatever is called in whatever order, the states are ones
// that section 4 knows, and a step leaves the state that it was given as it was.
func TestInvariantsOfTheModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		queue := store.Queue{OnExpiry: store.OnExpiry(rapid.IntRange(0, 2).Draw(t, "on_expiry"))}
		s, _ := Step(State{}, Request{Call: Enqueue{ID: 1, Job: store.NewJob{
			Policy: store.Policy{MaxAttempts: ptr(rapid.Int32Range(1, 4).Draw(t, "max_attempts"))},
		}}}, now)
		for range 30 {
			now = now.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "minutes")) * 45 * time.Second)
			before := fmt.Sprintf("%+v", s.Leases)
			next, o := Step(s, Request{Call: drawCall(t, s), Queue: queue}, now)
			if after := fmt.Sprintf("%+v", s.Leases); after != before {
				t.Fatalf("the step changed the state that it was given:\n%s\n%s", before, after)
			}
			checkState(t, s, next, o)
			s = next
		}
	})
}

func checkState(t *rapid.T, was, is State, o Outcome) {
	t.Helper()
	l, leased := is.Latest()
	switch {
	case is.LeaseNo < was.LeaseNo || is.LeaseNo > was.LeaseNo+1:
		t.Fatalf("lease_no went from %d to %d", was.LeaseNo, is.LeaseNo)
	case int64(len(is.Leases)) != is.LeaseNo:
		t.Fatalf("%d records of %d leases", len(is.Leases), is.LeaseNo)
	case is.AttemptsUsed > is.Limits().MaxAttempts:
		t.Fatalf("%d attempts used", is.AttemptsUsed)
	case (is.Phase == store.Processing) != (leased && l.End == store.EndNone):
		t.Fatalf("the job is %s, its latest lease ended by %d", is.Phase, l.End)
	case is.Phase.Terminal() != (is.FinishedAt != nil):
		t.Fatalf("the job is %s, finished_at %v", is.Phase, is.FinishedAt)
	case is.Phase == store.Pending && is.AttemptsUsed >= is.Limits().MaxAttempts:
		t.Fatalf("the job waits although its attempts are used up: limbo")
	case o.Err != nil && (is.Phase != was.Phase || is.LeaseNo != was.LeaseNo || is.AttemptsUsed != was.AttemptsUsed):
		t.Fatalf("a refused call changed the job: %v", o.Err)
	}
	for i, r := range is.Leases[:max(0, len(is.Leases)-1)] {
		if r.End == store.EndNone {
			t.Fatalf("lease %d of %d has not ended", i+1, len(is.Leases))
		}
	}
}
