package storetest

import (
	"context"

	"github.com/leasehold/leasehold/store"
)

// Fault decides about one call of a Store, by the name of its method: nil lets it pass.
type Fault func(method string) error

// WithFaults is a Store that fails where it is told to: before a call, which then does not
// happen, or after it, which then has happened and only its answer is lost. Either may be
// nil. Calls that only read are passed through.
func WithFaults(s store.Store, before, after Fault) store.Store {
	pass := func(string) error { return nil }
	f := faulty{Store: s, before: before, after: after}
	if before == nil {
		f.before = pass
	}
	if after == nil {
		f.after = pass
	}
	return f
}

type faulty struct {
	store.Store
	before, after Fault
}

// faultAround makes a call between its two faults.
func faultAround[T any](f faulty, method string, call func() (T, error)) (T, error) {
	var none T
	if err := f.before(method); err != nil {
		return none, err
	}
	out, err := call()
	if lost := f.after(method); lost != nil {
		return none, lost
	}
	return out, err
}

// Acquire is store.Store.Acquire.
func (f faulty) Acquire(ctx context.Context, items []store.Acquire) ([]store.Acquired, error) {
	return faultAround(f, "Acquire", func() ([]store.Acquired, error) { return f.Store.Acquire(ctx, items) })
}

// Undeliver is store.Store.Undeliver.
func (f faulty) Undeliver(ctx context.Context, leases []store.LeaseRef, requestID *string) error {
	_, err := faultAround(f, "Undeliver", func() (struct{}, error) {
		return struct{}{}, f.Store.Undeliver(ctx, leases, requestID)
	})
	return err
}

// Heartbeat is store.Store.Heartbeat.
func (f faulty) Heartbeat(ctx context.Context, items []store.Heartbeat) ([]store.Beaten, error) {
	return faultAround(f, "Heartbeat", func() ([]store.Beaten, error) { return f.Store.Heartbeat(ctx, items) })
}

// Complete is store.Store.Complete.
func (f faulty) Complete(ctx context.Context, items []store.Complete) ([]store.Completion, error) {
	return faultAround(f, "Complete", func() ([]store.Completion, error) { return f.Store.Complete(ctx, items) })
}

// Fail is store.Store.Fail.
func (f faulty) Fail(ctx context.Context, items []store.Fail) ([]store.Ended, error) {
	return faultAround(f, "Fail", func() ([]store.Ended, error) { return f.Store.Fail(ctx, items) })
}

// Release is store.Store.Release.
func (f faulty) Release(ctx context.Context, items []store.Release) ([]store.Ended, error) {
	return faultAround(f, "Release", func() ([]store.Ended, error) { return f.Store.Release(ctx, items) })
}

// Enqueue is store.Store.Enqueue.
func (f faulty) Enqueue(ctx context.Context, items []store.NewJob) ([]store.Enqueued, error) {
	return faultAround(f, "Enqueue", func() ([]store.Enqueued, error) { return f.Store.Enqueue(ctx, items) })
}

// CancelJob is store.Store.CancelJob.
func (f faulty) CancelJob(ctx context.Context, id store.JobID, by store.Actor) (store.CancelResult, error) {
	return faultAround(f, "CancelJob", func() (store.CancelResult, error) { return f.Store.CancelJob(ctx, id, by) })
}

// RetryJobs is store.Store.RetryJobs.
func (f faulty) RetryJobs(ctx context.Context, act store.BulkAct) (store.BulkResult, error) {
	return faultAround(f, "RetryJobs", func() (store.BulkResult, error) { return f.Store.RetryJobs(ctx, act) })
}

// CancelJobs is store.Store.CancelJobs.
func (f faulty) CancelJobs(ctx context.Context, act store.BulkAct) (store.BulkResult, error) {
	return faultAround(f, "CancelJobs", func() (store.BulkResult, error) { return f.Store.CancelJobs(ctx, act) })
}

// ResolveJob is store.Store.ResolveJob.
func (f faulty) ResolveJob(ctx context.Context, r store.Resolution) (*store.Job, error) {
	return faultAround(f, "ResolveJob", func() (*store.Job, error) { return f.Store.ResolveJob(ctx, r) })
}

// SweepPage is store.Store.SweepPage.
func (f faulty) SweepPage(ctx context.Context, after store.JobID, size int, queues []string) (store.Swept, error) {
	return faultAround(f, "SweepPage", func() (store.Swept, error) { return f.Store.SweepPage(ctx, after, size, queues) })
}

// StampWritable is store.Store.StampWritable.
func (f faulty) StampWritable(ctx context.Context) error {
	_, err := faultAround(f, "StampWritable", func() (struct{}, error) { return struct{}{}, f.Store.StampWritable(ctx) })
	return err
}
