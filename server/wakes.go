package server

import (
	"context"
	"time"

	"github.com/leasehold/leasehold/store"
)

// wakes carries the news that jobs became ready to those who wait: parked polls of this
// replica at once and in memory, other replicas by a hint. It may lose news, never invent a
// job: the poll loop is the truth behind it.
type wakes struct {
	waiters *waiters
	hints   *hintSender
	poll    *pollLoop
}

// ready tells that jobs of a queue became ready.
func (k *wakes) ready(queue string, jobs int) {
	if k.waiters.wake(queue, jobs, 0) > 0 {
		k.hints.add(queue)
	}
}

// someReady tells that a queue may have ready jobs, nobody knows how many.
func (k *wakes) someReady(queue string) {
	k.waiters.wakeSome(queue, fanOut)
	k.hints.add(queue)
}

// retried tells of jobs that an operator made ready.
func (k *wakes) retried(act store.BulkAct, done store.BulkResult) {
	if act.DryRun {
		return
	}
	for _, item := range done.Items {
		if item.Err == nil {
			k.waiters.wakeJob(item.JobID)
		}
	}
	k.look()
	if f := act.Selection.Filter; f != nil && f.Queue != nil {
		k.hints.add(*f.Queue)
	}
}

// look asks the poll loop to look now: jobs became ready, of which queue is not known.
func (k *wakes) look() { k.poll.look() }

// handOn passes on the grant of a waiter that did not look.
func (k *wakes) handOn(g *grant) { k.uncovered(g, k.waiters.passUnused(g)) }

// uncovered tells other replicas of jobs that no waiter of this one is left for.
func (k *wakes) uncovered(g *grant, jobs int) {
	if jobs > 0 {
		k.hints.add(g.queue)
	}
}

// enqueued tells of jobs that were stored.
func (k *wakes) enqueued(jobs []store.NewJob, created func(i int) bool) {
	ready := map[string]int{}
	for i := range jobs {
		if !created(i) {
			continue
		}
		if wait := startsIn(&jobs[i]); wait > 0 {
			k.dueIn(jobs[i].Queue, wait)
		} else {
			ready[jobs[i].Queue]++
		}
	}
	for queue, n := range ready {
		k.ready(queue, n)
	}
}

func startsIn(j *store.NewJob) time.Duration {
	switch {
	case j.Delay != nil:
		return *j.Delay
	case j.RunAt != nil:
		return time.Until(*j.RunAt)
	default:
		return 0
	}
}

// dueIn tells that a job of a queue becomes due, so that its waiters need not wait for the
// poll after that.
func (k *wakes) dueIn(queue string, wait time.Duration) {
	k.waiters.noteDue(queue, time.Now().Add(wait))
	k.poll.rearm()
}

// ended tells of a job whose lease was ended by a Fail or Release, and runs again.
func (k *wakes) ended(lease store.LeaseRef, e store.Ended) {
	if e.Err != nil || e.AlreadyApplied || e.State != store.Pending {
		return
	}
	if e.NextRunIn > 0 {
		k.dueIn(e.Queue, e.NextRunIn)
		return
	}
	k.waiters.wakeJob(lease.JobID)
	k.ready(e.Queue, 1)
}

// RunWaking runs the loops that wake parked polls until the context ends: the poll for
// ready jobs, the early sweep, the listener for hints of other replicas, and the sender of
// own hints. It returns nil. Without it parked polls end empty, at their time.
func (s *Server) RunWaking(ctx context.Context) error {
	return runLoops(ctx, s.wakes.poll.Run, s.sweep.Run, s.listener.Run, s.wakes.hints.Run)
}
