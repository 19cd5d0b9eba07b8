package storetest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasehold/leasehold/store"
)

const (
	racers    = 64
	racedJobs = 1000
)

var raceTests = []contractTest{
	{name: "R8_race_by_queue_leases_each_job_once", run: func(e *env) {
		q := e.queue()
		e.fill(q, racedJobs)
		var mu sync.Mutex
		times := map[store.JobID]int{}
		stores := e.replicas(3)
		parallel(racers, func(i int) {
			for {
				out, err := stores[i%3].Acquire(e.ctx, []store.Acquire{{
					Queues: []string{q}, Owner: fmt.Sprint("worker-", i), MaxJobs: 1 + i%8,
				}})
				if err != nil || out[0].Err != nil {
					e.Errorf("Acquire: %+v, %v", out, err)
					return
				}
				mu.Lock()
				for _, id := range jobsOf(out[0]) {
					times[id]++
				}
				all := len(times) == racedJobs
				mu.Unlock()
				// Others may hold the last rows locked: empty is the end only when all are out.
				if len(out[0].Leases) == 0 && all {
					return
				}
			}
		})
		e.wantEachOnce(q, times)
	}},
	{name: "R8_race_by_id_leases_each_job_once", run: func(e *env) {
		q := e.queue()
		ids := e.fill(q, racedJobs)
		var mu sync.Mutex
		times := map[store.JobID]int{}
		stores := e.replicas(3)
		const each = 100 // per call, so that 64 goroutines meet on the same rows
		parallel(racers, func(i int) {
			for from := 0; from < racedJobs; from += each {
				var items []store.Acquire
				for _, id := range ids[from : from+each] {
					items = append(items, store.Acquire{JobID: id, Owner: fmt.Sprint("worker-", i), MaxJobs: 1})
				}
				out, err := stores[i%3].Acquire(e.ctx, items)
				if err != nil {
					e.Errorf("Acquire: %v", err)
					return
				}
				mu.Lock()
				for _, a := range out {
					if a.Err != nil && !isErr[*store.BusyError](a.Err) || a.Err == nil && len(a.Leases) == 0 && a.Empty != store.JobLeased {
						e.Errorf("a raced job answers %+v", a)
					}
					for _, id := range jobsOf(a) {
						times[id]++
					}
				}
				mu.Unlock()
			}
		})
		e.wantEachOnce(q, times)
	}},
	{name: "R31_parallel_identical_completes", run: func(e *env) {
		q := e.queue()
		follow := []store.NewJob{{Queue: e.queue(), Payload: text("next")}}
		stores := e.replicas(2)
		for range 20 {
			c := store.Complete{Lease: e.lease(q), Result: text("result"), ThenEnqueue: follow}
			var applied, already atomic.Int64
			var ids sync.Map
			parallel(8, func(i int) {
				out, err := stores[i%2].Complete(e.ctx, []store.Complete{c})
				if err != nil || out[0].Err != nil || len(out[0].FollowUps) != 1 {
					e.Errorf("Complete: %+v, %v", out, err)
					return
				}
				ids.Store(out[0].FollowUps[0], true)
				if out[0].AlreadyApplied {
					already.Add(1)
				} else {
					applied.Add(1)
				}
			})
			n := 0
			ids.Range(func(any, any) bool { n++; return true })
			if applied.Load() != 1 || already.Load() != 7 || n != 1 {
				e.Fatalf("8 equal Completes: %d applied, %d already applied, %d different follow-ups", applied.Load(), already.Load(), n)
			}
		}
		e.wantJobCount(follow[0].Queue, 20)
	}},
	{name: "R33_race_for_one_key_makes_one_job", run: func(e *env) {
		q := e.queue()
		stores := e.replicas(3)
		for round := range 5 {
			var created atomic.Int64
			var ids sync.Map
			parallel(racers, func(i int) {
				out, err := stores[i%3].Enqueue(e.ctx, []store.NewJob{keyed(q, fmt.Sprint("k", round), "same")})
				if err != nil {
					e.Errorf("Enqueue: %v", err)
					return
				}
				if isErr[*store.BusyError](out[0].Err) {
					return
				}
				if out[0].Err != nil {
					e.Errorf("Enqueue: %v", out[0].Err)
					return
				}
				ids.Store(out[0].JobID, true)
				if out[0].Created {
					created.Add(1)
				}
			})
			n := 0
			ids.Range(func(any, any) bool { n++; return true })
			if created.Load() != 1 || n != 1 {
				e.Fatalf("one key: %d created, %d jobs", created.Load(), n)
			}
		}
		e.wantJobCount(q, 5)
	}},
	{name: "R32_race_of_complete_sweep_and_cancel", own: true, run: func(e *env) { raceOfEnds(e, 150) }},
	{name: "R8_race_of_takeover_heartbeat_and_complete", own: true, run: func(e *env) { raceOfTakeOvers(e, 150) }},
	{name: "R38_a_sweep_by_several_replicas_ends_each_once", own: true, run: func(e *env) {
		q := e.queue()
		e.fill(q, 300)
		for _, l := range e.tryAcquire(store.Acquire{Queues: []string{q}, MaxJobs: 300}).Leases {
			e.age(l.Job.ID, time.Hour)
		}
		MakeWritableSince(e.T, e.h, 24*time.Hour)
		var ended atomic.Int64
		stores := e.replicas(3)
		parallel(6, func(i int) {
			for after := store.JobID(0); ; {
				out, err := stores[i%3].SweepPage(e.ctx, after, 50, []string{q})
				if err != nil {
					e.Errorf("SweepPage: %v", err)
					return
				}
				ended.Add(int64(out.Ended))
				if after = out.Next; after == 0 {
					return
				}
			}
		})
		ended.Add(int64(e.sweepOnce(q).Ended)) // rows that others held locked
		if ended.Load() != 300 {
			e.Fatalf("%d leases were ended, want 300", ended.Load())
		}
		p, err := e.s.ListJobs(e.ctx, store.JobFilter{Queue: &q}, false, store.Page{Size: 1000})
		if err != nil {
			e.Fatalf("ListJobs: %v", err)
		}
		for _, j := range p.Jobs {
			if j.State != store.Pending || j.AttemptsUsed != 1 || j.Expirations != 1 {
				e.Fatalf("job %d is %+v", j.ID, j)
			}
		}
	}},
}

// fill stores n jobs in a queue.
func (e *env) fill(queue string, n int) (ids []store.JobID) {
	e.Helper()
	items := make([]store.NewJob, n)
	for i := range items {
		items[i] = store.NewJob{Queue: queue, Payload: text(fmt.Sprint(i))}
	}
	out, err := e.s.Enqueue(e.ctx, items)
	if err != nil {
		e.Fatalf("Enqueue: %v", err)
	}
	for _, o := range out {
		if o.Err != nil {
			e.Fatalf("Enqueue: %v", o.Err)
		}
		ids = append(ids, o.JobID)
	}
	return ids
}

// replicas are n Stores over the database of the test.
func (e *env) replicas(n int) []store.Store {
	e.Helper()
	stores := []store.Store{e.s}
	for len(stores) < n {
		stores = append(stores, e.h.Replica(e.T))
	}
	return stores
}

// wantEachOnce checks that every job of a queue was leased once, by the answers and by
// the rows.
func (e *env) wantEachOnce(queue string, times map[store.JobID]int) {
	e.Helper()
	if len(times) != racedJobs {
		e.Fatalf("%d jobs were leased, want %d", len(times), racedJobs)
	}
	for id, n := range times {
		if n != 1 {
			e.Fatalf("job %d was leased %d times", id, n)
		}
	}
	p, err := e.s.ListJobs(e.ctx, store.JobFilter{Queue: &queue}, false, store.Page{Size: 1000})
	if err != nil || len(p.Jobs) != racedJobs {
		e.Fatalf("ListJobs: %d jobs, %v", len(p.Jobs), err)
	}
	for _, j := range p.Jobs {
		if j.State != store.Processing || j.LeaseNo != 1 {
			e.Fatalf("job %d is %s with lease_no %d", j.ID, j.State, j.LeaseNo)
		}
	}
}
