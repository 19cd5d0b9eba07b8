package storetest

import (
	"time"

	"github.com/leasehold/leasehold/store"
)

// s6Case is a column of section 6 as it is tested: under which circumstances a lease ends.
type s6Case struct {
	name      string
	queue     func(q *store.Queue)
	policy    func(p *store.Policy)
	before    int  // equal ends that came before
	cancelled bool // a cancel was requested
}

// s6Backoff makes the waits long enough to be told apart: 10 m, 20 m, 40 m, less a half.
func s6Backoff(p *store.Policy) {
	p.BackoffInitial, p.BackoffFactor, p.BackoffCap, p.BackoffJitter = to(10*time.Minute), to(2.0), to(24*time.Hour), to(0.5)
}

var s6Cases = []s6Case{
	{name: "attempts_left"},
	{name: "last_attempt", policy: func(p *store.Policy) { p.MaxAttempts = to(int32(1)) }},
	{name: "queue_holds", queue: holds},
	{name: "queue_holds_last_attempt", queue: holds, policy: func(p *store.Policy) { p.MaxAttempts = to(int32(1)) }},
	{name: "max_expirations", policy: func(p *store.Policy) { p.MaxExpirations = to(int32(1)) }},
	{name: "max_expirations_last_attempt", policy: func(p *store.Policy) { p.MaxExpirations, p.MaxAttempts = to(int32(1)), to(int32(1)) }},
	{name: "cancel_requested", cancelled: true},
	{name: "cancel_requested_queue_holds_last_attempt", cancelled: true, queue: holds, policy: func(p *store.Policy) { p.MaxAttempts = to(int32(1)) }},
	{name: "second_in_a_row", before: 1},
	{name: "fourth_in_a_row", before: 3},
	{name: "fifth_in_a_row", before: 4},
}

// s6Want is what a cell says. wait is the longest wait before the next run; the shortest
// is half of it, or all of it where exact.
type s6Want struct {
	state store.State
	wait  time.Duration
	exact bool
}

var (
	atOnce    = s6Want{state: store.Pending, exact: true}
	dead      = s6Want{state: store.Dead}
	stuck     = s6Want{state: store.Stuck}
	cancelled = s6Want{state: store.Cancelled}
	completed = s6Want{state: store.Completed}
)

func waits(d time.Duration) s6Want { return s6Want{state: store.Pending, wait: d} }

func waitsExactly(d time.Duration) s6Want { return s6Want{state: store.Pending, wait: d, exact: true} }

// s6Row is a row of section 6: an end, whether it uses an attempt, and its cells in the
// order of s6Cases.
type s6Row struct {
	name   string
	end    func(e *env, ref store.LeaseRef)
	is     store.End
	counts bool
	cells  []s6Want
}

var s6Rows = []s6Row{
	{"Fail", func(e *env, ref store.LeaseRef) { e.Helper(); e.fail(store.Fail{Lease: ref}) }, store.EndFailed, true, []s6Want{
		waits(10 * time.Minute), dead, waits(10 * time.Minute), dead, waits(10 * time.Minute), dead, cancelled, cancelled,
		waits(20 * time.Minute), waits(80 * time.Minute), waits(160 * time.Minute),
	}},
	{"Fail_with_retry_after", func(e *env, ref store.LeaseRef) {
		e.Helper()
		e.fail(store.Fail{Lease: ref, RetryAfter: to(3 * time.Hour)})
	}, store.EndFailed, true, []s6Want{
		waitsExactly(3 * time.Hour), dead, waitsExactly(3 * time.Hour), dead, waitsExactly(3 * time.Hour), dead, cancelled, cancelled,
		waitsExactly(3 * time.Hour), waitsExactly(3 * time.Hour), waitsExactly(3 * time.Hour),
	}},
	{"Fail_permanent", func(e *env, ref store.LeaseRef) { e.Helper(); e.fail(store.Fail{Lease: ref, Permanent: true}) }, store.EndFailedPermanently, true, []s6Want{
		dead, dead, dead, dead, dead, dead, cancelled, cancelled,
	}},
	{"expired", func(e *env, ref store.LeaseRef) { e.Helper(); e.expire(ref, time.Hour) }, store.EndExpired, true, byTime},
	{"overran", func(e *env, ref store.LeaseRef) {
		e.Helper()
		e.beat(store.Heartbeat{Lease: ref}) // up to max_runtime
		e.expire(ref, 5*time.Hour)
	}, store.EndOverran, true, byTime},
	{"stalled", func(e *env, ref store.LeaseRef) { e.Helper(); e.expire(ref, 3*time.Hour) }, store.EndStalled, true, byTime},
	{"Release", func(e *env, ref store.LeaseRef) { e.Helper(); e.release(store.Release{Lease: ref}) }, store.EndReleased, false, returned},
	{"Release_with_delay", func(e *env, ref store.LeaseRef) {
		e.Helper()
		e.release(store.Release{Lease: ref, Delay: 3 * time.Hour})
	}, store.EndReleased, false, []s6Want{
		waitsExactly(3 * time.Hour), waitsExactly(3 * time.Hour), waitsExactly(3 * time.Hour), waitsExactly(3 * time.Hour),
		waitsExactly(3 * time.Hour), waitsExactly(3 * time.Hour), cancelled, cancelled,
		waitsExactly(3 * time.Hour), waitsExactly(3 * time.Hour), waitsExactly(3 * time.Hour),
	}},
	{"undelivered", func(e *env, ref store.LeaseRef) { e.Helper(); e.undeliver(ref) }, store.EndUndelivered, false, returned},
	{"Complete", func(e *env, ref store.LeaseRef) { e.Helper(); e.complete(store.Complete{Lease: ref}) }, store.EndCompleted, false, []s6Want{
		completed, completed, completed, completed, completed, completed, completed, completed,
	}},
}

var (
	// byTime are the cells of expired, overran and stalled.
	byTime = []s6Want{
		atOnce, dead, stuck, stuck, stuck, stuck, cancelled, cancelled,
		waits(10 * time.Minute), waits(40 * time.Minute), stuck,
	}
	// returned are the cells of Release without delay and of undelivered.
	returned = []s6Want{
		atOnce, atOnce, atOnce, atOnce, atOnce, atOnce, cancelled, cancelled,
		atOnce, waits(10 * time.Minute), waits(20 * time.Minute),
	}
)

var tableS6Tests = s6Tests()

// s6Tests has one test for each cell of section 6. A terminal end has no n-th in a row.
func s6Tests() (tests []contractTest) {
	for _, row := range s6Rows {
		for i, want := range row.cells {
			c := s6Cases[i]
			tests = append(tests, contractTest{
				name: "S6_" + row.name + "/" + c.name,
				run:  func(e *env) { s6Cell(e, row, c, want) },
			})
		}
	}
	return tests
}

func s6Cell(e *env, row s6Row, c s6Case, want s6Want) {
	q := e.queue(func(q *store.Queue) {
		q.StallEndsLease = row.is == store.EndStalled
		if c.queue != nil {
			c.queue(q)
		}
	})
	id := e.enqueue(q, jobPolicy(func(p *store.Policy) {
		s6Backoff(p)
		switch row.is {
		case store.EndOverran:
			p.MaxRuntime, p.LeaseDuration = to(4*time.Hour), to(6*time.Hour)
		case store.EndStalled:
			p.StallTimeout, p.LeaseDuration = to(2*time.Hour), to(12*time.Hour)
		}
		if c.policy != nil {
			c.policy(p)
		}
	}))
	for range c.before {
		l := e.acquire(id)
		row.end(e, l.Ref())
		e.age(id, 10*time.Hour)
	}
	used := e.job(id).AttemptsUsed
	l := e.acquire(id)
	if c.cancelled {
		if r := e.cancel(id); !r.Requested || r.State != store.Processing {
			e.Fatalf("CancelJob answers %+v", r)
		}
	}
	row.end(e, l.Ref())
	s6Check(e, l.Ref(), row, c, want, used)
}

func s6Check(e *env, ref store.LeaseRef, row s6Row, c s6Case, want s6Want, used int32) {
	e.Helper()
	j := e.wantState(ref.JobID, want.state)
	is := row.is
	if c.cancelled && is == store.EndOverran {
		is = store.EndExpired // cancel_grace is shorter than max_runtime
	}
	r := e.wantEnd(ref, is)
	counted := row.counts && !c.cancelled
	if counted {
		used++
	}
	if r.Counted != counted || j.AttemptsUsed != used {
		e.Fatalf("counted %t, %d attempts used; want %t, %d", r.Counted, j.AttemptsUsed, counted, used)
	}
	if r.Cancelled != (want.state == store.Cancelled) {
		e.Fatalf("the record says cancelled: %t", r.Cancelled)
	}
	if (j.FinishedAt != nil) != j.State.Terminal() || j.LeaseOwner != nil || j.LeaseUntil != nil {
		e.Fatalf("a %s job has finished_at %v, lease_owner %v, lease_until %v", j.State, j.FinishedAt, j.LeaseOwner, j.LeaseUntil)
	}
	if (want == dead || want == stuck) && row.is >= store.EndExpired && j.StateReason == "" {
		e.Fatalf("no state_reason says why the job is %s", j.State)
	}
	if want.state == store.Pending {
		shortest := want.wait / 2
		if want.exact {
			shortest = want.wait
		}
		e.wantIn(j.RunAt, shortest, want.wait, "run_at")
	}
}
