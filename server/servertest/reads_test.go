package servertest

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold/leasehold/server/servertest/remote"
	"github.com/leasehold/leasehold/store"
)

// comparison compares what a client reads with what is stored, field by field, and notes
// which fields had something in them.
type comparison struct {
	*testing.T
	filled map[string]bool
}

// same compares two values of one type. Times are compared as moments, and nothing is told
// from empty, which protobuf does not tell either.
func (c *comparison) same(what string, got, want any) {
	c.Helper()
	c.compare(reflect.TypeOf(want).Name(), what, reflect.ValueOf(got), reflect.ValueOf(want))
}

func (c *comparison) compare(path, what string, got, want reflect.Value) {
	c.Helper()
	if !want.IsZero() {
		c.filled[path] = true
	}
	if at, ok := want.Interface().(time.Time); ok {
		if !got.Interface().(time.Time).Equal(at) {
			c.Errorf("%s of %s is %v, stored is %v", path, what, got, want)
		}
		return
	}
	switch want.Kind() {
	case reflect.Struct:
		for i := range want.NumField() {
			c.compare(path+"."+want.Type().Field(i).Name, what, got.Field(i), want.Field(i))
		}
	case reflect.Pointer:
		if got.IsNil() || want.IsNil() {
			if got.IsNil() != want.IsNil() {
				c.Errorf("%s of %s is set: %t, stored is %t", path, what, !got.IsNil(), !want.IsNil())
			}
			return
		}
		c.compare(path, what, got.Elem(), want.Elem())
	case reflect.Slice:
		if got.Len() != want.Len() {
			c.Errorf("%s of %s has %d elements, stored are %d", path, what, got.Len(), want.Len())
			return
		}
		for i := range want.Len() {
			c.compare(path, what, got.Index(i), want.Index(i))
		}
	default:
		if fmt.Sprint(got) != fmt.Sprint(want) {
			c.Errorf("%s of %s is %v, stored is %v", path, what, got, want)
		}
	}
}

// assertFilled tells the fields of a type that nothing was ever in: a conversion that
// forgets them would go unseen.
func (c *comparison) assertFilled(t reflect.Type, path string) {
	c.Helper()
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if !c.filled[path] {
		c.Errorf("nothing was ever in %s: there are %q", path, slices.Sorted(maps.Keys(c.filled)))
	}
	if t.Kind() == reflect.Struct && t != reflect.TypeFor[time.Time]() {
		for i := range t.NumField() {
			c.assertFilled(t.Field(i).Type, path+"."+t.Field(i).Name)
		}
	}
}

// TestReadsAnswerWhatIsStored reads jobs, leases, acts, stuck jobs and queues of every kind
// through the API and from the store, and compares all fields. Each field of each has been
// filled by some call.
func TestReadsAnswerWhatIsStored(t *testing.T) {
	t.Parallel()
	h := newRemoteHarness(t)
	r := h.store.(*remote.Store)
	c := &comparison{T: t, filled: map[string]bool{}}
	f := &filler{T: t, h: h, r: r, c: c}
	f.fill()

	all, err := r.Direct.ListJobs(t.Context(), store.JobFilter{}, true, store.Page{Size: 1000})
	f.must(err)
	listed, err := r.ListJobs(t.Context(), store.JobFilter{}, true, store.Page{Size: 1000})
	f.must(err)
	for i, stored := range all.Jobs {
		remote.UnsetDefaults(&listed.Jobs[i].Policy, stored.Policy)
		c.same(fmt.Sprint("listed job ", stored.ID), listed.Jobs[i], stored)
		f.compareJob(stored.ID)
	}
	stuck, err := r.Direct.ListStuck(t.Context(), store.StuckFilter{}, store.Page{Size: 1000})
	f.must(err)
	answered, err := r.ListStuck(t.Context(), store.StuckFilter{}, store.Page{Size: 1000})
	f.must(err)
	c.same("stuck jobs", answered, stuck)
	queues, err := r.Direct.ListQueues(t.Context(), "", 1000)
	f.must(err)
	listedQueues, err := r.ListQueues(t.Context(), "", 1000)
	f.must(err)
	for i := range queues {
		c.same("queue "+queues[i].Name, listedQueues[i], queues[i])
	}
	for _, kind := range []reflect.Type{
		reflect.TypeFor[store.Job](), reflect.TypeFor[store.LeaseRecord](), reflect.TypeFor[store.OperatorAct](), reflect.TypeFor[store.Queue](),
	} {
		c.assertFilled(kind, kind.Name())
	}
	c.assertFilled(reflect.TypeFor[store.StuckJob](), "StuckPage.Jobs")
}

// compareJob compares one job, its leases and its acts.
func (f *filler) compareJob(id store.JobID) {
	f.Helper()
	ctx, c, name := f.Context(), f.c, fmt.Sprint("job ", id)
	for _, full := range []bool{true, false} {
		stored, err := f.r.Direct.GetJob(ctx, id, full)
		f.must(err)
		got, err := f.r.GetJob(ctx, id, full)
		f.must(err)
		c.same(name, *got, *stored)
	}
	leases, err := f.r.Direct.ListLeases(ctx, id, store.Page{Size: 1000})
	f.must(err)
	got, err := f.r.ListLeases(ctx, id, store.Page{Size: 1000})
	f.must(err)
	last, err := f.r.LastLeases(ctx, id, 100, store.DefaultAnswerBytes)
	f.must(err)
	if len(got.Leases) != len(leases.Leases) || len(last) != len(leases.Leases) {
		f.Fatalf("%s has %d leases, listed are %d, with the job come %d", name, len(leases.Leases), len(got.Leases), len(last))
	}
	for i, l := range leases.Leases {
		c.same(fmt.Sprintf("%s, lease %d", name, l.LeaseNo), got.Leases[i], l)
		c.same(fmt.Sprintf("%s, recent lease %d", name, l.LeaseNo), last[i], l)
	}
	acts, err := f.r.Direct.OperatorActs(ctx, id)
	f.must(err)
	gotActs, err := f.r.OperatorActs(ctx, id)
	f.must(err)
	if len(gotActs) != len(acts) {
		f.Fatalf("%s has %d acts, answered are %d", name, len(acts), len(gotActs))
	}
	for i := range acts {
		c.same(name+", act", gotActs[i], acts[i])
	}
}

// filler brings about rows with something in every field.
type filler struct {
	*testing.T
	h *remoteHarness
	r *remote.Store
	c *comparison
}

func (f *filler) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// everyPolicy has no value that is a default.
func everyPolicy() store.Policy {
	return store.Policy{
		MaxAttempts: to(int32(7)), MaxExpirations: to(int32(4)), BackoffInitial: to(3 * time.Second), BackoffFactor: to(1.5),
		BackoffCap: to(20 * time.Minute), BackoffJitter: to(0.5), LeaseDuration: to(2 * time.Minute), MaxRuntime: to(3 * time.Hour),
		StallTimeout: to(time.Hour), CancelGrace: to(4 * time.Minute), IdempotencyRetention: to(5 * time.Hour),
	}
}

func (f *filler) queue(q store.Queue) string {
	f.Helper()
	_, err := f.r.CreateQueue(f.Context(), q)
	f.must(err)
	return q.Name
}

func (f *filler) lease(j store.NewJob) store.LeaseRef {
	f.Helper()
	out, err := f.r.Enqueue(f.Context(), []store.NewJob{j})
	f.must(err)
	f.must(out[0].Err)
	return f.again(out[0].JobID)
}

func (f *filler) again(id store.JobID) store.LeaseRef {
	f.Helper()
	out, err := f.r.Acquire(f.Context(), []store.Acquire{{JobID: id, Owner: "worker-1", MaxJobs: 1}})
	f.must(err)
	f.must(out[0].Err)
	if len(out[0].Leases) != 1 {
		f.Fatalf("job %d is not to be had: %d", id, out[0].Empty)
	}
	l := out[0].Leases[0]
	stored, err := f.r.Direct.GetJob(f.Context(), id, true)
	f.must(err)
	remote.UnsetDefaults(&l.Job.Policy, stored.Policy)
	stored.LastError = nil // a claim does not read it
	f.c.same(fmt.Sprintf("job %d as leased", id), l.Job, *stored)
	return l.Ref()
}

func (f *filler) beat(ref store.LeaseRef, stage string) error {
	f.Helper()
	out, err := f.r.Heartbeat(f.Context(), []store.Heartbeat{{Lease: ref, Stage: &stage, Progress: to(0.25), Checkpoint: []byte("checkpoint")}})
	f.must(err)
	return out[0].Err
}

func (f *filler) expire(ref store.LeaseRef) {
	f.Helper()
	f.h.Age(f, ref.JobID, time.Hour)
	for range 5 { // a machine that stands still makes the stamp too old
		f.h.SetWritable(f, 24*time.Hour, 0)
		swept, err := f.r.SweepPage(f.Context(), ref.JobID-1, 1, nil)
		f.must(err)
		if swept.Ended == 1 {
			return
		}
	}
	f.Fatalf("the lease of job %d does not end", ref.JobID)
}

// every is a job with all that can be given.
func every(queue, key string) store.NewJob {
	return store.NewJob{
		Queue: queue, Payload: store.Payload{Data: []byte(`{"a":1}`), JSON: true, ContentType: "application/json"},
		Headers: map[string]string{"traceparent": "00-1"}, Subject: to("payment/" + key), Priority: to(int32(3)), IdempotencyKey: &key, Policy: everyPolicy(),
	}
}

func (f *filler) fill() {
	f.Helper()
	ctx := f.Context()
	full := f.queue(store.Queue{Name: "full", Policy: everyPolicy(), OnExpiry: store.OnExpiryHold, StallEndsLease: true})
	plain := f.queue(store.Queue{Name: "plain"})
	operator := store.Actor{Name: "operator", Note: "why"}

	cancelled := f.lease(every(full, "cancelled")) // asked to stop, and still at work
	f.must(f.beat(cancelled, "one"))
	f.must(f.beat(cancelled, "two"))
	_, err := f.r.CancelJob(ctx, cancelled.JobID, operator)
	f.must(err)

	late := f.lease(every(plain, "late")) // completed after its end
	f.must(f.beat(late, "one"))
	f.expire(late)
	done, err := f.r.Complete(ctx, []store.Complete{{
		Lease: late, Result: store.Payload{Data: []byte("1"), JSON: true, ContentType: "application/json"}, ThenEnqueue: []store.NewJob{{Queue: plain}},
	}})
	f.must(err)
	f.must(done[0].Err)

	failed := f.lease(every(plain, "failed")) // then leased again, and silent
	given := store.JobError{Code: "code", Message: "message", Details: "details"}
	ended, err := f.r.Fail(ctx, []store.Fail{{Lease: failed, Error: given, RetryAfter: to(time.Duration(0))}})
	f.must(err)
	f.must(ended[0].Err)
	second := f.again(failed.JobID)
	f.expire(second)
	third := f.again(failed.JobID)
	f.must(f.beat(third, "three"))
	for range 2 {
		if err := f.beat(failed, "zombie"); err == nil || !strings.Contains(err.Error(), "superseded") {
			f.Fatalf("a beat of the first lease answers %v", err)
		}
	}
	f.h.Age(f, failed.JobID, 100*time.Second)

	held := f.lease(every(full, "held")) // STUCK
	f.must(f.beat(held, "one"))
	f.expire(held)

	back := f.lease(every(plain, "given back")) // cancelled by its end
	_, err = f.r.CancelJob(ctx, back.JobID, operator)
	f.must(err)
	ended, err = f.r.Release(ctx, []store.Release{{Lease: back}})
	f.must(err)
	f.must(ended[0].Err)

	_, err = f.r.PauseQueue(ctx, full, operator)
	f.must(err)
}
