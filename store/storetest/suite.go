package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold/leasehold/store"
)

// slack is how far a stored time may lie from the test's clock: it covers a slow machine,
// and is far below every span that a test makes pass.
const slack = 30 * time.Second

// contractTest is one test of the suite. Tests that touch what is not a queue's own (the
// stamp of R35, the sweep's record, the list of queues) have a database of their own; the
// others share one, each with queues of its own, because a database costs more than a test.
type contractTest struct {
	name string
	own  bool
	run  func(e *env)
}

// Run is the contract of a Store. Every test is named after the rule that it is about.
func Run(t *testing.T, newStore func(t *testing.T) Harness) {
	t.Helper()
	shared := newStore(t)
	for _, group := range [][]contractTest{
		enqueueTests, keyTests, acquireTests, requestTests, undeliverTests, orderTests,
		heartbeatTests, capTests, tableR17Tests, lateCallTests, followUpTests, failTests,
		tableS6Tests, expiryTests, releaseTests, backoffTests, outageTests, sweepTests,
		stuckTests, cancelTests, retryTests, resolveTests, queueTests, listTests, jobQueueTests,
		maintenanceTests, raceTests, inspectTests,
	} {
		for _, c := range group {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				h := shared
				if c.own {
					h = newStore(t)
				}
				c.run(newEnv(t, h))
			})
		}
	}
}

// env is a test's view of the Store: calls of one item that must succeed, and what is
// tedious to say every time.
type env struct {
	*testing.T
	h   Harness
	s   store.Store
	ctx context.Context
}

// testTime is far above what any test takes, so that a call that hangs ends as an error.
const testTime = 2 * time.Minute

func newEnv(t *testing.T, h Harness) *env {
	ctx, cancel := context.WithTimeout(t.Context(), testTime)
	t.Cleanup(cancel)
	return &env{T: t, h: h, s: h.Store(), ctx: ctx}
}

// sub runs a part of a test in the same database.
func (e *env) sub(name string, run func(e *env)) {
	e.Helper()
	e.Run(name, func(t *testing.T) { run(newEnv(t, e.h)) })
}

var queueNumber atomic.Int64

// queue makes a queue of the test's own.
func (e *env) queue(change ...func(q *store.Queue)) string {
	e.Helper()
	q := store.Queue{Name: fmt.Sprintf("q%d", queueNumber.Add(1))}
	for _, c := range change {
		c(&q)
	}
	if _, err := e.s.CreateQueue(e.ctx, q); err != nil {
		e.Fatalf("CreateQueue: %v", err)
	}
	return q.Name
}

func holds(q *store.Queue)        { q.OnExpiry = store.OnExpiryHold }
func stallsEnd(q *store.Queue)    { q.StallEndsLease = true }
func to[T any](v T) *T            { return &v }
func text(s string) store.Payload { return store.Payload{Data: []byte(s), ContentType: "text/plain"} }

// withPolicy changes the policy of a queue.
func withPolicy(change func(p *store.Policy)) func(q *store.Queue) {
	return func(q *store.Queue) { change(&q.Policy) }
}

// tryEnqueue stores one job and gives the item's answer.
func (e *env) tryEnqueue(j store.NewJob) store.Enqueued {
	e.Helper()
	out, err := e.s.Enqueue(e.ctx, []store.NewJob{j})
	e.one(len(out), err, "Enqueue")
	return out[0]
}

// enqueue stores a job in a queue.
func (e *env) enqueue(queue string, change ...func(j *store.NewJob)) store.JobID {
	e.Helper()
	j := store.NewJob{Queue: queue, Payload: text("payload")}
	for _, c := range change {
		c(&j)
	}
	out := e.tryEnqueue(j)
	if out.Err != nil {
		e.Fatalf("Enqueue: %v", out.Err)
	}
	return out.JobID
}

// jobPolicy changes the policy of a job.
func jobPolicy(change func(p *store.Policy)) func(j *store.NewJob) {
	return func(j *store.NewJob) { change(&j.Policy) }
}

// one checks that a call of one item was decided.
func (e *env) one(n int, err error, call string) {
	e.Helper()
	if err != nil {
		e.Fatalf("%s: %v", call, err)
	}
	if n != 1 {
		e.Fatalf("%s: %d results for one item", call, n)
	}
}

// tryAcquire makes one acquire and gives the item's answer.
func (e *env) tryAcquire(a store.Acquire) store.Acquired {
	e.Helper()
	if a.Owner == "" {
		a.Owner = "worker-1"
	}
	if a.MaxJobs == 0 {
		a.MaxJobs = 1
	}
	out, err := e.s.Acquire(e.ctx, []store.Acquire{a})
	e.one(len(out), err, "Acquire")
	return out[0]
}

// acquire leases one job by its id.
func (e *env) acquire(id store.JobID) store.Lease {
	e.Helper()
	return e.granted(e.tryAcquire(store.Acquire{JobID: id}))
}

func (e *env) granted(a store.Acquired) store.Lease {
	e.Helper()
	if a.Err != nil || len(a.Leases) != 1 {
		e.Fatalf("Acquire: %d leases, empty reason %d, error %v; want one lease", len(a.Leases), a.Empty, a.Err)
	}
	return a.Leases[0]
}

// wantEmpty checks that an acquire found nothing, for that reason.
func (e *env) wantEmpty(a store.Acquired, want store.EmptyReason) {
	e.Helper()
	if a.Err != nil || len(a.Leases) != 0 || a.Empty != want {
		e.Fatalf("Acquire: %d leases, empty reason %d, error %v; want empty reason %d", len(a.Leases), a.Empty, a.Err, want)
	}
}

// lease makes a job in a queue and leases it.
func (e *env) lease(queue string, change ...func(j *store.NewJob)) store.LeaseRef {
	e.Helper()
	l := e.acquire(e.enqueue(queue, change...))
	return l.Ref()
}

func (e *env) tryBeat(h store.Heartbeat) store.Beaten {
	e.Helper()
	out, err := e.s.Heartbeat(e.ctx, []store.Heartbeat{h})
	e.one(len(out), err, "Heartbeat")
	return out[0]
}

func (e *env) beat(h store.Heartbeat) store.Beaten {
	e.Helper()
	out := e.tryBeat(h)
	if out.Err != nil {
		e.Fatalf("Heartbeat: %v", out.Err)
	}
	return out
}

func (e *env) tryComplete(c store.Complete) store.Completion {
	e.Helper()
	out, err := e.s.Complete(e.ctx, []store.Complete{c})
	e.one(len(out), err, "Complete")
	return out[0]
}

func (e *env) complete(c store.Complete) store.Completion {
	e.Helper()
	out := e.tryComplete(c)
	if out.Err != nil {
		e.Fatalf("Complete: %v", out.Err)
	}
	return out
}

func (e *env) tryFail(f store.Fail) store.Ended {
	e.Helper()
	out, err := e.s.Fail(e.ctx, []store.Fail{f})
	e.one(len(out), err, "Fail")
	return out[0]
}

func (e *env) fail(f store.Fail) store.Ended {
	e.Helper()
	out := e.tryFail(f)
	if out.Err != nil {
		e.Fatalf("Fail: %v", out.Err)
	}
	return out
}

func (e *env) tryRelease(r store.Release) store.Ended {
	e.Helper()
	out, err := e.s.Release(e.ctx, []store.Release{r})
	e.one(len(out), err, "Release")
	return out[0]
}

func (e *env) release(r store.Release) store.Ended {
	e.Helper()
	out := e.tryRelease(r)
	if out.Err != nil {
		e.Fatalf("Release: %v", out.Err)
	}
	return out
}

func (e *env) undeliver(ref store.LeaseRef) {
	e.Helper()
	if err := e.s.Undeliver(e.ctx, []store.LeaseRef{ref}, nil); err != nil {
		e.Fatalf("Undeliver: %v", err)
	}
}

func (e *env) cancel(id store.JobID) store.CancelResult {
	e.Helper()
	r, err := e.s.CancelJob(e.ctx, id, store.Actor{Name: "operator", Note: "why"})
	if err != nil {
		e.Fatalf("CancelJob: %v", err)
	}
	return r
}

// retry makes a job run again by RetryJobs.
func (e *env) retry(id store.JobID) {
	e.Helper()
	r, err := e.s.RetryJobs(e.ctx, store.BulkAct{
		Selection: store.Selection{IDs: []store.JobID{id}}, Actor: store.Actor{Name: "operator", Note: "why"},
	})
	if err != nil || len(r.Items) != 1 || r.Items[0].Err != nil {
		e.Fatalf("RetryJobs: %+v, %v", r.Items, err)
	}
}

func (e *env) age(id store.JobID, d time.Duration) {
	e.Helper()
	e.h.Age(e.T, id, d)
}

// sweepOnce makes one pass over a queue while heartbeats have long been writable.
func (e *env) sweepOnce(queue string) store.Swept {
	e.Helper()
	MakeWritableSince(e.T, e.h, 24*time.Hour)
	out, err := e.s.SweepPage(e.ctx, 0, 1000, []string{queue})
	if err != nil {
		e.Fatalf("SweepPage: %v", err)
	}
	return out
}

// expire lets the time of a lease run out and the watcher end it. A machine that stood
// still for the 3 s that a stamp is good for is given another try.
func (e *env) expire(ref store.LeaseRef, after time.Duration) {
	e.Helper()
	queue := e.job(ref.JobID).Queue
	e.age(ref.JobID, after)
	for range 5 {
		e.sweepOnce(queue)
		if e.job(ref.JobID).State != store.Processing {
			return
		}
	}
	e.Fatalf("lease %d of job %d is not ended %s later", ref.LeaseNo, ref.JobID, after)
}

func (e *env) job(id store.JobID) store.Job {
	e.Helper()
	j, err := e.s.GetJob(e.ctx, id, true)
	if err != nil {
		e.Fatalf("GetJob: %v", err)
	}
	return *j
}

// wantState checks the state of a job.
func (e *env) wantState(id store.JobID, want store.State) store.Job {
	e.Helper()
	j := e.job(id)
	if j.State != want {
		e.Fatalf("job %d is %s, want %s", id, j.State, want)
	}
	return j
}

func (e *env) leases(id store.JobID) []store.LeaseRecord {
	e.Helper()
	p, err := e.s.ListLeases(e.ctx, id, store.Page{Size: 1000})
	if err != nil {
		e.Fatalf("ListLeases: %v", err)
	}
	return p.Leases
}

// record is what is kept of one lease.
func (e *env) record(ref store.LeaseRef) store.LeaseRecord {
	e.Helper()
	for _, r := range e.leases(ref.JobID) {
		if r.LeaseNo == ref.LeaseNo {
			return r
		}
	}
	e.Fatalf("there is no record of lease %d of job %d", ref.LeaseNo, ref.JobID)
	return store.LeaseRecord{}
}

// wantEnd checks how the history says that a lease ended.
func (e *env) wantEnd(ref store.LeaseRef, want store.End) store.LeaseRecord {
	e.Helper()
	r := e.record(ref)
	if r.End != want {
		e.Fatalf("lease %d of job %d ended by %d, want %d", ref.LeaseNo, ref.JobID, r.End, want)
	}
	return r
}

// wantErr checks the type of an error.
func wantErr[E error](e *env, err error) {
	e.Helper()
	_ = errOf[E](e, err)
}

// errOf checks the type of an error and gives it.
func errOf[E error](e *env, err error) E {
	e.Helper()
	var want E
	if !errors.As(err, &want) {
		e.Fatalf("the error is %T (%v), want %T", err, err, want)
	}
	return want
}

// isErr tells whether an error is of a type.
func isErr[E error](err error) bool {
	var want E
	return errors.As(err, &want)
}

// wantAbout checks that a time lies where the rules put it.
func (e *env) wantAbout(got, from, until time.Time, what string) {
	e.Helper()
	if got.Before(from.Add(-slack)) || got.After(until.Add(slack)) {
		e.Fatalf("%s is %s, want %s to %s", what, got, from, until)
	}
}

// wantIn checks a time from now.
func (e *env) wantIn(got time.Time, shortest, longest time.Duration, what string) {
	e.Helper()
	now := time.Now()
	e.wantAbout(got, now.Add(shortest), now.Add(longest), what)
}
