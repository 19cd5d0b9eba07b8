package postgres_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold/leasehold/store"
)

// life is one job's: acts has a word for the end of each lease, or for what follows an end.
type life struct {
	name  string
	queue store.Queue
	acts  string
	// ends are what all_leases has to say, counted what uses an attempt.
	ends, counted string
	state         store.State
}

var lives = []life{
	{name: "completed", acts: "complete", ends: "COMPLETED", counted: "f", state: store.Completed},
	{name: "failed until it was", acts: "fail fail fail complete", ends: "FAILED FAILED FAILED COMPLETED", counted: "t t t f", state: store.Completed},
	{name: "crashed, then held", acts: "expire expire expire expire expire", ends: "EXPIRED EXPIRED EXPIRED EXPIRED EXPIRED", counted: "t t t t t", state: store.Stuck},
	{name: "given back", acts: "release undeliver release complete", ends: "RELEASED UNDELIVERED RELEASED COMPLETED", counted: "f f f f", state: store.Completed},
	{name: "completed late from PENDING", acts: "fail expire late", ends: "FAILED COMPLETED_LATE", counted: "t t", state: store.Completed},
	{name: "completed late from STUCK", queue: store.Queue{OnExpiry: store.OnExpiryHold}, acts: "release expire late", ends: "RELEASED COMPLETED_LATE", counted: "f t", state: store.Completed},
	{name: "completed late from DEAD", queue: store.Queue{Policy: store.Policy{MaxAttempts: new(int32(1))}}, acts: "expire late", ends: "COMPLETED_LATE", counted: "t", state: store.Completed},
	{name: "never to be", acts: "release deny", ends: "RELEASED FAILED_PERMANENTLY", counted: "f t", state: store.Dead},
	{name: "retried by hand", acts: "deny retry fail complete", ends: "FAILED_PERMANENTLY FAILED COMPLETED", counted: "t t f", state: store.Completed},
	{name: "cancelled at work", acts: "fail cancelled", ends: "FAILED RELEASED", counted: "t f", state: store.Cancelled},
	{name: "taken over", acts: "takeover fail takeover complete", ends: "EXPIRED FAILED EXPIRED COMPLETED", counted: "t t t f", state: store.Completed},
	{name: "at work", acts: "fail hold", ends: "FAILED LIVE", counted: "t f", state: store.Processing},
	{name: "never leased", acts: "", ends: "", counted: "", state: store.Pending},
}

// act ends a lease in the way named, or does what follows its end.
func (h *harness) act(t *testing.T, act string, ref store.LeaseRef) error {
	t.Helper()
	ctx, id := t.Context(), ref.JobID
	ended := func(out []store.Ended, err error) error {
		return firstError(err, func() error { return out[0].Err })
	}
	switch act {
	case "complete", "late":
		out, err := h.store.Complete(ctx, completesOf(ref))
		if err == nil && out[0].Late != (act == "late") {
			return fmt.Errorf("late: %v", out[0].Late)
		}
		return firstError(err, func() error { return out[0].Err })
	case "fail", "deny":
		return ended(h.store.Fail(ctx, []store.Fail{{Lease: ref, Permanent: act == "deny", Error: store.JobError{Code: "declined"}}}))
	case "release":
		return ended(h.store.Release(ctx, []store.Release{{Lease: ref}}))
	case "undeliver":
		return h.store.Undeliver(ctx, []store.LeaseRef{ref}, nil)
	case "cancelled":
		if _, err := h.store.CancelJob(ctx, id, store.Actor{Name: "ops"}); err != nil {
			return err
		}
		return ended(h.store.Release(ctx, []store.Release{{Lease: ref}}))
	case "retry":
		out, err := h.store.RetryJobs(ctx, store.BulkAct{Selection: store.Selection{IDs: []store.JobID{id}}})
		return firstError(err, func() error { return out.Items[0].Err })
	case "expire":
		h.Age(t, id, time.Hour)
		if n := h.sweep(t); n != 1 {
			return fmt.Errorf("the sweep ended %d leases", n)
		}
	case "takeover": // the next lease ends this one
		h.Age(t, id, time.Hour)
	}
	return nil
}

// play lets a job live, and gives the number of its leases.
func (h *harness) play(t *testing.T, l life, id store.JobID) int64 {
	t.Helper()
	var ref store.LeaseRef
	for _, act := range strings.Fields(l.acts) {
		if act != "late" && act != "retry" {
			h.Exec(t, `UPDATE leasehold.jobs SET run_at = now() WHERE id = $1 AND state = 1`, int64(id))
			ref = h.lease(t, id)
		}
		if act != "undeliver" && act != "late" && act != "retry" && act != "release" {
			h.beat(t, ref, "stage of "+act)
		}
		if err := h.act(t, act, ref); err != nil {
			t.Fatalf("%s: %s of lease %d: %v", l.name, act, ref.LeaseNo, err)
		}
	}
	return ref.LeaseNo
}

const (
	sqlLeasesInWords = `
SELECT coalesce(string_agg(coalesce(l.ended_by, 'LIVE'), ' ' ORDER BY l.lease_no), '') FROM leasehold.all_leases l WHERE l.job_id = $1`
	sqlLeasesCounted = `
SELECT coalesce(string_agg(l.counted::text, ' ' ORDER BY l.lease_no), '') FROM leasehold.all_leases l WHERE l.job_id = $1`
	sqlLeaseNumbers = `
SELECT coalesce(string_agg(l.lease_no::text, ' ' ORDER BY l.lease_no), '') FROM leasehold.all_leases l WHERE l.job_id = $1`
	// A lease that has ended has a beginning, an owner and a place in time.
	sqlLeasesWithoutFacts = `
SELECT l.job_id || '/' || l.lease_no FROM leasehold.all_leases l
WHERE l.owner IS NULL OR l.queue IS NULL OR l.leased_at IS NULL OR l.lease_until IS NULL OR l.lease_length IS NULL
   OR (l.ended_by IS NULL) <> (l.ended_at IS NULL) OR l.ended_at < l.leased_at
   OR l.beats > 0 AND (l.last_beat_at IS NULL OR l.largest_gap IS NULL OR l.stage IS NULL)`
)

func TestR43EveryLeaseEverHandedOutIsOnRecord(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.neverBlameless(t)
	total := int64(0)
	for n, l := range lives {
		l.queue.Name = fmt.Sprintf("life-%d", n)
		if _, err := h.store.CreateQueue(t.Context(), l.queue); err != nil {
			t.Fatal(err)
		}
		out, err := h.store.Enqueue(t.Context(), []store.NewJob{{Queue: l.queue.Name}})
		if err != nil || out[0].Err != nil {
			t.Fatalf("Enqueue: %+v, %v", out, err)
		}
		id := out[0].JobID
		leases := h.play(t, l, id)
		total += leases
		h.wantLeases(t, l, id, leases)
	}
	sums := h.rows(t, `
SELECT count(*)::text FROM leasehold.all_leases
UNION ALL SELECT sum(lease_no)::text FROM leasehold.all_jobs
UNION ALL SELECT ((SELECT sum(lease_no) FROM leasehold.jobs) + (SELECT sum(lease_no) FROM leasehold.finished_jobs))::text`)
	if want := fmt.Sprint(total); !slices.Equal(sums, []string{want, want, want}) {
		t.Errorf("%s leases were handed out; the views and tables have %q", want, sums)
	}
	if bare := h.rows(t, sqlLeasesWithoutFacts); len(bare) > 0 {
		t.Errorf("leases without all their facts: %q", bare)
	}
}

// wantLeases compares the record of one job with its life, in the view and in ListLeases.
func (h *harness) wantLeases(t *testing.T, l life, id store.JobID, leases int64) {
	t.Helper()
	job, err := h.store.GetJob(t.Context(), id, false)
	if err != nil || job.State != l.state || job.LeaseNo != leases {
		t.Errorf("%s: the job is %+v, %v", l.name, job, err)
	}
	var numbers, ends, counted []string
	page, err := h.store.ListLeases(t.Context(), id, store.Page{Size: 100})
	if err != nil || len(page.Leases) != int(leases) {
		t.Fatalf("%s: ListLeases: %d leases, %v", l.name, len(page.Leases), err)
	}
	words := strings.Fields("LIVE COMPLETED COMPLETED_LATE FAILED FAILED_PERMANENTLY EXPIRED OVERRAN STALLED RELEASED UNDELIVERED")
	for n, r := range page.Leases {
		numbers = append(numbers, fmt.Sprint(n+1))
		ends = append(ends, words[r.End])
		counted = append(counted, fmt.Sprint(r.Counted)[:1])
		if r.LeaseNo != int64(n+1) {
			t.Errorf("%s: ListLeases numbers lease %d as %d", l.name, n+1, r.LeaseNo)
		}
	}
	if got := strings.Join(ends, " "); got != l.ends {
		t.Errorf("%s: ListLeases says %q, want %q", l.name, got, l.ends)
	}
	if got := strings.Join(counted, " "); got != l.counted {
		t.Errorf("%s: ListLeases counts %q, want %q", l.name, got, l.counted)
	}
	for sql, want := range map[string]string{
		sqlLeaseNumbers: strings.Join(numbers, " "), sqlLeasesInWords: l.ends,
		sqlLeasesCounted: strings.ReplaceAll(strings.ReplaceAll(l.counted, "t", "true"), "f", "false"),
	} {
		if got := one[string](t, h, sql, int64(id)); got != want {
			t.Errorf("%s: the view says %q, want %q", l.name, got, want)
		}
	}
}
