package faulttest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/replica"
)

// sqlSlowSweep lets the next statements of the service that write jobs begin with a pause,
// before they lock a row, and makes it impossible to write the job of that id.
var sqlSlowSweep = []string{`CREATE SEQUENCE public.pauses`, `
CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('application_name') = 'leasehold' AND nextval('public.pauses') <= 3 THEN PERFORM pg_sleep(0.5); END IF;
    RETURN NULL;
END $$`, `
CREATE TRIGGER slow BEFORE UPDATE ON leasehold.jobs FOR EACH STATEMENT EXECUTE FUNCTION public.slow()`, `
CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$`, `
CREATE TRIGGER refuse BEFORE UPDATE ON leasehold.jobs FOR EACH ROW WHEN (OLD.id = %s) EXECUTE FUNCTION public.refuse()`,
}

// TestASweepEndsHundredsBesideRowsThatAreOutOfOrder: each row that cannot be ended as usual
// would abort a sweep that takes all rows in one statement, and with it every later one.
func TestASweepEndsHundredsBesideRowsThatAreOutOfOrder(t *testing.T) {
	t.Parallel()
	f := newFleet(t, database(t), 1, "--watcher-interval", "500ms")
	m := f.members[0]
	q, gone := opened(t, f, &pb.Queue{Name: "q"}), opened(t, f, &pb.Queue{Name: "gone"})
	keyed := stored(t, m, 1, &pb.EnqueueRequest{Queue: q, IdempotencyKey: to("k")})[0]
	others := stored(t, m, 500, &pb.EnqueueRequest{Queue: q})
	refused, deleted := others[250], others[300]
	ofGone := stored(t, m, 1, &pb.EnqueueRequest{Queue: gone})[0]
	taken(t, m, q, 501, time.Hour)
	taken(t, m, gone, 1, time.Hour)

	// The key of a leased job belongs to another one by now, and its queue is deleted.
	rival := stored(t, m, 1, &pb.EnqueueRequest{Queue: q})[0]
	f.db.Exec(t, `UPDATE leasehold.idempotency_keys SET job_id = $1::text::bigint WHERE key = 'k'`, rival)
	f.db.Exec(t, `UPDATE leasehold.queues SET deleted_at = now() WHERE name = 'gone'`)
	mayNotExpire(t, f)
	f.db.Exec(t, sqlOverdue)
	for _, sql := range sqlSlowSweep {
		f.db.Exec(t, strings.ReplaceAll(sql, "%s", refused))
	}
	mayExpire(t, f)
	eventually(t, "a sweep has begun", func() bool {
		return look[bool](t, f, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep')`)
	})
	f.db.Exec(t, `DELETE FROM leasehold.jobs WHERE id = $1::text::bigint`, deleted)

	eventually(t, "all but one are ended", func() bool {
		return look[int](t, f, `SELECT count(*)::int FROM leasehold.jobs WHERE state = 2`) == 1
	})
	if got := stateOf(t, f, refused); got != "PROCESSING" {
		t.Errorf("the job that the database refuses to write is %s", got)
	}
	for what, id := range map[string]string{"whose key another has": keyed, "of a deleted queue": ofGone} {
		if got := stateOf(t, f, id); got != "PENDING" {
			t.Errorf("the job %s is %s", what, got)
		}
	}
	if owner := look[string](t, f, `SELECT job_id::text FROM leasehold.idempotency_keys`); owner != rival {
		t.Errorf("the key belongs to job %s, want %s", owner, rival)
	}
	// The row that is left is reported, and no reason to take the replica out of service.
	eventually(t, "passes fail and are finished", func() bool {
		return gauges(t, m)[`leasehold_loop_passes_total{loop="watcher",outcome="error"}`] > 1 &&
			look[bool](t, f, `SELECT swept_at > now() - interval '20 seconds' FROM leasehold.service`)
	})
	if !isReady(m) {
		t.Error("one bad row makes the replica unready")
	}
	f.db.Exec(t, `DROP TRIGGER refuse ON leasehold.jobs`)
	eventually(t, "the last one is ended", func() bool { return stateOf(t, f, refused) == "PENDING" })
	wantSound(t, f, true)
}

// TestSweepingGoesOnWithoutTheReplicasThatFroze: nobody is the one that sweeps, so that no
// leader has to be found first.
func TestSweepingGoesOnWithoutTheReplicasThatFroze(t *testing.T) {
	t.Parallel()
	f := newFleet(t, database(t), 3, "--watcher-interval", "300ms")
	q := opened(t, f, &pb.Queue{Name: "q"})
	mayExpire(t, f)
	for left := 2; left >= 0; left-- {
		f.members[(left+1)%3].Freeze()
		f.members[(left+2)%3].Freeze()
		id := stored(t, f.members[left], 1, &pb.EnqueueRequest{Queue: q})[0]
		resp := accepted(t, f.members[left].leases.AcquireLease, &pb.AcquireLeaseRequest{JobId: &id, LeaseOwner: "w"})
		f.db.Exec(t, sqlOverdue)
		eventually(t, "the only replica that runs ends the lease", func() bool { return stateOf(t, f, id) == "PENDING" })
		f.members[(left+1)%3].Thaw()
		f.members[(left+2)%3].Thaw()
		if _, err := f.members[(left+1)%3].leases.Heartbeat(t.Context(), &pb.HeartbeatRequest{
			LeaseToken: resp.GetLeases()[0].GetLeaseToken(),
		}); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("a replica that was frozen says of the ended lease: %v", err)
		}
	}
	for _, m := range f.members {
		eventually(t, "all replicas are ready again", func() bool { return isReady(m) })
	}
	wantSound(t, f, true)
}

// sqlLimited are the rights that a replica needs which does not migrate.
var sqlLimited = []string{
	`CREATE ROLE %s`,
	`GRANT USAGE ON SCHEMA leasehold TO %s`,
	`GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA leasehold TO %s`,
	`GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA leasehold TO %s`,
	`GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA leasehold TO %s`,
}

// limited starts a replica as a role with no more rights than it needs.
func limited(t *testing.T, f *fleet, args ...string) (m *member, role string) {
	t.Helper()
	role = look[string](t, f, `SELECT 'limited_' || current_database()`)
	for _, sql := range sqlLimited {
		f.db.Exec(t, fmt.Sprintf(sql, role))
	}
	t.Cleanup(func() { // roles outlive the database
		f.db.Exec(t, `DROP OWNED BY `+role)
		f.db.Exec(t, `DROP ROLE `+role)
	})
	return newMember(t, replica.Config{DatabaseURL: f.db.URL + "&role=" + role, Args: append(args, "--migrate", "check")}), role
}

// TestRightsThatAreTakenAwayAndGivenBack: a replica that may not write says so, ends no lease
// that it took no heartbeats for, and goes on by itself.
func TestRightsThatAreTakenAwayAndGivenBack(t *testing.T) {
	t.Parallel()
	f := newFleet(t, database(t), 0)
	m, role := limited(t, f, "--watcher-interval", "300ms")
	f.members = []*member{m}
	q := opened(t, f, &pb.Queue{Name: "q"})
	stored(t, m, 1, &pb.EnqueueRequest{Queue: q})
	lease := taken(t, m, q, 1, 2*time.Second)[0]
	mayExpire(t, f)
	f.db.Exec(t, `REVOKE UPDATE ON leasehold.jobs FROM `+role)
	if _, err := m.leases.Heartbeat(t.Context(), &pb.HeartbeatRequest{LeaseToken: lease.GetLeaseToken()}); err == nil || strings.Contains(err.Error(), "permission") {
		t.Errorf("a heartbeat that cannot be written answers %v", err)
	}
	eventually(t, "it is not ready", func() bool { return saysWhyNot(m, "takes no writes") })
	if age := gauges(t, m)["leasehold_stamp_age_seconds"]; age < 3 {
		t.Errorf("the stamp is %v s old by the metrics", age)
	}
	if code, _ := ask(m, "/healthz"); code != 200 {
		t.Errorf("/healthz answers %d", code)
	}
	if got := stateOf(t, f, lease.GetJob().GetJobId()); got != "PROCESSING" {
		t.Errorf("the lease that nobody could renew is over: the job is %s", got)
	}
	f.db.Exec(t, `GRANT UPDATE ON leasehold.jobs TO `+role)
	eventually(t, "heartbeats are taken", func() bool {
		_, err := m.leases.Heartbeat(t.Context(), &pb.HeartbeatRequest{LeaseToken: lease.GetLeaseToken()})
		return err == nil
	})
	eventually(t, "it is ready", func() bool { return isReady(m) })
	eventually(t, "sweeping goes on", func() bool { return stateOf(t, f, lease.GetJob().GetJobId()) == "PENDING" })
	wantSound(t, f, true)
}
