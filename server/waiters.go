package server

import (
	"container/list"
	"sync"
	"time"

	"github.com/leasehold/leasehold/store"
)

// Bounds of waking. One job must cost O(1) claims however many polls are parked: waking all
// of them for it is the classic herd.
const (
	// fanOut is how many waiters are woken where the number of ready jobs is not known, by a
	// poll or a hint. Each that finds a job wakes the next, so that a backlog is drained by
	// this many at a time and an empty queue costs this many claims at most.
	fanOut = 4
	// maxHops is how often a wake that led to nothing is passed on. The job is usually gone
	// then, so more would walk through every parked poll; none would lose a job whose row
	// was skipped because another claim held its lock for a moment.
	maxHops = 1
)

// grant is what a waiter was woken for.
type grant struct {
	queue string
	jobs  int  // jobs that are known to be ready and nobody else was woken for; or 1 of more
	more  bool // there may be more than anybody knows: go on waking while jobs are found
	hops  int  // waiters that found nothing before
}

// waiters is the registry of parked polls. It holds no connection and no job: a wake is
// only a reason to look. Whoever is woken and does not use it passes it on.
type waiters struct {
	mu     sync.Mutex
	queues map[string]*waitedQueue
	jobs   map[store.JobID]map[*waiter]bool
	parked int
}

// waitedQueue is a queue that somebody waits for.
type waitedQueue struct {
	parked list.List // of *waiter, the longest parked first
	due    time.Time // when the earliest job becomes due, by this replica's clock; zero: unknown
	polled bool      // paused is known
	paused bool
}

// waiter is one parked poll. Only its own goroutine parks and leaves; wakes take it out of
// the lists, so that it is woken once.
type waiter struct {
	queues []string
	job    store.JobID // set where it waits for one job
	slots  int

	places []*list.Element // by queue; nil while it is not parked
	inJobs bool
	grant  *grant        // guarded by waiters.mu
	signal chan struct{} // has a token when grant is set
}

func newWaiters() *waiters {
	return &waiters{queues: map[string]*waitedQueue{}, jobs: map[store.JobID]map[*waiter]bool{}}
}

func newWaiter(a store.Acquire) *waiter {
	return &waiter{queues: a.Queues, job: a.JobID, slots: a.MaxJobs, signal: make(chan struct{}, 1)}
}

// park registers w, unless it is. It is called before the claim whose emptiness it would
// wait for: a job that comes while the claim runs finds the waiter registered.
func (ws *waiters) park(w *waiter) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w.places != nil || w.inJobs || w.grant != nil {
		return
	}
	ws.parked++
	if w.job != 0 {
		if ws.jobs[w.job] == nil {
			ws.jobs[w.job] = map[*waiter]bool{}
		}
		ws.jobs[w.job][w] = true
		w.inJobs = true
		return
	}
	w.places = make([]*list.Element, len(w.queues))
	for i, name := range w.queues {
		q := ws.queues[name]
		if q == nil {
			q = &waitedQueue{}
			ws.queues[name] = q
		}
		w.places[i] = q.parked.PushBack(w)
	}
}

// unpark takes w out of the lists. A queue that nobody waits for is forgotten, so that the
// registry does not grow with the names that clients think of.
func (ws *waiters) unpark(w *waiter) {
	if w.places == nil && !w.inJobs {
		return
	}
	ws.parked--
	for i, place := range w.places {
		q := ws.queues[w.queues[i]]
		q.parked.Remove(place)
		if q.parked.Len() == 0 {
			delete(ws.queues, w.queues[i])
		}
	}
	if w.inJobs {
		delete(ws.jobs[w.job], w)
		if len(ws.jobs[w.job]) == 0 {
			delete(ws.jobs, w.job)
		}
	}
	w.places, w.inJobs = nil, false
}

// leave ends the wait of w and returns the grant that it has not used.
func (ws *waiters) leave(w *waiter) *grant {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.unpark(w)
	return w.takeGrant()
}

// take returns what w was woken for.
func (ws *waiters) take(w *waiter) *grant {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return w.takeGrant()
}

func (w *waiter) takeGrant() *grant {
	g := w.grant
	w.grant = nil
	select {
	case <-w.signal:
	default:
	}
	return g
}

func (ws *waiters) give(w *waiter, g grant) {
	ws.unpark(w)
	w.grant = &g
	w.signal <- struct{}{} // has room: a waiter is out of the lists until it took the last
}

// wake wakes as many waiters of a queue as have slots for jobs that became ready. It
// returns how many jobs are left that nobody here waits for.
func (ws *waiters) wake(queue string, jobs, hops int) int {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for jobs > 0 {
		w := ws.first(queue)
		if w == nil {
			return jobs
		}
		n := min(jobs, w.slots)
		ws.give(w, grant{queue: queue, jobs: n, hops: hops})
		jobs -= n
	}
	return 0
}

// wakeSome wakes up to n waiters of a queue that has an unknown number of ready jobs.
func (ws *waiters) wakeSome(queue string, n int) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for range n {
		w := ws.first(queue)
		if w == nil {
			return
		}
		ws.give(w, grant{queue: queue, jobs: 1, more: true})
	}
}

func (ws *waiters) first(queue string) *waiter {
	q := ws.queues[queue]
	if q == nil {
		return nil
	}
	return q.parked.Front().Value.(*waiter)
}

// wakeJob wakes those who wait for one job.
func (ws *waiters) wakeJob(id store.JobID) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for w := range ws.jobs[id] {
		ws.give(w, grant{})
	}
}

// passOn hands a grant to others after the claim that it led to. leases is what the claim
// found. It returns for how many jobs nobody here waits.
func (ws *waiters) passOn(g *grant, leases []store.Lease) int {
	if g == nil || g.queue == "" {
		return 0
	}
	found := 0
	for i := range leases {
		if leases[i].Job.Queue == g.queue {
			found++
		}
	}
	switch rest := g.jobs - found; {
	case g.more && found > 0:
		ws.wakeSome(g.queue, 1)
	case g.more || rest <= 0:
	case len(leases) > 0:
		return ws.wake(g.queue, rest, g.hops)
	case g.hops < maxHops:
		ws.wake(g.queue, 1, g.hops+1)
	}
	return 0
}

// passUnused hands on the grant of a waiter that went away without looking.
func (ws *waiters) passUnused(g *grant) int {
	switch {
	case g == nil || g.queue == "":
		return 0
	case g.more:
		ws.wakeSome(g.queue, 1)
		return 0
	default:
		return ws.wake(g.queue, g.jobs, g.hops)
	}
}

// waited lists the queues that somebody waits for.
func (ws *waiters) waited() []string {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	names := make([]string, 0, len(ws.queues))
	for name := range ws.queues {
		names = append(names, name)
	}
	return names
}

// count is the number of parked polls.
func (ws *waiters) count() int {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return ws.parked
}

// polled notes what ReadyQueues told of a queue.
func (ws *waiters) polled(r store.QueueReadiness, now time.Time) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	q := ws.queues[r.Queue]
	if q == nil {
		return
	}
	q.polled, q.paused, q.due = true, r.Paused, time.Time{}
	if r.Next != nil && !r.Paused {
		q.due = now.Add(*r.Next)
	}
}

// noteDue tells that a job of a queue becomes due at a time.
func (ws *waiters) noteDue(queue string, at time.Time) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if q := ws.queues[queue]; q != nil && (q.due.IsZero() || at.Before(q.due)) {
		q.due = at
	}
}

// takeDue returns the queues whose next job is due by now, and when the next one is.
func (ws *waiters) takeDue(now time.Time) (due []string, next time.Time) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for name, q := range ws.queues {
		switch {
		case q.due.IsZero():
		case !q.due.After(now):
			due = append(due, name)
			q.due = time.Time{}
		case next.IsZero() || q.due.Before(next):
			next = q.due
		}
	}
	return due, next
}

// pauseOf corrects the reason of an empty answer by what the polls saw since the claim: a
// queue may have been paused or resumed while the poll was parked.
func (ws *waiters) pauseOf(queues []string, reason store.EmptyReason) store.EmptyReason {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	all := len(queues) > 0
	for _, name := range queues {
		q := ws.queues[name]
		if q == nil || !q.polled {
			return reason
		}
		all = all && q.paused
	}
	switch {
	case all:
		return store.QueuePaused
	case reason == store.QueuePaused:
		return store.NoReadyJobs
	default:
		return reason
	}
}
