package storetest

import (
	"slices"
	"time"

	"github.com/leasehold/leasehold/store"
)

// stuck lists the stuck jobs of a queue.
func (e *env) stuck(queue string, only ...store.Diagnosis) []store.StuckJob {
	e.Helper()
	p, err := e.s.ListStuck(e.ctx, store.StuckFilter{Queue: &queue, Diagnoses: only}, store.Page{Size: 1000})
	if err != nil || p.Next != 0 {
		e.Fatalf("ListStuck: next %d, %v", p.Next, err)
	}
	return p.Jobs
}

// diagnoses bring a fresh lease to a diagnosis.
var diagnoses = map[string]struct {
	is    store.Diagnosis
	queue func(q *store.Queue)
	job   func(j *store.NewJob)
	bring func(e *env, ref store.LeaseRef)
	state store.State
}{
	"HELD": {is: store.Held, queue: holds, state: store.Stuck, bring: func(e *env, ref store.LeaseRef) {
		e.expire(ref, time.Hour)
	}},
	"HELD_before_CRASH_LOOP": {is: store.Held, state: store.Stuck, job: jobPolicy(func(p *store.Policy) { p.MaxExpirations = to(int32(3)) }),
		bring: func(e *env, ref store.LeaseRef) { e.crash(ref, 3) }},
	"CRASH_LOOP": {is: store.CrashLoop, state: store.Pending, bring: func(e *env, ref store.LeaseRef) { e.crash(ref, 3) }},
	"CRASH_LOOP_before_LEASE_EXPIRED": {is: store.CrashLoop, state: store.Processing, bring: func(e *env, ref store.LeaseRef) {
		e.crash(ref, 3)
		e.age(ref.JobID, 5*time.Hour)
		e.acquire(ref.JobID)
		e.age(ref.JobID, 5*time.Hour)
	}},
	"OVERRUN": {is: store.Overrun, state: store.Processing, job: jobPolicy(func(p *store.Policy) {
		p.MaxRuntime, p.LeaseDuration = to(3*time.Hour), to(90*time.Minute)
	}), bring: func(e *env, ref store.LeaseRef) {
		for range 2 {
			e.age(ref.JobID, 80*time.Minute)
			e.beat(store.Heartbeat{Lease: ref})
		}
		e.age(ref.JobID, 15*time.Minute)
	}},
	"OVERRUN_ended_by_it": {is: store.Overrun, state: store.Pending, job: maxRuntime(time.Minute), bring: func(e *env, ref store.LeaseRef) {
		e.expire(ref, time.Hour)
	}},
	"OVERRUN_before_LEASE_EXPIRED": {is: store.Overrun, state: store.Processing, job: maxRuntime(time.Minute), bring: func(e *env, ref store.LeaseRef) {
		e.age(ref.JobID, time.Hour)
	}},
	"LEASE_EXPIRED": {is: store.LeaseExpired, state: store.Processing, bring: func(e *env, ref store.LeaseRef) {
		e.age(ref.JobID, time.Hour)
	}},
	"LEASE_EXPIRED_before_STALLED": {is: store.LeaseExpired, state: store.Processing, job: stallTimeout(time.Hour), bring: func(e *env, ref store.LeaseRef) {
		e.age(ref.JobID, 24*time.Hour)
	}},
	"STALLED": {is: store.Stalled, state: store.Processing, job: stallTimeout(time.Hour), bring: func(e *env, ref store.LeaseRef) {
		e.age(ref.JobID, 2*time.Hour)
		e.beat(store.Heartbeat{Lease: ref})
	}},
	"STALLED_before_NEVER_HEARTBEATED": {is: store.Stalled, state: store.Processing, job: stallTimeout(time.Hour), bring: func(e *env, ref store.LeaseRef) {
		e.age(ref.JobID, 9*time.Hour)
	}},
	"NEVER_HEARTBEATED": {is: store.NeverHeartbeated, state: store.Processing, job: jobPolicy(func(p *store.Policy) {
		p.LeaseDuration = to(3 * time.Hour)
	}), bring: func(e *env, ref store.LeaseRef) { e.age(ref.JobID, 130*time.Minute) }},
	"WORKER_SILENT": {is: store.WorkerSilent, state: store.Processing, job: jobPolicy(func(p *store.Policy) {
		p.LeaseDuration = to(3 * time.Hour)
	}), bring: func(e *env, ref store.LeaseRef) {
		e.beat(store.Heartbeat{Lease: ref, Stage: to("psp_call")})
		e.age(ref.JobID, 130*time.Minute)
	}},
}

// crash lets n leases in a row run out, the first of them given.
func (e *env) crash(ref store.LeaseRef, n int) {
	e.Helper()
	e.expire(ref, 5*time.Hour)
	for range n - 1 {
		e.age(ref.JobID, 5*time.Hour)
		l := e.acquire(ref.JobID)
		e.expire(l.Ref(), 5*time.Hour)
	}
}

var stuckTests = append(r21Tests(), []contractTest{
	{name: "R21_healthy_jobs_are_not_listed", run: func(e *env) {
		q := e.queue()
		e.enqueue(q)
		long := e.lease(q, jobPolicy(func(p *store.Policy) { p.LeaseDuration = to(3 * time.Hour) }))
		e.age(long.JobID, 110*time.Minute)
		beats := e.lease(q, jobPolicy(func(p *store.Policy) { p.LeaseDuration = to(3 * time.Hour) }))
		e.age(beats.JobID, 150*time.Minute)
		e.beat(store.Heartbeat{Lease: beats})
		e.age(beats.JobID, 110*time.Minute)
		twice := e.lease(q)
		e.crash(twice, 2)
		for _, end := range jobEnds {
			end(e, e.enqueue(q))
		}
		failed := e.lease(q)
		e.fail(store.Fail{Lease: failed})
		if got := e.stuck(q); len(got) != 0 {
			e.Fatalf("listed %+v", got)
		}
	}},
	{name: "R21_pages_by_job_id", run: func(e *env) {
		q := e.queue()
		var want []store.JobID
		for range 5 {
			ref := e.lease(q)
			e.age(ref.JobID, time.Hour)
			want = append(want, ref.JobID)
			e.lease(q)
		}
		var got []store.JobID
		p := store.Page{Size: 2}
		for range 20 {
			out, err := e.s.ListStuck(e.ctx, store.StuckFilter{Queue: &q}, p)
			if err != nil || len(out.Jobs) > 2 {
				e.Fatalf("ListStuck: %d jobs, %v", len(out.Jobs), err)
			}
			for _, j := range out.Jobs {
				got = append(got, j.JobID)
			}
			if p.After = out.Next; out.Next == 0 {
				break
			}
		}
		if !slices.Equal(got, want) {
			e.Fatalf("listed %v, want %v", got, want)
		}
	}},
}...)

// r21Tests has one test for each diagnosis.
func r21Tests() (tests []contractTest) {
	for name, d := range diagnoses {
		tests = append(tests, contractTest{name: "R21_" + name, run: func(e *env) {
			q := e.queue(func(q *store.Queue) {
				if d.queue != nil {
					d.queue(q)
				}
			})
			ref := e.lease(q, func(j *store.NewJob) {
				j.Subject = to("payment/1")
				if d.job != nil {
					d.job(j)
				}
			})
			d.bring(e, ref)
			for _, only := range [][]store.Diagnosis{nil, {d.is}} {
				got := e.stuck(q, only...)
				if len(got) != 1 || got[0].Diagnosis != d.is {
					e.Fatalf("listed %+v, want diagnosis %d", got, d.is)
				}
				e.wantStuckFacts(got[0], d.state)
			}
			for other := store.Held; other <= store.WorkerSilent; other++ {
				if other != d.is && len(e.stuck(q, other)) != 0 {
					e.Fatalf("listed under diagnosis %d as well", other)
				}
			}
		}})
	}
	return tests
}

func (e *env) wantStuckFacts(s store.StuckJob, state store.State) {
	e.Helper()
	j := e.wantState(s.JobID, state)
	if s.State != state || s.Queue != j.Queue || s.Subject == nil || *s.Subject != "payment/1" ||
		s.Owner == nil || *s.Owner != "worker-1" || s.LeaseNo != j.LeaseNo || s.MaxAttempts != store.DefaultMaxAttempts ||
		s.AttemptsUsed != j.AttemptsUsed || s.Expirations != j.Expirations || (s.LeaseUntil != nil) != (state == store.Processing) {
		e.Fatalf("listed as %+v; the job is %+v", s, j)
	}
	if s.Since.IsZero() || s.Since.After(time.Now().Add(slack)) {
		e.Fatalf("since %s", s.Since)
	}
}
