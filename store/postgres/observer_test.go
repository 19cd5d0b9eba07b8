package postgres_test

import (
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/postgres"
)

// heard is an Observer that remembers.
type heard struct {
	mu         sync.Mutex
	leased     map[string]int
	waited     time.Duration // the longest
	ended      map[store.End]int
	ran        time.Duration // the longest
	beats      int
	gap        time.Duration // the longest
	doubleRuns int
}

func (h *heard) Leased(queue string, waited time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leased[queue]++
	h.waited = max(h.waited, waited)
}

func (h *heard) Ended(queue string, end store.End, ran time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if queue == "q" {
		h.ended[end]++
	}
	h.ran = max(h.ran, ran)
}

func (h *heard) Beaten(gap time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.beats++
	h.gap = max(h.gap, gap)
}

func (h *heard) DoubleRun() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.doubleRuns++
}

// observed is a store whose observer remembers, with one queue.
func observed(t *testing.T) (*harness, *heard) {
	t.Helper()
	ears := &heard{leased: map[string]int{}, ended: map[store.End]int{}}
	url := pgtest.Database(t, migrate)
	s, err := postgres.Open(t.Context(), postgres.Config{URL: url, Observer: ears})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	h := newHarnessOver(t, url, s)
	h.SetWritable(t, time.Hour, 0)
	if err := s.EnsureQueues(t.Context(), []string{"q"}); err != nil {
		t.Fatal(err)
	}
	return h, ears
}

// take enqueues and leases n jobs.
func take(t *testing.T, h *harness, n int) []store.LeaseRef {
	t.Helper()
	jobs := make([]store.NewJob, n)
	for i := range jobs {
		jobs[i].Queue = "q"
	}
	if _, err := h.store.Enqueue(t.Context(), jobs); err != nil {
		t.Fatal(err)
	}
	return leaseAgain(t, h, n)
}

func leaseAgain(t *testing.T, h *harness, n int) []store.LeaseRef {
	t.Helper()
	got, err := h.store.Acquire(t.Context(), []store.Acquire{{Queues: []string{"q"}, Owner: "w/1", MaxJobs: n}})
	if err != nil {
		t.Fatal(err)
	}
	refs := make([]store.LeaseRef, len(got[0].Leases))
	for i := range got[0].Leases {
		refs[i] = got[0].Leases[i].Ref()
	}
	if len(refs) != n {
		t.Fatalf("%d leases, want %d", len(refs), n)
	}
	return refs
}

// TestObserverHearsOfEachEndOnce, also where the call that ended the lease is repeated.
func TestObserverHearsOfEachEndOnce(t *testing.T) {
	t.Parallel()
	h, ears := observed(t)
	s, ctx := h.store, t.Context()
	refs := take(t, h, 7)
	h.Age(t, refs[0].JobID, 30*time.Second)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // a repetition is answered, and not counted
		_, err := s.Complete(ctx, []store.Complete{{Lease: refs[0]}})
		must(err)
		_, err = s.Complete(ctx, []store.Complete{{Lease: refs[1], ThenEnqueue: []store.NewJob{{Queue: "q", Delay: new(time.Hour)}}}})
		must(err)
		_, err = s.Fail(ctx, []store.Fail{{Lease: refs[2]}, {Lease: refs[3], Permanent: true}})
		must(err)
		_, err = s.Release(ctx, []store.Release{{Lease: refs[4], Delay: time.Hour}})
		must(err)
	}
	must(s.Undeliver(ctx, refs[5:6], nil))
	h.Age(t, refs[6].JobID, time.Hour)
	_, err := s.SweepPage(ctx, 0, 100, nil)
	must(err)
	ears.mu.Lock()
	defer ears.mu.Unlock()
	want := map[store.End]int{
		store.EndCompleted: 2, store.EndFailed: 1, store.EndFailedPermanently: 1, store.EndReleased: 1,
		store.EndUndelivered: 1, store.EndExpired: 1,
	}
	if !maps.Equal(ears.ended, want) {
		t.Errorf("ended %v, want %v", ears.ended, want)
	}
	if ears.leased["q"] != 7 {
		t.Errorf("leased %v", ears.leased)
	}
	if ears.ran < time.Hour || ears.ran > 2*time.Hour {
		t.Errorf("the longest lease ran for %v", ears.ran)
	}
}

func TestObserverHearsOfHeartbeats(t *testing.T) {
	t.Parallel()
	h, ears := observed(t)
	refs := take(t, h, 2)
	h.Age(t, refs[0].JobID, 20*time.Second)
	h.Age(t, refs[1].JobID, time.Hour) // it is ended before it beats
	if _, err := h.store.SweepPage(t.Context(), 0, 100, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := h.store.Heartbeat(t.Context(), []store.Heartbeat{{Lease: refs[0]}, {Lease: refs[1]}}); err != nil {
		t.Fatal(err)
	}
	ears.mu.Lock()
	defer ears.mu.Unlock()
	if ears.beats != 1 || ears.gap < 20*time.Second || ears.gap > 20*time.Minute {
		t.Errorf("%d beats, the largest gap is %v", ears.beats, ears.gap)
	}
}

// TestObserverHearsOfADoubleRunOnce: of the former holder's first call, and not of the next.
func TestObserverHearsOfADoubleRunOnce(t *testing.T) {
	t.Parallel()
	h, ears := observed(t)
	ref := take(t, h, 1)[0]
	h.Age(t, ref.JobID, time.Hour)
	if _, err := h.store.SweepPage(t.Context(), 0, 100, nil); err != nil {
		t.Fatal(err)
	}
	leaseAgain(t, h, 1)
	for range 2 {
		if _, err := h.store.Heartbeat(t.Context(), []store.Heartbeat{{Lease: ref}}); err != nil {
			t.Fatal(err)
		}
	}
	ears.mu.Lock()
	defer ears.mu.Unlock()
	if ears.doubleRuns != 1 {
		t.Errorf("%d double runs", ears.doubleRuns)
	}
}

func TestObserverHearsHowLongAJobWaited(t *testing.T) {
	t.Parallel()
	h, ears := observed(t)
	stored, err := h.store.Enqueue(t.Context(), []store.NewJob{{Queue: "q"}})
	if err != nil {
		t.Fatal(err)
	}
	h.Age(t, stored[0].JobID, time.Minute)
	leaseAgain(t, h, 1)
	ears.mu.Lock()
	defer ears.mu.Unlock()
	if ears.waited < time.Minute || ears.waited > time.Hour {
		t.Errorf("it waited for %v", ears.waited)
	}
}
