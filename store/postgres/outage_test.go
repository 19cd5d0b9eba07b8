package postgres_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
	"github.com/leasehold/leasehold/store"
)

const sqlStamp = `SELECT writable_since || ' ' || stamped_at FROM leasehold.service`

// writableFor asks how long the service says that it has been able to take heartbeats.
func (h *harness) writableFor(t *testing.T) time.Duration {
	t.Helper()
	health, err := h.store.Health(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return health.WritableFor
}

func TestR35AStampAfterAGapRestartsSince(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	for _, c := range []struct {
		gap      time.Duration
		restarts bool
	}{{0, false}, {2 * time.Second, false}, {5100 * time.Millisecond, true}, {time.Hour, true}} {
		h.SetWritable(t, 10*time.Hour, c.gap)
		for _, when := range []string{"after the gap", "after a restart"} { // which is no gap by itself
			if err := h.store.StampWritable(t.Context()); err != nil {
				t.Fatal(err)
			}
			if since := h.writableFor(t); since < time.Hour != c.restarts {
				t.Errorf("%s of %v: writable for %v", when, c.gap, since)
			}
			h.store.Close()
			h.store = openStore(t, h.URL)
		}
	}
}

// Any lock that would stop a heartbeat stops the stamp, so that leases get their grace.
func TestR35NoStampIsWrittenWhileTheTableIsLocked(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	if err := h.store.StampWritable(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := one[string](t, h, sqlStamp)
	for _, mode := range []string{"SHARE", "EXCLUSIVE", "ACCESS EXCLUSIVE"} {
		holder := newStranger(t, h.URL)
		holder.exec(`BEGIN`)
		holder.exec(`LOCK TABLE leasehold.jobs IN ` + mode + ` MODE`)
		if err := h.store.StampWritable(t.Context()); !is[*store.BusyError](err) {
			t.Errorf("under a lock in %s mode: %v", mode, err)
		}
		holder.exec(`COMMIT`)
		if after := one[string](t, h, sqlStamp); after != before {
			t.Errorf("under a lock in %s mode the stamp went from %s to %s", mode, before, after)
		}
	}
	if err := h.store.StampWritable(t.Context()); err != nil {
		t.Error(err)
	}
}

// The bounds to the microsecond: statements that are sent together share their time.
func TestR35TheGraceIsHalfTheLeaseAndAtLeastFiveSeconds(t *testing.T) {
	t.Parallel()
	s := newStranger(t, newHarness(t).URL)
	for _, c := range []struct {
		lease, since, stamp string
		want                string
	}{
		{"60 s", "30 s", "0", "t"},
		{"60 s", "29.999999 s", "0", "f"},
		{"12 h", "6 h", "0", "t"},
		{"12 h", "5:59:59.999999", "0", "f"},
		{"10 s", "5 s", "0", "t"},
		{"1 s", "5 s", "0", "t"},
		{"1 s", "4.999999 s", "0", "f"},
		{"60 s", "1 day", "2.999999 s", "t"},
		{"60 s", "1 day", "3 s", "f"},
		{"60 s", "1 day", "1 hour", "f"},
	} {
		results, err := s.conn.PgConn().Exec(t.Context(), fmt.Sprintf(`
			UPDATE leasehold.service SET writable_since = statement_timestamp() - interval '%s', stamped_at = statement_timestamp() - interval '%s';
			SELECT leasehold.may_blame('%s')`, c.since, c.stamp, c.lease)).ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		if got := lastValue(results); got != c.want {
			t.Errorf("a lease of %s, writable since %s, stamped %s ago: %s", c.lease, c.since, c.stamp, got)
		}
	}
}

func lastValue(results []*pgconn.Result) string {
	return string(results[len(results)-1].Rows[0][0])
}

// overdue leases jobs of three kinds that are over: expired, overran, stalled.
func (h *harness) overdue(t *testing.T) []store.LeaseRef {
	t.Helper()
	runtime, stall := 30*time.Second, time.Minute
	length := 4 * time.Hour
	_, err := h.store.CreateQueue(t.Context(), store.Queue{Name: "q", StallEndsLease: true})
	if err != nil {
		t.Fatal(err)
	}
	ids := h.enqueue(t, store.NewJob{}, store.NewJob{Policy: store.Policy{MaxRuntime: &runtime}},
		store.NewJob{Policy: store.Policy{StallTimeout: &stall, LeaseDuration: &length}})
	refs := make([]store.LeaseRef, len(ids))
	for i, id := range ids {
		refs[i] = h.lease(t, id)
		h.Age(t, id, []time.Duration{time.Hour, 3 * time.Hour, 10 * time.Minute}[i])
	}
	return refs
}

// endAll lets everybody who ends leases by time try, and tells how many leases were ended.
func (h *harness) endAll(t *testing.T, refs []store.LeaseRef) int {
	t.Helper()
	h.sweep(t)
	if _, err := h.store.SweepPage(t.Context(), 0, 100, []string{"q"}); err != nil {
		t.Fatal(err)
	}
	for _, ref := range refs {
		out, err := h.store.Acquire(t.Context(), []store.Acquire{{JobID: ref.JobID, Owner: "worker-2", MaxJobs: 1}})
		if err != nil || out[0].Err != nil || len(out[0].Leases) == 0 && out[0].Empty != store.JobLeased {
			t.Fatalf("Acquire: %+v, %v", out, err)
		}
	}
	if _, err := h.store.Acquire(t.Context(), []store.Acquire{{Queues: []string{"q"}, Owner: "worker-3", MaxJobs: 10}}); err != nil {
		t.Fatal(err)
	}
	return len(refs) - one[int](t, h, `SELECT count(*)::int FROM leasehold.jobs WHERE state = 2 AND lease_no = 1`)
}

func TestR35NobodyIsBlamedForSilenceInAnOutage(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	refs := h.overdue(t)
	for _, c := range []struct {
		name         string
		since, stamp time.Duration
	}{
		{"writable again only now", 0, 0},
		{"writable for less than 5 s", time.Second, 0},
		{"the last stamp is old", 10 * time.Hour, 4 * time.Second},
		{"no stamp for an hour", 10 * time.Hour, time.Hour},
	} {
		h.SetWritable(t, c.since, c.stamp)
		if n := h.endAll(t, refs); n != 0 {
			t.Errorf("%s: %d leases were ended", c.name, n)
		}
	}
	// A replica comes back after an hour: its stamp begins the grace, and blames nobody yet.
	if err := h.store.StampWritable(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := h.endAll(t, refs); n != 0 {
		t.Errorf("after the first stamp %d leases were ended", n)
	}
	// The holders have had their chance: a lease whose holder took it goes on.
	if out, err := h.store.Heartbeat(t.Context(), beatsOf(refs[0])); err != nil || out[0].Err != nil {
		t.Errorf("Heartbeat after the outage: %+v, %v", out, err)
	}
	h.neverBlameless(t)
	h.Age(t, refs[0].JobID, 2*time.Minute)
	if n := h.endAll(t, refs); n != len(refs) {
		t.Errorf("after the grace %d of %d leases were ended", n, len(refs))
	}
	ends := h.rows(t, `SELECT ended_by FROM leasehold.all_leases WHERE lease_no = 1 ORDER BY job_id`)
	if fmt.Sprint(ends) != "[EXPIRED OVERRAN STALLED]" {
		t.Errorf("they ended as %v", ends)
	}
}

func TestR35TheGraceOfALongLeaseIsHalfOfIt(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	length := time.Hour
	id := h.enqueue(t, store.NewJob{Policy: store.Policy{LeaseDuration: &length}})[0]
	h.lease(t, id)
	h.Age(t, id, 2*time.Hour)
	for _, replica := range []string{"the same", "a restarted"} {
		h.SetWritable(t, 29*time.Minute, 0)
		if out, err := h.store.Acquire(t.Context(), []store.Acquire{{JobID: id, Owner: "worker-2", MaxJobs: 1}}); err != nil || out[0].Empty != store.JobLeased {
			t.Errorf("%s replica: Acquire: %+v, %v", replica, out, err)
		}
		if n := h.sweep(t); n != 0 {
			t.Errorf("%s replica ended %d leases", replica, n)
		}
		h.store.Close()
		h.store = openStore(t, h.URL)
	}
	h.SetWritable(t, 31*time.Minute, -time.Hour)
	if ref := h.lease(t, id); ref.LeaseNo != 2 {
		t.Errorf("after the grace it is leased under %d", ref.LeaseNo)
	}
}

// readOnly switches a server to read-only and back, under sessions that live on.
func (h *harness) readOnly(t *testing.T, on string) {
	t.Helper()
	h.Exec(t, `ALTER SYSTEM SET default_transaction_read_only = `+on)
	h.Exec(t, `SELECT pg_reload_conf()`)
}

// A primary that was demoted, or is protected for a while: R34 for the calls, R35 for the stamp.
func TestR34AReadOnlyServerIsUnavailableAndComesBack(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t)
	if err := migrate(t.Context(), server.URL("postgres")); err != nil {
		t.Fatal(err)
	}
	h := newHarnessOn(t, server.URL("postgres"))
	refs := h.leases(t, 8)
	if err := h.store.StampWritable(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := one[string](t, h, sqlStamp)
	calls := readAndWrite(h.store, refs)
	delete(calls, "GetJob") // reading goes on
	delete(calls, "Sweep")  // finds nothing to end
	// Each session learns of the setting in its own time.
	h.readOnly(t, "on")
	await(t, "writing fails", func() bool {
		_, err := h.store.Enqueue(t.Context(), []store.NewJob{{Queue: "q"}})
		return err != nil && one[string](t, h, `SHOW default_transaction_read_only`) == "on"
	})
	for name, call := range calls {
		if err := call(t.Context()); !is[*store.UnavailableError](err) {
			t.Errorf("%s on a read-only server: %v", name, err)
		}
	}
	if job, err := h.store.GetJob(t.Context(), refs[0].JobID, true); err != nil || job.State != store.Processing {
		t.Errorf("GetJob on a read-only server: %+v, %v", job, err)
	}
	if after := one[string](t, h, sqlStamp); after != before {
		t.Errorf("the stamp went from %s to %s on a read-only server", before, after)
	}
	h.readOnly(t, "off")
	for name, call := range calls {
		await(t, name+" works again", func() bool { return call(context.Background()) == nil })
	}
	if got := h.state(t, refs[0].JobID); got != store.Completed {
		t.Errorf("the job is %v", got)
	}
}
