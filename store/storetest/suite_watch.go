package storetest

import (
	"math"
	"time"

	"github.com/leasehold/leasehold/store"
)

// sweep makes one pass over a queue with the stamp as it is.
func (e *env) sweep(queue string) store.Swept {
	e.Helper()
	out, err := e.s.SweepPage(e.ctx, 0, 1000, []string{queue})
	if err != nil {
		e.Fatalf("SweepPage: %v", err)
	}
	return out
}

// wantGrace checks that no path ends the lease by its time.
func (e *env) wantGrace(ref store.LeaseRef) {
	e.Helper()
	if out := e.sweep(e.job(ref.JobID).Queue); out.Ended != 0 {
		e.Fatalf("the sweep ended %d leases", out.Ended)
	}
	e.wantEmpty(e.tryAcquire(store.Acquire{JobID: ref.JobID}), store.JobLeased)
	if r := e.record(ref); r.End != store.EndNone {
		e.Fatalf("the lease ended by %d", r.End)
	}
}

var outageTests = []contractTest{
	{name: "R35_nobody_is_blamed_right_after_an_outage", own: true, run: func(e *env) {
		ref := e.lease(e.queue())
		e.age(ref.JobID, time.Hour)
		e.h.SetWritable(e.T, 0, 0)
		e.wantGrace(ref)
		e.beat(store.Heartbeat{Lease: ref})
	}},
	{name: "R35_grace_is_half_the_lease", own: true, run: func(e *env) {
		q := e.queue()
		l := e.granted(e.tryAcquire(store.Acquire{JobID: e.enqueue(q), LeaseDuration: to(time.Hour)}))
		e.age(l.Job.ID, 2*time.Hour)
		MakeWritableSince(e.T, e.h, 25*time.Minute)
		e.wantGrace(l.Ref())
		MakeWritableSince(e.T, e.h, 35*time.Minute)
		if out := e.sweep(q); out.Ended != 1 {
			e.Fatalf("after half the lease the sweep ended %d leases", out.Ended)
		}
		e.wantEnd(l.Ref(), store.EndExpired)
	}},
	{name: "R35_grace_is_at_least_five_seconds", own: true, run: func(e *env) {
		q := e.queue()
		l := e.granted(e.tryAcquire(store.Acquire{JobID: e.enqueue(q), LeaseDuration: to(time.Second)}))
		e.age(l.Job.ID, time.Hour)
		e.h.SetWritable(e.T, 2*time.Second, 0)
		e.wantGrace(l.Ref())
		MakeWritableSince(e.T, e.h, 6*time.Second)
		if out := e.sweep(q); out.Ended != 1 {
			e.Fatalf("after 6 s the sweep ended %d leases", out.Ended)
		}
	}},
	{name: "R35_an_old_stamp_means_an_outage_now", own: true, run: func(e *env) {
		ref := e.lease(e.queue())
		e.age(ref.JobID, time.Hour)
		e.h.SetWritable(e.T, 24*time.Hour, 4*time.Second)
		e.wantGrace(ref)
	}},
	{name: "R35_holds_for_stalls_too", own: true, run: func(e *env) {
		q := e.queue(stallsEnd)
		ref := e.lease(q, stallTimeout(time.Hour))
		e.age(ref.JobID, 2*time.Hour)
		e.h.SetWritable(e.T, 0, 0)
		e.wantGrace(ref)
		MakeWritableSince(e.T, e.h, 24*time.Hour)
		e.sweep(q)
		e.wantEnd(ref, store.EndStalled)
	}},
	{name: "R35_calls_end_leases_during_an_outage", own: true, run: func(e *env) {
		q := e.queue()
		a, b, c := e.lease(q), e.lease(q), e.lease(q)
		e.h.SetWritable(e.T, 0, time.Hour)
		e.complete(store.Complete{Lease: a})
		e.fail(store.Fail{Lease: b})
		e.release(store.Release{Lease: c})
	}},
	{name: "R35_a_gap_above_five_seconds_restarts_since", own: true, run: func(e *env) {
		for _, c := range []struct {
			stamp, shortest, longest time.Duration
		}{{3 * time.Second, time.Hour, time.Hour + slack}, {20 * time.Second, 0, slack}} {
			e.h.SetWritable(e.T, time.Hour, c.stamp)
			if err := e.s.StampWritable(e.ctx); err != nil {
				e.Fatalf("StampWritable: %v", err)
			}
			got, err := e.s.Health(e.ctx)
			if err != nil {
				e.Fatalf("Health: %v", err)
			}
			if got.WritableFor < c.shortest || got.WritableFor > c.longest || got.StampAge > slack {
				e.Fatalf("after a gap of %s: writable for %s, stamp %s old", c.stamp, got.WritableFor, got.StampAge)
			}
		}
	}},
}

var sweepTests = []contractTest{
	{name: "R38_pages_by_id_and_ends_each_once", run: func(e *env) {
		q := e.queue()
		var ids []store.JobID
		for range 7 {
			ref := e.lease(q)
			e.age(ref.JobID, time.Hour)
			ids = append(ids, ref.JobID)
		}
		live := e.lease(q)
		MakeWritableSince(e.T, e.h, 24*time.Hour)
		ended, pages := 0, 0
		for after := store.JobID(0); ; pages++ {
			out, err := e.s.SweepPage(e.ctx, after, 3, []string{q})
			if err != nil || pages > 4 || out.Ended > 3 {
				e.Fatalf("page %d: %+v, %v", pages, out, err)
			}
			ended += out.Ended
			if out.Next == 0 {
				break
			}
			if out.Next <= after {
				e.Fatalf("the page after %d ends at %d", after, out.Next)
			}
			after = out.Next
		}
		if ended != 7 {
			e.Fatalf("%d leases ended, want 7", ended)
		}
		for _, id := range ids {
			if j := e.wantState(id, store.Pending); j.AttemptsUsed != 1 {
				e.Fatalf("job %d has used %d attempts", id, j.AttemptsUsed)
			}
		}
		e.wantState(live.JobID, store.Processing)
		if out := e.sweepOnce(q); out.Ended != 0 {
			e.Fatalf("the second pass ended %d leases", out.Ended)
		}
	}},
	{name: "R38_only_the_queues_asked_for", run: func(e *env) {
		a, b := e.queue(), e.queue()
		mine, other := e.lease(a), e.lease(b)
		e.age(mine.JobID, time.Hour)
		e.age(other.JobID, time.Hour)
		e.sweepOnce(a)
		e.wantState(mine.JobID, store.Pending)
		e.wantState(other.JobID, store.Processing)
	}},
	{name: "R38_all_queues", own: true, run: func(e *env) {
		a, b := e.lease(e.queue()), e.lease(e.queue())
		e.age(a.JobID, time.Hour)
		e.age(b.JobID, time.Hour)
		MakeWritableSince(e.T, e.h, 24*time.Hour)
		if out, err := e.s.SweepPage(e.ctx, 0, 1000, nil); err != nil || out.Ended != 2 || out.Next != 0 {
			e.Fatalf("SweepPage: %+v, %v", out, err)
		}
	}},
	{name: "R38_a_heartbeat_before_the_sweep_wins", run: func(e *env) {
		q := e.queue()
		ref := e.lease(q)
		e.age(ref.JobID, time.Hour)
		e.beat(store.Heartbeat{Lease: ref})
		if out := e.sweepOnce(q); out.Ended != 0 {
			e.Fatalf("a renewed lease was ended")
		}
	}},
	{name: "R38_a_pass_is_skipped_if_a_replica_finished_one", own: true, run: func(e *env) {
		due := func(s store.Store, interval time.Duration) bool {
			e.Helper()
			ok, err := s.BeginSweep(e.ctx, interval)
			if err != nil {
				e.Fatalf("BeginSweep: %v", err)
			}
			return ok
		}
		if !due(e.s, time.Hour) {
			e.Fatalf("the first pass is not due")
		}
		if err := e.s.FinishSweep(e.ctx); err != nil {
			e.Fatalf("FinishSweep: %v", err)
		}
		if due(e.h.Replica(e.T), time.Hour) {
			e.Fatalf("another replica would sweep again at once")
		}
		if !due(e.s, time.Nanosecond) {
			e.Fatalf("a pass is not due although the interval is over")
		}
		if h, err := e.s.Health(e.ctx); err != nil || h.SweepAge > slack {
			e.Fatalf("Health: the last pass is %s old, %v", h.SweepAge, err)
		}
	}},
	{name: "R39_a_counter_near_its_bound_fails_nobody_else", own: true, run: func(e *env) {
		q := e.queue()
		ref := e.lease(q)
		e.release(store.Release{Lease: ref})
		e.h.SetLeaseNo(e.T, ref.JobID, math.MaxInt64)
		good := e.enqueue(q)
		e.wantJobs(e.tryAcquire(store.Acquire{Queues: []string{q}, MaxJobs: 10}), good)
		if out := e.tryAcquire(store.Acquire{JobID: ref.JobID}); len(out.Leases) != 0 {
			e.Fatalf("lease number %d was given", out.Leases[0].LeaseNo)
		}
		e.wantBuried(ref.JobID)
	}},
	{name: "R39_a_job_without_payload_is_buried", own: true, run: func(e *env) {
		q := e.queue()
		id, good := e.enqueue(q), e.enqueue(q)
		e.h.DropPayload(e.T, id)
		e.wantBuried(id)
		e.wantJobs(e.tryAcquire(store.Acquire{Queues: []string{q}, MaxJobs: 10}), good)
	}},
}

// wantBuried checks that the watcher sets exactly this job aside, and says why.
func (e *env) wantBuried(id store.JobID) {
	e.Helper()
	if n, err := e.s.BuryUnrunnable(e.ctx); err != nil || n != 1 {
		e.Fatalf("BuryUnrunnable: %d, %v; want 1", n, err)
	}
	if j := e.job(id); j.State != store.Dead && j.State != store.Stuck || j.StateReason == "" {
		e.Fatalf("the job is %s, for the reason %q", j.State, j.StateReason)
	}
	if n, err := e.s.BuryUnrunnable(e.ctx); err != nil || n != 0 {
		e.Fatalf("buried again: %d, %v", n, err)
	}
}
