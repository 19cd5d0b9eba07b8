package faulttest

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold/leasehold/internal/faultproxy"
	"github.com/leasehold/leasehold/internal/replica"
	"github.com/leasehold/leasehold/server/servertest/remote"
	"github.com/leasehold/leasehold/store"
)

// over is one more client of a connection that others have too.
func (s *scene) over(r *remote.Store) store.Store { return s.recorder.Client(int(s.clients.Add(1)), r) }

// at waits for a time of the machine's clock, which is the database's too.
func at(t *testing.T, when time.Time) {
	t.Helper()
	timer := time.NewTimer(time.Until(when))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
	}
}

// sqlSlowEnds lets every statement that ends leases by time sleep before it writes.
const sqlSlowEnds = `
CREATE FUNCTION public.slow_end() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN IF position('may_blame' IN current_query()) > 0 THEN PERFORM pg_sleep(0.5); END IF; RETURN NULL; END $$;
CREATE TRIGGER slow_end BEFORE UPDATE ON leasehold.jobs FOR EACH STATEMENT EXECUTE FUNCTION public.slow_end()`

// TestCompleteBetweenTheWatchersReadAndWrite: workers complete at about the time at which
// their leases end, while the watcher takes long between reading which leases are over and
// writing it. Each Complete is accepted, since nobody else has begun, and each job stays
// completed, with one lease of one end.
func TestCompleteBetweenTheWatchersReadAndWrite(t *testing.T) {
	t.Parallel()
	for name, slow := range map[string]func(*testing.T, *scene){
		"before_it_writes": func(t *testing.T, s *scene) { s.fleet.db.Exec(t, sqlSlowEnds) },
		"between_its_statements": func(_ *testing.T, s *scene) {
			s.fleet.members[0].inner.Delay(faultproxy.ToServer, 100*time.Millisecond)
			s.fleet.members[0].inner.Delay(faultproxy.ToClient, 100*time.Millisecond)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const n, spread = 60, 2 * time.Second
			s := newScene(t, 1, []store.Queue{queueOf("q", time.Second)}, "--watcher-interval", "100ms")
			quick := newMember(t, replica.Config{DatabaseURL: s.fleet.db.URL, Args: []string{"--watcher-interval", "1h"}})
			s.fleet.members = append(s.fleet.members, quick)
			worker := s.remote(t, 1)
			slow(t, s)
			// A watcher on a busy machine can be later than the last Complete.
			eventually(t, "a lease is ended before its Complete", func() bool {
				if err := s.enqueueMany(t, s.over(worker), n); err != nil {
					t.Fatal(err)
				}
				refs := leased(t, s.over(worker), n, store.Acquire{Queues: []string{"q"}, Owner: "w"})
				until := *s.job(t, refs[0].JobID).LeaseUntil
				var late atomic.Int64
				side(n, func(i int) {
					at(t, until.Add(time.Duration(i)*spread/n-spread/4))
					out, err := completeWith(t, s.over(worker), refs[i], "done")
					if err != nil || out.AlreadyApplied {
						t.Errorf("Complete %d: %+v, %v", i, out, err)
					}
					if out.Late {
						late.Add(1)
					}
				})
				return late.Load() > 0
			})
			_, tables := s.judge(t)
			for id, row := range tables {
				if row.Job.State != store.Completed || len(row.Leases) != 1 {
					t.Errorf("job %d is %s with %d leases", id, row.Job.State, len(row.Leases))
				}
			}
		})
	}
}

// enqueueMany stores n jobs in one call.
func (s *scene) enqueueMany(t *testing.T, by store.Store, n int) error {
	t.Helper()
	jobs := make([]store.NewJob, n)
	for i := range jobs {
		jobs[i] = store.NewJob{Queue: "q", Payload: plain("p")}
	}
	_, err := within(t, func(ctx context.Context) ([]store.Enqueued, error) {
		return by.Enqueue(ctx, jobs)
	}, func(o store.Enqueued) error { return o.Err })
	return err
}

// TestHeartbeatAtTheEndOfItsLease: heartbeats come in the moment at which their leases end,
// while the watcher sweeps and others want the jobs. Whoever is answered that its lease goes
// on has it until then.
func TestHeartbeatAtTheEndOfItsLease(t *testing.T) {
	t.Parallel()
	const n, takers, around = 120, 4, 150 * time.Millisecond
	s := newScene(t, 2, []store.Queue{queueOf("q", time.Second)}, "--watcher-interval", "100ms")
	conns := []*remote.Store{s.remote(t, 0), s.remote(t, 1)}
	if err := s.enqueueMany(t, s.over(conns[0]), n); err != nil {
		t.Fatal(err)
	}
	refs := leased(t, s.over(conns[0]), n, store.Acquire{Queues: []string{"q"}, Owner: "first"})
	until := *s.job(t, refs[0].JobID).LeaseUntil
	ctx, stop := context.WithCancel(t.Context())
	var taking sync.WaitGroup
	for k := range takers {
		c := s.over(conns[k%2])
		taking.Go(func() { takeAll(ctx, t, c, k) })
	}
	var renewed atomic.Int64
	side(n, func(i int) {
		at(t, until.Add(rand.N(2*around)-around))
		_, err := beatOnce(t, s.over(conns[i%2]), refs[i])
		switch {
		case err == nil:
			renewed.Add(1)
		case !isError[*store.ExpiredError](err) && !isError[*store.SupersededError](err):
			t.Errorf("Heartbeat %d: %v", i, err)
		}
	})
	eventually(t, "every job was taken again", func() bool {
		for _, ref := range refs {
			if s.job(t, ref.JobID).LeaseNo < 2 {
				return false
			}
		}
		return true
	})
	stop()
	taking.Wait()
	_, tables := s.judge(t)
	for id, row := range tables {
		if first := row.Leases[0]; row.Leases[1].LeasedAt.Before(first.Until) {
			t.Errorf("job %d was leased again at %s, the lease before lasted until %s", id, row.Leases[1].LeasedAt, first.Until)
		}
	}
	t.Logf("%d of %d leases were renewed", renewed.Load(), n)
	if renewed.Load() == 0 {
		t.Error("every heartbeat came too late: this proves nothing")
	}
}

// takeAll takes what it can, by queue, until the context ends.
func takeAll(ctx context.Context, t *testing.T, by store.Store, k int) {
	t.Helper()
	for ctx.Err() == nil {
		if _, err := by.Acquire(context.WithoutCancel(ctx), []store.Acquire{{Queues: []string{"q"}, Owner: "taker", MaxJobs: 1 + 10*k}}); err != nil {
			t.Error(err)
			return
		}
		linearWait(ctx, 5*time.Millisecond)
	}
}

// TestEachExpiredLeaseIsEndedOnce: many leases end in one instant, and three replicas sweep
// side by side. Each job comes back once, with one attempt used, and the replicas count
// together as many ends as there were leases.
func TestEachExpiredLeaseIsEndedOnce(t *testing.T) {
	t.Parallel()
	const batches, each = 2, 750
	s := newScene(t, 3, []store.Queue{queueOf("q", time.Second)}, "--watcher-interval", "100ms")
	c := s.remote(t, 0)
	for range batches {
		if err := s.enqueueMany(t, c, each); err != nil {
			t.Fatal(err)
		}
	}
	side(batches, func(i int) { leased(t, s.remote(t, i), each, store.Acquire{Queues: []string{"q"}, Owner: "w"}) })
	s.settle(t)
	type sums struct{ jobs, once, leases, expired int }
	var got sums
	err := s.fleet.db.SQL.QueryRow(t.Context(), `
		SELECT count(*)::int, (count(*) FILTER (WHERE j.state = 1 AND j.attempts_used = 1 AND j.expirations = 1 AND j.lease_no = 1))::int,
		       (SELECT count(*)::int FROM leasehold.all_leases), (SELECT count(*)::int FROM leasehold.all_leases l WHERE l.ended_by = 'EXPIRED')
		FROM leasehold.jobs j`).Scan(&got.jobs, &got.once, &got.leases, &got.expired)
	if want := (sums{batches * each, batches * each, batches * each, batches * each}); err != nil || got != want {
		t.Errorf("%+v, want %+v, %v", got, want, err)
	}
	for _, m := range s.fleet.members {
		if log := m.Log(); strings.Contains(log, "40P01") || strings.Contains(log, "deadlock") {
			t.Errorf("sweeps met in a deadlock:\n%s", log)
		}
	}
	eventually(t, "the replicas have counted as many ends as there were leases, and no more", func() bool {
		counted := 0.0
		for _, m := range s.fleet.members {
			counted += m.metric(t, "leasehold_watcher_leases_ended_total")
		}
		if counted > batches*each {
			t.Fatalf("the replicas count %.0f leases that they ended, want %d", counted, batches*each)
		}
		return counted == batches*each
	})
}
