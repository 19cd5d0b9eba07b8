package storetest_test

import (
	"errors"
	"testing"
	"time"

	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/storetest"
)

func TestMemory(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) storetest.Harness { return storetest.MemoryHarness(t) })
}

func TestMemoryRandom(t *testing.T) {
	t.Parallel()
	for range 5 { // without a database, sequences cost next to nothing
		storetest.RunRandom(t, func(t *testing.T) storetest.Harness { return storetest.MemoryHarness(t) })
	}
}

// leased makes a queue with one job and leases it.
func leased(t *testing.T, s store.Store) store.Lease {
	t.Helper()
	if _, err := s.CreateQueue(t.Context(), store.Queue{Name: "q"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Enqueue(t.Context(), []store.NewJob{{Queue: "q"}}); err != nil {
		t.Fatal(err)
	}
	out, err := s.Acquire(t.Context(), []store.Acquire{{Queues: []string{"q"}, Owner: "w", MaxJobs: 1}})
	if err != nil || len(out[0].Leases) != 1 {
		t.Fatalf("Acquire: %+v, %v", out, err)
	}
	return out[0].Leases[0]
}

func TestMemoryOnAManualClock(t *testing.T) {
	t.Parallel()
	clock := storetest.NewManualClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	m := storetest.NewMemory(clock)
	l := leased(t, m)
	sweep := func() int {
		t.Helper()
		out, err := m.SweepPage(t.Context(), 0, 100, nil)
		if err != nil {
			t.Fatal(err)
		}
		return out.Ended
	}
	clock.Advance(2 * time.Minute)
	if n := sweep(); n != 0 {
		t.Errorf("%d leases ended although nobody stamped that heartbeats could be written", n)
	}
	m.AlwaysWritable()
	if n := sweep(); n != 1 {
		t.Errorf("%d leases ended after two minutes, want 1", n)
	}
	if j, err := m.GetJob(t.Context(), l.Job.ID, false); err != nil || j.State != store.Pending {
		t.Errorf("the job is %+v, %v", j, err)
	}
}

func TestMemoryRetention(t *testing.T) {
	t.Parallel()
	clock := storetest.NewManualClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	m := storetest.NewMemory(clock)
	l := leased(t, m)
	if out, err := m.Complete(t.Context(), []store.Complete{{Lease: l.Ref()}}); err != nil || out[0].Err != nil {
		t.Fatalf("Complete: %+v, %v", out, err)
	}
	day := 24 * time.Hour
	clock.Advance(2 * day)
	if err := m.ApplyRetention(t.Context(), nil, &day); err != nil {
		t.Fatal(err)
	}
	if j, err := m.GetJob(t.Context(), l.Job.ID, true); err != nil || j.Payload != nil || j.Result != nil {
		t.Errorf("after the retention of payloads the job is %+v, %v", j, err)
	}
	if err := m.ApplyRetention(t.Context(), &day, nil); err != nil {
		t.Fatal(err)
	}
	var gone *store.JobNotFoundError
	if _, err := m.GetJob(t.Context(), l.Job.ID, false); !errors.As(err, &gone) {
		t.Errorf("after the retention of facts: %v", err)
	}
}

func TestFaultsBeforeAndAfterACall(t *testing.T) {
	t.Parallel()
	m := storetest.NewMemory(nil)
	l := leased(t, m)
	fault := func(want string) storetest.Fault {
		return func(method string) error {
			if method == want {
				return &store.UnavailableError{}
			}
			return nil
		}
	}
	before, after := storetest.WithFaults(m, fault("Complete"), nil), storetest.WithFaults(m, nil, fault("Complete"))
	state := func() store.State {
		t.Helper()
		j, err := before.GetJob(t.Context(), l.Job.ID, false)
		if err != nil {
			t.Fatal(err)
		}
		return j.State
	}
	var unavailable *store.UnavailableError
	if _, err := before.Complete(t.Context(), []store.Complete{{Lease: l.Ref()}}); !errors.As(err, &unavailable) || state() != store.Processing {
		t.Errorf("a fault before the call: %v, the job is %s", err, state())
	}
	if out, err := before.Heartbeat(t.Context(), []store.Heartbeat{{Lease: l.Ref()}}); err != nil || out[0].Err != nil {
		t.Errorf("another call: %+v, %v", out, err)
	}
	if _, err := after.Complete(t.Context(), []store.Complete{{Lease: l.Ref()}}); !errors.As(err, &unavailable) || state() != store.Completed {
		t.Errorf("a fault after the call: %v, the job is %s", err, state())
	}
}
