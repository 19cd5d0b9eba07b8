package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/leasehold/leasehold/store"
)

// near tells whether a duration is at most `limit`, and not far below it.
func near(d, limit time.Duration) bool { return d <= limit && d > limit-patience }

func TestR27AJobThatChoseNothingHasTheDocumentedDefaults(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	id := h.enqueue(t, store.NewJob{})[0]
	out, err := h.store.Acquire(t.Context(), []store.Acquire{{JobID: id, Owner: "worker-1", MaxJobs: 1}})
	if err != nil || len(out[0].Leases) != 1 {
		t.Fatalf("Acquire: %+v, %v", out, err)
	}
	lease := out[0].Leases[0]
	if lease.Remaining != store.DefaultLeaseDuration || lease.Job.Priority != store.DefaultPriority {
		t.Errorf("leased for %v with priority %d", lease.Remaining, lease.Job.Priority)
	}
	ended, err := h.store.Fail(t.Context(), []store.Fail{{Lease: lease.Ref()}})
	if err != nil || ended[0].AttemptsLeft != store.DefaultMaxAttempts-1 {
		t.Errorf("Fail: %+v, %v", ended, err)
	}
	// A jitter only shortens the wait.
	if in := ended[0].NextRunIn; in > store.DefaultBackoffInitial || in < store.DefaultBackoffInitial*8/10 {
		t.Errorf("it runs again in %v", in)
	}
}

func TestR16ACancelledLeaseLivesForTheDefaultGrace(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	long := 12 * time.Hour
	id := h.enqueue(t, store.NewJob{Policy: store.Policy{LeaseDuration: &long}})[0]
	ref := h.lease(t, id)
	if _, err := h.store.CancelJob(t.Context(), id, store.Actor{Name: "ops"}); err != nil {
		t.Fatal(err)
	}
	out, err := h.store.Heartbeat(t.Context(), beatsOf(ref))
	if err != nil || out[0].Err != nil || !near(out[0].Remaining, store.DefaultCancelGrace) {
		t.Errorf("Heartbeat: %+v, %v", out, err)
	}
}

func TestR28TheDefaultNumberOfExpirationsHoldsTheJob(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.neverBlameless(t)
	id := h.enqueue(t, store.NewJob{})[0]
	for n := 1; n <= store.DefaultMaxExpirations; n++ {
		h.lease(t, id)
		h.Age(t, id, time.Hour)
		if ended := h.sweep(t); ended != 1 {
			t.Fatalf("the sweep ended %d leases", ended)
		}
		want := store.Pending
		if n == store.DefaultMaxExpirations {
			want = store.Stuck
		}
		if got := h.state(t, id); got != want {
			t.Fatalf("after %d expirations in a row it is %v", n, got)
		}
		h.Exec(t, `UPDATE leasehold.jobs SET run_at = now() WHERE id = $1`, int64(id))
	}
}

// sqlBackoff takes 400 samples of the wait after the n-th end of a job that chose nothing.
const sqlBackoff = `
SELECT extract(epoch FROM min(b))::float8 || ' ' || extract(epoch FROM max(b))::float8
FROM (SELECT leasehold.backoff(NULL, NULL, NULL, $1, $2) AS b FROM generate_series(1, 400)) AS samples`

func TestR29TheDefaultBackoffGrowsToItsCap(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	exact := 0.0
	wait := store.DefaultBackoffInitial.Seconds()
	for n := range 60 {
		low, high := h.backoff(t, &exact, n+1)
		if low != wait || high != wait {
			t.Errorf("after end %d without jitter: %v..%v s, want %v", n+1, low, high, wait)
		}
		wait = min(wait*store.DefaultBackoffFactor, store.DefaultBackoffCap.Seconds())
	}
	low, high := h.backoff(t, nil, 2_000_000_000)
	limit := store.DefaultBackoffCap.Seconds()
	if bottom := limit * (1 - store.DefaultBackoffJitter); low < bottom || high > limit || low > bottom*1.02 || high < limit*0.98 {
		t.Errorf("the default jitter spreads %v s over %v..%v", limit, low, high)
	}
}

func (h *harness) backoff(t *testing.T, jitter *float64, n int) (low, high float64) {
	t.Helper()
	both := one[string](t, h, sqlBackoff, jitter, n)
	if _, err := fmt.Sscan(both, &low, &high); err != nil {
		t.Fatal(err)
	}
	return low, high
}

func TestR33AKeyIsKeptForTheDefaultRetention(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	key := "invoice-7"
	job := store.NewJob{IdempotencyKey: &key}
	id := h.enqueue(t, job)[0]
	h.complete(t, h.lease(t, id))
	h.Age(t, id, store.DefaultIdempotencyRetention-time.Hour)
	if again := h.enqueue(t, job)[0]; again != id {
		t.Errorf("an hour before its time is over the key belongs to job %d, not %d", again, id)
	}
	if _, err := h.store.GetJobByKey(t.Context(), "q", key, false); err != nil {
		t.Error(err)
	}
	if n, err := h.store.ForgetExpired(t.Context()); err != nil || n != 0 {
		t.Errorf("an hour before: %d forgotten, %v", n, err)
	}
	h.Age(t, id, 2*time.Hour)
	if _, err := h.store.GetJobByKey(t.Context(), "q", key, false); !is[*store.JobNotFoundError](err) {
		t.Errorf("an hour later it is found: %v", err)
	}
	if again := h.enqueue(t, job)[0]; again == id {
		t.Error("an hour later the key still belongs to the old job")
	}
}
