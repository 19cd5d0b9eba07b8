package faulttest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/leasehold/leasehold/server/servertest/remote"
	"github.com/leasehold/leasehold/store"
)

// keyRace collects what callers were told of each key.
type keyRace struct {
	mu      sync.Mutex
	owner   map[string]store.JobID
	created map[string]int
}

func (r *keyRace) note(t *testing.T, key string, out store.Enqueued) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if other, ok := r.owner[key]; ok && other != out.JobID {
		t.Errorf("key %s belongs to job %d and to job %d", key, other, out.JobID)
	}
	r.owner[key] = out.JobID
	if out.Created {
		r.created[key]++
	}
}

// TestRaceForKeys: many callers of three replicas enqueue the same keys at once, while
// workers complete the jobs as they come. Each key has one job, which every caller is told
// of and exactly one has made; nobody is told of an error, but for those who give another
// payload.
func TestRaceForKeys(t *testing.T) {
	t.Parallel()
	const callers, keys = 64, 24
	s := newScene(t, 3, []store.Queue{queueOf("q", time.Minute), queueOf("other", time.Minute)})
	var conns []*remote.Store
	for i := range 9 {
		conns = append(conns, s.remote(t, i%3))
	}
	ctx, stop := context.WithCancel(t.Context())
	var working sync.WaitGroup
	for i := range 3 {
		working.Go(func() { completeAll(ctx, t, conns[i]) })
	}
	race := &keyRace{owner: map[string]store.JobID{}, created: map[string]int{}}
	side(callers, func(n int) {
		c := conns[n%len(conns)]
		for _, k := range rand.Perm(keys) {
			j := store.NewJob{Queue: "q", Payload: plain(fmt.Sprint(k)), IdempotencyKey: to(fmt.Sprint("key ", k))}
			if n%16 == 15 { // the same key of another queue is another
				j.Queue = "other"
			}
			if n%16 == 7 {
				j.Payload = plain("another")
				if _, err := enqueueOne(t, c, j); err != nil && !isError[*store.KeyReusedError](err) {
					t.Errorf("another payload: %v", err)
				}
				continue
			}
			out, err := enqueueOne(t, c, j)
			// Whoever was first has chosen the payload.
			if err != nil && !isError[*store.KeyReusedError](err) {
				t.Errorf("key %d: %v", k, err)
			}
			if err == nil {
				race.note(t, j.Queue+"/"+*j.IdempotencyKey, out)
			}
		}
	})
	stop()
	working.Wait()
	s.wantOneJobEach(t, race)
}

func (s *scene) wantOneJobEach(t *testing.T, race *keyRace) {
	t.Helper()
	var jobs, owned int
	err := s.fleet.db.SQL.QueryRow(t.Context(), `SELECT
		(SELECT count(*) FROM leasehold.jobs)::int + (SELECT count(*) FROM leasehold.finished_jobs)::int,
		(SELECT count(DISTINCT k.job_id) FROM leasehold.idempotency_keys k)::int`).Scan(&jobs, &owned)
	if err != nil || jobs != owned {
		t.Errorf("%d jobs, of which %d have a key, %v", jobs, owned, err)
	}
	for key, n := range race.created {
		if n != 1 {
			t.Errorf("%d callers were told that they had made the job of %s", n, key)
		}
	}
}

// completeAll leases and completes what there is until the context ends.
func completeAll(ctx context.Context, t *testing.T, c store.Store) {
	t.Helper()
	for ctx.Err() == nil {
		out, err := acquire(t, c, store.Acquire{Queues: []string{"q", "other"}, Owner: "w", MaxJobs: 10})
		if err != nil {
			t.Error(err)
			return
		}
		for i := range out.Leases {
			if _, err := completeWith(t, c, out.Leases[i].Ref(), "done"); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestKeyOfAJobWhoseWorkerGoesOn: the last attempt of a job runs out while its worker goes
// on. Its key stays taken for as long as the queue says, so that no successor starts beside
// it; where that is not at all, the two overlap on record, and what both enqueue behind them
// under one key is one job.
func TestKeyOfAJobWhoseWorkerGoesOn(t *testing.T) {
	t.Parallel()
	once := func(q *store.Queue) { q.Policy.MaxAttempts = to(int32(1)) }
	keepsNothing := func(q *store.Queue) { q.Policy.IdempotencyRetention = to(time.Duration(0)) }
	s := newScene(t, 2, []store.Queue{
		queueOf("keeps", time.Second, once), queueOf("keeps-nothing", time.Second, once, keepsNothing), queueOf("children", time.Minute),
	}, "--watcher-interval", "100ms")
	a, b := s.remote(t, 0), s.remote(t, 1)
	for _, q := range []string{"keeps", "keeps-nothing"} {
		job := store.NewJob{Queue: q, Payload: plain("p"), IdempotencyKey: to("K")}
		first, err := enqueueOne(t, a, job)
		if err != nil {
			t.Fatal(err)
		}
		old := leased(t, a, 1, store.Acquire{JobID: first.JobID, Owner: "ignores its end"})[0]
		eventually(t, "the last attempt has run out", func() bool { return s.job(t, first.JobID).State == store.Dead })
		if _, err := beatOnce(t, a, old); !isError[*store.ExpiredError](err) {
			t.Errorf("the old holder's heartbeat: %v", err)
		}
		second, err := enqueueOne(t, b, job)
		if err != nil || second.Created != (q == "keeps-nothing") || (second.JobID == first.JobID) == second.Created {
			t.Fatalf("%s: the key again: %+v, %v; the first was job %d", q, second, err, first.JobID)
		}
		children := []store.JobID{s.completeWithChild(t, a, old)}
		if second.Created {
			successor := leased(t, b, 1, store.Acquire{JobID: second.JobID, Owner: "successor"})[0]
			children = append(children, s.completeWithChild(t, b, successor))
		}
		for _, child := range children {
			if child != children[0] {
				t.Errorf("%s: the chain has doubled: %v", q, children)
			}
		}
		if l := s.records(t, first.JobID); len(l) != 1 || l[0].End != store.EndCompletedLate {
			t.Errorf("%s: the leases of the first job are %+v", q, l)
		}
	}
}

// completeWithChild completes, twice, with one child under a key that all of them share.
func (s *scene) completeWithChild(t *testing.T, c store.Store, ref store.LeaseRef) store.JobID {
	t.Helper()
	var child store.JobID
	for n := range 2 {
		out, err := within(t, func(ctx context.Context) ([]store.Completion, error) {
			return c.Complete(ctx, []store.Complete{{Lease: ref, ThenEnqueue: []store.NewJob{
				{Queue: "children", Payload: plain("child"), IdempotencyKey: to("K/child/" + s.job(t, ref.JobID).Queue)},
			}}})
		}, func(o store.Completion) error { return o.Err })
		if err != nil || out.AlreadyApplied != (n == 1) || len(out.FollowUps) != 1 || n == 1 && out.FollowUps[0] != child {
			t.Fatalf("Complete %d of %v: %+v, %v; before, the child was %d", n, ref, out, err, child)
		}
		child = out.FollowUps[0]
	}
	return child
}
