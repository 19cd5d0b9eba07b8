package faulttest

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold/leasehold/internal/faultproxy"
	"github.com/leasehold/leasehold/store"
)

// side runs n functions at once and waits for all.
func side(n int, run func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { run(i) })
	}
	all.Wait()
}

// marker is in the payload of jobs, so that a proxy knows the answer that carries them.
const marker = "the-payload-that-the-proxy-waits-for"

func hasMarker(chunk []byte) bool { return bytes.Contains(chunk, []byte(marker)) }

// lostClaim loses the answer of acquires that have been committed, at the i-th replica.
type lostClaim struct {
	name string
	n    int // acquires side by side
	lose func(t *testing.T, m *member, claim func())
}

var lostClaims = []lostClaim{
	{"the network swallows the answer", 8, func(_ *testing.T, m *member, claim func()) {
		m.outer.Swallow(faultproxy.ToClient, true)
		claim()
		m.outer.Cut()
		m.outer.Swallow(faultproxy.ToClient, false)
	}},
	{"the connection is cut at the answer", 1, func(_ *testing.T, m *member, claim func()) {
		cut := m.outer.CutAt(faultproxy.ToClient, hasMarker)
		claim()
		<-cut
	}},
	{"the replica is killed between commit and answer", 1, func(t *testing.T, m *member, claim func()) {
		cut := m.inner.CutAt(faultproxy.ToClient, hasMarker)
		killed := make(chan struct{})
		go func() {
			defer close(killed)
			<-cut
			m.Kill()
		}()
		claim()
		<-killed
		if err := m.Start(t.Context()); err != nil {
			t.Error(err)
		}
	}},
}

// TestLostAnswersOfAcquire: a lease whose answer was lost behind the commit runs out as one
// that never beat, costs one attempt, and its job is ready again without anybody's doing.
func TestLostAnswersOfAcquire(t *testing.T) {
	t.Parallel()
	const lease, watcher = time.Second, 200 * time.Millisecond
	s := newScene(t, len(lostClaims), []store.Queue{queueOf("q", lease)}, "--watcher-interval", watcher.String())
	var lost []store.JobID
	for i, way := range lostClaims {
		var ids []store.JobID
		var clients []store.Store
		for n := range way.n {
			clients = append(clients, s.client(t, i))
			out, err := enqueueOne(t, clients[n], store.NewJob{Queue: "q", Payload: plain(marker)})
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, out.JobID)
		}
		way.lose(t, s.fleet.members[i], func() {
			side(way.n, func(n int) {
				ctx, cancel := context.WithTimeout(t.Context(), 2*lease)
				defer cancel()
				out, err := clients[n].Acquire(ctx, []store.Acquire{{JobID: ids[n], Owner: "unlucky", MaxJobs: 1}})
				if err == nil && out[0].Err == nil {
					t.Errorf("%s: the answer arrived: %+v", way.name, out)
				}
			})
		})
		lost = append(lost, ids...)
	}
	asker := s.client(t, 0)
	eventually(t, "every job is ready again", func() bool {
		for _, id := range lost {
			if s.job(t, id).State != store.Pending {
				return false
			}
		}
		return true
	})
	for _, id := range lost {
		l := s.records(t, id)
		if len(l) != 1 || l[0].End != store.EndExpired || l[0].Beats != 0 || l[0].Owner != "unlucky" {
			t.Fatalf("the leases of job %d are %+v", id, l)
		}
		if late := l[0].EndedAt.Sub(l[0].Until); late > 2*watcher+5*time.Second { // a busy machine's
			t.Errorf("job %d came back %s after its lease had run out", id, late)
		}
		if j := s.job(t, id); j.AttemptsUsed != 1 {
			t.Errorf("job %d has used %d attempts", id, j.AttemptsUsed)
		}
		again := leased(t, asker, 1, store.Acquire{JobID: id, Owner: "lucky"})[0]
		if _, err := completeWith(t, asker, again, "done"); err != nil {
			t.Error(err)
		}
	}
	s.judge(t)
}

// TestLostAnswersOfEnds: a Complete, Fail or Release whose answer was lost between client and
// replica is told at its repetition, on whatever replica, that it is applied. What differs
// from it is refused, and the first stays.
func TestLostAnswersOfEnds(t *testing.T) {
	t.Parallel()
	const n = 9
	s := newScene(t, 3, []store.Queue{queueOf("q", time.Minute)})
	asker := s.client(t, 1)
	s.enqueued(t, asker, n, store.NewJob{Queue: "q"})
	refs := leased(t, asker, n, store.Acquire{Queues: []string{"q"}, Owner: "w"})
	m := s.fleet.members[0]
	clients := make([]store.Store, n)
	for i := range clients {
		clients[i] = s.client(t, 0)
		if _, err := beatOnce(t, clients[i], refs[i]); err != nil { // it is connected now
			t.Fatal(err)
		}
	}
	m.outer.Swallow(faultproxy.ToClient, true)
	var calls sync.WaitGroup
	for i, ref := range refs {
		calls.Go(func() {
			if _, err := endOf(t, clients[i], i, ref); err == nil {
				t.Errorf("lease %v: the answer arrived", ref)
			}
		})
	}
	eventually(t, "all has been committed", func() bool { return !s.anyLive(t, refs) })
	m.outer.Cut()
	m.outer.Swallow(faultproxy.ToClient, false)
	calls.Wait()
	for i, ref := range refs {
		s.repeatEnd(t, i, ref)
	}
	s.judge(t)
}

// TestLostResultsOfEnds: where the result is lost between database and replica, the replica
// repeats the statement itself, and its answer says that it is applied, once.
func TestLostResultsOfEnds(t *testing.T) {
	t.Parallel()
	const rounds = 10
	s := newScene(t, 1, []store.Queue{queueOf("q", time.Minute)})
	c := s.client(t, 0)
	s.enqueued(t, c, 6*rounds, store.NewJob{Queue: "q"})
	refs := leased(t, c, 6*rounds, store.Acquire{Queues: []string{"q"}, Owner: "w"})
	for kind := range 3 {
		repeated := false
		for round := 0; round < rounds && !repeated; round++ {
			warm, ref := refs[0], refs[1]
			refs = refs[2:]
			if _, err := endOf(t, c, kind, warm); err != nil { // a connection knows the statement
				t.Fatal(err)
			}
			// What is cut off may be the result of another statement of the replica.
			cut := s.fleet.members[0].inner.CutAt(faultproxy.ToClient, isEndOfResult)
			applied, err := endOf(t, c, kind, ref)
			if err != nil {
				t.Errorf("call %d of lease %v: %v", kind, ref, err)
			}
			repeated = applied
			<-cut
		}
		if !repeated {
			t.Errorf("call %d was never repeated: this proves nothing", kind)
		}
	}
	for _, ref := range refs {
		if _, err := completeWith(t, c, ref, "done"); err != nil {
			t.Error(err)
		}
	}
	s.judge(t)
}

// isEndOfResult tells a message of PostgreSQL that ends with ReadyForQuery, outside a
// transaction: the statement before it is committed.
func isEndOfResult(chunk []byte) bool {
	return bytes.HasSuffix(chunk, []byte{'Z', 0, 0, 0, 5, 'I'})
}

// endOf is the i-th call: a Complete, a Fail or a Release.
func endOf(t *testing.T, by store.Store, i int, ref store.LeaseRef) (applied bool, err error) {
	t.Helper()
	switch i % 3 {
	case 0:
		out, err := completeWith(t, by, ref, "first")
		return out.AlreadyApplied, err
	case 1:
		out, err := failWith(t, by, store.Fail{Lease: ref, RetryAfter: to(time.Hour)})
		return out.AlreadyApplied, err
	}
	out, err := within(t, func(ctx context.Context) ([]store.Ended, error) {
		return by.Release(ctx, []store.Release{{Lease: ref, Delay: time.Hour}})
	}, func(o store.Ended) error { return o.Err })
	return out.AlreadyApplied, err
}

func (s *scene) anyLive(t *testing.T, refs []store.LeaseRef) bool {
	t.Helper()
	for _, ref := range refs {
		if s.job(t, ref.JobID).State == store.Processing {
			return true
		}
	}
	return false
}

// repeatEnd repeats a call that was applied, several times at once, and makes others.
func (s *scene) repeatEnd(t *testing.T, i int, ref store.LeaseRef) {
	t.Helper()
	side(5, func(n int) {
		if applied, err := endOf(t, s.client(t, n%3), i, ref); err != nil || !applied {
			t.Errorf("call %d of lease %v, repeated: applied before %t, %v", i%3, ref, applied, err)
		}
	})
	c := s.client(t, 2)
	for other := i + 1; other < i+3; other++ {
		if _, err := endOf(t, c, other, ref); !isError[*store.EndedError](err) {
			t.Errorf("call %d after call %d on lease %v: %v", other%3, i%3, ref, err)
		}
	}
	if i%3 != 0 {
		return
	}
	if _, err := completeWith(t, c, ref, "second"); !isError[*store.ConflictError](err) {
		t.Errorf("another result: %v", err)
	}
	j, l := s.job(t, ref.JobID), s.records(t, ref.JobID)
	if string(j.Result.Data) != "first" || len(l) != 1 || l[0].End != store.EndCompleted {
		t.Errorf("job %d has result %q and leases %+v", j.ID, j.Result.Data, l)
	}
}

// TestEnqueueWhileSessionsDie: with a key, a client that repeats has one job in the end and
// the same id every time. Without one, the service repeats nothing itself: there is no OK
// without a job, no job after "nothing was done", and never two.
func TestEnqueueWhileSessionsDie(t *testing.T) {
	t.Parallel()
	const clients, each = 8, 24
	s := newScene(t, 3, []store.Queue{queueOf("q", time.Minute)})
	ctx, cancel := context.WithCancel(t.Context())
	var killing sync.WaitGroup
	kills := 0
	killing.Go(func() {
		for ctx.Err() == nil {
			linearWait(ctx, rand.N(150*time.Millisecond))
			kills += s.killSession(t)
		}
	})
	var unknown, away atomic.Int64
	side(clients, func(n int) {
		c := s.client(t, n%3)
		for i := range each {
			subject := fmt.Sprintf("%d/%d", n, i)
			if i%2 == 0 {
				s.enqueueKeyed(t, c, subject)
				continue
			}
			_, err := enqueueOne(t, c, store.NewJob{Queue: "q", Subject: &subject})
			stored := s.stored(t, subject)
			switch {
			case err == nil && stored == 1:
			case isError[*store.OutcomeUnknownError](err) && stored <= 1:
				unknown.Add(1)
			case isError[*store.UnavailableError](err) && stored == 0:
				away.Add(1)
			default:
				t.Errorf("%s is stored %d times, the answer was %v", subject, stored, err)
			}
		}
	})
	cancel()
	killing.Wait()
	t.Logf("%d sessions were ended; of %d without a key, %d unknown, %d refused", kills, clients*each/2, unknown.Load(), away.Load())
	if kills < 5 {
		t.Error("hardly a session was ended: this proves nothing")
	}
	s.judge(t)
}

// killSession ends some session of a replica, whatever it is doing; 0 where there is none.
func (s *scene) killSession(t *testing.T) (killed int) {
	t.Helper()
	err := s.fleet.db.SQL.QueryRow(t.Context(), `SELECT count(pg_terminate_backend(v.pid))::int FROM (SELECT a.pid FROM pg_stat_activity a
		WHERE a.application_name = 'leasehold' AND a.datname = current_database() ORDER BY a.state = 'active' DESC, random() LIMIT 1) v`).Scan(&killed)
	if err != nil {
		t.Error(err)
	}
	return killed
}

func (s *scene) enqueueKeyed(t *testing.T, c store.Store, subject string) {
	t.Helper()
	for range 100 {
		out, err := enqueueOne(t, c, store.NewJob{Queue: "q", Subject: &subject, IdempotencyKey: &subject})
		if err != nil {
			if !isError[*store.UnavailableError](err) && !isError[*store.OutcomeUnknownError](err) && !isError[*store.BusyError](err) {
				t.Errorf("%s: %v", subject, err)
				return
			}
			continue
		}
		again, err := enqueueOne(t, c, store.NewJob{Queue: "q", Subject: &subject, IdempotencyKey: &subject})
		if err == nil && again.JobID != out.JobID || s.stored(t, subject) != 1 {
			t.Errorf("%s has jobs %d and %d, %d in all", subject, out.JobID, again.JobID, s.stored(t, subject))
		}
		return
	}
	t.Errorf("%s was never answered", subject)
}

// stored counts the jobs of a subject, whoever says that they are there.
func (s *scene) stored(t *testing.T, subject string) (n int) {
	t.Helper()
	err := s.fleet.db.SQL.QueryRow(t.Context(), `SELECT count(*)::int FROM leasehold.jobs WHERE subject = $1`, subject).Scan(&n)
	if err != nil {
		t.Error(err)
	}
	return n
}

// TestClaimsBeyondTheDeadline: where claims take about as long as their callers wait, every
// lease is either answered, given back at once, or runs out by its time. None is kept.
func TestClaimsBeyondTheDeadline(t *testing.T) {
	t.Parallel()
	const clients, each = 8, 40
	s := newScene(t, 1, []store.Queue{queueOf("q", time.Second)}, "--watcher-interval", "200ms")
	s.enqueued(t, s.client(t, 0), 40, store.NewJob{Queue: "q"})
	m := s.fleet.members[0]
	m.inner.Delay(faultproxy.ToServer, 15*time.Millisecond)
	m.inner.Delay(faultproxy.ToClient, 15*time.Millisecond)
	var got, missed atomic.Int64
	side(clients, func(int) {
		c := s.client(t, 0)
		for range each {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond+rand.N(100*time.Millisecond))
			out, err := c.Acquire(ctx, []store.Acquire{{Queues: []string{"q"}, Owner: "hasty", MaxJobs: 1}})
			cancel()
			if err != nil {
				missed.Add(1)
				continue
			}
			for i := range out[0].Leases {
				got.Add(1)
				_, _ = failWith(t, c, store.Fail{Lease: out[0].Leases[i].Ref(), RetryAfter: to(time.Duration(0))}) // it may have run out
			}
		}
	})
	m.inner.Delay(faultproxy.ToServer, 0)
	m.inner.Delay(faultproxy.ToClient, 0)
	_, tables := s.judge(t)
	ends := map[store.End]int{}
	for _, row := range tables {
		for _, l := range row.Leases {
			ends[l.End]++
		}
	}
	t.Logf("%d leases were answered, %d callers had gone; leases by their end: %v", got.Load(), missed.Load(), ends)
	if got.Load() == 0 || missed.Load() == 0 || ends[store.EndUndelivered]+ends[store.EndExpired] == 0 {
		t.Error("no claim met its caller's deadline: this proves nothing")
	}
}
