package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/storetest/model"
)

// story is a history that is true, and the tables after it: job 1 is leased, loses its
// lease to a second worker and is completed by that one; job 2 is failed and released;
// job 3 is leased still.
type story struct {
	queue  store.Queue
	calls  History
	tables Tables
}

func tell(t *testing.T) story {
	t.Helper()
	e := newEnv(t, MemoryHarness(t))
	q := e.queue(withPolicy(s6Backoff), withPolicy(func(p *store.Policy) { p.MaxAttempts = to(int32(3)) }))
	r := NewRecorder(nil)
	e.s = r.Client(1, e.s)

	one := e.tryEnqueue(keyed(q, "k", "one")).JobID
	first := e.acquire(one)
	e.beat(store.Heartbeat{Lease: first.Ref(), Stage: to("psp_call"), Checkpoint: []byte("c")})
	r.Age(t, e.h, one, time.Hour)
	MakeWritableSince(t, e.h, 24*time.Hour)
	second := e.granted(e.tryAcquire(store.Acquire{JobID: one, Owner: "worker-2"}))
	e.tryBeat(store.Heartbeat{Lease: first.Ref()})
	e.tryComplete(store.Complete{Lease: first.Ref(), Result: text("of the first")})
	e.wantEmpty(e.tryAcquire(store.Acquire{JobID: one}), store.JobLeased)
	e.complete(store.Complete{Lease: second.Ref(), Result: text("result")})

	two := e.lease(q)
	e.fail(store.Fail{Lease: two, Error: store.JobError{Code: "c"}, RetryAfter: to(time.Duration(0))})
	again := e.acquire(two.JobID)
	e.release(store.Release{Lease: again.Ref(), Delay: time.Hour})
	e.lease(q)

	tables, err := ReadTables(e.ctx, e.s, q)
	if err != nil {
		t.Fatal(err)
	}
	row, err := e.s.GetQueue(e.ctx, q)
	if err != nil {
		t.Fatal(err)
	}
	return story{queue: *row, calls: r.History(), tables: tables}
}

func (s story) linearizable() error {
	return CheckLinearizable(s.calls, s.tables, Linear{Queues: map[string]store.Queue{s.queue.Name: s.queue}, Timeout: time.Minute})
}

// call finds the n-th call of a kind on a job.
func call[C model.Call](s story, id store.JobID, n int) *Call {
	for i := range s.calls {
		if _, ok := s.calls[i].Request.(C); ok && s.calls[i].Job == id {
			if n--; n < 0 {
				return &s.calls[i]
			}
		}
	}
	panic("no such call")
}

// change edits a row; the tables are the story's own.
func (s story) change(id store.JobID, edit func(r *JobRow)) {
	row := s.tables[id]
	row.Leases = slices.Clone(row.Leases)
	edit(&row)
	s.tables[id] = row
}

func (s *story) add(c Call) {
	last := s.calls[len(s.calls)-1].End
	c.Start, c.End = last.Add(time.Millisecond), last.Add(2*time.Millisecond)
	s.calls = append(s.calls, c)
}

func TestCheckersAcceptATrueHistory(t *testing.T) {
	t.Parallel()
	s := tell(t)
	if got := CheckInvariants(s.calls, s.tables, Checked{}); len(got) > 0 {
		t.Errorf("violations in a true history: %v", got)
	}
	if err := s.linearizable(); err != nil {
		t.Error(err)
	}
}

// corruptions are lies in the history or in the tables, each with the invariant that it
// breaks, and whether an order of the calls could still explain it.
var corruptions = map[string]struct {
	breaks      string
	explainable bool
	lie         func(s *story)
}{
	"lease numbers in the wrong order": {breaks: "I1", lie: func(s *story) {
		a, b := call[model.Acquire](*s, 1, 0), call[model.Acquire](*s, 1, 1)
		a.Outcome.LeaseNo, b.Outcome.LeaseNo = 2, 1
	}},
	"one lease given to two": {breaks: "I1", lie: func(s *story) {
		c := *call[model.Acquire](*s, 1, 1)
		c.Request = model.Acquire{Owner: "worker-3", ByID: true}
		s.calls = append(s.calls, c)
	}},
	"a promise of a heartbeat is broken": {breaks: "I1", lie: func(s *story) {
		c := call[model.Heartbeat](*s, 1, 0)
		c.Outcome.Until = c.Outcome.Until.Add(2 * time.Hour)
	}},
	"two leases overlap": {breaks: "I1", explainable: true, lie: func(s *story) {
		s.change(1, func(r *JobRow) { r.Leases[1].LeasedAt = r.Leases[1].LeasedAt.Add(-time.Minute) })
	}},
	"a lease after the end": {breaks: "I2", lie: func(s *story) {
		s.add(Call{Job: 1, Request: model.Acquire{Owner: "worker-3", ByID: true}, Outcome: model.Outcome{LeaseNo: 3, Attempt: 3}})
	}},
	"two Completes applied": {breaks: "I2", lie: func(s *story) { s.add(*call[model.Complete](*s, 1, 1)) }},
	"completed by nobody": {breaks: "I2", lie: func(s *story) {
		s.calls = slices.DeleteFunc(s.calls, func(c Call) bool { _, ok := c.Request.(model.Complete); return ok && c.Outcome.Err == nil })
	}},
	"a completed job goes on": {breaks: "I2", lie: func(s *story) {
		s.change(1, func(r *JobRow) { r.Job.State, r.Job.FinishedAt = store.Pending, nil })
	}},
	"cancelled by nobody": {breaks: "I2", lie: func(s *story) {
		s.change(2, func(r *JobRow) { r.Job.State, r.Job.FinishedAt = store.Cancelled, &r.Job.RunAt })
	}},
	"an OK without a row": {breaks: "I3", explainable: true, lie: func(s *story) { delete(s.tables, 3) }},
	"a row out of nothing": {breaks: "I3", explainable: true, lie: func(s *story) {
		s.calls = slices.DeleteFunc(s.calls, func(c Call) bool { _, ok := c.Request.(model.Enqueue); return ok && c.Job == 3 })
	}},
	"one key with two jobs": {breaks: "I3", explainable: true, lie: func(s *story) {
		call[model.Enqueue](*s, 2, 0).Request = model.Enqueue{ID: 2, Job: keyed(s.queue.Name, "k", "one")}
	}},
	"a refused heartbeat counted": {breaks: "I4", lie: func(s *story) {
		s.change(1, func(r *JobRow) { r.Leases[0].Beats++ })
	}},
	"a heartbeat lost": {breaks: "I4", lie: func(s *story) {
		s.change(1, func(r *JobRow) { r.Leases[0].Beats-- })
	}},
	"a late call not recorded": {breaks: "I4", lie: func(s *story) {
		s.change(1, func(r *JobRow) { r.Leases[0].LateCalls = nil })
	}},
	"a zombie's result stored": {breaks: "I4", explainable: true, lie: func(s *story) {
		s.change(1, func(r *JobRow) { r.Job.Result = to(text("of the first")) })
	}},
	"a lease without a record": {breaks: "I5", lie: func(s *story) {
		s.change(1, func(r *JobRow) { r.Leases = r.Leases[1:] })
	}},
	"another owner on record": {breaks: "I5", explainable: true, lie: func(s *story) {
		s.change(1, func(r *JobRow) { r.Leases[1].Owner = "worker-9" })
	}},
	"more attempts than allowed": {breaks: "I5", lie: func(s *story) {
		s.change(2, func(r *JobRow) { r.Job.AttemptsUsed = 4 })
	}},
	"an attempt not counted": {breaks: "I5", lie: func(s *story) {
		s.change(2, func(r *JobRow) { r.Job.AttemptsUsed = 0 })
	}},
	"an untrue end": {breaks: "I5", lie: func(s *story) {
		s.change(2, func(r *JobRow) { r.Leases[0].End = store.EndReleased })
	}},
	"expired before its time": {breaks: "I5", explainable: true, lie: func(s *story) {
		s.change(1, func(r *JobRow) { r.Leases[0].Until = r.Leases[0].EndedAt.Add(time.Minute) })
	}},
	"waiting with an owner": {breaks: "I6", explainable: true, lie: func(s *story) {
		s.change(2, func(r *JobRow) { r.Job.LeaseOwner = to("worker-1") })
	}},
	"leased without an end": {breaks: "I6", explainable: true, lie: func(s *story) {
		s.change(3, func(r *JobRow) { r.Job.LeaseUntil = nil })
	}},
	"an error of another call": {breaks: "I9", lie: func(s *story) {
		call[model.Heartbeat](*s, 1, 1).Outcome.Err = &store.ConflictError{}
	}},
}

func TestCheckersRejectACorruptedHistory(t *testing.T) {
	t.Parallel()
	for name, c := range corruptions {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := tell(t)
			c.lie(&s)
			got := CheckInvariants(s.calls, s.tables, Checked{})
			if !slices.ContainsFunc(got, func(v Violation) bool { return v.Invariant == c.breaks }) {
				t.Errorf("want a violation of %s, got %v", c.breaks, got)
			}
			if err := s.linearizable(); (err == nil) != c.explainable {
				t.Errorf("an order of the calls explains it: %t, want %t", err == nil, c.explainable)
			}
		})
	}
}

// notLinearizable are lies that only the order of the calls gives away.
var notLinearizable = map[string]func(s *story){
	"a zombie's heartbeat accepted": func(s *story) {
		c, good := call[model.Heartbeat](*s, 1, 1), call[model.Heartbeat](*s, 1, 0)
		c.Outcome = good.Outcome
		s.change(1, func(r *JobRow) { r.Leases[0].Beats, r.Leases[0].LateCalls.Count = 2, 1 })
	},
	"leased while it was held": func(s *story) {
		call[model.Acquire](*s, 1, 2).Outcome = model.Outcome{Empty: store.JobNotDue}
	},
	"completed late without having been ended": func(s *story) { call[model.Complete](*s, 1, 1).Outcome.Late = true },
	"already applied the first time":           func(s *story) { call[model.Complete](*s, 1, 1).Outcome.AlreadyApplied = true },
	"a checkpoint lost":                        func(s *story) { call[model.Acquire](*s, 1, 1).Outcome.Checkpoint = nil },
	"an attempt skipped":                       func(s *story) { call[model.Acquire](*s, 1, 1).Outcome.Attempt = 3 },
	"a fail that did not wait": func(s *story) {
		call[model.Fail](*s, 2, 0).Request = model.Fail{LeaseNo: 1, RetryAfter: to(time.Hour)}
	},
	"the superseding lease is another": func(s *story) {
		call[model.Heartbeat](*s, 1, 1).Outcome.Err = &store.SupersededError{Lease: store.LeaseRef{JobID: 1, LeaseNo: 1}, CurrentLeaseNo: 3}
	},
}

func TestLinearizabilityRejects(t *testing.T) {
	t.Parallel()
	for name, lie := range notLinearizable {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := tell(t)
			lie(&s)
			if s.linearizable() == nil {
				t.Error("an order of the calls explains it")
			}
		})
	}
}

// TestUnknownOutcomesFork: a Complete without an answer explains both a completed job and
// one that is still leased, and an answer that contradicts both remains a lie.
func TestUnknownOutcomesFork(t *testing.T) {
	t.Parallel()
	for name, lie := range map[string]func(s *story){
		"it took effect": func(s *story) { call[model.Complete](*s, 1, 1).Unknown = true },
		"it did not": func(s *story) {
			c := *call[model.Complete](*s, 1, 1)
			c.Job, c.Unknown, c.Request = 3, true, model.Complete{LeaseNo: 1, Result: text("result")}
			s.add(c)
		},
		"a lost acquire": func(s *story) { call[model.Acquire](*s, 1, 1).Unknown = true },
		"a lost heartbeat that took effect": func(s *story) {
			call[model.Heartbeat](*s, 1, 0).Unknown = true
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := tell(t)
			lie(&s)
			if got := CheckInvariants(s.calls, s.tables, Checked{}); len(got) > 0 {
				t.Errorf("violations: %v", got)
			}
			if err := s.linearizable(); err != nil {
				t.Error(err)
			}
			call[model.Fail](s, 2, 0).Outcome.State = store.Dead
			if s.linearizable() == nil {
				t.Error("with a lie beside it, an order of the calls explains it")
			}
		})
	}
}

func TestSettledMeansNothingIsLeased(t *testing.T) {
	t.Parallel()
	s := tell(t)
	got := CheckInvariants(s.calls, s.tables, Checked{Settled: true})
	if len(got) != 1 || got[0].Invariant != "I7" || got[0].Job != 3 {
		t.Errorf("violations: %v, want I7 of job 3", got)
	}
}

// TestCheckersOnLostAnswers runs workers whose calls and answers get lost at random: the
// checkers must find an explanation for whatever a correct Store does.
func TestCheckersOnLostAnswers(t *testing.T) {
	t.Parallel()
	e := newEnv(t, MemoryHarness(t))
	q := e.queue(withPolicy(func(p *store.Policy) { p.BackoffInitial = to(time.Duration(0)) }))
	r := NewRecorder(nil)
	var lost atomic.Int64
	lossy := func(string) error {
		if rand.IntN(8) == 0 {
			lost.Add(1)
			return &store.OutcomeUnknownError{Cause: errors.New("the connection broke")}
		}
		return nil
	}
	parallel(8, func(i int) {
		s := r.Client(i, WithFaults(e.s, lossy, lossy))
		for n := range 25 {
			work(e.ctx, s, q, fmt.Sprint("worker-", i), n)
		}
	})
	if lost.Load() == 0 {
		t.Fatal("no answer was lost")
	}
	e.judge(r, q)
}

// work is a worker's turn: enqueue, lease, beat, end; whatever fails is left as it is.
func work(ctx context.Context, s store.Store, queue, owner string, n int) {
	_, _ = s.Enqueue(ctx, []store.NewJob{{Queue: queue, Payload: text("p")}})
	out, err := s.Acquire(ctx, []store.Acquire{{Queues: []string{queue}, Owner: owner, MaxJobs: 2}})
	if err != nil {
		return
	}
	for i := range out[0].Leases {
		ref := out[0].Leases[i].Ref()
		_, _ = s.Heartbeat(ctx, []store.Heartbeat{{Lease: ref, Stage: to("s")}})
		switch (n + i) % 4 {
		case 0:
			_, _ = s.Fail(ctx, []store.Fail{{Lease: ref}})
		case 1:
			_, _ = s.Release(ctx, []store.Release{{Lease: ref}})
		default:
			for range 2 {
				_, _ = s.Complete(ctx, []store.Complete{{Lease: ref, Result: text("r")}})
			}
		}
	}
}
