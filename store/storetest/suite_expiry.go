package storetest

import (
	"fmt"
	"time"

	"github.com/leasehold/leasehold/store"
)

var expiryTests = []contractTest{
	{name: "R25_requeue_is_the_default", run: func(e *env) {
		ref := endings["expired"](e)
		if j := e.wantState(ref.JobID, store.Pending); j.AttemptsUsed != 1 || j.Expirations != 1 || j.StateReason != "" {
			e.Fatalf("the job is %+v", j)
		}
	}},
	{name: "R25_history_says_whether_it_ever_beat", run: func(e *env) {
		never, once := endings["expired"](e), e.lease(e.queue())
		e.beat(store.Heartbeat{Lease: once})
		e.expire(once, time.Hour)
		if r := e.record(never); r.Beats != 0 || r.LastBeatAt != nil {
			e.Fatalf("a lease without a heartbeat is kept as %+v", r)
		}
		if r := e.record(once); r.Beats != 1 || r.LastBeatAt == nil {
			e.Fatalf("a lease with a heartbeat is kept as %+v", r)
		}
	}},
	{name: "R25_expirations_in_a_row_start_anew_after_another_end", run: func(e *env) {
		for name, end := range map[string]struct {
			end  func(ref store.LeaseRef)
			want int32
		}{
			"Fail":               {func(ref store.LeaseRef) { e.fail(store.Fail{Lease: ref}) }, 0},
			"Release_with_delay": {func(ref store.LeaseRef) { e.release(store.Release{Lease: ref, Delay: time.Minute}) }, 0},
			"Release":            {func(ref store.LeaseRef) { e.release(store.Release{Lease: ref}) }, 1},
			"undelivered":        {func(ref store.LeaseRef) { e.undeliver(ref) }, 1},
		} {
			ref := endings["expired"](e)
			l := e.acquire(ref.JobID)
			end.end(l.Ref())
			if got := e.job(ref.JobID).Expirations; got != end.want {
				e.Errorf("after an expiry and %s, %d expirations in a row; want %d", name, got, end.want)
			}
		}
	}},
	{name: "R25_hold_survives_a_release_loop", run: func(e *env) {
		ref := e.lease(e.queue(holds))
		e.release(store.Release{Lease: ref})
		l := e.acquire(ref.JobID)
		e.expire(l.Ref(), time.Hour)
		e.wantState(ref.JobID, store.Stuck)
	}},
	{name: "R24_a_stuck_job_keeps_its_facts", run: func(e *env) {
		ref := e.lease(e.queue(holds))
		e.beat(store.Heartbeat{Lease: ref, Stage: to("psp_call"), Checkpoint: []byte("c")})
		e.expire(ref, time.Hour)
		j := e.wantState(ref.JobID, store.Stuck)
		if j.Stage == nil || *j.Stage != "psp_call" || string(j.Checkpoint) != "c" || j.FinishedAt != nil || j.LeaseNo != 1 {
			e.Fatalf("the job is %+v", j)
		}
	}},
	{name: "R43_one_record_per_lease_ever_handed_out", run: func(e *env) {
		q := e.queue(withPolicy(s6Backoff))
		id := e.enqueue(q)
		want := []store.End{store.EndReleased, store.EndExpired, store.EndFailed, store.EndUndelivered, store.EndCompleted}
		for i, end := range want {
			l := e.granted(e.tryAcquire(store.Acquire{JobID: id, Owner: fmt.Sprint("worker-", end)}))
			switch end {
			case store.EndReleased:
				e.release(store.Release{Lease: l.Ref()})
			case store.EndExpired:
				e.expire(l.Ref(), time.Hour)
			case store.EndFailed:
				e.fail(store.Fail{Lease: l.Ref(), Error: store.JobError{Code: "c"}})
			case store.EndUndelivered:
				e.undeliver(l.Ref())
			default:
				e.complete(store.Complete{Lease: l.Ref()})
			}
			if l.LeaseNo != int64(i+1) {
				e.Fatalf("lease %d has the number %d", i+1, l.LeaseNo)
			}
			if i < len(want)-1 {
				e.age(id, 10*time.Hour)
			}
		}
		got := e.leases(id)
		if len(got) != len(want) {
			e.Fatalf("%d records of %d leases", len(got), len(want))
		}
		for i, r := range got {
			if r.JobID != id || r.LeaseNo != int64(i+1) || r.End != want[i] || r.Owner != fmt.Sprint("worker-", want[i]) || r.EndedAt == nil {
				e.Fatalf("lease %d is kept as %+v", i+1, r)
			}
			if i > 0 && r.LeasedAt.Before(*got[i-1].EndedAt) {
				e.Fatalf("lease %d began at %s, before the one before ended at %s", i+1, r.LeasedAt, *got[i-1].EndedAt)
			}
		}
	}},
}

// returnLoop releases a job n times in a row, each time as soon as it may run.
func (e *env) returnLoop(id store.JobID, n int, end func(ref store.LeaseRef)) {
	e.Helper()
	for range n {
		l := e.acquire(id)
		end(l.Ref())
		e.age(id, 2*time.Hour)
	}
}

func (e *env) releases(ref store.LeaseRef) { e.Helper(); e.release(store.Release{Lease: ref}) }

var releaseTests = []contractTest{
	{name: "R28_release_uses_no_attempt", run: func(e *env) {
		ref := e.lease(e.queue())
		out := e.release(store.Release{Lease: ref})
		if out.State != store.Pending || out.NextRunAt == nil {
			e.Fatalf("Release answers %+v", out)
		}
		if j := e.job(ref.JobID); j.AttemptsUsed != 0 {
			e.Fatalf("%d attempts used", j.AttemptsUsed)
		}
		if l := e.acquire(ref.JobID); l.Attempt != 1 || l.LeaseNo != 2 {
			e.Fatalf("the next lease is number %d, attempt %d", l.LeaseNo, l.Attempt)
		}
	}},
	{name: "R28_from_the_fourth_in_a_row_releases_wait", run: func(e *env) {
		id := e.enqueue(e.queue(withPolicy(s6Backoff)))
		e.returnLoop(id, 3, e.releases)
		l := e.acquire(id)
		out := e.release(store.Release{Lease: l.Ref()})
		e.wantIn(*out.NextRunAt, 5*time.Minute, 10*time.Minute, "next_run_at")
		e.wantEmpty(e.tryAcquire(store.Acquire{JobID: id}), store.JobNotDue)
	}},
	{name: "R28_releases_and_undelivered_ends_share_the_counter", run: func(e *env) {
		id := e.enqueue(e.queue(withPolicy(s6Backoff)))
		e.returnLoop(id, 2, e.releases)
		e.returnLoop(id, 1, e.undeliver)
		l := e.acquire(id)
		e.undeliver(l.Ref())
		e.wantIn(e.wantState(id, store.Pending).RunAt, 5*time.Minute, 10*time.Minute, "run_at")
	}},
	{name: "R28_a_heartbeat_starts_the_counter_anew", run: func(e *env) {
		id := e.enqueue(e.queue(withPolicy(s6Backoff)))
		e.returnLoop(id, 3, e.releases)
		l := e.acquire(id)
		e.beat(store.Heartbeat{Lease: l.Ref()})
		e.wantIn(*e.release(store.Release{Lease: l.Ref()}).NextRunAt, 0, 0, "next_run_at")
		e.returnLoop(id, 2, e.releases)
		l = e.acquire(id)
		e.wantIn(*e.release(store.Release{Lease: l.Ref()}).NextRunAt, 5*time.Minute, 10*time.Minute, "next_run_at")
	}},
	{name: "R28_a_counted_end_starts_the_counter_anew", run: func(e *env) {
		id := e.enqueue(e.queue(withPolicy(s6Backoff)))
		e.returnLoop(id, 3, e.releases)
		l := e.acquire(id)
		e.fail(store.Fail{Lease: l.Ref(), RetryAfter: to(time.Duration(0))})
		l = e.acquire(id)
		e.wantIn(*e.release(store.Release{Lease: l.Ref()}).NextRunAt, 0, 0, "next_run_at")
	}},
	{name: "R28_a_release_with_delay_neither_counts_nor_resets", run: func(e *env) {
		id := e.enqueue(e.queue(withPolicy(s6Backoff)))
		e.returnLoop(id, 3, e.releases)
		for range 3 {
			l := e.acquire(id)
			e.wantIn(*e.release(store.Release{Lease: l.Ref(), Delay: time.Hour}).NextRunAt, time.Hour, time.Hour, "next_run_at")
			e.age(id, 2*time.Hour)
		}
		l := e.acquire(id)
		e.wantIn(*e.release(store.Release{Lease: l.Ref()}).NextRunAt, 5*time.Minute, 10*time.Minute, "next_run_at")
	}},
	{name: "R28_the_hundredth_counts_as_failed", run: func(e *env) {
		id := e.enqueue(e.queue())
		e.returnLoop(id, 99, e.releases)
		if used := e.job(id).AttemptsUsed; used != 0 {
			e.Fatalf("after 99 releases %d attempts are used", used)
		}
		l := e.acquire(id)
		out := e.release(store.Release{Lease: l.Ref()})
		if out.State != store.Pending || e.job(id).AttemptsUsed != 1 {
			e.Fatalf("Release answers %+v, %d attempts used; want 1", out, e.job(id).AttemptsUsed)
		}
		if r := e.wantEnd(l.Ref(), store.EndReleased); !r.Counted {
			e.Fatalf("the lease is kept as %+v", r)
		}
		e.age(id, 2*time.Hour)
		l = e.acquire(id)
		e.release(store.Release{Lease: l.Ref()})
		if used := e.job(id).AttemptsUsed; used != 1 {
			e.Fatalf("the counter did not start anew: %d attempts used", used)
		}
	}},
	{name: "R28_the_hundredth_on_the_last_attempt_is_dead", run: func(e *env) {
		id := e.enqueue(e.queue(), jobPolicy(func(p *store.Policy) { p.MaxAttempts = to(int32(1)) }))
		e.returnLoop(id, 99, e.releases)
		l := e.acquire(id)
		if out := e.release(store.Release{Lease: l.Ref()}); out.State != store.Dead {
			e.Fatalf("Release answers %+v", out)
		}
		if j := e.wantState(id, store.Dead); j.AttemptsUsed != 1 || j.StateReason == "" {
			e.Fatalf("the job is %+v", j)
		}
		e.wantEnd(l.Ref(), store.EndReleased)
	}},
	{name: "R28_attempts_never_exceed_the_maximum", run: func(e *env) {
		id := e.enqueue(e.queue(), jobPolicy(func(p *store.Policy) { p.MaxAttempts, p.MaxExpirations = to(int32(4)), to(int32(1000)) }))
		for i := 1; i <= 4; i++ {
			l := e.acquire(id)
			if l.Attempt != int32(i) {
				e.Fatalf("lease %d is attempt %d", i, l.Attempt)
			}
			if i%2 == 0 {
				e.expire(l.Ref(), time.Hour)
			} else {
				e.fail(store.Fail{Lease: l.Ref()})
			}
			if i < 4 {
				e.age(id, 2*time.Hour)
			}
		}
		if j := e.wantState(id, store.Dead); j.AttemptsUsed != 4 {
			e.Fatalf("%d attempts used", j.AttemptsUsed)
		}
	}},
}

var backoffTests = []contractTest{
	{name: "R29_exponential_with_jitter_up_to_the_cap", run: func(e *env) {
		id := e.enqueue(e.queue(), jobPolicy(func(p *store.Policy) {
			p.BackoffInitial, p.BackoffFactor, p.BackoffCap, p.BackoffJitter = to(time.Hour), to(3.0), to(10*time.Hour), to(0.25)
		}))
		for i, want := range []time.Duration{time.Hour, 3 * time.Hour, 9 * time.Hour, 10 * time.Hour, 10 * time.Hour} {
			l := e.acquire(id)
			out := e.fail(store.Fail{Lease: l.Ref()})
			if out.NextRunAt == nil {
				e.Fatalf("fail %d answers %+v", i+1, out)
			}
			e.wantIn(*out.NextRunAt, want*3/4, want, "next_run_at")
			e.age(id, 11*time.Hour)
		}
	}},
	{name: "R29_the_defaults", run: func(e *env) {
		l := e.acquire(e.enqueue(e.queue()))
		out := e.fail(store.Fail{Lease: l.Ref()})
		if out.NextRunIn < 700*time.Millisecond || out.NextRunIn > time.Second {
			e.Fatalf("the first wait is %s, want 0.8 to 1 s", out.NextRunIn)
		}
	}},
	{name: "R29_never_overflows", run: func(e *env) {
		id := e.enqueue(e.queue(), jobPolicy(func(p *store.Policy) {
			p.MaxAttempts = to(int32(1000))
			p.BackoffInitial, p.BackoffFactor, p.BackoffCap = to(24*time.Hour), to(10.0), to(30*24*time.Hour)
		}))
		for range 340 {
			l := e.acquire(id)
			out := e.fail(store.Fail{Lease: l.Ref()})
			if out.NextRunIn < 19*time.Hour || out.NextRunIn > 30*24*time.Hour {
				e.Fatalf("after fail %d the wait is %s", l.LeaseNo, out.NextRunIn)
			}
			e.age(id, 31*24*time.Hour)
		}
	}},
	{name: "R29_a_zero_initial_never_waits", run: func(e *env) {
		l := e.acquire(e.enqueue(e.queue(), jobPolicy(func(p *store.Policy) { p.BackoffInitial = to(time.Duration(0)) })))
		if out := e.fail(store.Fail{Lease: l.Ref()}); out.NextRunIn > time.Second {
			e.Fatalf("the wait is %s", out.NextRunIn)
		}
		e.acquire(l.Job.ID)
	}},
	{name: "R29_retry_after_is_not_shortened_by_jitter", run: func(e *env) {
		q := e.queue(withPolicy(func(p *store.Policy) { p.BackoffJitter = to(1.0) }))
		for range 5 {
			ref := e.lease(q)
			out := e.fail(store.Fail{Lease: ref, RetryAfter: to(5 * time.Hour)})
			e.wantIn(*out.NextRunAt, 5*time.Hour, 5*time.Hour, "next_run_at")
		}
	}},
	{name: "R29_jobs_that_fail_together_do_not_come_back_together", run: func(e *env) {
		q := e.queue(withPolicy(func(p *store.Policy) { p.BackoffInitial = to(time.Hour) }))
		for range 50 {
			e.enqueue(q)
		}
		var fails []store.Fail
		for _, l := range e.tryAcquire(store.Acquire{Queues: []string{q}, MaxJobs: 50}).Leases {
			fails = append(fails, store.Fail{Lease: l.Ref()})
		}
		out, err := e.s.Fail(e.ctx, fails)
		if err != nil || len(out) != 50 {
			e.Fatalf("Fail: %d results, %v", len(out), err)
		}
		early, latest, times := time.Duration(1<<62), time.Duration(0), map[time.Time]bool{}
		for _, o := range out {
			early, latest, times[*o.NextRunAt] = min(early, o.NextRunIn), max(latest, o.NextRunIn), true
		}
		if len(times) < 45 || latest-early < 5*time.Minute {
			e.Fatalf("50 jobs come back at %d times within %s; jitter is 12 minutes", len(times), latest-early)
		}
	}},
}
