package postgres_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/leasehold/leasehold/store"
)

// lockFirst is the form of every statement of the service that may wait: rows are locked in
// a CTE, and the clock is read once behind it.
const lockFirst = `
WITH held AS MATERIALIZED (SELECT j.id FROM leasehold.jobs j WHERE j.id = $1 FOR NO KEY UPDATE),
clock AS MATERIALIZED (SELECT clock_timestamp() AS now FROM (SELECT count(*) FROM held) AS behind_the_lock)
UPDATE leasehold.jobs j SET beat_at = c.now FROM held h, clock c WHERE j.id = h.id`

// The experiment behind R30: what a SET list computes is older than the wait for the row.
func TestR30APlainUpdateWritesTheTimeOfBeforeItsWait(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	ref := h.leases(t, 1)[0]
	for _, c := range []struct {
		name, sql string
		fresh     bool
	}{
		{"plain", `UPDATE leasehold.jobs SET beat_at = clock_timestamp() WHERE id = $1`, false},
		{"lock first", lockFirst, true},
	} {
		holder, waiter := newStranger(t, h.URL), newStranger(t, h.URL)
		holder.exec(`BEGIN`)
		holder.exec(`SELECT FROM leasehold.jobs WHERE id = $1 FOR UPDATE`, int64(ref.JobID))
		done := waiter.start(c.sql, int64(ref.JobID))
		h.awaitBlocked(t, waiter.pid)
		waiting := one[time.Time](t, h, `SELECT clock_timestamp()`)
		holder.exec(`COMMIT`)
		if err := <-done; err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		wrote := one[time.Time](t, h, `SELECT beat_at FROM leasehold.jobs WHERE id = $1`, int64(ref.JobID))
		if wrote.After(waiting) != c.fresh {
			t.Errorf("%s: it waited at %v and wrote %v", c.name, waiting, wrote)
		}
	}
}

// The stamp of R35 is the statement of the service that does wait, for its one row.
func TestR30TheStampIsReadBehindItsLock(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	holder := newStranger(t, h.URL)
	holder.exec(`BEGIN`)
	holder.exec(`SELECT FROM leasehold.service FOR UPDATE`)
	done := make(chan error, 1)
	go func() { done <- h.store.StampWritable(context.Background()) }()
	h.awaitSomebodyBlocked(t, holder.pid)
	waiting := one[time.Time](t, h, `SELECT clock_timestamp()`)
	holder.exec(`COMMIT`)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if stamp := one[time.Time](t, h, `SELECT stamped_at FROM leasehold.service`); stamp.Before(waiting) {
		t.Errorf("it waited at %v and stamped %v", waiting, stamp)
	}
}

func TestR30AHeartbeatWaitsForNoRow(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	refs := h.leases(t, 2)
	holder := newStranger(t, h.URL)
	holder.exec(`BEGIN`)
	holder.exec(`SELECT FROM leasehold.jobs WHERE id = $1 FOR UPDATE`, int64(refs[0].JobID))
	// A statement that waited would end by its lock timeout, and take the whole call with it.
	out, err := h.store.Heartbeat(store.Impatient(t.Context()), beatsOf(refs...))
	if err != nil {
		t.Fatalf("the batch waited for a locked row: %v", err)
	}
	busy, ok := out[0].Err.(*store.BusyError) //nolint:errorlint // an item's error is not wrapped
	if !ok || busy.JobID != refs[0].JobID || out[1].Err != nil {
		t.Fatalf("the locked lease got %v, its neighbour %v", out[0].Err, out[1].Err)
	}
	released := one[time.Time](t, h, `SELECT clock_timestamp()`)
	holder.exec(`COMMIT`)
	out, err = h.store.Heartbeat(t.Context(), beatsOf(refs[0]))
	if err != nil || out[0].Err != nil {
		t.Fatalf("after the lock: %+v, %v", out, err)
	}
	if from := out[0].Until.Add(-store.DefaultLeaseDuration); from.Before(released) {
		t.Errorf("the lease was renewed from %v, before the lock ended at %v", from, released)
	}
}

// moveJob is a finishing statement that looks for its job in both tables itself.
const moveJob = `
WITH moved AS (
    DELETE FROM leasehold.jobs j WHERE j.id = $1 RETURNING j.id, j.queue_id, j.run_at, j.created_at, j.lease_no
), finished AS (
    INSERT INTO leasehold.finished_jobs (id, queue_id, state, priority, run_at, created_at, finished_at, bytes, attempts_used,
        expirations, lease_no, beats, stage_changes, end_kind, ended_at, counted, sealed, state_reason)
    SELECT m.id, m.queue_id, 5, 5, m.run_at, m.created_at, clock_timestamp(), 0, 1, 0, m.lease_no, 0, 0, 4, clock_timestamp(), true, false, ''
    FROM moved m
)
SELECT (SELECT count(*) FROM moved)::int, (SELECT count(*) FROM leasehold.finished_jobs f WHERE f.id = $1)::int`

// The experiment behind R31: the loser of two identical moves finds the job nowhere.
func TestR31TheLoserOfTwoMovesFindsTheJobInNeitherTable(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	id := int64(h.leases(t, 1)[0].JobID)
	winner, loser := newStranger(t, h.URL), newStranger(t, h.URL)
	winner.exec(`BEGIN`)
	winner.exec(moveJob, id)
	var moved, finished int
	done := make(chan error, 1)
	go func() { done <- loser.conn.QueryRow(context.Background(), moveJob, id).Scan(&moved, &finished) }()
	h.awaitBlocked(t, loser.pid)
	winner.exec(`COMMIT`)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if moved != 0 || finished != 0 {
		t.Errorf("the statement that waited moved %d and found %d finished", moved, finished)
	}
	if err := loser.conn.QueryRow(t.Context(), moveJob, id).Scan(&moved, &finished); err != nil || moved != 0 || finished != 1 {
		t.Errorf("a new statement moved %d and found %d finished, %v", moved, finished, err)
	}
}

func TestR31OneOfFiveIdenticalCompletesIsApplied(t *testing.T) {
	t.Parallel()
	const jobs, callers = 20, 5
	h := newHarness(t)
	second := openStore(t, h.URL)
	for _, ref := range h.leases(t, jobs) {
		item := store.Complete{Lease: ref, Result: store.Payload{Data: []byte("paid")}}
		var all sync.WaitGroup
		start := make(chan struct{})
		answers := make([]store.Completion, callers)
		for n := range callers {
			s := h.store
			if n%2 == 1 {
				s = second
			}
			all.Go(func() {
				<-start
				out, err := s.Complete(context.Background(), []store.Complete{item})
				if answers[n].Err = err; err == nil {
					answers[n] = out[0]
				}
			})
		}
		close(start)
		all.Wait()
		applied := 0
		for _, a := range answers {
			if a.Err != nil {
				t.Fatalf("lease %v: %v", ref, a.Err)
			}
			if !a.AlreadyApplied {
				applied++
			}
		}
		if applied != 1 {
			t.Fatalf("lease %v: %d of %d were applied", ref, applied, callers)
		}
	}
	if n := one[int](t, h, `SELECT count(*)::int FROM leasehold.finished_jobs WHERE state = 4`); n != jobs {
		t.Errorf("%d jobs are completed, want %d", n, jobs)
	}
}

func TestR31ACompleteThatMetAnUncommittedEndIsDecidedByIt(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	refs := h.leases(t, 2)
	for i, end := range []string{"COMMIT", "ROLLBACK"} {
		s, other := openAs(t, h.URL, end), newStranger(t, h.URL)
		other.exec(`BEGIN`)
		other.exec(moveJob, int64(refs[i].JobID))
		answer, failure := []store.Completion(nil), error(nil)
		done := make(chan struct{})
		go func() {
			defer close(done)
			answer, failure = s.Complete(context.Background(), completesOf(refs[i]))
		}()
		h.awaitRepeats(t, end)
		other.exec(end)
		<-done
		if failure != nil {
			t.Fatal(failure)
		}
		if refused := is[*store.EndedError](answer[0].Err); refused != (end == "COMMIT") || !refused && answer[0].Err != nil {
			t.Errorf("after %s: %+v", end, answer)
		}
	}
}
