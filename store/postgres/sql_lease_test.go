package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/store"
)

const (
	readCommitted  = "READ COMMITTED"
	repeatableRead = "REPEATABLE READ"
)

var isolations = []string{readCommitted, repeatableRead}

// rival is what ends a lease, and tells whether it did.
type rival func(t *testing.T, h *harness, ref store.LeaseRef) bool

func endedBy(errs []string, err error) bool { return err == nil && errs[0] == "ok" }

// rivals end a lease by each way there is. What a rival meets locked it leaves alone at once.
var rivals = map[string]rival{
	"Complete": func(t *testing.T, h *harness, ref store.LeaseRef) bool {
		out, err := h.store.Complete(store.Impatient(t.Context()), completesOf(ref))
		return endedBy(faults(out, completeErr), err)
	},
	"complete by SQL": func(t *testing.T, h *harness, ref store.LeaseRef) bool {
		return h.worker(t).refused(`SELECT leasehold.complete($1, $2)`, ref.JobID, ref.LeaseNo) == "<nil>"
	},
	"Fail": func(t *testing.T, h *harness, ref store.LeaseRef) bool {
		out, err := h.store.Fail(store.Impatient(t.Context()), []store.Fail{{Lease: ref}})
		return endedBy(faults(out, endErr), err)
	},
	"Release": func(t *testing.T, h *harness, ref store.LeaseRef) bool {
		out, err := h.store.Release(store.Impatient(t.Context()), []store.Release{{Lease: ref}})
		return endedBy(faults(out, endErr), err)
	},
	"the sweep": func(t *testing.T, h *harness, ref store.LeaseRef) bool {
		h.Age(t, ref.JobID, time.Hour)
		swept, err := h.store.SweepPage(store.Impatient(t.Context()), ref.JobID-1, 1, nil)
		return err == nil && swept.Ended == 1
	},
	"take-over": func(t *testing.T, h *harness, ref store.LeaseRef) bool {
		h.Age(t, ref.JobID, time.Hour)
		out, err := h.store.Acquire(store.Impatient(t.Context()), []store.Acquire{{JobID: ref.JobID, Owner: "next", MaxJobs: 1}})
		return err == nil && out[0].Err == nil && len(out[0].Leases) == 1
	},
}

// afterwards is what assert_lease answers once a rival has ended the lease.
var afterwards = map[string]string{
	"Complete": "LEASE_ENDED", "complete by SQL": "LEASE_ENDED", "Fail": "LEASE_ENDED", "Release": "LEASE_ENDED",
	"the sweep": "LEASE_EXPIRED", "take-over": "LEASE_SUPERSEDED",
}

const sqlAssert = `SELECT leasehold.assert_lease($1, $2)`

// A caller hangs in a transaction that has asserted a lease: nobody ends that lease meanwhile,
// its heartbeats pass, others' jobs go on, and once the caller is gone it can be ended.
func TestR46AnAssertedLeaseIsEndedByNobody(t *testing.T) {
	t.Parallel()
	for _, isolation := range isolations {
		for name, end := range rivals {
			t.Run(isolation+" "+name, func(t *testing.T) {
				t.Parallel()
				h := newSQLRoles(t)
				h.neverBlameless(t)
				refs := h.leases(t, 3)
				ref := refs[1]
				app := h.worker(t)
				app.exec(`BEGIN ISOLATION LEVEL ` + isolation)
				app.exec(sqlAssert, ref.JobID, ref.LeaseNo)
				beats, err := h.store.Heartbeat(store.Impatient(t.Context()), beatsOf(refs...))
				if got := strings.Join(faults(beats, beatErr), " "); err != nil || got != "ok ok ok" {
					t.Fatalf("heartbeats meanwhile: %s, %v", got, err)
				}
				if end(t, h, ref) {
					t.Fatal("the lease was ended while it was asserted")
				}
				if !end(t, h, refs[0]) || !end(t, h, refs[2]) {
					t.Error("another lease cannot be ended meanwhile")
				}
				app.exec(`COMMIT`)
				if !end(t, h, ref) {
					t.Error("after the commit the lease cannot be ended")
				}
				if got := app.refused(sqlAssert, ref.JobID, ref.LeaseNo); got != afterwards[name] {
					t.Errorf("afterwards: %q, want %q", got, afterwards[name])
				}
			})
		}
	}
}

// A caller hangs in a transaction that has completed a job: its rows are his until he is gone,
// and everything else goes on. Undone, the job is as it was.
func TestR46AHangingCompleteStopsNobody(t *testing.T) {
	t.Parallel()
	h := newSQLRoles(t)
	h.neverBlameless(t)
	refs := h.leases(t, 4)
	app := h.worker(t)
	app.exec(`BEGIN`)
	app.exec(`SELECT leasehold.complete($1, $2)`, refs[1].JobID, refs[1].LeaseNo)
	for name, call := range endingCalls {
		want := "ok " + busy
		if got, err := call(store.Impatient(t.Context()), h.store, []store.LeaseRef{refs[0], refs[1]}); err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s meanwhile: %q, %v", name, got, err)
		}
		refs[0] = h.leases(t, 1)[0]
	}
	if got := h.worker(t).refused(sqlAssert, refs[1].JobID, refs[1].LeaseNo); got != "JOB_BUSY" {
		t.Errorf("assert_lease meanwhile: %q", got)
	}
	h.Exec(t, `UPDATE leasehold.jobs SET lease_until = now() - interval '1 minute' WHERE id = ANY ($1::bigint[])`, []int64{int64(refs[2].JobID), int64(refs[3].JobID)})
	if n := h.sweep(t); n != 2 {
		t.Errorf("the sweep ended %d leases meanwhile, want 2", n)
	}
	leased := map[store.JobID]bool{}
	for _, lease := range h.acquireAny(t, 10) {
		leased[lease.Job.ID] = true
	}
	if !leased[refs[2].JobID] || !leased[refs[3].JobID] || leased[refs[1].JobID] {
		t.Errorf("leased meanwhile: %v, want those that the sweep ended and not the completed one", leased)
	}
	app.exec(`ROLLBACK`)
	beats, err := h.store.Heartbeat(t.Context(), beatsOf(refs[1]))
	if err != nil || beats[0].Err != nil {
		t.Errorf("after the rollback the lease is not renewed: %+v, %v", beats, err)
	}
}

// A transaction whose snapshot is older than the end of the lease does not take it for live.
func TestR46AnOldSnapshotKeepsNoLeaseAlive(t *testing.T) {
	t.Parallel()
	h := newSQLRoles(t)
	h.neverBlameless(t)
	for name, end := range rivals {
		ref := h.leases(t, 1)[0]
		app := h.worker(t)
		app.exec(`BEGIN ISOLATION LEVEL REPEATABLE READ`)
		app.exec(`SELECT txid_current_snapshot()`)
		if !end(t, h, ref) {
			t.Fatalf("%s does not end the lease", name)
		}
		for call, sql := range map[string]string{"assert_lease": sqlAssert, "complete": `SELECT leasehold.complete($1, $2, '"other"')`} {
			app.exec(`SAVEPOINT s`)
			got := app.refused(sql, ref.JobID, ref.LeaseNo)
			// An end by time leaves the job to its holder's Complete, if nobody has begun.
			if got != "40001" {
				t.Errorf("%s after %s: %q, want a serialization failure", call, name, got)
			}
			app.exec(`ROLLBACK TO s`)
		}
		app.exec(`ROLLBACK`)
	}
}

// A heartbeat that was committed after the snapshot does not make the lease look expired, nor
// does the snapshot keep it from being asserted.
func TestR46AssertBesideHeartbeats(t *testing.T) {
	t.Parallel()
	h := newSQLRoles(t)
	ref := h.leases(t, 1)[0]
	for _, isolation := range isolations {
		app := h.worker(t)
		app.exec(`BEGIN ISOLATION LEVEL ` + isolation)
		app.exec(`SELECT txid_current_snapshot()`)
		h.beat(t, ref, "between")
		if got := app.refused(sqlAssert, ref.JobID, ref.LeaseNo); got != "<nil>" {
			t.Errorf("%s: %s", isolation, got)
		}
		app.exec(`COMMIT`)
	}
	// The lease runs out within the snapshot's time, and may have been renewed since.
	app := h.worker(t)
	app.exec(`BEGIN ISOLATION LEVEL REPEATABLE READ`)
	app.exec(`SELECT txid_current_snapshot()`)
	h.Exec(t, `UPDATE leasehold.jobs SET lease_until = $2 WHERE id = $1`, ref.JobID, time.Now().Add(-time.Hour))
	if got := app.refused(sqlAssert, ref.JobID, ref.LeaseNo); got != "<nil>" {
		t.Errorf("within the snapshot the lease is live: %s", got)
	}
	app.exec(`ROLLBACK`)
	for _, isolation := range isolations {
		app.exec(`BEGIN ISOLATION LEVEL ` + isolation)
		if got := app.refused(sqlAssert, ref.JobID, ref.LeaseNo); got != "LEASE_EXPIRED" {
			t.Errorf("%s, expired and not yet ended: %s", isolation, got)
		}
		app.exec(`ROLLBACK`)
	}
}

func TestR46LeasesThatNeverWere(t *testing.T) {
	t.Parallel()
	h := newSQLRoles(t)
	ref := h.leases(t, 1)[0]
	app := h.worker(t)
	for _, c := range []struct {
		id, no any
		want   string
	}{
		{ref.JobID, ref.LeaseNo + 1, "LEASE_ENDED"}, {ref.JobID, 0, "LEASE_SUPERSEDED"}, {ref.JobID + 1, 1, "JOB_NOT_FOUND"},
		{nil, 1, "JOB_NOT_FOUND"}, {ref.JobID, nil, "LEASE_ENDED"}, {-1, -1, "JOB_NOT_FOUND"},
	} {
		for _, sql := range []string{sqlAssert, `SELECT leasehold.complete($1, $2)`} {
			if got := app.refused(sql, c.id, c.no); got != c.want {
				t.Errorf("%s of %v, %v: %q, want %q", sql, c.id, c.no, got, c.want)
			}
		}
	}
	if h.state(t, ref.JobID) != store.Processing {
		t.Error("the lease is gone")
	}
}

// effects is a table of an application, with each write under an asserted lease.
const effects = `CREATE TABLE public.effects (job_id bigint NOT NULL, lease_no bigint NOT NULL, at timestamptz NOT NULL)`

// sqlEffectsOfOthers finds effects under a lease that had ended, or was another's, when they
// were made. An end is stamped behind the lock of the row, so a commit under the lease comes first.
const sqlEffectsOfOthers = `
SELECT e.job_id || '/' || e.lease_no || ' at ' || e.at || ', ended ' || l.ended_at
FROM public.effects e LEFT JOIN leasehold.all_leases l ON l.job_id = e.job_id AND l.lease_no = e.lease_no
WHERE l.job_id IS NULL OR l.ended_at <= e.at
   OR EXISTS (SELECT FROM leasehold.all_leases n WHERE n.job_id = e.job_id AND n.lease_no > e.lease_no AND n.leased_at <= e.at)`

// TestR46NeverACommitUnderALeaseOfAnother races transactions that assert a lease and write
// against everything that ends it.
func TestR46NeverACommitUnderALeaseOfAnother(t *testing.T) {
	t.Parallel()
	for _, isolation := range isolations {
		t.Run(isolation, func(t *testing.T) {
			t.Parallel()
			h := newSQLRoles(t)
			h.neverBlameless(t)
			h.Exec(t, effects)
			h.Exec(t, `GRANT INSERT, SELECT ON public.effects TO `+workerLogin)
			app := [...]*stranger{h.worker(t), h.worker(t)}
			for round := range 4 {
				for name, end := range rivals {
					h.raceOne(t, app[:], isolation, fmt.Sprint(name, " ", round), end)
				}
			}
			if found := h.rows(t, sqlEffectsOfOthers); len(found) > 0 {
				t.Errorf("effects under a lease of another: %s", strings.Join(found, "; "))
			}
		})
	}
}

// raceOne lets transactions write under a lease until they are refused, which the rival brings
// about in the middle.
func (h *harness) raceOne(t *testing.T, apps []*stranger, isolation, name string, end rival) {
	t.Helper()
	ref := h.leases(t, 1)[0]
	wrote, refused := make(chan struct{}, len(apps)), make([]string, len(apps))
	var all sync.WaitGroup
	for i, app := range apps {
		all.Go(func() {
			for n := 0; ; n++ {
				err := app.effect(context.Background(), isolation, ref)
				if n == 0 {
					wrote <- struct{}{}
				}
				if refused[i] = reasonOf(err); err != nil && refused[i] != "40001" && refused[i] != "JOB_BUSY" {
					return
				}
			}
		})
	}
	<-wrote
	await(t, name+" ends the lease", func() bool { return end(t, h, ref) })
	all.Wait()
	for _, reason := range refused {
		if !strings.HasPrefix(reason, "LEASE_") {
			t.Errorf("%s, %s: refused with %s", isolation, name, reason)
		}
	}
}

// effect asserts the lease and writes, in one transaction with a snapshot from before.
func (s *stranger) effect(ctx context.Context, isolation string, ref store.LeaseRef) (err error) {
	tx, err := s.conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.TxIsoLevel(strings.ToLower(isolation))})
	if err != nil {
		return err
	}
	defer func() {
		if undone := tx.Rollback(ctx); undone != nil && !errors.Is(undone, pgx.ErrTxClosed) {
			err = errors.Join(err, undone)
		}
	}()
	if _, err := tx.Exec(ctx, `SELECT count(*) FROM public.effects`); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, sqlAssert, ref.JobID, ref.LeaseNo); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `INSERT INTO public.effects VALUES ($1, $2, clock_timestamp())`, ref.JobID, ref.LeaseNo); err != nil {
		return err
	}
	return tx.Commit(ctx)
}
