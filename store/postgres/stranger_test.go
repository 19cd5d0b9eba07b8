package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/postgres"
)

// patience bounds every wait for a condition. It decides nothing but how long a broken test
// hangs, so it is long enough for a machine that is busy with other tests.
const patience = 30 * time.Second

// await polls a condition until it holds.
func await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for !holds() {
		select {
		case <-ticker.C:
		case <-deadline.C:
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// is tells whether an error is of a type of the Store's contract.
func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// stranger is somebody else's session on the same database.
type stranger struct {
	t    testing.TB
	conn *pgx.Conn
	pid  int
}

func newStranger(t testing.TB, url string) *stranger {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return &stranger{t: t, conn: conn, pid: int(conn.PgConn().PID())}
}

func (s *stranger) exec(sql string, args ...any) pgconn.CommandTag {
	s.t.Helper()
	tag, err := s.conn.Exec(s.t.Context(), sql, args...)
	if err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
	return tag
}

// start runs a statement that will wait; the channel gives its error.
func (s *stranger) start(sql string, args ...any) <-chan error {
	done := make(chan error, 1)
	ctx := s.t.Context()
	go func() {
		_, err := s.conn.Exec(ctx, sql, args...)
		done <- err
	}()
	return done
}

// awaitBlocked returns when a session waits for somebody else's lock.
func (h *harness) awaitBlocked(t testing.TB, pid int) {
	t.Helper()
	await(t, "the session waits for a lock", func() bool {
		return one[int](t, h, `SELECT cardinality(pg_blocking_pids($1))`, pid) > 0
	})
}

// awaitSomebodyBlocked returns when any session of the database waits for this one.
func (h *harness) awaitSomebodyBlocked(t testing.TB, blocker int) {
	t.Helper()
	await(t, "somebody waits for the lock", func() bool {
		return one[bool](t, h, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND $1 = ANY (pg_blocking_pids(pid)))`, blocker)
	})
}

// sqlQueryStart tells when a session of that name began its latest statement.
const sqlQueryStart = `
SELECT query_start::text FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1 AND query LIKE '%leasehold.%'`

// awaitRepeats returns when the sessions of that name have begun a statement several times:
// what they want is locked, and they look again and again.
func (h *harness) awaitRepeats(t testing.TB, name string) {
	t.Helper()
	seen := map[string]bool{}
	await(t, name+" has looked several times", func() bool {
		for _, start := range h.rows(t, sqlQueryStart, name) {
			seen[start] = true
		}
		return len(seen) >= 4
	})
}

// one reads a single value.
func one[T any](t testing.TB, h *harness, sql string, args ...any) T {
	t.Helper()
	rows, err := h.SQL.Query(context.Background(), sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	value, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

// newHarnessOn is newHarness on a database that is there already.
func newHarnessOn(t testing.TB, url string) *harness {
	t.Helper()
	return newHarnessOver(t, url, openStore(t, url))
}

// blankJobs are n jobs that differ in nothing.
func blankJobs(n int) []store.NewJob { return make([]store.NewJob, n) }

// leases makes n jobs of the queue "q" and leases them, in the order of their ids.
func (h *harness) leases(t testing.TB, n int) []store.LeaseRef {
	t.Helper()
	ids := h.enqueue(t, blankJobs(n)...)
	items := make([]store.Acquire, n)
	for i, id := range ids {
		items[i] = store.Acquire{JobID: id, Owner: "worker-1", MaxJobs: 1}
	}
	out, err := h.store.Acquire(t.Context(), items)
	if err != nil {
		t.Fatal(err)
	}
	refs := make([]store.LeaseRef, n)
	for i, o := range out {
		if o.Err != nil || len(o.Leases) != 1 {
			t.Fatalf("Acquire: %+v", o)
		}
		refs[i] = o.Leases[0].Ref()
	}
	return refs
}

func beatsOf(refs ...store.LeaseRef) []store.Heartbeat {
	items := make([]store.Heartbeat, len(refs))
	for i, ref := range refs {
		items[i].Lease = ref
	}
	return items
}

func completesOf(refs ...store.LeaseRef) []store.Complete {
	items := make([]store.Complete, len(refs))
	for i, ref := range refs {
		items[i].Lease = ref
	}
	return items
}

// complete ends a lease that is to be accepted.
func (h *harness) complete(t testing.TB, ref store.LeaseRef) store.Completion {
	t.Helper()
	out, err := h.store.Complete(t.Context(), completesOf(ref))
	if err != nil || out[0].Err != nil {
		t.Fatalf("Complete: %+v, %v", out, err)
	}
	return out[0]
}

// sweep runs one page over everything.
func (h *harness) sweep(t testing.TB) int {
	t.Helper()
	swept, err := h.store.SweepPage(t.Context(), 0, store.MaxBatch, nil)
	if err != nil {
		t.Fatal(err)
	}
	return swept.Ended
}

// neverBlameless lets leases be ended by time for as long as the test runs: the last stamp
// lies ahead, so that a slow machine cannot make it too old.
func (h *harness) neverBlameless(t testing.TB) {
	t.Helper()
	h.SetWritable(t, 24*time.Hour, -time.Hour)
}

// state reads where a job stands.
func (h *harness) state(t testing.TB, id store.JobID) store.State {
	t.Helper()
	job, err := h.store.GetJob(t.Context(), id, false)
	if err != nil {
		t.Fatal(err)
	}
	return job.State
}

// openAs opens a Store whose sessions can be told from others by their name.
func openAs(t testing.TB, url, name string) *postgres.Store {
	t.Helper()
	return openStore(t, url+"&application_name="+name)
}

// number writes a job id as SQL text.
func number(id store.JobID) string { return strconv.FormatInt(int64(id), 10) }

// faults lists what a batch was refused for, "ok" where it was not.
func faults[T any](items []T, err func(T) error) []string {
	out := make([]string, len(items))
	for i, item := range items {
		out[i] = "ok"
		if e := err(item); e != nil {
			out[i] = fmt.Sprintf("%T", e)
		}
	}
	return out
}

func beatErr(b store.Beaten) error         { return b.Err }
func completeErr(c store.Completion) error { return c.Err }
func endErr(e store.Ended) error           { return e.Err }
func enqueueErr(e store.Enqueued) error    { return e.Err }
