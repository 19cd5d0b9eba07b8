package storetest

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/leasehold/leasehold/store"
)

// raced leases n jobs of a queue through a recorder and lets the leases run out, so that
// everybody may act on them.
func (e *env) raced(r *Recorder, queue string, n int) (refs []store.LeaseRef) {
	e.Helper()
	c := r.Client(0, e.s)
	items := make([]store.NewJob, n)
	for i := range items {
		items[i] = store.NewJob{Queue: queue, Payload: text(fmt.Sprint(i))}
	}
	if _, err := c.Enqueue(e.ctx, items); err != nil {
		e.Fatalf("Enqueue: %v", err)
	}
	out, err := c.Acquire(e.ctx, []store.Acquire{{Queues: []string{queue}, Owner: "worker-0", MaxJobs: n}})
	if err != nil || len(out[0].Leases) != n {
		e.Fatalf("Acquire: %+v, %v", out, err)
	}
	for _, l := range out[0].Leases {
		refs = append(refs, l.Ref())
		r.Age(e.T, e.h, l.Job.ID, time.Hour)
	}
	MakeWritableSince(e.T, e.h, 24*time.Hour)
	return refs
}

// judge checks a recorded race by invariants and linearizability.
func (e *env) judge(r *Recorder, queue string) {
	e.Helper()
	tables, err := ReadTables(e.ctx, e.s, queue)
	if err != nil {
		e.Fatalf("ReadTables: %v", err)
	}
	for _, v := range CheckInvariants(r.History(), tables, Checked{}) {
		e.Errorf("%s", v)
	}
	q, err := e.s.GetQueue(e.ctx, queue)
	if err != nil {
		e.Fatalf("GetQueue: %v", err)
	}
	if err := CheckLinearizable(r.History(), tables, Linear{Queues: map[string]store.Queue{queue: *q}}); err != nil {
		e.Error(err)
	}
}

// racer is what one client of a race does to one lease.
type racer func(s store.Store, ref store.LeaseRef) error

// stagger spins for up to a millisecond, about what a statement takes: started at the same
// moment, the quickest statement would win every time.
func stagger() {
	for start, d := time.Now(), time.Duration(rand.IntN(1000))*time.Microsecond; time.Since(start) < d; {
		runtime.Gosched()
	}
}

// raceOver lets all racers loose on one lease after the other, each through one of three
// replicas.
func (e *env) raceOver(r *Recorder, refs []store.LeaseRef, racers ...racer) {
	e.Helper()
	var clients []store.Store
	for i, s := 0, e.replicas(3); i < len(racers); i++ {
		clients = append(clients, r.Client(i+1, s[i%3]))
	}
	// From the last: a sweep that finds its lease ended already goes on to later ones.
	for _, ref := range slices.Backward(refs) {
		parallel(len(racers), func(i int) {
			stagger()
			if err := racers[i](clients[i], ref); err != nil {
				e.Errorf("racer %d: %v", i, err)
			}
		})
		if e.Failed() {
			return
		}
	}
}

func (e *env) sweeper(queue string) racer {
	return func(s store.Store, ref store.LeaseRef) error {
		if err := s.StampWritable(e.ctx); err != nil {
			return err
		}
		_, err := s.SweepPage(e.ctx, ref.JobID-1, 1, []string{queue})
		return err
	}
}

func (e *env) completer(result string) racer {
	return func(s store.Store, ref store.LeaseRef) error {
		_, err := s.Complete(e.ctx, []store.Complete{{Lease: ref, Result: text(result)}})
		return err
	}
}

func (e *env) beater() racer {
	return func(s store.Store, ref store.LeaseRef) error {
		_, err := s.Heartbeat(e.ctx, []store.Heartbeat{{Lease: ref, Stage: to("s"), Checkpoint: []byte("c")}})
		return err
	}
}

func raceOfEnds(e *env, n int) {
	q := e.queue(withPolicy(s6Backoff))
	r := NewRecorder(nil)
	refs := e.raced(r, q, n)
	e.raceOver(r, refs,
		e.sweeper(q),
		e.beater(),
		e.completer("same"),
		e.beater(),
		e.completer("same"),
		func(s store.Store, ref store.LeaseRef) error {
			_, err := s.Fail(e.ctx, []store.Fail{{Lease: ref, Error: store.JobError{Code: "c"}}})
			return err
		},
		func(s store.Store, ref store.LeaseRef) error {
			if ref.JobID%3 != 0 {
				return nil
			}
			_, err := s.CancelJobs(e.ctx, store.BulkAct{Selection: store.Selection{IDs: []store.JobID{ref.JobID}}})
			return err
		},
		func(s store.Store, ref store.LeaseRef) error {
			_, err := s.Release(e.ctx, []store.Release{{Lease: ref}})
			return err
		},
	)
	e.judge(r, q)
}

func raceOfTakeOvers(e *env, n int) {
	q := e.queue()
	r := NewRecorder(nil)
	refs := e.raced(r, q, n)
	takeOver := func(owner string) racer {
		return func(s store.Store, ref store.LeaseRef) error {
			_, err := s.Acquire(e.ctx, []store.Acquire{{JobID: ref.JobID, Owner: owner, MaxJobs: 1}})
			return err
		}
	}
	e.raceOver(r, refs,
		takeOver("worker-1"),
		takeOver("worker-2"),
		e.sweeper(q),
		e.beater(),
		e.beater(),
		e.completer("of the first"),
		func(s store.Store, ref store.LeaseRef) error {
			_, err := s.Acquire(e.ctx, []store.Acquire{{Queues: []string{q}, Owner: "worker-3", MaxJobs: 1}})
			return err
		},
	)
	e.judge(r, q)
}
