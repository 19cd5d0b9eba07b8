package storetest

import (
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasehold/leasehold/store"
)

var queueTests = []contractTest{
	{name: "R26_create_and_read", run: func(e *env) {
		want := store.Queue{Name: e.queue() + ".created", OnExpiry: store.OnExpiryHold, StallEndsLease: true, Policy: fullPolicy()}
		made, err := e.s.CreateQueue(e.ctx, want)
		if err != nil {
			e.Fatalf("CreateQueue: %v", err)
		}
		got, err := e.s.GetQueue(e.ctx, want.Name)
		if err != nil || !reflect.DeepEqual(made, got) {
			e.Fatalf("created %+v, read %+v, %v", made, got, err)
		}
		e.wantIn(got.CreatedAt, 0, 0, "created_at")
		want.CreatedAt = got.CreatedAt
		if !reflect.DeepEqual(*got, want) {
			e.Fatalf("the queue came back as %+v, want %+v", *got, want)
		}
		_, err = e.s.CreateQueue(e.ctx, want)
		if exists := errOf[*store.QueueExistsError](e, err); exists.Queue != want.Name {
			e.Fatalf("the error names %q", exists.Queue)
		}
	}},
	{name: "R26_unset_fields_stay_unset", run: func(e *env) {
		got, err := e.s.GetQueue(e.ctx, e.queue())
		if err != nil || !reflect.DeepEqual(got.Policy, store.Policy{}) || got.OnExpiry != store.OnExpiryUnset || got.StallEndsLease || got.PausedAt != nil {
			e.Fatalf("the queue is %+v, %v", got, err)
		}
	}},
	{name: "R26_ensure_queues", run: func(e *env) {
		old := e.queue(holds)
		fresh := old + ".fresh"
		for range 2 {
			if err := e.s.EnsureQueues(e.ctx, []string{old, fresh}); err != nil {
				e.Fatalf("EnsureQueues: %v", err)
			}
		}
		e.enqueue(fresh)
		if q, err := e.s.GetQueue(e.ctx, old); err != nil || q.OnExpiry != store.OnExpiryHold {
			e.Fatalf("an existing queue was changed: %+v, %v", q, err)
		}
	}},
	{name: "R26_unknown_queues", run: func(e *env) {
		const name = "no-such-queue"
		_, get := e.s.GetQueue(e.ctx, name)
		_, update := e.s.UpdateQueue(e.ctx, store.QueueUpdate{Queue: store.Queue{Name: name}, Fields: []store.QueueField{store.FieldOnExpiry}})
		_, pause := e.s.PauseQueue(e.ctx, name, store.Actor{})
		_, resume := e.s.ResumeQueue(e.ctx, name)
		_, list := e.s.ListJobs(e.ctx, store.JobFilter{Queue: to(name)}, false, store.Page{Size: 1})
		for _, err := range []error{get, update, pause, resume, list, e.s.DeleteQueue(e.ctx, name)} {
			wantErr[*store.QueueNotFoundError](e, err)
		}
	}},
	{name: "R26_list_by_name", own: true, run: func(e *env) {
		want := []string{"a", "a-b", "a.b", "a0", "b", "b_"}
		for _, n := range []string{"b", "a.b", "b_", "a", "a0", "a-b"} {
			if _, err := e.s.CreateQueue(e.ctx, store.Queue{Name: n}); err != nil {
				e.Fatalf("CreateQueue: %v", err)
			}
		}
		var got []string
		for after := ""; ; after = got[len(got)-1] {
			page, err := e.s.ListQueues(e.ctx, after, 2)
			if err != nil || len(page) > 2 {
				e.Fatalf("ListQueues: %d queues, %v", len(page), err)
			}
			if len(page) == 0 {
				break
			}
			for _, q := range page {
				got = append(got, q.Name)
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			e.Fatalf("listed %q, want each of %q once", got, want)
		}
	}},
	{name: "R26_update_changes_only_what_is_named", run: func(e *env) {
		name := e.queue()
		all := store.Queue{Name: name, OnExpiry: store.OnExpiryHold, StallEndsLease: true, Policy: fullPolicy()}
		for f, set := range fields {
			if _, err := e.s.UpdateQueue(e.ctx, store.QueueUpdate{Queue: all, Fields: []store.QueueField{f}}); err != nil {
				e.Fatalf("UpdateQueue of %s: %v", f, err)
			}
			got, err := e.s.GetQueue(e.ctx, name)
			expected := store.Queue{Name: name, CreatedAt: got.CreatedAt}
			set(&expected, &all)
			if err != nil || !reflect.DeepEqual(*got, expected) {
				e.Fatalf("after an update of %s the queue is %+v, want %+v", f, *got, expected)
			}
			back, err := e.s.UpdateQueue(e.ctx, store.QueueUpdate{Queue: store.Queue{Name: name}, Fields: []store.QueueField{f}})
			if err != nil || !reflect.DeepEqual(*back, store.Queue{Name: name, CreatedAt: got.CreatedAt}) {
				e.Fatalf("a named field that is unset goes back to its default; %s: %+v, %v", f, back, err)
			}
		}
	}},
	{name: "R26_delete_only_without_live_jobs", run: func(e *env) {
		for name, setUp := range map[string]func(e *env) store.JobID{
			"PENDING":    func(e *env) store.JobID { return e.enqueue(e.queue()) },
			"PROCESSING": func(e *env) store.JobID { return e.lease(e.queue()).JobID },
			"STUCK":      func(e *env) store.JobID { return endings["held"](e).JobID },
		} {
			id := setUp(e)
			q := e.job(id).Queue
			if err := errOf[*store.StateError](e, e.s.DeleteQueue(e.ctx, q)); err.Queue != q {
				e.Fatalf("%s: the error names %q", name, err.Queue)
			}
			if _, err := e.s.GetQueue(e.ctx, q); err != nil {
				e.Fatalf("%s: the queue is gone: %v", name, err)
			}
		}
		ref := endings["completed"](e)
		q := e.job(ref.JobID).Queue
		if err := e.s.DeleteQueue(e.ctx, q); err != nil {
			e.Fatalf("DeleteQueue: %v", err)
		}
		_, err := e.s.GetQueue(e.ctx, q)
		wantErr[*store.QueueNotFoundError](e, err)
		if j := e.wantState(ref.JobID, store.Completed); j.Queue != q || len(e.leases(ref.JobID)) != 1 {
			e.Fatalf("its history is gone: %+v", j)
		}
	}},
	{name: "R27_policies_are_copied_at_enqueue", run: func(e *env) {
		q := e.queue(withPolicy(func(p *store.Policy) { p.MaxAttempts, p.LeaseDuration = to(int32(2)), to(time.Hour) }))
		id := e.enqueue(q, jobPolicy(func(p *store.Policy) { p.MaxAttempts = to(int32(4)) }))
		changed := store.Queue{Name: q, Policy: store.Policy{MaxAttempts: to(int32(9)), LeaseDuration: to(2 * time.Hour)}}
		if _, err := e.s.UpdateQueue(e.ctx, store.QueueUpdate{Queue: changed, Fields: []store.QueueField{store.FieldMaxAttempts, store.FieldLeaseDuration}}); err != nil {
			e.Fatalf("UpdateQueue: %v", err)
		}
		l := e.acquire(id)
		if p := l.Job.Policy; *p.MaxAttempts != 4 || *p.LeaseDuration != time.Hour {
			e.Fatalf("the job has max_attempts %d, lease_duration %s", *p.MaxAttempts, *p.LeaseDuration)
		}
		e.wantRemaining(l.Remaining, time.Hour)
		if p := e.job(e.enqueue(q)).Policy; *p.MaxAttempts != 9 {
			e.Fatalf("a new job has max_attempts %d", *p.MaxAttempts)
		}
	}},
	{name: "R27_hold_is_read_when_the_lease_ends", run: func(e *env) {
		q := e.queue()
		ref := e.lease(q)
		hold := store.QueueUpdate{Queue: store.Queue{Name: q, OnExpiry: store.OnExpiryHold}, Fields: []store.QueueField{store.FieldOnExpiry}}
		if _, err := e.h.Replica(e.T).UpdateQueue(e.ctx, hold); err != nil {
			e.Fatalf("UpdateQueue: %v", err)
		}
		e.expire(ref, time.Hour)
		e.wantState(ref.JobID, store.Stuck)
	}},
	{name: "R27_pause_stops_leasing_by_every_path", run: func(e *env) {
		q := e.queue()
		ready, expired, live := e.enqueue(q), e.lease(q), e.lease(q)
		e.age(expired.JobID, time.Hour)
		paused, err := e.h.Replica(e.T).PauseQueue(e.ctx, q, store.Actor{Name: "first", Note: "why"})
		if err != nil || paused.PausedAt == nil {
			e.Fatalf("PauseQueue: %+v, %v", paused, err)
		}
		if again, err := e.s.PauseQueue(e.ctx, q, store.Actor{Name: "second"}); err != nil || again.PausedBy != "first" || again.PauseNote != "why" || !again.PausedAt.Equal(*paused.PausedAt) {
			e.Fatalf("a second pause answers %+v, %v: the first actor and note stay", again, err)
		}
		MakeWritableSince(e.T, e.h, 24*time.Hour)
		for _, a := range []store.Acquire{{Queues: []string{q}, MaxJobs: 10}, {JobID: ready}, {JobID: expired.JobID}} {
			if out := e.tryAcquire(a); len(out.Leases) != 0 {
				e.Fatalf("leased %v from a paused queue", jobsOf(out))
			}
		}
		e.beat(store.Heartbeat{Lease: live})
		e.complete(store.Complete{Lease: live})
		e.enqueue(q)
		if resumed, err := e.s.ResumeQueue(e.ctx, q); err != nil || resumed.PausedAt != nil || resumed.PausedBy != "" {
			e.Fatalf("ResumeQueue: %+v, %v", resumed, err)
		}
		e.acquire(ready)
	}},
	{name: "R27_after_pause_answers_nothing_is_leased", run: func(e *env) {
		q := e.queue()
		for range 300 {
			e.enqueue(q)
		}
		var leased atomic.Int64
		var paused atomic.Bool
		stop, some := make(chan struct{}), make(chan struct{}, 8)
		var workers sync.WaitGroup
		for range 8 {
			workers.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					began := paused.Load()
					out, err := e.s.Acquire(e.ctx, []store.Acquire{{Queues: []string{q}, Owner: "w", MaxJobs: 1}})
					if err != nil || out[0].Err != nil || began && len(out[0].Leases) > 0 {
						e.Errorf("Acquire, begun after PauseQueue had answered %t: %+v, %v", began, out, err)
						some <- struct{}{}
						return
					}
					if leased.Add(int64(len(out[0].Leases))) == 30 {
						some <- struct{}{}
					}
				}
			})
		}
		<-some
		e.pause(q)
		paused.Store(true)
		for range 20 {
			e.wantEmpty(e.tryAcquire(store.Acquire{Queues: []string{q}}), store.QueuePaused)
		}
		close(stop)
		workers.Wait()
	}},
}

// fullPolicy has every field set.
func fullPolicy() store.Policy {
	return store.Policy{
		MaxAttempts: to(int32(7)), MaxExpirations: to(int32(3)), BackoffInitial: to(1500 * time.Millisecond),
		BackoffFactor: to(1.5), BackoffCap: to(2 * time.Hour), BackoffJitter: to(0.25), LeaseDuration: to(90 * time.Second),
		MaxRuntime: to(5 * time.Hour), StallTimeout: to(20 * time.Minute), CancelGrace: to(time.Minute),
		IdempotencyRetention: to(30 * 24 * time.Hour),
	}
}
