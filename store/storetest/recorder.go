package storetest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/storetest/model"
)

// Recorder writes down the calls that go through the Stores that it wraps. It is safe for
// concurrent use.
type Recorder struct {
	// Repeats tells that what answers may have tried a repeatable call more than once, as a
	// service does whose connection to the database breaks (R34). Then a refusal that says
	// that nothing was done speaks of the last try only.
	Repeats bool

	mu    sync.Mutex
	calls History
	now   func() time.Time
}

// NewRecorder makes a Recorder with a clock; nil is the machine's.
func NewRecorder(now func() time.Time) *Recorder {
	if now == nil {
		now = time.Now
	}
	return &Recorder{now: now}
}

// History is what was recorded so far.
func (r *Recorder) History() History {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls)
}

// Add writes down a call that was seen elsewhere, as through gRPC.
func (r *Recorder) Add(c Call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, c)
}

// Age is Harness.Age, written down.
func (r *Recorder) Age(t testing.TB, h Harness, id store.JobID, d time.Duration) {
	t.Helper()
	start := r.now()
	h.Age(t, id, d)
	r.Add(Call{Start: start, End: r.now(), Job: id, Request: model.Age{By: d}})
}

// Client is a Store whose calls are written down as those of one client. A client makes
// one call at a time.
func (r *Recorder) Client(n int, s store.Store) store.Store {
	return &client{Store: s, r: r, n: n}
}

type client struct {
	store.Store
	r *Recorder
	n int
}

// nothingDone tells that an error says that its call, or item, took no effect.
func nothingDone(err error) bool {
	return isErr[*store.BusyError](err) || isErr[*store.UnavailableError](err)
}

// unknown tells that an error leaves open whether its call, or item, took effect.
func unknown(err error) bool {
	return isErr[*store.OutcomeUnknownError](err) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// repeatable tells that a service may try a call again whose outcome it does not know.
func (c Call) repeatable() bool {
	switch r := c.Request.(type) {
	case model.Enqueue:
		return r.Job.IdempotencyKey != nil
	case model.Acquire:
		return c.RequestID != ""
	}
	return true
}

// add writes down a call whose item was answered as in its outcome, or that failed as a
// whole.
func (r *Recorder) add(c Call, failed error) {
	repeats := r.Repeats && c.repeatable()
	if nothingDone(failed) && !repeats {
		return
	}
	c.Unknown = failed != nil || unknown(c.Outcome.Err) || repeats && nothingDone(c.Outcome.Err)
	r.Add(c)
}

// record makes a call and writes down each item of it. item gives the i-th item's job,
// request and outcome, which is zero where the call has failed.
func (c *client) record(n int, call func() error, item func(i int, ok bool) (store.JobID, model.Call, model.Outcome)) error {
	start := c.r.now()
	err := call()
	end := c.r.now()
	for i := range n {
		id, request, o := item(i, err == nil)
		c.r.add(Call{Client: c.n, Start: start, End: end, Job: id, Request: request, Outcome: o}, err)
	}
	return err
}

// Enqueue is store.Store.Enqueue.
func (c *client) Enqueue(ctx context.Context, items []store.NewJob) (out []store.Enqueued, err error) {
	return out, c.record(len(items), func() error {
		out, err = c.Store.Enqueue(ctx, items)
		return err
	}, func(i int, ok bool) (store.JobID, model.Call, model.Outcome) {
		if !ok {
			return 0, model.Enqueue{Job: items[i]}, model.Outcome{}
		}
		return out[i].JobID, model.Enqueue{ID: out[i].JobID, Job: items[i]},
			model.Outcome{Err: out[i].Err, Passed: out[i].Err == nil && !out[i].Created, State: store.Pending}
	})
}

// Acquire is store.Store.Acquire.
func (c *client) Acquire(ctx context.Context, items []store.Acquire) (out []store.Acquired, err error) {
	start := c.r.now()
	out, err = c.Store.Acquire(ctx, items)
	end := c.r.now()
	for i, a := range items {
		request := model.Acquire{Owner: a.Owner, Duration: a.LeaseDuration, ByID: a.JobID != 0}
		call := Call{Client: c.n, Start: start, End: end, Job: a.JobID, Request: request}
		if a.RequestID != nil {
			call.RequestID = *a.RequestID
		}
		if err != nil {
			c.r.add(call, err)
			continue
		}
		call.Outcome = model.Outcome{Err: out[i].Err, Empty: out[i].Empty}
		if len(out[i].Leases) == 0 {
			c.r.add(call, nil)
		}
		for _, l := range out[i].Leases {
			call.Job = l.Job.ID
			call.Outcome = model.Outcome{
				LeaseNo: l.LeaseNo, Attempt: l.Attempt, Until: l.Until, Remaining: l.Remaining,
				LastStage: l.LastStage, Checkpoint: l.Checkpoint, State: store.Processing,
			}
			c.r.add(call, nil)
		}
	}
	return out, err
}

// Undeliver is store.Store.Undeliver.
func (c *client) Undeliver(ctx context.Context, leases []store.LeaseRef, requestID *string) error {
	return c.record(len(leases), func() error {
		return c.Store.Undeliver(ctx, leases, requestID)
	}, func(i int, _ bool) (store.JobID, model.Call, model.Outcome) {
		return leases[i].JobID, model.Undeliver{LeaseNo: leases[i].LeaseNo}, model.Outcome{}
	})
}

// Heartbeat is store.Store.Heartbeat.
func (c *client) Heartbeat(ctx context.Context, items []store.Heartbeat) (out []store.Beaten, err error) {
	return out, c.record(len(items), func() error {
		out, err = c.Store.Heartbeat(ctx, items)
		return err
	}, func(i int, ok bool) (id store.JobID, _ model.Call, o model.Outcome) {
		h := items[i]
		if ok {
			o = beatOutcome(h.Lease, out[i])
		}
		return h.Lease.JobID, model.Heartbeat{
			LeaseNo: h.Lease.LeaseNo, Stage: h.Stage, Progress: h.Progress, Checkpoint: h.Checkpoint,
		}, o
	})
}

// Complete is store.Store.Complete.
func (c *client) Complete(ctx context.Context, items []store.Complete) (out []store.Completion, err error) {
	return out, c.record(len(items), func() error {
		out, err = c.Store.Complete(ctx, items)
		return err
	}, func(i int, ok bool) (id store.JobID, _ model.Call, o model.Outcome) {
		f := items[i]
		if ok {
			o = completeOutcome(out[i])
		}
		return f.Lease.JobID, model.Complete{
			LeaseNo: f.Lease.LeaseNo, Result: f.Result, ThenEnqueue: f.ThenEnqueue, FollowUps: o.FollowUps,
		}, o
	})
}

// Fail is store.Store.Fail.
func (c *client) Fail(ctx context.Context, items []store.Fail) (out []store.Ended, err error) {
	return out, c.record(len(items), func() error {
		out, err = c.Store.Fail(ctx, items)
		return err
	}, func(i int, ok bool) (id store.JobID, _ model.Call, o model.Outcome) {
		f := items[i]
		if ok {
			o = endedOutcome(out[i])
		}
		return f.Lease.JobID, model.Fail{
			LeaseNo: f.Lease.LeaseNo, Error: store.CleanJobError(f.Error), Permanent: f.Permanent,
			RetryAfter: f.RetryAfter, FollowUps: o.FollowUps,
		}, o
	})
}

// Release is store.Store.Release.
func (c *client) Release(ctx context.Context, items []store.Release) (out []store.Ended, err error) {
	return out, c.record(len(items), func() error {
		out, err = c.Store.Release(ctx, items)
		return err
	}, func(i int, ok bool) (id store.JobID, _ model.Call, o model.Outcome) {
		if ok {
			o = endedOutcome(out[i])
		}
		return items[i].Lease.JobID, model.Release{LeaseNo: items[i].Lease.LeaseNo, Delay: items[i].Delay}, o
	})
}

// CancelJob is store.Store.CancelJob.
func (c *client) CancelJob(ctx context.Context, id store.JobID, by store.Actor) (out store.CancelResult, err error) {
	return out, c.recordOne(id, model.Cancel{}, func() (model.Outcome, error) {
		out, err = c.Store.CancelJob(ctx, id, by)
		return cancelOutcome(out), err
	})
}

// ResolveJob is store.Store.ResolveJob.
func (c *client) ResolveJob(ctx context.Context, r store.Resolution) (out *store.Job, err error) {
	return out, c.recordOne(r.JobID, model.Resolve{Result: r.Result}, func() (o model.Outcome, _ error) {
		if out, err = c.Store.ResolveJob(ctx, r); out != nil {
			o.State = out.State
		}
		return o, err
	})
}

// recordOne is record for a call whose error is its only item's.
func (c *client) recordOne(id store.JobID, request model.Call, call func() (model.Outcome, error)) error {
	start := c.r.now()
	o, err := call()
	seen := Call{Client: c.n, Start: start, End: c.r.now(), Job: id, Request: request, Outcome: o}
	if nothingDone(err) || unknown(err) {
		c.r.add(seen, err)
		return err
	}
	seen.Outcome.Err = err
	c.r.add(seen, nil)
	return err
}

// RetryJobs is store.Store.RetryJobs.
func (c *client) RetryJobs(ctx context.Context, act store.BulkAct) (store.BulkResult, error) {
	return c.bulk(ctx, act, model.Retry{}, c.Store.RetryJobs)
}

// CancelJobs is store.Store.CancelJobs.
func (c *client) CancelJobs(ctx context.Context, act store.BulkAct) (store.BulkResult, error) {
	return c.bulk(ctx, act, model.Cancel{}, c.Store.CancelJobs)
}

// bulk records what a bulk act answers; one by filter whose answer is lost cannot be told
// by job, so tests act by ids where answers may be lost.
func (c *client) bulk(ctx context.Context, act store.BulkAct, request model.Call, call bulkAct) (store.BulkResult, error) {
	start := c.r.now()
	out, err := call(ctx, act)
	end := c.r.now()
	if act.DryRun {
		return out, err
	}
	base := Call{Client: c.n, Start: start, End: end, Request: request}
	if err != nil {
		for _, id := range act.Selection.IDs {
			base.Job = id
			c.r.add(base, err)
		}
		return out, err
	}
	for _, i := range out.Items {
		base.Job = i.JobID
		base.Outcome = model.Outcome{Err: i.Err, State: i.State}
		base.Outcome.Requested = base.Request == (model.Cancel{}) && i.State == store.Processing
		c.r.add(base, nil)
	}
	return out, err
}
