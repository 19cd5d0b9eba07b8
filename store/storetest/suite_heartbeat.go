package storetest

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/leasehold/leasehold/store"
)

var heartbeatTests = []contractTest{
	{name: "R14_renews_from_now", run: func(e *env) {
		l := e.acquire(e.enqueue(e.queue()))
		e.age(l.Job.ID, 40*time.Second)
		b := e.beat(store.Heartbeat{Lease: l.Ref()})
		e.wantRemaining(b.Remaining, time.Minute)
		e.wantIn(b.Until, time.Minute, time.Minute, "lease_until")
		j := e.wantState(l.Job.ID, store.Processing)
		if j.LeaseNo != 1 || !j.LeaseUntil.Equal(b.Until) {
			e.Fatalf("the job is %+v, the heartbeat answered %+v", j, b)
		}
		r := e.record(l.Ref())
		if r.Beats != 1 || r.LastBeatAt == nil || !r.Until.Equal(b.Until) {
			e.Fatalf("the lease is kept as %+v", r)
		}
		e.wantRemaining(r.LargestGap, 40*time.Second+slack)
	}},
	{name: "R14_renews_past_its_end_while_nobody_has_ended_it", run: func(e *env) {
		ref := e.lease(e.queue())
		e.age(ref.JobID, time.Hour)
		e.wantRemaining(e.beat(store.Heartbeat{Lease: ref}).Remaining, time.Minute)
		e.sweepOnce(e.job(ref.JobID).Queue)
		e.wantState(ref.JobID, store.Processing)
	}},
	{name: "R14_the_largest_gap_is_kept", run: func(e *env) {
		ref := e.lease(e.queue())
		for _, gap := range []time.Duration{time.Minute, 40 * time.Minute, 2 * time.Minute} {
			e.age(ref.JobID, gap)
			e.beat(store.Heartbeat{Lease: ref})
		}
		if r := e.record(ref); r.Beats != 3 || r.LargestGap < 40*time.Minute || r.LargestGap > 40*time.Minute+slack {
			e.Fatalf("%d beats, largest gap %s; want 3 and 40 minutes", r.Beats, r.LargestGap)
		}
	}},
	{name: "R14_unset_fields_keep_what_was_there", run: func(e *env) {
		ref := e.lease(e.queue())
		e.beat(store.Heartbeat{Lease: ref, Stage: to("one"), Progress: to(0.5), Checkpoint: []byte("c")})
		e.beat(store.Heartbeat{Lease: ref})
		j := e.job(ref.JobID)
		if j.Stage == nil || *j.Stage != "one" || j.Progress == nil || *j.Progress != 0.5 || string(j.Checkpoint) != "c" {
			e.Fatalf("an empty heartbeat changed the job to %+v", j)
		}
		e.beat(store.Heartbeat{Lease: ref, Progress: to(0.0), Checkpoint: []byte{}})
		j = e.job(ref.JobID)
		if *j.Stage != "one" || *j.Progress != 0 || len(j.Checkpoint) != 0 {
			e.Fatalf("explicit zeros are values: %+v", j)
		}
	}},
	{name: "R14_a_checkpoint_of_64_KiB_survives_a_crash", run: func(e *env) {
		ref := e.lease(e.queue())
		c := bytes.Repeat([]byte{0, 255}, store.MaxCheckpointBytes/2)
		e.beat(store.Heartbeat{Lease: ref, Stage: to("half"), Checkpoint: c})
		e.expire(ref, time.Hour)
		l := e.acquire(ref.JobID)
		if !bytes.Equal(l.Checkpoint, c) || l.LastStage == nil || *l.LastStage != "half" {
			e.Fatalf("the next lease got %d bytes of checkpoint, stage %v", len(l.Checkpoint), l.LastStage)
		}
		e.release(store.Release{Lease: l.Ref()})
		if l := e.acquire(ref.JobID); !bytes.Equal(l.Checkpoint, c) {
			e.Fatalf("a lease without a checkpoint lost that of the lease before")
		}
	}},
	{name: "R14_stage_changes_are_a_timeline", run: func(e *env) {
		ref := e.lease(e.queue())
		for _, s := range []string{"a", "a", "b", "a", ""} {
			e.beat(store.Heartbeat{Lease: ref, Stage: &s})
		}
		if got := stagesOf(e.record(ref)); !slices.Equal(got, []string{"a", "b", "a", ""}) {
			e.Fatalf("the timeline is %q", got)
		}
		e.fail(store.Fail{Lease: ref, RetryAfter: to(time.Duration(0))})
		next := e.acquire(ref.JobID)
		e.beat(store.Heartbeat{Lease: next.Ref(), Stage: to("")})
		if got := stagesOf(e.record(next.Ref())); !slices.Equal(got, []string{""}) {
			e.Fatalf("the timeline of the second lease is %q", got)
		}
		if r := e.record(ref); r.Stage == nil || *r.Stage != "" || len(r.Stages) != 4 {
			e.Fatalf("the first lease is kept as %+v", r)
		}
	}},
	{name: "R14_a_thousand_stage_changes_then_the_last_is_replaced", run: func(e *env) {
		ref := e.lease(e.queue())
		for i := 1; i <= store.MaxStageChanges+2; i++ {
			e.beat(store.Heartbeat{Lease: ref, Stage: to(fmt.Sprint(i))})
		}
		got := stagesOf(e.record(ref))
		if len(got) != store.MaxStageChanges {
			e.Fatalf("%d changes are kept", len(got))
		}
		if first, before, last := got[0], got[len(got)-2], got[len(got)-1]; first != "1" || before != "999" || last != "1002" {
			e.Fatalf("the timeline runs from %q to %q, %q", first, before, last)
		}
		if j := e.job(ref.JobID); *j.Stage != "1002" {
			e.Fatalf("the job shows stage %q", *j.Stage)
		}
	}},
	{name: "R14_a_batch_answers_each_by_itself", run: func(e *env) {
		q := e.queue()
		live, done := e.lease(q), e.lease(q)
		e.complete(store.Complete{Lease: done})
		out, err := e.s.Heartbeat(e.ctx, []store.Heartbeat{
			{Lease: live}, {Lease: done}, {Lease: store.LeaseRef{JobID: 1 << 60, LeaseNo: 1}}, {Lease: e.lease(q)},
		})
		if err != nil || len(out) != 4 || out[0].Err != nil || out[3].Err != nil {
			e.Fatalf("Heartbeat: %+v, %v", out, err)
		}
		wantErr[*store.EndedError](e, out[1].Err)
		wantErr[*store.JobNotFoundError](e, out[2].Err)
	}},
	{name: "R30_all_times_come_from_one_clock", run: func(e *env) {
		l := e.acquire(e.enqueue(e.queue()))
		b := e.beat(store.Heartbeat{Lease: l.Ref(), Stage: to("s")})
		e.complete(store.Complete{Lease: l.Ref()})
		j, r := e.job(l.Job.ID), e.record(l.Ref())
		if r.LastBeatAt == nil || r.EndedAt == nil || len(r.Stages) != 1 {
			e.Fatalf("the lease is kept as %+v", r)
		}
		if !b.Until.Equal(r.LastBeatAt.Add(time.Minute)) || !l.Until.Equal(r.LeasedAt.Add(time.Minute)) || !j.FinishedAt.Equal(*r.EndedAt) {
			e.Fatalf("leased until %s, renewed until %s; on record %+v, finished at %s", l.Until, b.Until, r, j.FinishedAt)
		}
		times := []time.Time{j.CreatedAt, r.LeasedAt, r.Stages[0].At, *r.EndedAt}
		if !slices.IsSortedFunc(times, time.Time.Compare) || r.LastBeatAt.Before(r.LeasedAt) {
			e.Fatalf("created, leased, staged, ended at %v", times)
		}
	}},
	{name: "R15_tells_of_a_cancel_request", run: func(e *env) {
		ref := e.lease(e.queue())
		if e.beat(store.Heartbeat{Lease: ref}).CancelRequested {
			e.Fatalf("cancel_requested without a request")
		}
		e.cancel(ref.JobID)
		if !e.beat(store.Heartbeat{Lease: ref}).CancelRequested {
			e.Fatalf("the holder was not told")
		}
	}},
}

func stagesOf(r store.LeaseRecord) (stages []string) {
	for _, s := range r.Stages {
		stages = append(stages, s.Stage)
	}
	return stages
}

func maxRuntime(d time.Duration) func(j *store.NewJob) {
	return jobPolicy(func(p *store.Policy) { p.MaxRuntime = &d })
}

func stallTimeout(d time.Duration) func(j *store.NewJob) {
	return jobPolicy(func(p *store.Policy) { p.StallTimeout, p.LeaseDuration = &d, to(12*time.Hour) })
}

var capTests = []contractTest{
	{name: "R16_max_runtime_caps_the_grant", run: func(e *env) {
		l := e.granted(e.tryAcquire(store.Acquire{
			JobID: e.enqueue(e.queue(), maxRuntime(10*time.Minute)), LeaseDuration: to(time.Hour),
		}))
		e.wantRemaining(l.Remaining, 10*time.Minute)
	}},
	{name: "R16_max_runtime_caps_renewals_and_ends_them", run: func(e *env) {
		l := e.granted(e.tryAcquire(store.Acquire{
			JobID: e.enqueue(e.queue(), maxRuntime(3*time.Hour)), LeaseDuration: to(2 * time.Hour),
		}))
		e.age(l.Job.ID, 90*time.Minute)
		e.wantRemaining(e.beat(store.Heartbeat{Lease: l.Ref()}).Remaining, 90*time.Minute)
		e.age(l.Job.ID, 60*time.Minute)
		e.wantRemaining(e.beat(store.Heartbeat{Lease: l.Ref()}).Remaining, 30*time.Minute)
		e.age(l.Job.ID, 60*time.Minute)
		err := errOf[*store.ExpiredError](e, e.tryBeat(store.Heartbeat{Lease: l.Ref()}).Err)
		if err.End != store.EndNone || err.Lease != l.Ref() {
			e.Fatalf("the error is %+v; nobody has ended the lease", err)
		}
		if r := e.record(l.Ref()); r.Beats != 2 {
			e.Fatalf("a refused heartbeat was counted: %d beats", r.Beats)
		}
		e.sweepOnce(e.job(l.Job.ID).Queue)
		e.wantEnd(l.Ref(), store.EndOverran)
		if end := errOf[*store.ExpiredError](e, e.tryBeat(store.Heartbeat{Lease: l.Ref()}).Err).End; end != store.EndOverran {
			e.Fatalf("the error says it ended by %d", end)
		}
	}},
	{name: "R16_complete_beyond_max_runtime_is_accepted_while_nobody_has_ended_it", run: func(e *env) {
		ref := e.lease(e.queue(), maxRuntime(time.Minute))
		e.age(ref.JobID, time.Hour)
		if out := e.complete(store.Complete{Lease: ref}); out.Late {
			e.Fatalf("it is not late: nobody had ended the lease")
		}
	}},
	{name: "R16_a_lease_that_ran_out_before_max_runtime_expired", run: func(e *env) {
		ref := e.lease(e.queue(), maxRuntime(time.Hour))
		e.expire(ref, 10*time.Minute)
		e.wantEnd(ref, store.EndExpired)
	}},
	{name: "R16_a_stall_is_only_reported_by_default", run: func(e *env) {
		q := e.queue()
		ref := e.lease(q, stallTimeout(time.Hour))
		e.age(ref.JobID, 2*time.Hour)
		if out := e.sweepOnce(q); out.Ended != 0 {
			e.Fatalf("a stalled lease was ended")
		}
		e.beat(store.Heartbeat{Lease: ref})
	}},
	{name: "R16_a_stall_ends_the_lease_if_the_queue_says_so", run: func(e *env) {
		ref := e.lease(e.queue(stallsEnd), stallTimeout(time.Hour))
		e.beat(store.Heartbeat{Lease: ref, Stage: to("s"), Progress: to(0.1)})
		e.age(ref.JobID, 50*time.Minute)
		e.beat(store.Heartbeat{Lease: ref, Stage: to("s"), Progress: to(0.1)})
		e.expire(ref, 20*time.Minute)
		if r := e.wantEnd(ref, store.EndStalled); !r.Counted || r.Beats != 2 {
			e.Fatalf("the lease is kept as %+v: liveness is not progress", r)
		}
	}},
	{name: "R16_any_change_is_progress", run: func(e *env) {
		q := e.queue(stallsEnd)
		ref := e.lease(q, stallTimeout(time.Hour))
		for _, h := range []store.Heartbeat{
			{Stage: to("s")}, {Progress: to(0.1)}, {Checkpoint: []byte("c")}, {Progress: to(0.2)},
		} {
			h.Lease = ref
			e.age(ref.JobID, 50*time.Minute)
			e.beat(h)
			e.sweepOnce(q)
			e.wantState(ref.JobID, store.Processing)
		}
	}},
	{name: "R16_after_a_cancel_request_leases_renew_for_cancel_grace", run: func(e *env) {
		q := e.queue(withPolicy(func(p *store.Policy) { p.CancelGrace, p.LeaseDuration = to(2*time.Hour), to(time.Hour) }))
		ref := e.lease(q)
		e.cancel(ref.JobID)
		e.wantRemaining(e.beat(store.Heartbeat{Lease: ref}).Remaining, time.Hour)
		e.age(ref.JobID, 50*time.Minute)
		e.beat(store.Heartbeat{Lease: ref})
		e.age(ref.JobID, 50*time.Minute)
		b := e.beat(store.Heartbeat{Lease: ref})
		if e.wantRemaining(b.Remaining, 20*time.Minute); !b.CancelRequested {
			e.Fatalf("the holder was not told")
		}
		e.age(ref.JobID, 30*time.Minute)
		if err := errOf[*store.ExpiredError](e, e.tryBeat(store.Heartbeat{Lease: ref}).Err); err.End != store.EndNone {
			e.Fatalf("the error is %+v; nobody has ended the lease", err)
		}
		e.sweepOnce(q)
		e.wantState(ref.JobID, store.Cancelled)
	}},
	{name: "R16_cancel_grace_is_five_minutes_by_default", run: func(e *env) {
		l := e.granted(e.tryAcquire(store.Acquire{JobID: e.enqueue(e.queue()), LeaseDuration: to(time.Hour)}))
		e.cancel(l.Job.ID)
		e.wantRemaining(e.beat(store.Heartbeat{Lease: l.Ref()}).Remaining, 5*time.Minute)
	}},
}
