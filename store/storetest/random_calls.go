package storetest

import (
	"time"

	"pgregory.net/rapid"

	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/storetest/model"
)

func (w *randomWorld) heartbeat(rt *rapid.T) {
	j, ref := w.token(rt)
	h := store.Heartbeat{
		Lease: ref, Stage: pick(rt, "stage", nil, to("one"), to("two")),
		Progress: pick(rt, "progress", nil, to(0.0), to(0.5)), Checkpoint: pick(rt, "checkpoint", nil, []byte{}, []byte("c")),
	}
	w.beat(rt, j, h)
}

func (w *randomWorld) beat(rt *rapid.T, j *randomJob, h store.Heartbeat) {
	rt.Helper()
	now := time.Now()
	out, err := w.s.Heartbeat(w.ctx, []store.Heartbeat{h})
	if err != nil {
		rt.Fatalf("Heartbeat: %v", err)
	}
	w.follow(rt, j, model.Heartbeat{
		LeaseNo: h.Lease.LeaseNo, Stage: h.Stage, Progress: h.Progress, Checkpoint: h.Checkpoint,
	}, now, beatOutcome(h.Lease, out[0]))
}

// followUp draws what to enqueue at the end of a job.
func (w *randomWorld) followUp(rt *rapid.T) []store.NewJob {
	if len(w.jobs) >= maxRandomJobs || rapid.IntRange(0, 3).Draw(rt, "follow_up") > 0 {
		return nil
	}
	return []store.NewJob{{Queue: w.queue.Name, Payload: text("follow-up"), Priority: to(int32(5))}}
}

// adopt takes the follow-ups of an accepted call into the sequence.
func (w *randomWorld) adopt(rt *rapid.T, j *randomJob, items []store.NewJob, o model.Outcome, now time.Time) {
	rt.Helper()
	if o.Err != nil || o.AlreadyApplied {
		return
	}
	for i, id := range o.FollowUps {
		w.add(rt, items[i], id, &j.ID, now)
	}
}

func (w *randomWorld) complete(rt *rapid.T) {
	j, ref := w.token(rt)
	c := store.Complete{Lease: ref, Result: text(pick(rt, "result", "x", "y")), ThenEnqueue: w.followUp(rt)}
	now := time.Now()
	out, err := w.s.Complete(w.ctx, []store.Complete{c})
	if err != nil {
		rt.Fatalf("Complete: %v", err)
	}
	o := completeOutcome(out[0])
	w.follow(rt, j, model.Complete{
		LeaseNo: ref.LeaseNo, Result: c.Result, ThenEnqueue: c.ThenEnqueue, FollowUps: o.FollowUps,
	}, now, o)
	w.adopt(rt, j, c.ThenEnqueue, o, now)
}

func (w *randomWorld) fail(rt *rapid.T) {
	j, ref := w.token(rt)
	f := store.Fail{
		Lease: ref, Error: store.JobError{Code: pick(rt, "code", "x", "y")}, ThenEnqueue: w.followUp(rt),
		Permanent:  rapid.IntRange(0, 4).Draw(rt, "permanent") == 0,
		RetryAfter: pick(rt, "retry_after", nil, to(time.Duration(0)), to(40*time.Minute)),
	}
	now := time.Now()
	out, err := w.s.Fail(w.ctx, []store.Fail{f})
	if err != nil {
		rt.Fatalf("Fail: %v", err)
	}
	o := endedOutcome(out[0])
	w.follow(rt, j, model.Fail{
		LeaseNo: ref.LeaseNo, Error: f.Error, Permanent: f.Permanent, RetryAfter: f.RetryAfter, FollowUps: o.FollowUps,
	}, now, o)
	w.adopt(rt, j, f.ThenEnqueue, o, now)
}

func (w *randomWorld) release(rt *rapid.T) {
	j, ref := w.token(rt)
	w.giveBack(rt, j, ref, pick(rt, "delay", 0, 0, 20*time.Minute))
}

func (w *randomWorld) giveBack(rt *rapid.T, j *randomJob, ref store.LeaseRef, delay time.Duration) {
	rt.Helper()
	r := store.Release{Lease: ref, Delay: delay}
	now := time.Now()
	out, err := w.s.Release(w.ctx, []store.Release{r})
	if err != nil {
		rt.Fatalf("Release: %v", err)
	}
	w.follow(rt, j, model.Release{LeaseNo: ref.LeaseNo, Delay: r.Delay}, now, endedOutcome(out[0]))
}

func (w *randomWorld) undeliver(rt *rapid.T) {
	j, ref := w.token(rt)
	w.notDelivered(rt, j, ref)
}

func (w *randomWorld) notDelivered(rt *rapid.T, j *randomJob, ref store.LeaseRef) {
	rt.Helper()
	now := time.Now()
	if err := w.s.Undeliver(w.ctx, []store.LeaseRef{ref}, nil); err != nil {
		rt.Fatalf("Undeliver: %v", err)
	}
	w.follow(rt, j, model.Undeliver{LeaseNo: ref.LeaseNo}, now, model.Outcome{})
}

// sweep makes a pass over the queue: every lease whose time is over is ended, no other.
func (w *randomWorld) sweep(rt *rapid.T) {
	w.writable()
	now := time.Now()
	out, err := w.s.SweepPage(w.ctx, 0, 1000, []string{w.queue.Name})
	if err != nil {
		rt.Fatalf("SweepPage: %v", err)
	}
	want := 0
	for _, j := range w.jobs {
		r := model.Request{Call: model.Sweep{}, Queue: w.queue, Outage: w.outage}
		next, o := model.Step(j.State, r, now)
		if o.Passed {
			continue
		}
		want++
		j.State = next
		w.compare(rt, j)
	}
	if out.Ended != want {
		rt.Fatalf("the sweep ended %d leases, want %d", out.Ended, want)
	}
}

func (w *randomWorld) cancel(rt *rapid.T) {
	if rapid.IntRange(0, 2).Draw(rt, "really") > 0 {
		rt.Skip("too many cancelled jobs hide the rest")
	}
	j := w.job(rt)
	now := time.Now()
	out, err := w.s.CancelJob(w.ctx, j.ID, store.Actor{Name: "operator"})
	o := cancelOutcome(out)
	o.Err = err
	w.follow(rt, j, model.Cancel{}, now, o)
}

func (w *randomWorld) retry(rt *rapid.T) {
	j := w.job(rt)
	now := time.Now()
	out, err := w.s.RetryJobs(w.ctx, store.BulkAct{
		Selection: store.Selection{IDs: []store.JobID{j.ID}}, Actor: store.Actor{Name: "operator"},
	})
	if err != nil || len(out.Items) != 1 {
		rt.Fatalf("RetryJobs: %+v, %v", out, err)
	}
	w.follow(rt, j, model.Retry{}, now, model.Outcome{Err: out.Items[0].Err, State: out.Items[0].State})
}

func (w *randomWorld) resolve(rt *rapid.T) {
	j := w.job(rt)
	r := store.Resolution{JobID: j.ID, Actor: store.Actor{Name: "operator", Note: "note"}}
	if rapid.Bool().Draw(rt, "settled") {
		r.Result = to(text("settled"))
	}
	now := time.Now()
	out, err := w.s.ResolveJob(w.ctx, r)
	o := model.Outcome{Err: err}
	if out != nil {
		o.State = out.State
	}
	w.follow(rt, j, model.Resolve{Result: r.Result}, now, o)
}

// inARow gives a job several leases that end alike: what a counter counts in a row is not
// met by chance.
func (w *randomWorld) inARow(rt *rapid.T) {
	j := w.job(rt)
	if w.queue.PausedAt != nil {
		rt.Skip("nothing is leased from a paused queue")
	}
	end := pick(rt, "end", "release", "undeliver", "expire", "beat and release")
	for range rapid.IntRange(2, 5).Draw(rt, "n") {
		if j.Phase == store.Pending {
			w.age(j, 25*time.Hour)
		}
		w.lease(rt, j, nil)
		if j.Phase != store.Processing {
			return
		}
		ref := store.LeaseRef{JobID: j.ID, LeaseNo: j.LeaseNo}
		switch end {
		case "release":
			w.giveBack(rt, j, ref, 0)
		case "undeliver":
			w.notDelivered(rt, j, ref)
		case "expire":
			w.age(j, 13*time.Hour)
			w.sweep(rt)
		default:
			w.beat(rt, j, store.Heartbeat{Lease: ref})
			w.giveBack(rt, j, ref, 0)
		}
	}
}

func (w *randomWorld) age(j *randomJob, d time.Duration) {
	w.h.Age(w.tb, j.ID, d)
	j.State = j.Age(d)
}

// passTime is mostly for one job, now and then for all.
func (w *randomWorld) passTime(rt *rapid.T) {
	d := pick(rt, "d", 15*time.Minute, 45*time.Minute, 70*time.Minute, 150*time.Minute, 8*24*time.Hour)
	jobs := w.jobs
	if rapid.Bool().Draw(rt, "one") {
		jobs = []*randomJob{w.job(rt)}
	}
	for _, j := range jobs {
		w.age(j, d)
	}
}

func (w *randomWorld) changeQueue(rt *rapid.T) {
	var q *store.Queue
	var err error
	switch rapid.IntRange(0, 3).Draw(rt, "change") {
	case 0:
		q, err = w.s.PauseQueue(w.ctx, w.queue.Name, store.Actor{})
	case 1:
		q, err = w.s.UpdateQueue(w.ctx, store.QueueUpdate{
			Queue:  store.Queue{Name: w.queue.Name, OnExpiry: pick(rt, "on_expiry", store.OnExpiryRequeue, store.OnExpiryHold)},
			Fields: []store.QueueField{store.FieldOnExpiry},
		})
	default:
		q, err = w.s.ResumeQueue(w.ctx, w.queue.Name)
	}
	if err != nil {
		rt.Fatalf("changing the queue: %v", err)
	}
	w.queue = *q
}
