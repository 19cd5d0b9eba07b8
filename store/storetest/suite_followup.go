package storetest

import (
	"fmt"
	"slices"
	"time"

	"github.com/leasehold/leasehold/store"
)

var followUpTests = []contractTest{
	{name: "R19_complete_stores_follow_ups", run: func(e *env) {
		q := e.queue()
		next := e.queue(withPolicy(func(p *store.Policy) { p.MaxAttempts = to(int32(3)) }))
		ref := e.lease(q)
		out := e.complete(store.Complete{Lease: ref, ThenEnqueue: []store.NewJob{
			{Queue: next, Payload: text("one"), Priority: to(int32(1)), Subject: to("payment/1")},
			{Queue: q, Payload: text("two"), Delay: to(time.Hour)},
		}})
		if len(out.FollowUps) != 2 || out.AlreadyApplied {
			e.Fatalf("Complete answers %+v", out)
		}
		one, two := e.wantState(out.FollowUps[0], store.Pending), e.wantState(out.FollowUps[1], store.Pending)
		if one.Queue != next || string(one.Payload.Data) != "one" || one.Priority != 1 || *one.Policy.MaxAttempts != 3 {
			e.Fatalf("the first follow-up is %+v", one)
		}
		if e.wantIn(two.RunAt, time.Hour, time.Hour, "run_at"); string(two.Payload.Data) != "two" {
			e.Fatalf("the second follow-up is %+v", two)
		}
		for _, j := range []store.Job{one, two} {
			if j.ParentJobID == nil || *j.ParentJobID != ref.JobID {
				e.Fatalf("job %d does not name its parent", j.ID)
			}
		}
		if r := e.record(ref); !slices.Equal(r.FollowUps, out.FollowUps) {
			e.Fatalf("the lease keeps follow-ups %v, answered %v", r.FollowUps, out.FollowUps)
		}
	}},
	{name: "R19_a_retry_returns_the_same_ids", run: func(e *env) {
		q := e.queue()
		follow := []store.NewJob{{Queue: q, Payload: text("one")}, {Queue: q, Payload: text("two")}}
		c := store.Complete{Lease: e.lease(q), ThenEnqueue: follow}
		first, again := e.complete(c), e.complete(c)
		if !again.AlreadyApplied || !slices.Equal(first.FollowUps, again.FollowUps) {
			e.Fatalf("Complete answers %+v, then %+v", first, again)
		}
		f := store.Fail{Lease: e.lease(q), ThenEnqueue: follow, RetryAfter: to(time.Hour)}
		failed, retried := e.fail(f), e.fail(f)
		if len(failed.FollowUps) != 2 || !retried.AlreadyApplied || !slices.Equal(failed.FollowUps, retried.FollowUps) {
			e.Fatalf("Fail answers %+v, then %+v", failed, retried)
		}
		e.wantJobCount(q, 6)
	}},
	{name: "R19_a_retry_with_other_follow_ups_is_a_conflict", run: func(e *env) {
		q := e.queue()
		c := store.Complete{Lease: e.lease(q), ThenEnqueue: []store.NewJob{{Queue: q, Payload: text("one")}}}
		e.complete(c)
		for _, other := range [][]store.NewJob{nil, {{Queue: q, Payload: text("other")}}, append(slices.Clone(c.ThenEnqueue), c.ThenEnqueue...)} {
			wantErr[*store.ConflictError](e, e.tryComplete(store.Complete{Lease: c.Lease, ThenEnqueue: other}).Err)
		}
		e.wantJobCount(q, 2)
	}},
	{name: "R19_a_refused_follow_up_refuses_the_whole_call", run: func(e *env) {
		q := e.queue()
		e.tryEnqueue(keyed(q, "k", "taken"))
		bad := map[string]store.NewJob{
			"unknown_queue": {Queue: "no-such-queue"},
			"key_reused":    keyed(q, "k", "other"),
		}
		for name, job := range bad {
			e.sub("complete_"+name, func(e *env) {
				ref := e.lease(q)
				follow := []store.NewJob{{Queue: q, Payload: text("good")}, job}
				e.wantRefusedFollowUp(ref, e.tryComplete(store.Complete{Lease: ref, ThenEnqueue: follow}).Err)
			})
			e.sub("fail_"+name, func(e *env) {
				ref := e.lease(q)
				follow := []store.NewJob{{Queue: q, Payload: text("good")}, job}
				e.wantRefusedFollowUp(ref, e.tryFail(store.Fail{Lease: ref, ThenEnqueue: follow}).Err)
			})
		}
	}},
	{name: "R19_two_follow_ups_with_one_key", run: func(e *env) {
		q := e.queue()
		ref := e.lease(q)
		clash := []store.NewJob{keyed(q, "k", "one"), keyed(q, "k", "two")}
		wantErr[*store.FollowUpError](e, e.tryComplete(store.Complete{Lease: ref, ThenEnqueue: clash}).Err)
		e.wantJobCount(q, 1)
		same := []store.NewJob{keyed(q, "k", "one"), keyed(q, "k", "one")}
		out := e.complete(store.Complete{Lease: ref, ThenEnqueue: same})
		if len(out.FollowUps) != 2 || out.FollowUps[0] != out.FollowUps[1] {
			e.Fatalf("the same key twice gave %v", out.FollowUps)
		}
	}},
	{name: "R19_a_follow_up_whose_key_exists_is_that_job", run: func(e *env) {
		q := e.queue()
		id := e.tryEnqueue(keyed(q, "k", "p")).JobID
		c := store.Complete{Lease: e.lease(q), ThenEnqueue: []store.NewJob{keyed(q, "k", "p")}}
		for range 2 {
			if out := e.complete(c); !slices.Equal(out.FollowUps, []store.JobID{id}) {
				e.Fatalf("the follow-ups are %v, want job %d", out.FollowUps, id)
			}
		}
	}},
	{name: "R19_a_late_complete_stores_them_too", run: func(e *env) {
		q := e.queue()
		ref := e.lease(q)
		e.expire(ref, time.Hour)
		bad := store.Complete{Lease: ref, ThenEnqueue: []store.NewJob{{Queue: "no-such-queue"}}}
		wantErr[*store.FollowUpError](e, e.tryComplete(bad).Err)
		e.wantState(ref.JobID, store.Pending)
		out := e.complete(store.Complete{Lease: ref, ThenEnqueue: []store.NewJob{{Queue: q}}})
		if len(out.FollowUps) != 1 || !out.Late {
			e.Fatalf("Complete answers %+v", out)
		}
		e.wantState(out.FollowUps[0], store.Pending)
	}},
	{name: "R19_a_refused_token_stores_none", run: func(e *env) {
		ref := then("expired", leaseAgain)(e)
		q := e.queue()
		follow := []store.NewJob{{Queue: q}}
		wantErr[*store.SupersededError](e, e.tryComplete(store.Complete{Lease: ref, ThenEnqueue: follow}).Err)
		wantErr[*store.SupersededError](e, e.tryFail(store.Fail{Lease: ref, ThenEnqueue: follow}).Err)
		e.wantJobCount(q, 0)
	}},
	{name: "R19_a_hundred", run: func(e *env) {
		q := e.queue()
		var follow []store.NewJob
		for i := range store.MaxThenEnqueue {
			follow = append(follow, store.NewJob{Queue: q, Payload: text(fmt.Sprint(i))})
		}
		out := e.complete(store.Complete{Lease: e.lease(e.queue()), ThenEnqueue: follow})
		for i, id := range out.FollowUps {
			if got := string(e.job(id).Payload.Data); got != fmt.Sprint(i) {
				e.Fatalf("follow-up %d is job %q", i, got)
			}
		}
		e.wantJobCount(q, store.MaxThenEnqueue)
	}},
	{name: "R19_one_refused_item_does_not_void_the_batch", run: func(e *env) {
		q := e.queue()
		a, b := e.lease(q), e.lease(q)
		out, err := e.s.Complete(e.ctx, []store.Complete{
			{Lease: a, ThenEnqueue: []store.NewJob{{Queue: "no-such-queue"}}},
			{Lease: b, ThenEnqueue: []store.NewJob{{Queue: q}}},
		})
		if err != nil || len(out) != 2 || out[1].Err != nil || len(out[1].FollowUps) != 1 {
			e.Fatalf("Complete: %+v, %v", out, err)
		}
		wantErr[*store.FollowUpError](e, out[0].Err)
		e.wantState(a.JobID, store.Processing)
		e.wantState(b.JobID, store.Completed)
	}},
}

// wantRefusedFollowUp checks that the second follow-up was refused, nothing was stored,
// and the lease lives.
func (e *env) wantRefusedFollowUp(ref store.LeaseRef, err error) {
	e.Helper()
	if refusal := errOf[*store.FollowUpError](e, err); refusal.Index != 1 {
		e.Fatalf("the error names follow-up %d, want 1", refusal.Index)
	}
	e.beat(store.Heartbeat{Lease: ref})
	if r := e.wantEnd(ref, store.EndNone); len(r.FollowUps) != 0 {
		e.Fatalf("the lease is kept as %+v", r)
	}
	queue := e.job(ref.JobID).Queue
	p, listErr := e.s.ListJobs(e.ctx, store.JobFilter{Queue: &queue}, true, store.Page{Size: 1000})
	if listErr != nil {
		e.Fatalf("ListJobs: %v", listErr)
	}
	for _, j := range p.Jobs {
		if j.ParentJobID != nil {
			e.Fatalf("job %d was stored by a refused call", j.ID)
		}
	}
	e.complete(store.Complete{Lease: ref})
}

// wantJobCount checks how many jobs a queue has in all.
func (e *env) wantJobCount(queue string, want int) {
	e.Helper()
	p, err := e.s.ListJobs(e.ctx, store.JobFilter{Queue: &queue}, false, store.Page{Size: 1000})
	if err != nil || len(p.Jobs) != want {
		e.Fatalf("the queue has %d jobs (%v), want %d", len(p.Jobs), err, want)
	}
}
