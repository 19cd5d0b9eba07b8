package faulttest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/leasehold/leasehold/server/servertest/remote"
	"github.com/leasehold/leasehold/store"
)

// cancelCase brings a job into a state, as its lease if it has had one.
type cancelCase struct {
	name string
	into func(t *testing.T, c store.Store) (store.JobID, store.LeaseRef)
	// atItsEnd lets the race begin when the lease ends.
	atItsEnd bool
}

func ready(t *testing.T, c store.Store, j store.NewJob) store.JobID {
	t.Helper()
	j.Queue, j.Payload = "q", plain("p")
	out, err := enqueueOne(t, c, j)
	if err != nil {
		t.Fatal(err)
	}
	return out.JobID
}

func atWork(t *testing.T, c store.Store) (store.JobID, store.LeaseRef) {
	t.Helper()
	id := ready(t, c, store.NewJob{})
	return id, leased(t, c, 1, store.Acquire{JobID: id, Owner: "w"})[0]
}

var cancelCases = []cancelCase{
	{name: "scheduled", into: func(t *testing.T, c store.Store) (store.JobID, store.LeaseRef) {
		return ready(t, c, store.NewJob{Delay: to(time.Hour)}), store.LeaseRef{}
	}},
	{name: "ready", into: func(t *testing.T, c store.Store) (store.JobID, store.LeaseRef) {
		return ready(t, c, store.NewJob{}), store.LeaseRef{}
	}},
	{name: "leased", into: atWork},
	{name: "at_the_end_of_its_lease", into: atWork, atItsEnd: true},
	{name: "waiting_for_a_retry", into: func(t *testing.T, c store.Store) (store.JobID, store.LeaseRef) {
		id, ref := atWork(t, c)
		if _, err := failWith(t, c, store.Fail{Lease: ref, RetryAfter: to(time.Hour)}); err != nil {
			t.Fatal(err)
		}
		return id, ref
	}},
	{name: "dead", into: func(t *testing.T, c store.Store) (store.JobID, store.LeaseRef) {
		id, ref := atWork(t, c)
		if _, err := failWith(t, c, store.Fail{Lease: ref, Permanent: true}); err != nil {
			t.Fatal(err)
		}
		return id, ref
	}},
	{name: "completed", into: func(t *testing.T, c store.Store) (store.JobID, store.LeaseRef) {
		id, ref := atWork(t, c)
		if _, err := completeWith(t, c, ref, "done"); err != nil {
			t.Fatal(err)
		}
		return id, ref
	}},
}

// TestCancelRaces: jobs of every state are cancelled while workers take, beat, complete, fail
// and release them, and the watcher ends their leases. What every caller is told fits one
// order: after "cancelled now" nothing is leased, after "requested" only a Complete keeps the
// job from being CANCELLED.
func TestCancelRaces(t *testing.T) {
	t.Parallel()
	const each = 8
	s := newScene(t, 3, []store.Queue{queueOf("q", time.Second)}, "--watcher-interval", "100ms")
	conns := []*remote.Store{s.remote(t, 0), s.remote(t, 1), s.remote(t, 2)}
	counts := map[string]int{}
	var mu sync.Mutex
	side(each, func(n int) {
		for k, c := range cancelCases {
			id, ref := c.into(t, s.over(conns[n%3]))
			if c.atItsEnd {
				at(t, s.job(t, id).LeaseUntil.Add(time.Duration(n*20)*time.Millisecond))
			}
			side(6, func(i int) {
				by := s.over(conns[(n+k+i)%3])
				told := raceCancel(t, by, i, id, ref)
				mu.Lock()
				defer mu.Unlock()
				counts[c.name+" "+told]++
			})
		}
	})
	t.Logf("%v", counts)
	s.judge(t)
}

// raceCancel makes the i-th call of a race about a job.
func raceCancel(t *testing.T, by store.Store, i int, id store.JobID, ref store.LeaseRef) (told string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTime)
	defer cancel()
	switch {
	case i < 2:
		out, err := by.CancelJob(ctx, id, store.Actor{Name: "ops"})
		if err != nil && !isError[*store.StateError](err) {
			t.Errorf("CancelJob: %v", err)
		}
		return fmt.Sprintf("cancel: %s, requested %t", out.State, out.Requested)
	case i == 2 || ref == store.LeaseRef{}:
		if _, err := acquire(t, by, store.Acquire{JobID: id, Owner: fmt.Sprint("taker-", i)}); err != nil {
			t.Errorf("AcquireLease: %v", err)
		}
		return "acquire"
	case i == 3:
		_, _ = beatOnce(t, by, ref) // whatever it is told is judged in the end
		return "beat"
	}
	// The calls that end a lease take turns, so that each meets each state.
	_, _ = endOf(t, by, int(id)+i, ref)
	return "end"
}

// TestScheduledJobsRunOnceAndNotBefore: jobs that are due after several times the length of
// their leases are leased by nobody before, however many workers wait for them, and run once.
func TestScheduledJobsRunOnceAndNotBefore(t *testing.T) {
	t.Parallel()
	const n, lease = 12, time.Second
	s := newScene(t, 3, []store.Queue{queueOf("q", lease)}, "--watcher-interval", "100ms")
	asker := s.client(t, 0)
	runAt := time.Now().Add(3 * lease)
	ids := s.enqueued(t, asker, n, store.NewJob{Queue: "q", RunAt: &runAt})
	ctx, stop := context.WithCancel(t.Context())
	var working sync.WaitGroup
	for i := range 6 {
		r := s.remote(t, i%3)
		r.Wait = 2 * lease
		c := s.over(r)
		working.Go(func() {
			for ctx.Err() == nil {
				out, err := acquire(t, c, store.Acquire{Queues: []string{"q"}, Owner: fmt.Sprint("worker-", i), MaxJobs: 10})
				if err != nil {
					t.Error(err)
				}
				done := make([]store.Complete, len(out.Leases))
				for k := range out.Leases {
					done[k].Lease = out.Leases[k].Ref()
				}
				if len(done) > 0 {
					_, _ = c.Complete(context.WithoutCancel(ctx), done) // judged in the end
				}
			}
		})
	}
	eventually(t, "every job is done", func() bool {
		for _, id := range ids {
			if s.job(t, id).State != store.Completed {
				return false
			}
		}
		return true
	})
	stop()
	working.Wait()
	for _, id := range ids {
		for _, l := range s.records(t, id) {
			if l.LeasedAt.Before(runAt.Truncate(time.Microsecond)) {
				t.Errorf("lease %d of job %d was taken at %s, it is due at %s", l.LeaseNo, id, l.LeasedAt, runAt)
			}
		}
	}
	s.judge(t)
}
