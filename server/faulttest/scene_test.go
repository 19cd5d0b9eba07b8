package faulttest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold/leasehold/server/servertest/remote"
	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/postgres"
	"github.com/leasehold/leasehold/store/storetest"
)

const (
	// sceneSlack is how far the clocks of callers and database lie apart on one machine.
	sceneSlack = 20 * time.Millisecond
	// sceneSearch bounds the search for an order of one job's calls.
	sceneSearch = time.Minute
)

// scene is a fleet whose clients are written down, and judged in the end: by the invariants
// and, of each job, by whether some order of its calls explains all answers and the rows.
type scene struct {
	fleet    *fleet
	direct   *postgres.Store // of the oracle, past every proxy
	recorder *storetest.Recorder
	queues   map[string]store.Queue
	clients  atomic.Int64
}

// newScene starts n replicas over a database with some queues. The service has been able to
// take heartbeats for long, so that leases may end by their time from the start (R35).
func newScene(t *testing.T, n int, queues []store.Queue, args ...string) *scene {
	t.Helper()
	return newSceneOf(t, newFleet(t, database(t), n, args...), queues)
}

func newSceneOf(t *testing.T, f *fleet, queues []store.Queue) *scene {
	t.Helper()
	s := &scene{fleet: f, recorder: storetest.NewRecorder(nil), queues: map[string]store.Queue{}}
	s.recorder.Repeats = true
	u, err := url.Parse(f.db.URL)
	if err != nil {
		t.Fatal(err)
	}
	// Tests end the sessions of replicas by their name: this is none of them.
	query := u.Query()
	query.Set("application_name", "oracle")
	u.RawQuery = query.Encode()
	if s.direct, err = postgres.Open(t.Context(), postgres.Config{URL: u.String()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.direct.Close)
	for _, q := range queues {
		if _, err := s.direct.CreateQueue(t.Context(), q); err != nil {
			t.Fatal(err)
		}
		s.queues[q.Name] = q
	}
	s.fleet.db.SetWritable(t, time.Hour, 0)
	return s
}

// remote is an unwritten client of the i-th replica, with a connection of its own.
func (s *scene) remote(t *testing.T, i int) *remote.Store {
	t.Helper()
	r, err := remote.New(t.Context(), dialEagerly(t, s.fleet.members[i].outer.Addr()), s.direct)
	if err != nil {
		t.Fatal(err)
	}
	r.Drains = true
	return r
}

// client is a client of the i-th replica, which makes one call at a time.
func (s *scene) client(t *testing.T, i int) store.Store {
	t.Helper()
	return s.recorder.Client(int(s.clients.Add(1)), s.remote(t, i))
}

// settle waits until what the clients left has been swept: nobody beats any more.
func (s *scene) settle(t *testing.T) {
	t.Helper()
	eventually(t, "every lease that was left has ended", func() bool {
		page, err := s.direct.ListJobs(t.Context(), store.JobFilter{States: []store.State{store.Processing}}, false, store.Page{Size: 1000})
		if err != nil {
			t.Fatal(err)
		}
		return len(page.Jobs) == 0 && page.Next == 0
	})
}

// judge holds what was written down against what is stored, once all is settled.
func (s *scene) judge(t *testing.T) (storetest.History, storetest.Tables) {
	t.Helper()
	s.settle(t)
	tables, err := storetest.ReadTables(t.Context(), s.direct)
	if err != nil {
		t.Fatal(err)
	}
	history := s.recorder.History()
	for _, v := range storetest.CheckInvariants(history, tables, storetest.Checked{Settled: true, Repeats: true}) {
		t.Error(v)
	}
	if err := storetest.CheckLinearizable(history, tables, s.linear()); err != nil {
		t.Error(err)
	}
	return history, tables
}

func (s *scene) linear() storetest.Linear {
	return storetest.Linear{Queues: s.queues, ClockSlack: sceneSlack, Timeout: sceneSearch, Repeats: true}
}

// The calls of one item that scenarios make. Each has the deadline of a worker's call.

func within[T any](t *testing.T, call func(context.Context) ([]T, error), item func(T) error) (one T, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTime)
	defer cancel()
	out, err := call(ctx)
	if err != nil {
		return one, err
	}
	return out[0], item(out[0])
}

func enqueueOne(t *testing.T, s store.Store, j store.NewJob) (store.Enqueued, error) {
	t.Helper()
	return within(t, func(ctx context.Context) ([]store.Enqueued, error) {
		return s.Enqueue(ctx, []store.NewJob{j})
	}, func(o store.Enqueued) error { return o.Err })
}

func acquire(t *testing.T, s store.Store, a store.Acquire) (store.Acquired, error) {
	t.Helper()
	a.MaxJobs = max(a.MaxJobs, 1)
	return within(t, func(ctx context.Context) ([]store.Acquired, error) {
		return s.Acquire(ctx, []store.Acquire{a})
	}, func(o store.Acquired) error { return o.Err })
}

func beatOnce(t *testing.T, s store.Store, ref store.LeaseRef) (store.Beaten, error) {
	t.Helper()
	return within(t, func(ctx context.Context) ([]store.Beaten, error) {
		return s.Heartbeat(ctx, []store.Heartbeat{{Lease: ref}})
	}, func(o store.Beaten) error { return o.Err })
}

func completeWith(t *testing.T, s store.Store, ref store.LeaseRef, result string) (store.Completion, error) {
	t.Helper()
	return within(t, func(ctx context.Context) ([]store.Completion, error) {
		return s.Complete(ctx, []store.Complete{{Lease: ref, Result: plain(result)}})
	}, func(o store.Completion) error { return o.Err })
}

func failWith(t *testing.T, s store.Store, f store.Fail) (store.Ended, error) {
	t.Helper()
	return within(t, func(ctx context.Context) ([]store.Ended, error) {
		return s.Fail(ctx, []store.Fail{f})
	}, func(o store.Ended) error { return o.Err })
}

func plain(text string) store.Payload {
	return store.Payload{Data: []byte(text), ContentType: "text/plain"}
}

// enqueued stores n jobs, which must succeed, and gives their ids.
func (s *scene) enqueued(t *testing.T, by store.Store, n int, j store.NewJob) (ids []store.JobID) {
	t.Helper()
	for i := range n {
		j.Payload = plain(fmt.Sprint(i))
		out, err := enqueueOne(t, by, j)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, out.JobID)
	}
	return ids
}

// leased takes n leases in one call, which must succeed.
func leased(t *testing.T, by store.Store, n int, a store.Acquire) (refs []store.LeaseRef) {
	t.Helper()
	a.MaxJobs = n
	out, err := acquire(t, by, a)
	if err != nil || len(out.Leases) != n {
		t.Fatalf("%d leases of %d, empty reason %d, %v", len(out.Leases), n, out.Empty, err)
	}
	for i := range out.Leases {
		refs = append(refs, out.Leases[i].Ref())
	}
	return refs
}

// isError tells whether an error is of a kind.
func isError[E error](err error) bool {
	var e E
	return errors.As(err, &e)
}

// queueOf makes a queue whose leases last so long.
func queueOf(name string, lease time.Duration, change ...func(q *store.Queue)) store.Queue {
	q := store.Queue{Name: name, Policy: store.Policy{LeaseDuration: &lease, BackoffInitial: to(50 * time.Millisecond)}}
	for _, c := range change {
		c(&q)
	}
	return q
}
