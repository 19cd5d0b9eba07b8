package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/storetest/model"
)

// maxRandomJobs bounds a sequence: few jobs meet more often in one state.
const maxRandomJobs = 3

// RunRandom makes random sequences of calls on a few jobs of one queue. After each call
// the answer, the job and every lease of it are compared with the model.
//
// Times are far apart (minutes and more), so that it does not matter by how much the
// test's clock and the database's differ, or how slow the machine is.
func RunRandom(t *testing.T, newStore func(t *testing.T) Harness) {
	t.Helper()
	h := newStore(t)
	rapid.Check(t, func(rt *rapid.T) {
		ctx, cancel := context.WithTimeout(t.Context(), testTime)
		defer cancel()
		w := newRandomWorld(ctx, t, rt, h)
		rt.Repeat(map[string]func(*rapid.T){
			"enqueue":        w.enqueue,
			"acquireByID":    w.acquireByID,
			"acquireByQueue": w.acquireByQueue,
			"heartbeat":      w.heartbeat,
			"complete":       w.complete,
			"fail":           w.fail,
			"release":        w.release,
			"undeliver":      w.undeliver,
			"inARow":         w.inARow,
			"heartbeats":     w.heartbeat, // twice as often
			"sweep":          w.sweep,
			"cancel":         w.cancel,
			"retry":          w.retry,
			"resolve":        w.resolve,
			"time":           w.passTime,
			"queue":          w.changeQueue,
			"outage":         func(*rapid.T) { w.outage = !w.outage },
		})
		for _, j := range w.jobs {
			w.compare(rt, j)
		}
	})
}

// randomWorld is one sequence: the jobs as the model has them.
type randomWorld struct {
	tb     testing.TB
	h      Harness
	s      store.Store
	ctx    context.Context
	queue  store.Queue
	outage bool
	jobs   []*randomJob
	keys   map[string]*randomJob
}

type randomJob struct {
	model.State
	noted bool // an error was noted after the end: whether it is the job's last is open
}

// pick draws one of several values.
func pick[T any](rt *rapid.T, label string, values ...T) T {
	return values[rapid.IntRange(0, len(values)-1).Draw(rt, label)]
}

func newRandomWorld(ctx context.Context, tb testing.TB, rt *rapid.T, h Harness) *randomWorld {
	p := store.Policy{
		MaxAttempts:    pick(rt, "max_attempts", nil, to(int32(1)), to(int32(3))),
		MaxExpirations: pick(rt, "max_expirations", nil, to(int32(1)), to(int32(2))),
		LeaseDuration:  to(time.Hour),
		MaxRuntime:     pick(rt, "max_runtime", nil, to(3*time.Hour)),
		StallTimeout:   pick(rt, "stall_timeout", nil, to(2*time.Hour)),
		CancelGrace:    pick(rt, "cancel_grace", nil, to(30*time.Minute), to(time.Duration(0))),
	}
	s6Backoff(&p)
	w := &randomWorld{
		tb: tb, h: h, s: h.Store(), ctx: ctx, keys: map[string]*randomJob{},
		queue: store.Queue{
			Name: fmt.Sprintf("random%d", queueNumber.Add(1)), Policy: p,
			OnExpiry: pick(rt, "on_expiry", store.OnExpiryUnset, store.OnExpiryRequeue, store.OnExpiryHold),
		},
	}
	w.queue.StallEndsLease = rapid.Bool().Draw(rt, "stall_ends_lease")
	q, err := w.s.CreateQueue(ctx, w.queue)
	if err != nil {
		rt.Fatalf("CreateQueue: %v", err)
	}
	w.queue = *q
	return w
}

// writable writes the stamp of R35 as the sequence has it just now.
func (w *randomWorld) writable() {
	if w.outage {
		w.h.SetWritable(w.tb, 0, 0)
		return
	}
	MakeWritableSince(w.tb, w.h, 24*time.Hour)
}

func (w *randomWorld) job(rt *rapid.T) *randomJob {
	if len(w.jobs) == 0 {
		rt.Skip("no job yet")
	}
	return w.jobs[rapid.IntRange(0, len(w.jobs)-1).Draw(rt, "job")]
}

// token draws a lease of a job, mostly a live one.
func (w *randomWorld) token(rt *rapid.T) (*randomJob, store.LeaseRef) {
	j := w.job(rt)
	for _, other := range w.jobs {
		if j.Phase != store.Processing && other.Phase == store.Processing && rapid.Bool().Draw(rt, "live") {
			j = other
		}
	}
	if j.LeaseNo == 0 {
		rt.Skip("no lease yet")
	}
	no := j.LeaseNo
	if rapid.IntRange(0, 3).Draw(rt, "earlier") == 0 {
		no = rapid.Int64Range(1, j.LeaseNo).Draw(rt, "lease_no")
	}
	return j, store.LeaseRef{JobID: j.ID, LeaseNo: no}
}

// follow moves the model by a call that the Store has answered, and compares.
func (w *randomWorld) follow(rt *rapid.T, j *randomJob, c model.Call, now time.Time, got model.Outcome) {
	rt.Helper()
	next, want := model.Step(j.State, model.Request{Call: c, Queue: w.queue, Outage: w.outage}, now)
	if f, ok := c.(model.Fail); ok && got.Err != nil && f.LeaseNo == j.LeaseNo {
		j.noted = true
	}
	if err := explains(Call{Request: c, Outcome: got}, want, slack); err != nil && !pausedOrNotDue(want, got) {
		rt.Fatalf("job %d, %s %+v: %v\nthe model: %+v", j.ID, c.Name(), c, err, j.State)
	}
	j.State = next
	w.compare(rt, j)
}

// pausedOrNotDue: which reason is told of a job that waits in a paused queue is open.
func pausedOrNotDue(want, got model.Outcome) bool {
	either := func(o model.Outcome) bool { return o.Empty == store.QueuePaused || o.Empty == store.JobNotDue }
	return want.Err == nil && got.Err == nil && either(want) && either(got)
}

func (w *randomWorld) enqueue(rt *rapid.T) {
	if len(w.jobs) >= maxRandomJobs {
		rt.Skip("enough jobs")
	}
	item := store.NewJob{
		Queue: w.queue.Name, Payload: text(pick(rt, "payload", "a", "b")),
		Priority: to(int32(rapid.IntRange(1, 9).Draw(rt, "priority"))),
		Delay:    pick(rt, "delay", nil, to(20*time.Minute)),
	}
	if rapid.Bool().Draw(rt, "keyed") {
		item.IdempotencyKey = to(pick(rt, "key", "k1", "k2"))
	}
	now := time.Now()
	out, err := w.s.Enqueue(w.ctx, []store.NewJob{item})
	if err != nil {
		rt.Fatalf("Enqueue: %v", err)
	}
	if item.IdempotencyKey != nil {
		if owner := w.keys[*item.IdempotencyKey]; owner != nil && w.keyLives(owner, now) {
			w.wantOwner(rt, owner, item, out[0])
			return
		}
	}
	if out[0].Err != nil || !out[0].Created {
		rt.Fatalf("Enqueue: %+v, want a new job", out[0])
	}
	j := w.add(rt, item, out[0].JobID, nil, now)
	if item.IdempotencyKey != nil {
		w.keys[*item.IdempotencyKey] = j
	}
}

func (w *randomWorld) keyLives(j *randomJob, now time.Time) bool {
	return j.FinishedAt == nil || now.Before(j.FinishedAt.Add(j.Limits().IdempotencyRetention))
}

func (w *randomWorld) wantOwner(rt *rapid.T, owner *randomJob, item store.NewJob, got store.Enqueued) {
	rt.Helper()
	if string(owner.Spec.Payload.Data) != string(item.Payload.Data) {
		var reused *store.KeyReusedError
		if !errors.As(got.Err, &reused) || reused.JobID != owner.ID {
			rt.Fatalf("Enqueue: %+v, want the key of job %d to be refused", got, owner.ID)
		}
		return
	}
	if got.Err != nil || got.Created || got.JobID != owner.ID {
		rt.Fatalf("Enqueue: %+v, want job %d", got, owner.ID)
	}
	w.compare(rt, owner)
}

// add takes a new job into the sequence.
func (w *randomWorld) add(rt *rapid.T, item store.NewJob, id store.JobID, parent *store.JobID, now time.Time) *randomJob {
	rt.Helper()
	s, _ := model.Step(model.State{}, model.Request{
		Call: model.Enqueue{ID: id, Job: item, Parent: parent}, Queue: w.queue,
	}, now)
	j := &randomJob{State: s}
	w.jobs = append(w.jobs, j)
	w.compare(rt, j)
	return j
}

func (w *randomWorld) acquireByID(rt *rapid.T) {
	j := w.job(rt)
	if w.queue.PausedAt != nil && j.Phase == store.Processing {
		rt.Skip("what a paused queue does to a lease that ran out is open")
	}
	d := pick(rt, "duration", nil, to(2*time.Hour))
	w.lease(rt, j, d)
}

// lease tries to lease one job, whatever comes of it.
func (w *randomWorld) lease(rt *rapid.T, j *randomJob, d *time.Duration) {
	rt.Helper()
	w.writable()
	now := time.Now()
	out, err := w.s.Acquire(w.ctx, []store.Acquire{{JobID: j.ID, Owner: "by-id", MaxJobs: 1, LeaseDuration: d}})
	if err != nil {
		rt.Fatalf("Acquire: %v", err)
	}
	got := model.Outcome{Err: out[0].Err, Empty: out[0].Empty}
	if len(out[0].Leases) > 0 {
		got = leaseOutcome(out[0].Leases[0])
	}
	w.follow(rt, j, model.Acquire{Owner: "by-id", Duration: d, ByID: true}, now, got)
}

func leaseOutcome(l store.Lease) model.Outcome {
	return model.Outcome{
		LeaseNo: l.LeaseNo, Attempt: l.Attempt, Until: l.Until, Remaining: l.Remaining,
		LastStage: l.LastStage, Checkpoint: l.Checkpoint, State: store.Processing,
	}
}

// acquireByQueue checks which jobs are taken, in which order, too.
func (w *randomWorld) acquireByQueue(rt *rapid.T) {
	n := rapid.IntRange(1, 3).Draw(rt, "max_jobs")
	now := time.Now()
	out, err := w.s.Acquire(w.ctx, []store.Acquire{{Queues: []string{w.queue.Name}, Owner: "by-queue", MaxJobs: n}})
	if err != nil || out[0].Err != nil {
		rt.Fatalf("Acquire: %+v, %v", out, err)
	}
	want := w.ready(now)
	want = want[:min(n, len(want))]
	if got := jobsOf(out[0]); !slices.Equal(got, idsOf(want)) {
		rt.Fatalf("leased jobs %v, want %v", got, idsOf(want))
	}
	for i, j := range want {
		w.follow(rt, j, model.Acquire{Owner: "by-queue"}, now, leaseOutcome(out[0].Leases[i]))
	}
}

// ready are the jobs that an acquire of the queue takes, in the order of R36.
func (w *randomWorld) ready(now time.Time) (jobs []*randomJob) {
	if w.queue.PausedAt != nil {
		return nil
	}
	for _, j := range w.jobs {
		if j.Due(now) {
			jobs = append(jobs, j)
		}
	}
	slices.SortFunc(jobs, func(a, b *randomJob) int { return model.Order(a.State, b.State) })
	return jobs
}

func idsOf(jobs []*randomJob) (ids []store.JobID) {
	for _, j := range jobs {
		ids = append(ids, j.ID)
	}
	return ids
}
