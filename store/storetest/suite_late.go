package storetest

import (
	"slices"
	"time"

	"github.com/leasehold/leasehold/store"
)

// r17Details are what a cell of the table does not say.
var r17Details = []contractTest{
	{name: "R17_complete_after_expiry_is_late", run: func(e *env) {
		for _, name := range []string{"expired", "held", "dead_by_expiry", "undelivered", "stalled"} {
			e.sub(name, func(e *env) {
				ref := endings[name](e)
				e.complete(store.Complete{Lease: ref, Result: text("result")})
				j := e.wantState(ref.JobID, store.Completed)
				if !j.CompletedLate || j.FinishedAt == nil || j.Result == nil || string(j.Result.Data) != "result" {
					e.Fatalf("the job is %+v", j)
				}
				e.wantEnd(ref, store.EndCompletedLate)
				e.wantEmpty(e.tryAcquire(store.Acquire{JobID: ref.JobID}), store.JobFinished)
			})
		}
	}},
	{name: "R17_complete_in_time_is_not_late", run: func(e *env) {
		ref := e.lease(e.queue())
		e.age(ref.JobID, time.Hour)
		e.complete(store.Complete{Lease: ref, Result: text("result")})
		if j := e.wantState(ref.JobID, store.Completed); j.CompletedLate || j.LeaseOwner != nil || j.LeaseUntil != nil {
			e.Fatalf("the job is %+v", j)
		}
		if r := e.wantEnd(ref, store.EndCompleted); r.Counted || r.Cancelled || r.EndedAt == nil {
			e.Fatalf("the lease is kept as %+v", r)
		}
	}},
	{name: "R17_another_result_is_a_conflict", run: func(e *env) {
		for name, setUp := range map[string]func(e *env) store.LeaseRef{
			"in_time": endings["completed"],
			"late": then("expired", func(e *env, ref store.LeaseRef) {
				e.complete(store.Complete{Lease: ref, Result: text("result")})
			}),
		} {
			e.sub(name, func(e *env) {
				ref := setUp(e)
				before := e.snapshot(ref.JobID)
				typed := text("result")
				typed.ContentType = "text/html"
				for _, r := range []store.Payload{text("another"), {}, typed} {
					err := errOf[*store.ConflictError](e, e.tryComplete(store.Complete{Lease: ref, Result: r}).Err)
					if err.Lease != ref {
						e.Fatalf("the error names %+v", err.Lease)
					}
				}
				e.wantUnchanged(before, e.snapshot(ref.JobID))
			})
		}
	}},
	{name: "R17_the_late_flag_stays_in_a_retry", run: func(e *env) {
		ref := endings["expired"](e)
		c := store.Complete{Lease: ref, Result: text("result")}
		e.complete(c)
		if out := e.complete(c); !out.AlreadyApplied || !out.Late {
			e.Fatalf("the retry answers %+v", out)
		}
	}},
	{name: "R17_the_first_fail_stays", run: func(e *env) {
		ref := e.lease(e.queue())
		first := e.fail(store.Fail{Lease: ref, Error: store.JobError{Code: "first"}, RetryAfter: to(time.Hour)})
		again := e.fail(store.Fail{Lease: ref, Error: store.JobError{Code: "second"}, Permanent: true})
		if !again.AlreadyApplied || again.State != store.Pending || again.AttemptsLeft != first.AttemptsLeft {
			e.Fatalf("the retry answers %+v, the first %+v", again, first)
		}
		if again.NextRunAt == nil || !again.NextRunAt.Equal(*first.NextRunAt) {
			e.Fatalf("the retry answers next run %v, the first %v", again.NextRunAt, first.NextRunAt)
		}
		if r := e.record(ref); r.Error == nil || r.Error.Code != "first" || r.End != store.EndFailed {
			e.Fatalf("the lease is kept as %+v", r)
		}
	}},
	{name: "R17_a_fail_after_the_end_is_noted_once", run: func(e *env) {
		for _, name := range []string{"expired", "held", "dead_by_expiry", "overran", "stalled", "undelivered"} {
			e.sub(name, func(e *env) {
				ref := endings[name](e)
				before := e.record(ref)
				for _, code := range []string{"first", "second"} {
					err := e.tryFail(store.Fail{Lease: ref, Error: store.JobError{Code: code}}).Err
					if end := errOf[*store.ExpiredError](e, err).End; end != before.End {
						e.Fatalf("the error says the lease ended by %d, the record by %d", end, before.End)
					}
				}
				if r := e.record(ref); r.Error == nil || r.Error.Code != "first" || r.End != before.End || r.Counted != before.Counted {
					e.Fatalf("the lease is kept as %+v", r)
				}
			})
		}
	}},
	{name: "R17_errors_carry_the_facts", run: func(e *env) {
		ref := then("held", operatorResolves(to(text("settled"))))(e)
		err := errOf[*store.EndedError](e, e.tryBeat(store.Heartbeat{Lease: ref}).Err)
		if err.State != store.Completed || err.End != store.EndExpired || err.Lease != ref {
			e.Fatalf("the error is %+v", err)
		}
		ref = then("expired", leaseAgain)(e)
		if err := errOf[*store.SupersededError](e, e.tryBeat(store.Heartbeat{Lease: ref}).Err); err.CurrentLeaseNo != 2 || err.Lease != ref {
			e.Fatalf("the error is %+v", err)
		}
	}},
	{name: "R17_a_fail_that_was_accepted_stays_so_after_RetryJobs", run: func(e *env) {
		ref := endings["failed_permanently"](e)
		e.retry(ref.JobID)
		if out := e.fail(store.Fail{Lease: ref}); !out.AlreadyApplied {
			e.Fatalf("the retry of a lost answer got %+v", out)
		}
		wantErr[*store.EndedError](e, e.tryComplete(store.Complete{Lease: ref}).Err)
	}},
	{name: "R17_unknown_jobs", run: func(e *env) {
		for _, c := range tokenCalls {
			_, _, err := c.call(e, store.LeaseRef{JobID: 1 << 60, LeaseNo: 1})
			wantErr[*store.JobNotFoundError](e, err)
		}
	}},
}

var lateCallTests = []contractTest{
	{name: "R18_one_record_per_lease", run: func(e *env) {
		ref := endings["expired"](e)
		next := e.acquire(ref.JobID)
		for _, c := range tokenCalls {
			_, _, err := c.call(e, ref)
			wantErr[*store.SupersededError](e, err)
			got := e.record(ref).LateCalls
			if got == nil || got.LastCall != c.name {
				e.Fatalf("after %s the late calls are %+v", c.name, got)
			}
		}
		e.age(ref.JobID, 2*time.Hour)
		e.beat(store.Heartbeat{Lease: next.Ref()})
		wantErr[*store.SupersededError](e, e.tryBeat(store.Heartbeat{Lease: ref}).Err)
		got := e.record(ref).LateCalls
		if got.Count != 5 || got.LastCall != "Heartbeat" {
			e.Fatalf("the late calls are %+v, want 5", got)
		}
		if span := got.LastAt.Sub(got.FirstAt); span < 2*time.Hour || span > 2*time.Hour+slack {
			e.Fatalf("from %s to %s, want 2 hours", got.FirstAt, got.LastAt)
		}
		if got.LateBy < 2*time.Hour || got.LateBy > 3*time.Hour+slack {
			e.Fatalf("late by %s, want the 2 hours since the lease was ended", got.LateBy)
		}
		if r := e.record(next.Ref()); r.LateCalls != nil || r.Stage != nil || r.End != store.EndNone {
			e.Fatalf("the zombie touched the live lease: %+v", r)
		}
	}},
	{name: "R18_each_zombie_has_its_own_record", run: func(e *env) {
		ref := e.lease(e.queue())
		e.release(store.Release{Lease: ref})
		second := e.acquire(ref.JobID)
		e.release(store.Release{Lease: second.Ref()})
		e.acquire(ref.JobID)
		e.tryBeat(store.Heartbeat{Lease: ref})
		e.tryBeat(store.Heartbeat{Lease: ref})
		e.tryComplete(store.Complete{Lease: second.Ref()})
		var got []int64
		for _, r := range e.leases(ref.JobID) {
			n := int64(0)
			if r.LateCalls != nil {
				n = r.LateCalls.Count
			}
			got = append(got, n)
		}
		if !slices.Equal(got, []int64{2, 1, 0}) {
			e.Fatalf("late calls per lease: %v", got)
		}
	}},
	{name: "R18_an_accepted_retry_is_no_late_call", run: func(e *env) {
		ref := then("failed", leaseAgain)(e)
		if out := e.fail(store.Fail{Lease: ref}); !out.AlreadyApplied {
			e.Fatalf("the retry answers %+v", out)
		}
		if r := e.record(ref); r.LateCalls != nil {
			e.Fatalf("it was recorded as %+v", r.LateCalls)
		}
	}},
	{name: "R18_is_kept_when_the_job_ends", run: func(e *env) {
		ref := endings["expired"](e)
		next := e.acquire(ref.JobID)
		e.tryBeat(store.Heartbeat{Lease: ref})
		e.complete(store.Complete{Lease: next.Ref()})
		e.tryComplete(store.Complete{Lease: ref})
		if c := e.record(ref).LateCalls; c == nil || c.Count != 2 || c.LastCall != "Complete" {
			e.Fatalf("the late calls are %+v", c)
		}
	}},
}
