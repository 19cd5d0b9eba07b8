package storetest

import (
	"context"
	"time"

	"github.com/leasehold/leasehold/store"
)

// bulkAct is RetryJobs or CancelJobs.
type bulkAct func(ctx context.Context, act store.BulkAct) (store.BulkResult, error)

var resolveTests = []contractTest{
	{name: "R23_it_did_settle", run: func(e *env) {
		for _, name := range []string{"held", "dead_by_expiry", "failed_permanently"} {
			e.sub(name, func(e *env) {
				ref := endings[name](e)
				for range 2 { // the same resolution may be repeated
					if j := e.resolve(ref.JobID, to(text("settled"))); j.State != store.Completed || j.ID != ref.JobID {
						e.Fatalf("ResolveJob answers %+v", j)
					}
				}
				j := e.wantState(ref.JobID, store.Completed)
				if j.Result == nil || string(j.Result.Data) != "settled" || j.Result.ContentType != "text/plain" || j.FinishedAt == nil || j.CompletedLate {
					e.Fatalf("the job is %+v", j)
				}
				e.wantActs(ref.JobID, "resolve_completed")
			})
		}
	}},
	{name: "R23_it_never_will", run: func(e *env) {
		for _, name := range []string{"held", "dead_by_expiry", "failed_permanently"} {
			e.sub(name, func(e *env) {
				ref := endings[name](e)
				end := e.record(ref).End
				for range 2 {
					if j := e.resolve(ref.JobID, nil); j.State != store.Dead {
						e.Fatalf("ResolveJob answers %+v", j)
					}
				}
				if j := e.wantState(ref.JobID, store.Dead); j.FinishedAt == nil || j.Result != nil {
					e.Fatalf("the job is %+v", j)
				}
				e.wantActs(ref.JobID, "resolve_dead")
				e.wantEnd(ref, end)
			})
		}
	}},
	{name: "R23_other_states_are_refused", run: func(e *env) {
		q := e.queue()
		cancelled := e.enqueue(q)
		e.cancel(cancelled)
		for _, id := range []store.JobID{e.enqueue(q), e.lease(q).JobID, endings["completed"](e).JobID, cancelled} {
			before := e.snapshot(id)
			for _, result := range []*store.Payload{nil, to(text("result"))} {
				_, err := e.s.ResolveJob(e.ctx, store.Resolution{JobID: id, Result: result, Actor: store.Actor{Name: "o", Note: "n"}})
				if got := errOf[*store.StateError](e, err); got.State != before.job.State || got.JobID != id {
					e.Fatalf("the error is %+v; the job is %s", got, before.job.State)
				}
			}
			e.wantUnchanged(before, e.snapshot(id))
		}
		_, err := e.s.ResolveJob(e.ctx, store.Resolution{JobID: 1 << 60})
		wantErr[*store.JobNotFoundError](e, err)
	}},
	{name: "R23_a_resolved_job_is_not_resolved_otherwise", run: func(e *env) {
		ref := endings["held"](e)
		e.resolve(ref.JobID, to(text("settled")))
		for _, result := range []*store.Payload{nil, to(text("another"))} {
			_, err := e.s.ResolveJob(e.ctx, store.Resolution{JobID: ref.JobID, Result: result, Actor: store.Actor{Name: "o", Note: "n"}})
			wantErr[*store.StateError](e, err)
		}
		if j := e.wantState(ref.JobID, store.Completed); string(j.Result.Data) != "settled" {
			e.Fatalf("the job is %+v", j)
		}
	}},
	{name: "R23_a_job_resolved_as_dead_can_be_retried", run: func(e *env) {
		ref := endings["held"](e)
		e.resolve(ref.JobID, nil)
		e.retry(ref.JobID)
		e.acquire(ref.JobID)
	}},
	{name: "R24_terminal_states_stay", run: func(e *env) {
		for name, setUp := range map[string]func(e *env) store.LeaseRef{
			"completed": endings["completed"], "dead": endings["failed_permanently"],
			"cancelled": then("expired", operatorCancels), "resolved": then("held", operatorResolves(nil)),
		} {
			e.sub(name, func(e *env) {
				ref := setUp(e)
				before := e.snapshot(ref.JobID)
				e.wantEmpty(e.tryAcquire(store.Acquire{JobID: ref.JobID}), store.JobFinished)
				e.wantEmpty(e.tryAcquire(store.Acquire{Queues: []string{before.job.Queue}}), store.NoReadyJobs)
				e.undeliver(ref)
				e.sweepOnce(before.job.Queue)
				for _, c := range tokenCalls {
					_, _, _ = c.call(e, ref)
				}
				e.wantUnchanged(before, e.snapshot(ref.JobID))
			})
		}
	}},
}

func (e *env) wantActs(id store.JobID, want string) {
	e.Helper()
	got, err := e.s.OperatorActs(e.ctx, id)
	if err != nil || len(got) == 0 {
		e.Fatalf("the acts are %+v, %v", got, err)
	}
	for _, a := range got {
		if a.Act != want || a.Actor != "operator" || a.Note != "why" || time.Since(a.At) > slack {
			e.Fatalf("an act is recorded as %+v", a)
		}
	}
}
