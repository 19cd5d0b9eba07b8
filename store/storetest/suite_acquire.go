package storetest

import (
	"slices"
	"time"

	"github.com/leasehold/leasehold/store"
)

var acquireTests = []contractTest{
	{name: "R7_queues_in_order_of_preference", run: func(e *env) {
		a, b := e.queue(), e.queue()
		second := e.enqueue(b, func(j *store.NewJob) { j.Priority = to(int32(1)) })
		first := e.enqueue(a, func(j *store.NewJob) { j.Priority = to(int32(9)) })
		out := e.tryAcquire(store.Acquire{Queues: []string{a, b}, MaxJobs: 10})
		e.wantJobs(out, first, second)
	}},
	{name: "R7_by_id_takes_that_job_and_no_other", run: func(e *env) {
		q := e.queue()
		other, id := e.enqueue(q), e.enqueue(q)
		if l := e.acquire(id); l.Job.ID != id || l.LeaseNo != 1 {
			e.Fatalf("leased job %d, lease %d", l.Job.ID, l.LeaseNo)
		}
		e.wantState(other, store.Pending)
	}},
	{name: "R7_empty_reason_no_ready_jobs", run: func(e *env) {
		q := e.queue()
		e.wantEmpty(e.tryAcquire(store.Acquire{Queues: []string{q}}), store.NoReadyJobs)
		e.enqueue(q, func(j *store.NewJob) { j.Delay = to(time.Hour) })
		e.wantEmpty(e.tryAcquire(store.Acquire{Queues: []string{q}}), store.NoReadyJobs)
	}},
	{name: "R7_empty_reason_queue_paused", run: func(e *env) {
		a, b := e.queue(), e.queue()
		id := e.enqueue(a)
		e.pause(a)
		e.wantEmpty(e.tryAcquire(store.Acquire{Queues: []string{a}}), store.QueuePaused)
		e.wantEmpty(e.tryAcquire(store.Acquire{Queues: []string{a, b}}), store.NoReadyJobs)
		e.wantEmpty(e.tryAcquire(store.Acquire{JobID: id}), store.QueuePaused)
		e.wantState(id, store.Pending)
		open := e.enqueue(b)
		e.wantJobs(e.tryAcquire(store.Acquire{Queues: []string{a, b}, MaxJobs: 5}), open)
	}},
	{name: "R7_empty_reason_job_leased", run: func(e *env) {
		ref := e.lease(e.queue())
		e.wantEmpty(e.tryAcquire(store.Acquire{JobID: ref.JobID}), store.JobLeased)
	}},
	{name: "R7_empty_reason_job_not_due", run: func(e *env) {
		id := e.enqueue(e.queue(), func(j *store.NewJob) { j.Delay = to(time.Hour) })
		e.wantEmpty(e.tryAcquire(store.Acquire{JobID: id}), store.JobNotDue)
		e.age(id, 2*time.Hour)
		e.acquire(id)
	}},
	{name: "R7_empty_reason_job_stuck", run: func(e *env) {
		ref := e.lease(e.queue(holds))
		e.expire(ref, 2*time.Minute)
		e.wantEmpty(e.tryAcquire(store.Acquire{JobID: ref.JobID}), store.JobStuck)
	}},
	{name: "R7_empty_reason_job_finished", run: func(e *env) {
		for name, end := range jobEnds {
			e.sub(name, func(e *env) {
				id := e.enqueue(e.queue())
				end(e, id)
				e.wantEmpty(e.tryAcquire(store.Acquire{JobID: id}), store.JobFinished)
			})
		}
	}},
	{name: "R7_unknown_queue_or_job", run: func(e *env) {
		q := e.queue()
		id := e.enqueue(q)
		wantErr[*store.QueueNotFoundError](e, e.tryAcquire(store.Acquire{Queues: []string{"no-such-queue"}}).Err)
		wantErr[*store.QueueNotFoundError](e, e.tryAcquire(store.Acquire{Queues: []string{q, "no-such-queue"}}).Err)
		e.wantState(id, store.Pending)
		wantErr[*store.JobNotFoundError](e, e.tryAcquire(store.Acquire{JobID: 1 << 60}).Err)
	}},
	{name: "R8_takeover_of_an_expired_lease", run: func(e *env) {
		ref := e.lease(e.queue())
		e.age(ref.JobID, 2*time.Minute)
		MakeWritableSince(e.T, e.h, 24*time.Hour)
		next := e.granted(e.tryAcquire(store.Acquire{JobID: ref.JobID, Owner: "worker-2"}))
		if next.LeaseNo != 2 || next.Attempt != 2 {
			e.Fatalf("took over as lease %d, attempt %d", next.LeaseNo, next.Attempt)
		}
		if r := e.wantEnd(ref, store.EndExpired); !r.Counted || r.EndedAt == nil || r.EndedAt.Before(r.Until) {
			e.Fatalf("the old lease is kept as %+v", r)
		}
		if j := e.wantState(ref.JobID, store.Processing); j.Expirations != 1 || j.AttemptsUsed != 1 || *j.LeaseOwner != "worker-2" {
			e.Fatalf("the job is %+v", j)
		}
	}},
	{name: "R8_takeover_obeys_section_6", run: func(e *env) {
		for _, c := range takeovers {
			e.sub(c.name, c.run)
		}
	}},
	{name: "R8_by_queue_leaves_live_leases_alone", run: func(e *env) {
		q := e.queue()
		ref := e.lease(q)
		e.wantEmpty(e.tryAcquire(store.Acquire{Queues: []string{q}}), store.NoReadyJobs)
		if r := e.record(ref); r.End != store.EndNone {
			e.Fatalf("a live lease was ended by %d", r.End)
		}
	}},
	{name: "R9_as_many_as_asked_for", run: func(e *env) {
		q := e.queue()
		for range 5 {
			e.enqueue(q)
		}
		if n := len(e.tryAcquire(store.Acquire{Queues: []string{q}}).Leases); n != 1 {
			e.Fatalf("max_jobs 1 gave %d leases", n)
		}
		if n := len(e.tryAcquire(store.Acquire{Queues: []string{q}, MaxJobs: 3}).Leases); n != 3 {
			e.Fatalf("max_jobs 3 gave %d leases", n)
		}
		e.wantLeased(q, 4)
		if n := len(e.tryAcquire(store.Acquire{Queues: []string{q}, MaxJobs: 1000}).Leases); n != 1 {
			e.Fatalf("the last job: %d leases", n)
		}
	}},
	{name: "R9_the_answer_is_capped_in_bytes", run: func(e *env) {
		q := e.queue()
		big := store.Payload{Data: make([]byte, 900<<10)}
		for range 8 {
			e.enqueue(q, func(j *store.NewJob) { j.Payload = big })
		}
		out := e.tryAcquire(store.Acquire{Queues: []string{q}, MaxJobs: 20})
		if n := len(out.Leases); n != 3 {
			e.Fatalf("%d leases of 900 KiB each; %d bytes hold 3", n, store.DefaultAnswerBytes)
		}
		e.wantLeased(q, 3)
		if n := len(e.tryAcquire(store.Acquire{Queues: []string{q}, MaxJobs: 20, MaxBytes: 1000}).Leases); n != 1 {
			e.Fatalf("under a cap of 1,000 bytes %d leases; the first is taken whatever its size", n)
		}
		e.wantLeased(q, 4)
	}},
	{name: "R9_an_undeliverable_job_does_not_block_those_behind_it", run: func(e *env) {
		q := e.queue()
		gone, good := e.enqueue(q), e.enqueue(q)
		e.h.DropPayload(e.T, gone)
		e.wantJobs(e.tryAcquire(store.Acquire{Queues: []string{q}, MaxJobs: 10}), good)
		if j := e.job(gone); j.State == store.Processing {
			e.Fatalf("a job whose payload is gone was leased")
		}
	}},
	{name: "R47_jobs_are_handed_round_the_items", run: func(e *env) {
		q := e.queue()
		for range 10 {
			e.enqueue(q)
		}
		item := store.Acquire{Queues: []string{q}, Owner: "worker-1", MaxJobs: 10}
		out, err := e.s.Acquire(e.ctx, []store.Acquire{item, item})
		if err != nil || len(out) != 2 || len(out[0].Leases) != 5 || len(out[1].Leases) != 5 {
			e.Fatalf("two items that ask for ten each got %+v, %v", out, err)
		}
		e.wantLeased(q, 10)
	}},
	{name: "R11_lease_duration_of_request_job_queue_default", run: func(e *env) {
		q := e.queue(withPolicy(func(p *store.Policy) { p.LeaseDuration = to(30 * time.Minute) }))
		ofJob := e.enqueue(q, jobPolicy(func(p *store.Policy) { p.LeaseDuration = to(10 * time.Minute) }))
		byRequest := e.tryAcquire(store.Acquire{
			JobID: e.enqueue(q, jobPolicy(func(p *store.Policy) { p.LeaseDuration = to(10 * time.Minute) })), LeaseDuration: to(12 * time.Hour),
		})
		for want, l := range map[time.Duration]store.Lease{
			12 * time.Hour: e.granted(byRequest), 10 * time.Minute: e.acquire(ofJob),
			30 * time.Minute: e.acquire(e.enqueue(q)), time.Minute: e.acquire(e.enqueue(e.queue())),
		} {
			e.wantRemaining(l.Remaining, want)
			if r := e.record(l.Ref()); r.Until.Sub(r.LeasedAt) != want || !r.Until.Equal(l.Until) {
				e.Fatalf("granted until %s, leased at %s, want %s", r.Until, r.LeasedAt, want)
			}
			e.wantRemaining(e.beat(store.Heartbeat{Lease: l.Ref()}).Remaining, want)
		}
	}},
	{name: "R13_a_lease_carries_all_that_the_worker_needs", run: func(e *env) {
		q := e.queue()
		id := e.enqueue(q, jobPolicy(func(p *store.Policy) { p.MaxAttempts = to(int32(7)) }))
		first := e.acquire(id)
		if first.LastStage != nil || first.Checkpoint != nil || first.Attempt != 1 || first.LeaseNo != 1 {
			e.Fatalf("the first lease is %+v", first)
		}
		e.beat(store.Heartbeat{Lease: first.Ref(), Stage: to("psp_call"), Checkpoint: []byte{0, 1}})
		e.fail(store.Fail{Lease: first.Ref(), RetryAfter: to(time.Duration(0))})
		l := e.acquire(id)
		switch {
		case l.Attempt != 2, l.LeaseNo != 2, l.LastStage == nil || *l.LastStage != "psp_call",
			!slices.Equal(l.Checkpoint, []byte{0, 1}),
			l.Job.ID != id, l.Job.Queue != q, l.Job.State != store.Processing,
			l.Job.Payload == nil || string(l.Job.Payload.Data) != "payload",
			l.Job.Policy.MaxAttempts == nil || *l.Job.Policy.MaxAttempts != 7,
			l.Job.LeaseOwner == nil || *l.Job.LeaseOwner != "worker-1":
			e.Fatalf("the second lease is %+v", l)
		}
		e.wantRemaining(l.Remaining, time.Minute)
		e.wantIn(l.Until, time.Minute, time.Minute, "lease_until")
	}},
}

// takeovers are the outcomes of section 6 that an acquire by id meets.
var takeovers = []contractTest{
	{name: "cancel_requested", run: func(e *env) {
		ref := e.lease(e.queue(holds))
		e.cancel(ref.JobID)
		e.takeOver(ref, store.JobFinished, store.Cancelled)
		if r := e.record(ref); !r.Cancelled || r.Counted {
			e.Fatalf("the lease is kept as %+v", r)
		}
	}},
	{name: "queue_holds", run: func(e *env) {
		e.takeOver(e.lease(e.queue(holds)), store.JobStuck, store.Stuck)
	}},
	{name: "last_attempt", run: func(e *env) {
		ref := e.lease(e.queue(), jobPolicy(func(p *store.Policy) { p.MaxAttempts = to(int32(1)) }))
		e.takeOver(ref, store.JobFinished, store.Dead)
	}},
	{name: "max_expirations", run: func(e *env) {
		ref := e.lease(e.queue(), jobPolicy(func(p *store.Policy) { p.MaxExpirations = to(int32(1)) }))
		e.takeOver(ref, store.JobStuck, store.Stuck)
	}},
	{name: "second_in_a_row_waits", run: func(e *env) {
		ref := e.lease(e.queue(), jobPolicy(func(p *store.Policy) { p.BackoffInitial = to(time.Hour) }))
		e.expire(ref, 2*time.Minute)
		second := e.acquire(ref.JobID)
		e.takeOver(second.Ref(), store.JobNotDue, store.Pending)
	}},
}

// takeOver lets a lease run out and checks what an acquire by id then answers.
func (e *env) takeOver(ref store.LeaseRef, want store.EmptyReason, state store.State) {
	e.Helper()
	e.age(ref.JobID, 2*time.Minute)
	MakeWritableSince(e.T, e.h, 24*time.Hour)
	e.wantEmpty(e.tryAcquire(store.Acquire{JobID: ref.JobID}), want)
	e.wantState(ref.JobID, state)
	e.wantEnd(ref, store.EndExpired)
}

func (e *env) pause(queue string) {
	e.Helper()
	if _, err := e.s.PauseQueue(e.ctx, queue, store.Actor{Name: "operator", Note: "why"}); err != nil {
		e.Fatalf("PauseQueue: %v", err)
	}
}

// wantJobs checks which jobs were leased, in order.
func (e *env) wantJobs(a store.Acquired, want ...store.JobID) {
	e.Helper()
	if a.Err != nil {
		e.Fatalf("Acquire: %v", a.Err)
	}
	if got := jobsOf(a); !slices.Equal(got, want) {
		e.Fatalf("leased jobs %v, want %v", got, want)
	}
}

func jobsOf(a store.Acquired) (ids []store.JobID) {
	for _, l := range a.Leases {
		ids = append(ids, l.Job.ID)
	}
	return ids
}

// wantLeased checks how many jobs of a queue are PROCESSING: as many as were returned.
func (e *env) wantLeased(queue string, want int) {
	e.Helper()
	p, err := e.s.ListJobs(e.ctx, store.JobFilter{Queue: &queue, States: []store.State{store.Processing}}, false, store.Page{Size: 1000})
	if err != nil {
		e.Fatalf("ListJobs: %v", err)
	}
	if len(p.Jobs) != want {
		e.Fatalf("%d jobs are leased, want %d", len(p.Jobs), want)
	}
}

// wantRemaining allows for the time between the database's clock and the answer.
func (e *env) wantRemaining(got, want time.Duration) {
	e.Helper()
	if got > want || got < want-slack {
		e.Fatalf("%s remain, want %s", got, want)
	}
}
