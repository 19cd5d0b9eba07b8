package storetest

import (
	"fmt"
	"slices"
	"time"

	"github.com/leasehold/leasehold/store"
)

var cancelTests = []contractTest{
	{name: "R24_cancel_ends_waiting_and_stuck_jobs_at_once", run: func(e *env) {
		for name, id := range map[string]store.JobID{
			"ready": e.enqueue(e.queue()), "stuck": endings["held"](e).JobID, "requeued": endings["expired"](e).JobID,
			"scheduled": e.enqueue(e.queue(), func(j *store.NewJob) { j.Delay = to(time.Hour) }),
		} {
			for range 2 {
				if r := e.cancel(id); r.Requested || r.State != store.Cancelled {
					e.Fatalf("%s: CancelJob answers %+v", name, r)
				}
			}
			if j := e.wantState(id, store.Cancelled); j.FinishedAt == nil {
				e.Fatalf("%s: the job is %+v", name, j)
			}
			e.wantEmpty(e.tryAcquire(store.Acquire{JobID: id}), store.JobFinished)
		}
	}},
	{name: "R24_cancel_of_a_leased_job_is_a_request", run: func(e *env) {
		ref := e.lease(e.queue())
		if r := e.cancel(ref.JobID); !r.Requested || r.State != store.Processing {
			e.Fatalf("CancelJob answers %+v", r)
		}
		first := e.wantState(ref.JobID, store.Processing).CancelRequestedAt
		if first == nil {
			e.Fatalf("cancel_requested_at is unset")
		}
		e.age(ref.JobID, time.Minute)
		e.cancel(ref.JobID)
		if second := e.job(ref.JobID).CancelRequestedAt; second.After(first.Add(-time.Minute + time.Second)) {
			e.Fatalf("a second request moved cancel_requested_at from %s to %s", first, second)
		}
	}},
	{name: "R24_complete_after_a_cancel_request_is_completed", run: func(e *env) {
		ref := e.lease(e.queue(holds))
		e.cancel(ref.JobID)
		e.complete(store.Complete{Lease: ref, Result: text("settled")})
		e.wantState(ref.JobID, store.Completed)
		if r := e.wantEnd(ref, store.EndCompleted); r.Cancelled {
			e.Fatalf("the lease is kept as %+v", r)
		}
	}},
	{name: "R24_cancel_of_a_finished_job_is_refused", run: func(e *env) {
		for _, ref := range []store.LeaseRef{endings["completed"](e), endings["failed_permanently"](e)} {
			before := e.snapshot(ref.JobID)
			_, err := e.s.CancelJob(e.ctx, ref.JobID, store.Actor{})
			if got := errOf[*store.StateError](e, err); got.State != before.job.State || got.JobID != ref.JobID {
				e.Fatalf("the error is %+v", got)
			}
			e.wantUnchanged(before, e.snapshot(ref.JobID))
		}
		_, err := e.s.CancelJob(e.ctx, 1<<60, store.Actor{})
		wantErr[*store.JobNotFoundError](e, err)
	}},
	{name: "R22_cancel_jobs_by_ids", run: func(e *env) {
		q := e.queue()
		ready, leased, done := e.enqueue(q), e.lease(q), e.lease(q)
		e.complete(store.Complete{Lease: done})
		act := store.BulkAct{
			Selection: store.Selection{IDs: []store.JobID{done.JobID, leased.JobID, ready, 1 << 60}},
			DryRun:    true, Actor: store.Actor{Name: "operator"},
		}
		for _, dry := range []bool{true, false} {
			act.DryRun = dry
			got := e.bulk(e.s.CancelJobs(e.ctx, act))
			if len(got) != 4 || got[ready].State != store.Cancelled || got[leased.JobID].State != store.Processing {
				e.Fatalf("CancelJobs answers %+v", got)
			}
			wantErr[*store.StateError](e, got[done.JobID].Err)
			wantErr[*store.JobNotFoundError](e, got[1<<60].Err)
			if dry {
				e.wantState(ready, store.Pending)
				if e.job(leased.JobID).CancelRequestedAt != nil {
					e.Fatalf("a dry run asked the worker to stop")
				}
			}
		}
		e.wantState(ready, store.Cancelled)
		if !e.beat(store.Heartbeat{Lease: leased}).CancelRequested {
			e.Fatalf("the worker was not told")
		}
	}},
	{name: "R22_cancel_jobs_by_filter_in_batches", run: func(e *env) {
		q := e.queue()
		var want []store.JobID
		for i := range 7 {
			want = append(want, e.enqueue(q, func(j *store.NewJob) { j.Subject = to(fmt.Sprint("s", i%2)) }))
		}
		done := e.lease(q)
		e.complete(store.Complete{Lease: done})
		got := e.batches(e.s.CancelJobs, store.JobFilter{Queue: &q, Subject: to("s0")}, 3)
		if !slices.Equal(got, []store.JobID{want[0], want[2], want[4], want[6]}) {
			e.Fatalf("cancelled %v of %v", got, want)
		}
		e.wantState(want[1], store.Pending)
	}},
}

// bulk gives the items of a bulk act by job.
func (e *env) bulk(r store.BulkResult, err error) map[store.JobID]store.BulkItem {
	e.Helper()
	if err != nil {
		e.Fatalf("bulk act: %v", err)
	}
	got := map[store.JobID]store.BulkItem{}
	for _, i := range r.Items {
		got[i.JobID] = i
	}
	return got
}

// batches repeats a bulk act by filter until it is done.
func (e *env) batches(act bulkAct, f store.JobFilter, size int) (ids []store.JobID) {
	e.Helper()
	p := store.Page{Size: size}
	for range 50 {
		b := store.BulkAct{Selection: store.Selection{Filter: &f, Page: p}, Actor: store.Actor{Name: "operator"}}
		r, err := act(e.ctx, b)
		if err != nil || len(r.Items) > size {
			e.Fatalf("a batch of %d: %d items, %v", size, len(r.Items), err)
		}
		for _, i := range r.Items {
			if i.Err != nil {
				e.Fatalf("job %d: %v; a filter passes over what the act does not apply to", i.JobID, i.Err)
			}
			ids = append(ids, i.JobID)
		}
		if r.Next == 0 {
			return ids
		}
		p.After = r.Next
	}
	e.Fatalf("the batches do not end")
	return nil
}

var retryTests = []contractTest{
	{name: "R22_retry_of_dead_and_stuck", run: func(e *env) {
		for _, name := range []string{"dead_by_expiry", "held", "failed_permanently"} {
			e.sub(name, func(e *env) {
				ref := endings[name](e)
				e.retry(ref.JobID)
				j := e.wantState(ref.JobID, store.Pending)
				if j.AttemptsUsed != 0 || j.Expirations != 0 || j.FinishedAt != nil || j.StateReason != "" || j.LeaseNo != 1 {
					e.Fatalf("the job is %+v", j)
				}
				e.wantIn(j.RunAt, 0, 0, "run_at")
				if l := e.acquire(ref.JobID); l.LeaseNo != 2 || l.Attempt != 1 {
					e.Fatalf("leased as number %d, attempt %d: lease_no goes on", l.LeaseNo, l.Attempt)
				}
				if n := len(e.leases(ref.JobID)); n != 2 {
					e.Fatalf("%d leases are on record", n)
				}
			})
		}
	}},
	{name: "R22_retry_of_a_waiting_job_runs_it_now", run: func(e *env) {
		ref := e.lease(e.queue())
		e.fail(store.Fail{Lease: ref, RetryAfter: to(time.Hour)})
		e.retry(ref.JobID)
		e.retry(ref.JobID) // repeating it does no harm
		if l := e.acquire(ref.JobID); l.LeaseNo != 2 {
			e.Fatalf("leased as number %d", l.LeaseNo)
		}
	}},
	{name: "R22_retry_gives_a_new_budget", run: func(e *env) {
		id := e.enqueue(e.queue(), jobPolicy(func(p *store.Policy) { p.MaxAttempts = to(int32(2)) }))
		for range 2 {
			for range 2 {
				l := e.acquire(id)
				e.fail(store.Fail{Lease: l.Ref(), RetryAfter: to(time.Duration(0))})
			}
			e.wantState(id, store.Dead)
			e.retry(id)
		}
	}},
	{name: "R22_retry_keeps_stage_and_checkpoint", run: func(e *env) {
		ref := e.lease(e.queue(), jobPolicy(func(p *store.Policy) { p.MaxAttempts = to(int32(1)) }))
		e.beat(store.Heartbeat{Lease: ref, Stage: to("psp_call"), Checkpoint: []byte("c")})
		e.fail(store.Fail{Lease: ref, Error: store.JobError{Code: "c"}})
		e.retry(ref.JobID)
		if l := e.acquire(ref.JobID); string(l.Checkpoint) != "c" || l.LastStage == nil || *l.LastStage != "psp_call" || string(l.Job.Payload.Data) != "payload" {
			e.Fatalf("the next lease is %+v", l)
		}
	}},
	{name: "R22_retry_refuses_other_states", run: func(e *env) {
		q := e.queue()
		leased, done, gone := e.lease(q), endings["completed"](e), e.enqueue(q)
		e.cancel(gone)
		act := store.BulkAct{Selection: store.Selection{IDs: []store.JobID{leased.JobID, done.JobID, gone, 1 << 60}}}
		got := e.bulk(e.s.RetryJobs(e.ctx, act))
		for id, want := range map[store.JobID]store.State{leased.JobID: store.Processing, done.JobID: store.Completed, gone: store.Cancelled} {
			if err := errOf[*store.StateError](e, got[id].Err); err.State != want || err.JobID != id {
				e.Fatalf("the error is %+v, want state %s", err, want)
			}
			e.wantState(id, want)
		}
		wantErr[*store.JobNotFoundError](e, got[1<<60].Err)
	}},
	{name: "R22_retry_leaves_scheduled_work_alone", run: func(e *env) {
		q := e.queue()
		scheduled := e.enqueue(q, func(j *store.NewJob) { j.Delay = to(720 * time.Hour) })
		due := e.enqueue(q)
		act := store.BulkAct{Selection: store.Selection{IDs: []store.JobID{scheduled, due}}}
		got := e.bulk(e.s.RetryJobs(e.ctx, act))
		wantErr[*store.StateError](e, got[scheduled].Err)
		if got[due].Err != nil || got[due].State != store.Pending {
			e.Fatalf("a job that is due: %+v", got[due])
		}
		e.batches(e.s.RetryJobs, store.JobFilter{Queue: &q}, 10)
		e.wantIn(e.wantState(scheduled, store.Pending).RunAt, 720*time.Hour, 720*time.Hour, "run_at")
		for _, id := range []store.JobID{scheduled, due} {
			if acts, err := e.s.OperatorActs(e.ctx, id); err != nil || len(acts) != 0 {
				e.Fatalf("%d acts are recorded on job %d, %v", len(acts), id, err)
			}
		}
	}},
	{name: "R22_retry_revives_nothing_into_a_deleted_queue", run: func(e *env) {
		ref := endings["failed_permanently"](e)
		q := e.job(ref.JobID).Queue
		if err := e.s.DeleteQueue(e.ctx, q); err != nil {
			e.Fatalf("DeleteQueue: %v", err)
		}
		act := store.BulkAct{Selection: store.Selection{IDs: []store.JobID{ref.JobID}}}
		got := e.bulk(e.s.RetryJobs(e.ctx, act))
		if err := errOf[*store.QueueNotFoundError](e, got[ref.JobID].Err); err.Queue != q {
			e.Fatalf("the error names queue %q", err.Queue)
		}
		e.wantState(ref.JobID, store.Dead)
	}},
	{name: "R22_retry_by_filter_dry_run_and_batches", run: func(e *env) {
		q := e.queue()
		var want []store.JobID
		for i := range 5 {
			ref := e.lease(q)
			e.fail(store.Fail{Lease: ref, Permanent: true, Error: store.JobError{Code: fmt.Sprint("c", i%2)}})
			if i%2 == 0 {
				want = append(want, ref.JobID)
			}
		}
		done := e.lease(q)
		e.complete(store.Complete{Lease: done})
		f := store.JobFilter{Queue: &q, ErrorCode: to("c0")}
		dry := e.bulk(e.s.RetryJobs(e.ctx, store.BulkAct{Selection: store.Selection{Filter: &f, Page: store.Page{Size: 100}}, DryRun: true}))
		if len(dry) != 3 || dry[want[0]].State != store.Pending {
			e.Fatalf("the dry run answers %+v", dry)
		}
		e.wantState(want[0], store.Dead)
		if got := e.batches(e.s.RetryJobs, f, 2); !slices.Equal(got, want) {
			e.Fatalf("retried %v, want %v", got, want)
		}
		e.wantState(want[2], store.Pending)
	}},
	{name: "R22_a_key_that_another_job_took_stays_there", run: func(e *env) {
		q := e.queue()
		id := e.tryEnqueue(keyed(q, "k", "p")).JobID
		jobEnds["dead"](e, id)
		e.age(id, 8*24*time.Hour)
		owner := e.tryEnqueue(keyed(q, "k", "p")).JobID
		if owner == id {
			e.Fatalf("the key was not free")
		}
		e.retry(id)
		if j := e.wantState(id, store.Pending); j.IdempotencyKey != nil {
			e.Fatalf("the retried job shows the key")
		}
		if out := e.tryEnqueue(keyed(q, "k", "p")); out.Created || out.JobID != owner {
			e.Fatalf("the key answers %+v, want job %d", out, owner)
		}
		l := e.acquire(id)
		e.complete(store.Complete{Lease: l.Ref()})
		if out := e.tryEnqueue(keyed(q, "k", "p")); out.Created || out.JobID != owner {
			e.Fatalf("after the end of the other job the key answers %+v, want job %d", out, owner)
		}
	}},
	{name: "R22_a_key_that_is_still_the_jobs_lives_on", run: func(e *env) {
		q := e.queue()
		id := e.tryEnqueue(keyed(q, "k", "p")).JobID
		jobEnds["dead"](e, id)
		e.age(id, 6*24*time.Hour)
		e.retry(id)
		e.age(id, 30*24*time.Hour)
		e.forget()
		if out := e.tryEnqueue(keyed(q, "k", "p")); out.Created || out.JobID != id {
			e.Fatalf("the key of a live job answers %+v", out)
		}
	}},
	{name: "R22_acts_are_recorded", run: func(e *env) {
		ref := endings["held"](e)
		e.retry(ref.JobID)
		e.cancel(ref.JobID)
		got, err := e.s.OperatorActs(e.ctx, ref.JobID)
		if err != nil || len(got) != 2 || got[0].Act != "retry" || got[1].Act != "cancel" {
			e.Fatalf("the acts are %+v, %v", got, err)
		}
		for _, a := range got {
			if a.Actor != "operator" || a.Note != "why" || a.At.IsZero() {
				e.Fatalf("an act is recorded as %+v", a)
			}
		}
	}},
}
