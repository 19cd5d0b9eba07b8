package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"google.golang.org/protobuf/proto"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/privatepg"
	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
)

// lint runs lint and returns its findings by check. The exit code must fit.
func (o *operated) lint(args ...string) map[pb.LintCheck]*pb.LintFinding {
	o.Helper()
	code, stdout, stderr := runIn(o.T, o.env(), append([]string{"lint"}, args...)...)
	resp := &pb.LintResponse{}
	if code == exitDone || code == exitFound {
		o.must(unmarshalJSON(stdout, resp))
	}
	if want := map[bool]int{true: exitFound, false: exitDone}[len(resp.GetFindings()) > 0]; code != want {
		o.Fatalf("lint %v: exit code %d, want %d\n%s%s", args, code, want, stdout, stderr)
	}
	found := map[pb.LintCheck]*pb.LintFinding{}
	for _, f := range resp.GetFindings() {
		if f.GetMessage() == "" || f.GetRemedy() == "" || f.GetSubject() == "" || len(f.GetNumbers()) == 0 || f.GetSeverity() == 0 {
			o.Errorf("a finding without its numbers or its remedy: %v", f)
		}
		found[f.GetCheck()] = f
	}
	return found
}

// wantFound checks that lint finds these and nothing else.
func (o *operated) wantFound(found map[pb.LintCheck]*pb.LintFinding, want ...pb.LintCheck) {
	o.Helper()
	got := slices.Sorted(maps.Keys(found))
	slices.Sort(want)
	if !slices.Equal(got, want) {
		o.Errorf("lint finds %v, want %v", found, want)
	}
}

// number checks a number of a finding.
func (o *operated) number(f *pb.LintFinding, name string, least, most float64) {
	o.Helper()
	if n, is := f.GetNumbers()[name]; !is || n < least || n > most {
		o.Errorf("%s is %v, want %v..%v: %v", name, n, least, most, f)
	}
}

// TestLintFindsNothingInAHealthySystem: two workers with names, heartbeats in time, a choice
// about expiry, one job that fails and one worker that crashes once.
func TestLintFindsNothingInAHealthySystem(t *testing.T) {
	t.Parallel()
	o := operateOne(t)
	o.wantFound(o.lint()) // nothing has happened yet
	o.run(0, "queues", "create", "payments", "--on-expiry", "hold")
	o.enqueue("payments", 40)
	leases := append(o.acquire("payments", "host-1/17", 20, time.Hour), o.acquire("payments", "host-2/23", 19, time.Hour)...)
	o.acquire("payments", "host-3/5", 1, time.Second) // it crashes
	for _, lease := range leases {
		_, err := o.leases.Heartbeat(t.Context(), &pb.HeartbeatRequest{LeaseToken: lease.GetLeaseToken(), Stage: proto.String("psp_call")})
		o.must(err)
	}
	o.failAll(leases[:1])
	for _, lease := range leases[1:] {
		o.must(o.complete(lease))
	}
	eventually(t, "the crash is noticed", func() bool {
		resp, err := o.leases.ListStuck(t.Context(), &pb.ListStuckRequest{Diagnoses: []pb.Diagnosis{pb.Diagnosis_DIAGNOSIS_HELD}})
		o.must(err)
		return len(resp.GetJobs()) == 1
	})
	o.wantFound(o.lint())
}

// TestLintLeasesThatAreTooShort: with leases of 2 s and jobs of 5 s without heartbeats lint
// says so, with the numbers.
func TestLintLeasesThatAreTooShort(t *testing.T) {
	t.Parallel()
	o := operateOne(t)
	for queue, length := range map[string]string{"silent": "2s", "beating": "5s"} {
		o.run(0, "queues", "create", queue, "--on-expiry", "requeue", "--lease-duration", length)
		o.enqueue(queue, 5)
	}
	silent := o.acquire("silent", "w/1", 5, 2*time.Second)
	beating := o.acquire("beating", "w/1", 5, 5*time.Second)
	beats := &pb.BatchHeartbeatRequest{}
	for _, lease := range beating {
		beats.Items = append(beats.Items, &pb.HeartbeatRequest{LeaseToken: lease.GetLeaseToken()})
	}
	_, err := o.leases.BatchHeartbeat(t.Context(), beats)
	o.must(err)
	second := o.acquire("silent", "w/2", 5, time.Hour) // as soon as the first ones have run out
	o.awaitAge(silent[4].GetJob().GetJobId(), 1, 5*time.Second)
	for _, lease := range silent {
		if o.complete(lease) == nil {
			t.Fatal("a lease that was taken over was completed")
		}
	}
	for _, lease := range beating {
		o.awaitState(lease.GetJob().GetJobId(), pb.JobState_JOB_STATE_PENDING)
	}
	for _, lease := range append(second, beating...) {
		o.must(o.complete(lease))
	}

	found := o.lint("--queue", "silent")
	o.wantFound(found, pb.LintCheck_LINT_CHECK_NO_HEARTBEAT, pb.LintCheck_LINT_CHECK_DOUBLE_RUNS, pb.LintCheck_LINT_CHECK_LEASES_EXPIRE)
	f := found[pb.LintCheck_LINT_CHECK_NO_HEARTBEAT]
	o.number(f, "leases", 5, 5)
	o.number(f, "lease_seconds", 2, 2)
	o.number(f, "longest_seconds", 5, 120)
	if f.GetSeverity() != pb.LintSeverity_LINT_SEVERITY_ERROR || !strings.Contains(f.GetMessage(), "in a lease of 2s") || !strings.Contains(f.GetRemedy(), "leasehold queues set silent --lease-duration") {
		t.Errorf("it should name both times and what to do: %v", f)
	}
	o.number(found[pb.LintCheck_LINT_CHECK_DOUBLE_RUNS], "leases", 5, 5)
	o.number(found[pb.LintCheck_LINT_CHECK_DOUBLE_RUNS], "late_calls", 5, 5)
	o.number(found[pb.LintCheck_LINT_CHECK_LEASES_EXPIRE], "share", 0.5, 0.5)

	found = o.lint("--queue", "beating")
	o.wantFound(found, pb.LintCheck_LINT_CHECK_LEASE_TOO_SHORT, pb.LintCheck_LINT_CHECK_LEASES_EXPIRE)
	f = found[pb.LintCheck_LINT_CHECK_LEASE_TOO_SHORT]
	o.number(f, "leases_outlived", 5, 5)
	o.number(f, "lease_seconds", 5, 5)
	o.number(f, "gap_max_seconds", 5, 120)
	o.number(f, "gap_p99_seconds", 5, 120)
	o.run(exitFailed, "lint", "--queue", "nothing-else")
}

// awaitAge waits until a lease began so long ago, by the database's clock.
func (o *operated) awaitAge(job string, leaseNo int64, age time.Duration) {
	o.Helper()
	conn := connect(o.T, o.url)
	eventually(o.T, fmt.Sprintf("lease %d of job %s is %v old", leaseNo, job, age), func() bool {
		var old bool
		err := conn.QueryRow(o.Context(), `
SELECT coalesce(bool_or(l.leased_at <= clock_timestamp() - $3::interval), false) FROM leasehold.all_leases l
WHERE l.job_id = $1::text::bigint AND l.lease_no = $2`, job, leaseNo, age).Scan(&old)
		o.must(err)
		return old
	})
}

func TestLintLeasesWithoutRoom(t *testing.T) {
	t.Parallel()
	o := operateOne(t)
	o.run(0, "queues", "create", "tight", "--on-expiry", "hold")
	o.enqueue("tight", 20)
	leases := o.acquire("tight", "w/1", 20, time.Hour)
	// Nobody waits for work of three quarters of an hour.
	_, err := connect(t, o.url).Exec(t.Context(), `UPDATE leasehold.jobs SET leased_at = leased_at - interval '45 minutes'`)
	o.must(err)
	for _, lease := range leases {
		o.must(o.complete(lease))
	}
	found := o.lint("--queue", "tight")
	f := found[pb.LintCheck_LINT_CHECK_LEASE_TOO_SHORT]
	o.wantFound(found, pb.LintCheck_LINT_CHECK_LEASE_TOO_SHORT)
	o.number(f, "gap_p99_seconds", 45*60, 60*60)
	o.number(f, "gap_p99_share_of_lease", 2.0/3, 1)
	if f.GetSeverity() != pb.LintSeverity_LINT_SEVERITY_WARNING {
		t.Errorf("nothing has gone wrong yet: %v", f)
	}
	o.run(exitDone, "lint", "--queue", "tight", "--severity", "error")
}

func TestLintOwnersAndChoices(t *testing.T) {
	t.Parallel()
	o := operateOne(t, "--auto-create-queues")
	finish := func(queue, owner string, n int) {
		o.enqueue(queue, n)
		for _, lease := range o.acquire(queue, owner, n, time.Minute) {
			o.must(o.complete(lease))
		}
	}
	o.run(0, "queues", "create", "blank", "--on-expiry", "hold")
	finish("blank", "unknown", 3)
	found := o.lint("--queue", "blank")
	o.wantFound(found, pb.LintCheck_LINT_CHECK_OWNER_EMPTY)
	o.number(found[pb.LintCheck_LINT_CHECK_OWNER_EMPTY], "leases", 3, 3)

	o.run(0, "queues", "create", "same", "--on-expiry", "hold")
	finish("same", "worker", 20)
	found = o.lint("--queue", "same")
	o.wantFound(found, pb.LintCheck_LINT_CHECK_OWNER_SAME)
	o.number(found[pb.LintCheck_LINT_CHECK_OWNER_SAME], "leases", 20, 20)

	finish("unchosen", "w/1", 1)
	o.wantFound(o.lint("--queue", "unchosen"), pb.LintCheck_LINT_CHECK_ON_EXPIRY_UNCHOSEN)
	o.run(0, "queues", "set", "unchosen", "--on-expiry", "requeue")
	o.wantFound(o.lint("--queue", "unchosen"))
}

func TestLintWatcherThatDoesNotPass(t *testing.T) {
	t.Parallel()
	o := operateOn(t, pgtest.Database(t, nil), "--watcher-interval", "1h")
	conn := connect(t, o.url)
	eventually(t, "the watcher's missing passes", func() bool {
		// The pass at the start may come after this.
		_, err := conn.Exec(t.Context(), `UPDATE leasehold.service SET swept_at = clock_timestamp() - interval '4 hours', writable_since = clock_timestamp() - interval '1 day'`)
		o.must(err)
		found := o.lint()
		if len(found) == 0 {
			return false
		}
		o.wantFound(found, pb.LintCheck_LINT_CHECK_WATCHER_LATE)
		o.number(found[pb.LintCheck_LINT_CHECK_WATCHER_LATE], "last_pass_seconds", 4*3600, 5*3600)
		o.number(found[pb.LintCheck_LINT_CHECK_WATCHER_LATE], "allowed_seconds", 3*3600, 3*3600+10)
		return true
	})
}

// TestLintWhatHoldsBackVacuum: a session, one in another database that has written, a prepared
// transaction and a slot; and the dead rows that they leave behind.
func TestLintWhatHoldsBackVacuum(t *testing.T) {
	t.Parallel()
	server := pgtest.ServerWith(t, privatepg.Config{Ephemeral: true, ExtraSettings: map[string]string{"max_prepared_transactions": "2"}})
	url := server.URL("postgres")
	o := operateOn(t, url, "--auto-create-queues=false")
	nothing := func() bool { return len(o.lint("--max-transaction-age", "1s")) == 0 }
	eventually(t, "nothing yet", nothing)
	for _, c := range []struct {
		holder, name string
		hold         func() (release func())
	}{
		{"session", "reporter", func() func() {
			session := connect(t, url+"&application_name=reporter")
			tx, err := session.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
			o.must(err)
			_, err = tx.Exec(t.Context(), `SELECT count(*) FROM leasehold.jobs`)
			o.must(err)
			return func() { o.must(tx.Rollback(t.Context())) }
		}},
		{"session", "database template1", func() func() {
			tx, err := connect(t, server.URL("template1")).Begin(t.Context())
			o.must(err)
			_, err = tx.Exec(t.Context(), `SELECT pg_current_xact_id()`)
			o.must(err)
			return func() { o.must(tx.Rollback(t.Context())) }
		}},
		{"prepared", "forgotten", func() func() {
			conn := connect(t, url)
			for _, sql := range []string{`BEGIN`, `SELECT pg_current_xact_id()`, `PREPARE TRANSACTION 'forgotten'`} {
				_, err := conn.Exec(t.Context(), sql)
				o.must(err)
			}
			return func() {
				_, err := conn.Exec(t.Context(), `ROLLBACK PREPARED 'forgotten'`)
				o.must(err)
			}
		}},
		{"slot", "left_behind", func() func() { return o.leaveSlot(url, "left_behind") }},
	} {
		release := c.hold()
		eventually(t, c.holder+" "+c.name, func() bool {
			f := o.lint("--max-transaction-age", "1s")[pb.LintCheck_LINT_CHECK_VACUUM_HELD]
			return strings.HasPrefix(f.GetSubject(), c.holder+" ") && strings.Contains(f.GetSubject(), c.name)
		})
		release()
		eventually(t, "nothing after "+c.name, nothing)
	}
}

// leaveSlot makes a slot as a standby with hot_standby_feedback leaves it behind that went
// away: it holds a snapshot, and nobody reads it.
func (o *operated) leaveSlot(url, name string) (release func()) {
	o.Helper()
	ctx, cancel := context.WithTimeout(o.Context(), patience)
	defer cancel()
	conn := connect(o.T, url)
	var horizon uint32
	_, err := conn.Exec(ctx, `SELECT pg_create_physical_replication_slot($1, true)`, name)
	o.must(err)
	o.must(conn.QueryRow(ctx, `SELECT txid_current()::bigint`).Scan(&horizon))
	var at string
	o.must(conn.QueryRow(ctx, `SELECT pg_current_wal_lsn()::text`).Scan(&at))
	standby, err := pgconn.Connect(ctx, url+"&replication=true")
	o.must(err)
	defer func() { _ = standby.Close(ctx) }()
	standby.Frontend().SendQuery(&pgproto3.Query{String: "START_REPLICATION SLOT " + name + " PHYSICAL " + at})
	o.must(standby.Frontend().Flush())
	for {
		msg, err := standby.ReceiveMessage(ctx)
		o.must(err)
		if _, is := msg.(*pgproto3.CopyBothResponse); is {
			break
		}
	}
	feedback := append([]byte{'h'}, make([]byte, 24)...) // clock, xmin, its epoch, catalog_xmin, its epoch
	copy(feedback[9:], networkOrder(horizon))
	standby.Frontend().Send(&pgproto3.CopyData{Data: feedback})
	o.must(standby.Frontend().Flush())
	eventually(o.T, "the slot holds a snapshot", func() bool {
		var held bool
		o.must(conn.QueryRow(ctx, `SELECT xmin IS NOT NULL FROM pg_replication_slots WHERE slot_name = $1`, name).Scan(&held))
		return held
	})
	return func() {
		_, err := conn.Exec(o.Context(), `SELECT pg_drop_replication_slot($1)`, name)
		o.must(err)
	}
}

func networkOrder(n uint32) []byte {
	return []byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}
}

// TestLintGrowth: an old snapshot, under which each update leaves a dead row behind; and a
// history that outgrows what it may have.
func TestLintGrowth(t *testing.T) {
	t.Parallel()
	o := operateOne(t, "--auto-create-queues=false")
	o.run(0, "queues", "create", "payments", "--on-expiry", "hold")
	o.enqueue("payments", 5000)
	o.wantFound(o.lint("--size-budget", "1GiB"))
	found := o.lint("--size-budget", "1MiB")
	o.wantFound(found, pb.LintCheck_LINT_CHECK_GROWTH)
	o.number(found[pb.LintCheck_LINT_CHECK_GROWTH], "bytes", 1<<20, 1<<30)
	o.number(found[pb.LintCheck_LINT_CHECK_GROWTH], "budget_bytes", 1<<20, 1<<20)

	conn, reader := connect(t, o.url), connect(t, o.url)
	_, err := conn.Exec(t.Context(), `ALTER TABLE leasehold.jobs SET (autovacuum_enabled = false)`)
	o.must(err)
	tx, err := reader.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	o.must(err)
	_, err = tx.Exec(t.Context(), `SELECT count(*) FROM leasehold.jobs`)
	o.must(err)
	for range 21 {
		_, err := conn.Exec(t.Context(), `UPDATE leasehold.jobs SET run_at = run_at + interval '1 day'`)
		o.must(err)
	}
	eventually(t, "dead rows", func() bool {
		f := o.lint()[pb.LintCheck_LINT_CHECK_DEAD_ROWS]
		if f == nil {
			return false
		}
		o.number(f, "dead_rows", 100_000, 110_000)
		return f.GetSubject() == "table jobs"
	})
	o.must(tx.Rollback(t.Context()))
}
