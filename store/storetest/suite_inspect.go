package storetest

import (
	"slices"
	"time"

	"github.com/leasehold/leasehold/store"
)

var inspectTests = []contractTest{
	{name: "explain_of_a_pending_job", run: func(e *env) {
		q := e.queue()
		first := e.enqueue(q, func(j *store.NewJob) { j.Priority = to(int32(9)) })
		id := e.enqueue(q, func(j *store.NewJob) { j.Priority = to(int32(9)) })
		for range 3 {
			e.enqueue(q)
		}
		e.enqueue(q, func(j *store.NewJob) { j.Delay = to(time.Hour) })
		got := e.explain(id)
		if got.State != store.Pending || got.Queue != q || got.Ahead != 4 || got.DueIn != 0 || !got.Whole || got.PausedAt != nil || got.LastLeaseAt != nil {
			e.Fatalf("with job %d of the same priority and three of a better one before it: %+v", first, got)
		}
		later := e.enqueue(q, func(j *store.NewJob) { j.Delay = to(time.Hour) })
		if got := e.explain(later); got.DueIn < time.Hour-slack || got.DueIn > time.Hour || got.Ahead != 0 {
			e.Fatalf("due in an hour: %+v", got)
		}
		if _, err := e.s.PauseQueue(e.ctx, q, store.Actor{Name: "ann", Note: "provider down"}); err != nil {
			e.Fatal(err)
		}
		if got := e.explain(id); got.PausedAt == nil || got.PausedBy != "ann" || got.PauseNote != "provider down" {
			e.Fatalf("paused: %+v", got)
		}
	}},
	{name: "explain_of_a_leased_job_and_of_one_behind_it", run: func(e *env) {
		q := e.queue()
		leased, behind := e.lease(q), e.enqueue(q)
		got := e.explain(leased.JobID)
		if got.State != store.Processing || got.LeaseOwner == nil || got.LeaseRemaining <= 0 || got.LeaseRemaining > store.DefaultLeaseDuration {
			e.Fatalf("leased: %+v", got)
		}
		if got := e.explain(behind); got.Ahead != 0 || got.LastLeaseAt == nil || got.At.Sub(*got.LastLeaseAt) > slack {
			e.Fatalf("behind a leased one: %+v", got)
		}
		e.age(leased.JobID, time.Hour)
		if got := e.explain(leased.JobID); got.State == store.Processing && got.LeaseRemaining > 0 {
			e.Fatalf("an hour later: %+v", got)
		}
	}},
	{name: "explain_of_a_finished_job_and_of_none", run: func(e *env) {
		ref := e.lease(e.queue())
		e.complete(store.Complete{Lease: ref})
		if got := e.explain(ref.JobID); got.State != store.Completed || got.LastLeaseAt == nil {
			e.Fatalf("completed: %+v", got)
		}
		_, err := e.s.ExplainJob(e.ctx, 1<<60)
		wantErr[*store.JobNotFoundError](e, err)
	}},
	{name: "queue_stats_count_each_state", run: func(e *env) {
		q, empty := e.queue(), e.queue()
		for range 3 {
			e.lease(q)
		}
		dead := e.lease(q)
		e.fail(store.Fail{Lease: dead, Permanent: true})
		e.complete(store.Complete{Lease: e.lease(q)})
		old := e.enqueue(q)
		e.enqueue(q)
		e.enqueue(q, func(j *store.NewJob) { j.Delay = to(time.Hour) })
		e.age(old, 2*time.Hour)
		stats, err := e.s.QueueStats(e.ctx, []string{empty, q, "no-such-queue"})
		if err != nil || len(stats) != 3 {
			e.Fatalf("%+v, %v", stats, err)
		}
		age := stats[1].OldestAge
		if age == nil || *age < 2*time.Hour || *age > 2*time.Hour+slack {
			e.Fatalf("the oldest ready job is two hours old, not %v", age)
		}
		stats[1].OldestAge = nil
		want := []store.QueueStats{{Queue: empty}, {Queue: q, Ready: 2, Scheduled: 1, Processing: 3, Dead: 1}, {Queue: "no-such-queue"}}
		for i := range want {
			if stats[i] != want[i] {
				e.Fatalf("got %+v, want %+v", stats[i], want[i])
			}
		}
	}},
	{name: "R22_retry_by_filter_takes_up_what_is_left", run: func(e *env) {
		q := e.queue(func(q *store.Queue) { q.Policy.BackoffInitial = to(time.Hour) })
		var want []store.JobID
		for range 5 {
			ref := e.lease(q)
			e.fail(store.Fail{Lease: ref})
			want = append(want, ref.JobID)
		}
		f := store.JobFilter{Queue: &q, States: []store.State{store.Pending}}
		e.retry(want[1])
		e.retry(want[3])
		if got := e.batches(e.s.RetryJobs, f, 2); !slices.Equal(got, []store.JobID{want[0], want[2], want[4]}) {
			e.Fatalf("retried %v of %v, of which the second and fourth were due already", got, want)
		}
		if got := e.batches(e.s.RetryJobs, f, 2); len(got) > 0 {
			e.Fatalf("retried %v again", got)
		}
		for _, id := range want {
			acts, err := e.s.OperatorActs(e.ctx, id)
			if err != nil || len(acts) != 1 {
				e.Fatalf("job %d has the record %+v, %v", id, acts, err)
			}
		}
	}},
	{name: "lint_facts_of_a_queue", run: func(e *env) {
		unset, hold := e.queue(), e.queue(func(q *store.Queue) { q.OnExpiry = store.OnExpiryHold })
		for name, want := range map[string]store.OnExpiry{unset: store.OnExpiryUnset, hold: store.OnExpiryHold} {
			facts, err := e.s.LintFacts(e.ctx, store.LintQuery{Queue: &name, LookBack: time.Hour, MaxTransactionAge: time.Hour})
			if err != nil || len(facts.Queues) != 1 || facts.Queues[0].Queue != name || facts.Queues[0].OnExpiry != want || facts.Tables != nil {
				e.Fatalf("%+v, %v", facts, err)
			}
		}
		_, err := e.s.LintFacts(e.ctx, store.LintQuery{Queue: to("no-such-queue"), LookBack: time.Hour, MaxTransactionAge: time.Hour})
		wantErr[*store.QueueNotFoundError](e, err)
	}},
}

func (e *env) explain(id store.JobID) *store.JobStanding {
	e.Helper()
	s, err := e.s.ExplainJob(e.ctx, id)
	if err != nil {
		e.Fatalf("ExplainJob: %v", err)
	}
	return s
}
