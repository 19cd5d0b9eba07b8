package storetest

import (
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/leasehold/leasehold/store"
)

var requestTests = []contractTest{
	{name: "R12_a_replay_returns_the_same_leases_on_any_replica", run: func(e *env) {
		q := e.queue()
		for range 5 {
			e.enqueue(q)
		}
		a := store.Acquire{Queues: []string{q}, Owner: "w", MaxJobs: 3, RequestID: to(q + "/1")}
		first := e.tryAcquire(a)
		if len(first.Leases) != 3 {
			e.Fatalf("%d leases", len(first.Leases))
		}
		out, err := e.h.Replica(e.T).Acquire(e.ctx, []store.Acquire{a})
		e.one(len(out), err, "Acquire")
		if !sameLeases(first, out[0]) || out[0].Err != nil {
			e.Fatalf("the replay answers %+v", out[0])
		}
		for i, l := range out[0].Leases {
			if l.Attempt != 1 || string(l.Job.Payload.Data) != "payload" || !l.Until.Equal(first.Leases[i].Until) {
				e.Fatalf("the replayed lease is %+v", l)
			}
		}
		e.wantLeased(q, 3)
	}},
	{name: "R12_a_replay_by_job_id", run: func(e *env) {
		id := e.enqueue(e.queue())
		a := store.Acquire{JobID: id, RequestID: to("by-id/" + strconv.FormatInt(int64(id), 10))}
		first := e.granted(e.tryAcquire(a))
		if again := e.granted(e.tryAcquire(a)); again.LeaseNo != first.LeaseNo {
			e.Fatalf("the replay answers lease %d", again.LeaseNo)
		}
	}},
	{name: "R12_a_replay_returns_only_what_still_lives", run: func(e *env) {
		q := e.queue()
		e.enqueue(q)
		e.enqueue(q)
		a := store.Acquire{Queues: []string{q}, MaxJobs: 2, RequestID: to(q + "/1")}
		first := e.tryAcquire(a)
		e.complete(store.Complete{Lease: first.Leases[0].Ref()})
		e.wantJobs(e.tryAcquire(a), first.Leases[1].Job.ID)
		e.release(store.Release{Lease: first.Leases[1].Ref()})
		e.enqueue(q)
		if out := e.tryAcquire(a); out.Err != nil || len(out.Leases) != 0 {
			e.Fatalf("a replay took other leases: %+v", out)
		}
		e.wantLeased(q, 0)
	}},
	{name: "R12_other_arguments_are_refused", run: func(e *env) {
		q, other := e.queue(), e.queue()
		for range 3 {
			e.enqueue(q)
		}
		a := store.Acquire{Queues: []string{q}, MaxJobs: 1, RequestID: to(q + "/1")}
		e.granted(e.tryAcquire(a))
		for _, change := range []func(a *store.Acquire){
			func(a *store.Acquire) { a.MaxJobs = 2 },
			func(a *store.Acquire) { a.Queues = []string{q, other} },
			func(a *store.Acquire) { a.LeaseDuration = to(time.Hour) },
		} {
			changed := a
			change(&changed)
			err := errOf[*store.RequestReusedError](e, e.tryAcquire(changed).Err)
			if err.RequestID != q+"/1" {
				e.Fatalf("the error names %q", err.RequestID)
			}
		}
		e.wantLeased(q, 1)
	}},
	{name: "R12_remembered_for_24_hours", run: func(e *env) {
		q := e.queue()
		a := store.Acquire{Queues: []string{q}, MaxJobs: 1, RequestID: to(q + "/1"), LeaseDuration: to(12 * time.Hour)}
		id := e.enqueue(q)
		first := e.granted(e.tryAcquire(a))
		e.age(id, 11*time.Hour)
		e.beat(store.Heartbeat{Lease: first.Ref()})
		e.age(id, 11*time.Hour)
		e.forget()
		if l := e.granted(e.tryAcquire(a)); l.Job.ID != id || l.LeaseNo != 1 {
			e.Fatalf("after 22 hours the replay answers %+v", l)
		}
		e.age(id, 3*time.Hour)
		next := e.enqueue(q)
		e.wantJobs(e.tryAcquire(a), next)
	}},
	{name: "R12_an_empty_answer_is_not_remembered", run: func(e *env) {
		q := e.queue()
		a := store.Acquire{Queues: []string{q}, RequestID: to(q + "/1")}
		e.wantEmpty(e.tryAcquire(a), store.NoReadyJobs)
		id := e.enqueue(q)
		e.wantJobs(e.tryAcquire(a), id)
	}},
	{name: "R12_repeated_while_the_first_is_in_flight", run: func(e *env) {
		q := e.queue()
		for range 40 {
			e.enqueue(q)
		}
		a := store.Acquire{Queues: []string{q}, Owner: "w", MaxJobs: 2, RequestID: to(q + "/1")}
		other := e.h.Replica(e.T)
		var mu sync.Mutex
		taken := map[string]int{}
		parallel(16, func(i int) {
			s := e.s
			if i%2 == 1 {
				s = other
			}
			out, err := s.Acquire(e.ctx, []store.Acquire{a})
			if err != nil {
				e.Errorf("Acquire: %v", err)
				return
			}
			if isErr[*store.BusyError](out[0].Err) {
				return
			}
			if out[0].Err != nil || len(out[0].Leases) != 2 {
				e.Errorf("answered %+v", out[0])
				return
			}
			mu.Lock()
			defer mu.Unlock()
			ids := jobsOf(out[0])
			slices.Sort(ids)
			taken[strconv.Itoa(int(ids[0]))+","+strconv.Itoa(int(ids[1]))]++
		})
		if len(taken) != 1 {
			e.Fatalf("one request id took several sets of jobs: %v", taken)
		}
		e.wantLeased(q, 2)
	}},
	{name: "R12_twice_in_one_batch", run: func(e *env) {
		q := e.queue()
		for range 4 {
			e.enqueue(q)
		}
		a := store.Acquire{Queues: []string{q}, Owner: "w", MaxJobs: 1, RequestID: to(q + "/1")}
		out, err := e.s.Acquire(e.ctx, []store.Acquire{a, a})
		if err != nil || len(out) != 2 {
			e.Fatalf("Acquire: %v", err)
		}
		for i := range out {
			if !isErr[*store.BusyError](out[i].Err) && (out[i].Err != nil || !sameLeases(out[0], out[i])) {
				e.Fatalf("item %d answers %+v, item 0 %+v", i, out[i], out[0])
			}
		}
		e.wantLeased(q, 1)
	}},
}

func sameLeases(a, b store.Acquired) bool {
	refs := func(a store.Acquired) (refs []store.LeaseRef) {
		for i := range a.Leases {
			refs = append(refs, a.Leases[i].Ref())
		}
		slices.SortFunc(refs, func(x, y store.LeaseRef) int { return int(x.JobID - y.JobID) })
		return refs
	}
	return slices.Equal(refs(a), refs(b))
}

// parallel runs fn in n goroutines that start together.
func parallel(n int, fn func(i int)) {
	var start, done sync.WaitGroup
	start.Add(1)
	for i := range n {
		done.Add(1)
		go func() {
			defer done.Done()
			start.Wait()
			fn(i)
		}()
	}
	start.Done()
	done.Wait()
}

var undeliverTests = []contractTest{
	{name: "R10_an_undelivered_lease_is_given_back", run: func(e *env) {
		q := e.queue()
		ref := e.lease(q)
		e.undeliver(ref)
		if j := e.wantState(ref.JobID, store.Pending); j.AttemptsUsed != 0 || j.LeaseOwner != nil {
			e.Fatalf("the job is %+v", j)
		}
		if r := e.wantEnd(ref, store.EndUndelivered); r.Counted || r.EndedAt == nil {
			e.Fatalf("the lease is kept as %+v", r)
		}
		if l := e.granted(e.tryAcquire(store.Acquire{Queues: []string{q}})); l.LeaseNo != 2 || l.Attempt != 1 {
			e.Fatalf("leased again as %+v", l)
		}
	}},
	{name: "R10_giving_back_is_idempotent", run: func(e *env) {
		ref := e.lease(e.queue())
		e.undeliver(ref)
		next := e.acquire(ref.JobID)
		e.undeliver(ref)
		if j := e.wantState(ref.JobID, store.Processing); j.LeaseNo != next.LeaseNo {
			e.Fatalf("giving back twice ended the next lease")
		}
	}},
	{name: "R10_a_lease_with_a_heartbeat_is_left_alone", run: func(e *env) {
		ref := e.lease(e.queue())
		e.beat(store.Heartbeat{Lease: ref})
		e.undeliver(ref)
		e.wantState(ref.JobID, store.Processing)
	}},
	{name: "R10_a_lease_that_a_replay_delivered_is_left_alone", run: func(e *env) {
		q := e.queue()
		e.enqueue(q)
		a := store.Acquire{Queues: []string{q}, RequestID: to(q + "/1")}
		l := e.granted(e.tryAcquire(a))
		e.granted(e.tryAcquire(a))
		if err := e.s.Undeliver(e.ctx, []store.LeaseRef{l.Ref()}, a.RequestID); err != nil {
			e.Fatalf("Undeliver: %v", err)
		}
		e.wantState(l.Job.ID, store.Processing)
	}},
	{name: "R10_without_a_replay_a_request_id_does_not_keep_it", run: func(e *env) {
		q := e.queue()
		e.enqueue(q)
		a := store.Acquire{Queues: []string{q}, RequestID: to(q + "/1")}
		l := e.granted(e.tryAcquire(a))
		if err := e.s.Undeliver(e.ctx, []store.LeaseRef{l.Ref()}, a.RequestID); err != nil {
			e.Fatalf("Undeliver: %v", err)
		}
		e.wantState(l.Job.ID, store.Pending)
		if out := e.tryAcquire(a); out.Err != nil || len(out.Leases) != 0 {
			e.Fatalf("a replay after that answers %+v: its leases no longer live", out)
		}
	}},
	{name: "R10_several_at_once_unknown_ones_passed_over", run: func(e *env) {
		q := e.queue()
		a, b := e.lease(q), e.lease(q)
		e.complete(store.Complete{Lease: b})
		err := e.s.Undeliver(e.ctx, []store.LeaseRef{{JobID: 1 << 60, LeaseNo: 1}, b, a}, nil)
		if err != nil {
			e.Fatalf("Undeliver: %v", err)
		}
		e.wantState(a.JobID, store.Pending)
		e.wantState(b.JobID, store.Completed)
	}},
}

var orderTests = []contractTest{
	{name: "R36_priority_then_run_at_then_id", run: func(e *env) {
		q := e.queue()
		at := time.Now().Add(time.Hour)
		put := func(priority int32, runAt time.Time) store.JobID {
			return e.enqueue(q, func(j *store.NewJob) { j.Priority, j.RunAt = &priority, &runAt })
		}
		last := put(9, at)
		five2 := put(5, at.Add(20*time.Minute))
		five1 := put(5, at.Add(10*time.Minute))
		tie1, tie2 := put(5, at), put(5, at)
		first := put(1, at.Add(40*time.Minute))
		want := []store.JobID{first, tie1, tie2, five1, five2, last}
		for _, id := range want {
			e.age(id, 3*time.Hour)
		}
		for i, id := range want {
			if got := e.granted(e.tryAcquire(store.Acquire{Queues: []string{q}})).Job.ID; got != id {
				e.Fatalf("acquire %d took job %d, want %d of %v", i, got, id, want)
			}
		}
	}},
	{name: "R36_the_order_holds_within_one_answer", run: func(e *env) {
		q := e.queue()
		var want []store.JobID
		for p := int32(9); p >= 1; p-- {
			want = append(want, e.enqueue(q, func(j *store.NewJob) { j.Priority = &p }))
		}
		slices.Reverse(want)
		e.wantJobs(e.tryAcquire(store.Acquire{Queues: []string{q}, MaxJobs: 100}), want...)
	}},
	{name: "R36_what_is_not_due_does_not_go_first", run: func(e *env) {
		q := e.queue()
		ahead := e.enqueue(q, func(j *store.NewJob) { j.Priority, j.Delay = to(int32(1)), to(time.Hour) })
		due := e.enqueue(q, func(j *store.NewJob) { j.Priority = to(int32(9)) })
		e.wantJobs(e.tryAcquire(store.Acquire{Queues: []string{q}, MaxJobs: 10}), due)
		e.wantState(ahead, store.Pending)
	}},
}
