package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/doctest"
	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
)

// importWorld is a database with the guide's table of another system.
type importWorld struct {
	url, mapping string
	conn         *pgx.Conn
}

// newImportWorld makes the table as the guide does, in a schema of its own, with a mapping that
// is the guide's but for what change makes of it.
func newImportWorld(t *testing.T, change func(string) string) *importWorld {
	t.Helper()
	w := &importWorld{url: pgtest.Database(t, nil)}
	w.conn = connect(t, w.url)
	if code, _, stderr := runIn(t, nil, "migrate", "--database-url", w.url); code != exitDone {
		t.Fatal(stderr)
	}
	guide := doctest.Read(t, viewGuide)
	mustSQL(t, w.conn, `CREATE SCHEMA shop`)
	for _, block := range guide.Blocks("sql") {
		if block.Heading == "Import a jobs table" {
			mustSQL(t, w.conn, `SET search_path = shop`)
			mustSQL(t, w.conn, block.Text)
		}
	}
	mustSQL(t, w.conn, `INSERT INTO leasehold.queues (name) VALUES ('payments')`)
	w.mapping = filepath.Join(t.TempDir(), "payment_jobs.yaml")
	text := guide.Blocks("yaml")[0].Text
	if change != nil {
		text = change(text)
	}
	if err := os.WriteFile(w.mapping, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *importWorld) run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return runIn(t, nil, append([]string{"import", "--database-url", w.url, "--mapping", w.mapping}, args...)...)
}

// rows of the other system, of each kind there is.
const sqlPaymentJobs = `
INSERT INTO shop.payment_jobs (id, payment_id, amount, status, lease_owner, lease_until, attempts, last_error, created_at) VALUES
    (1, 101, 10, 'new', NULL, NULL, 0, NULL, '2026-01-01Z'),
    (2, 102, 20, 'retry', NULL, NULL, 3, 'card declined', '2026-01-02Z'),
    (3, 103, 30, 'processing', 'w-1', now() + interval '1 hour', 1, NULL, '2026-01-03Z'),
    (4, 104, 40, 'processing', 'w-2', now() - interval '1 hour', 2, NULL, '2026-01-04Z'),
    (5, 105, 50, 'done', NULL, NULL, 1, NULL, '2026-01-05Z'),
    (6, 106, 60, 'failed', NULL, NULL, 5, 'no such account', '2026-01-06Z'),
    (7, 107, 70, 'draft', NULL, NULL, 0, NULL, '2026-01-07Z'),
    (8, 108, 80, 'odd', NULL, NULL, 0, NULL, '2026-01-08Z'),
    (9, 109, 90, 'processing', 'w-3', NULL, 0, NULL, '2026-01-09Z'),
    (10, 110, 90, 'new', NULL, NULL, 1001, NULL, '2026-01-10Z'),
    (11, 111, 90, 'new', NULL, NULL, 0, NULL, 'infinity')`

const sqlImported = `
SELECT coalesce(string_agg(concat_ws(' ', i.source_key, j.state, j.attempts_used, j.payload::jsonb ->> 'amount', j.subject, to_char(j.created_at AT TIME ZONE 'UTC', 'DD'), j.error_message), ', '
    ORDER BY i.source_key::int), '') FROM leasehold.imported_jobs i JOIN leasehold.all_jobs j ON j.id = i.job_id`

// TestImportAPaymentsTable, row by row: what is taken, what is left, and what a later run takes.
func TestImportAPaymentsTable(t *testing.T) {
	t.Parallel()
	w := newImportWorld(t, nil)
	mustSQL(t, w.conn, sqlPaymentJobs)
	want := "1 PENDING 0 10 payment/101 01, 2 PENDING 3 20 payment/102 02 card declined, 4 PENDING 2 40 payment/104 04, " +
		"5 COMPLETED 1 50 payment/105 05, 6 DEAD 5 60 payment/106 06 no such account"
	for _, step := range []struct {
		args []string
		says string
		want string
	}{
		{[]string{"--dry-run"}, "would import 5 of 11 rows; left: 1 skipped, 1 leased, 0 locked, 4 bad", ""},
		{[]string{"--batch", "3"}, "imported 5 of 11 rows; left: 1 skipped, 1 leased, 0 locked, 4 bad", want},
		{nil, "imported 0 of 6 rows; left: 1 skipped, 1 leased, 0 locked, 4 bad", want},
	} {
		code, stdout, stderr := w.run(t, step.args...)
		if code != exitFound || !strings.Contains(stdout, step.says) {
			t.Errorf("import %v ends with %d and says\n%s%s", step.args, code, stdout, stderr)
		}
		for _, line := range []string{"row 3 is left: leased by w-1", `row 8 is left: the mapping has no state for "odd"`, "row 9 is left: lease_until must be set",
			"row 10 is left: attempts must be 0..1000", "row 11 is left: created_at and finished_at must lie"} {
			if !strings.Contains(stderr, line) {
				t.Errorf("import %v does not say %q, but\n%s", step.args, line, stderr)
			}
		}
		if got := sqlValue[string](t, w.conn, sqlImported); got != step.want {
			t.Errorf("after import %v there are\n%s, want\n%s", step.args, got, step.want)
		}
	}
	// The other system's worker is done, and the bad rows are mended.
	mustSQL(t, w.conn, `UPDATE shop.payment_jobs SET status = 'done' WHERE id = 3`)
	mustSQL(t, w.conn, `UPDATE shop.payment_jobs SET status = 'new', attempts = 0, created_at = '2026-01-01Z' WHERE id > 7`)
	if code, stdout, stderr := w.run(t); code != exitDone || !strings.Contains(stdout, "imported 5 of 6 rows; left: 1 skipped") {
		t.Errorf("the last import ends with %d and says\n%s%s", code, stdout, stderr)
	}
	if n := sqlValue[int](t, w.conn, `SELECT count(*)::int FROM shop.payment_jobs`); n != 11 {
		t.Errorf("the table has %d rows left, want all", n)
	}
	grpcAddress, _ := beginService(t, "serve", "--database-url", w.url).addresses(t)
	h := history{t: t, leases: pb.NewLeaseServiceClient(dial(t, grpcAddress))}
	lease := h.acquire("payments", "w", time.Minute)
	for lease.GetJob().GetSubject() != "payment/102" {
		lease = h.acquire("payments", "w", time.Minute)
	}
	if lease.GetAttempt() != 4 || lease.GetLeaseNo() != 1 || lease.GetJob().GetPayload().GetJson() != `{"amount": 20, "payment": 102}` {
		t.Errorf("a worker gets %v", lease)
	}
	if _, err := h.leases.Complete(t.Context(), &pb.CompleteRequest{LeaseToken: lease.GetLeaseToken()}); err != nil {
		t.Error(err)
	}
}

// TestImportKilledAndRunAgain: killed with -9 in the middle, several times, it loses nothing and
// doubles nothing. The rows it has taken are gone from the table, in the same transaction.
func TestImportKilledAndRunAgain(t *testing.T) {
	t.Parallel()
	w := newImportWorld(t, func(text string) string { return strings.Replace(text, "after: keep", "after: delete", 1) })
	const rows = 3000
	mustSQL(t, w.conn, fmt.Sprintf(`
INSERT INTO shop.payment_jobs (id, payment_id, amount, status, attempts)
SELECT n, n, n, (ARRAY['new', 'retry', 'done'])[1 + n %% 3], n %% 5 FROM generate_series(1, %d) AS n`, rows))
	taken := func() int { return sqlValue[int](t, w.conn, `SELECT count(*)::int FROM leasehold.imported_jobs`) }
	for range 3 {
		before := taken()
		p := begin(t, nil, "import", "--database-url", w.url, "--mapping", w.mapping, "--batch", "7")
		eventually(t, "some batches are done", func() bool { return taken() > before+20 })
		p.signal(t, syscall.SIGKILL)
		<-p.ended
		eventually(t, "the session of the killed one ends", func() bool {
			return sqlValue[int](t, w.conn, `SELECT count(*)::int FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'leasehold import'`) == 0
		})
	}
	code, stdout, stderr := w.run(t)
	if code != exitDone || !strings.Contains(stderr, " rows\n") {
		t.Fatalf("it ends with %d and says\n%s%s", code, stdout, stderr)
	}
	check := sqlValue[string](t, w.conn, `
SELECT concat_ws(' ', count(*), count(DISTINCT j.subject), sum((j.payload::jsonb ->> 'amount')::bigint), count(*) FILTER (WHERE j.state = 'COMPLETED'), sum(j.attempts_used),
    (SELECT count(*) FROM shop.payment_jobs)) FROM leasehold.all_jobs j`)
	if want := fmt.Sprintf("%d %d %d %d %d 0", rows, rows, rows*(rows+1)/2, rows/3, rows*2); check != want {
		t.Errorf("jobs, subjects, amounts, completed, attempts, rows left: %s, want %s", check, want)
	}
}

// TestImportLeavesWhatOthersHold, and does not run twice at once.
func TestImportLeavesWhatOthersHold(t *testing.T) {
	t.Parallel()
	w := newImportWorld(t, func(text string) string {
		text = strings.Replace(text, "expired: PENDING", "expired: STUCK", 1)
		text = strings.Replace(text, "key: id ", "key: id\nwhere: \"status NOT LIKE '%s%%' OR amount % 10 = 0\" ", 1)
		return strings.Replace(text, `payload: "`, `payload: "100 / (amount - 40) || ' ' || `, 1)
	})
	mustSQL(t, w.conn, sqlPaymentJobs)
	mustSQL(t, w.conn, `DELETE FROM shop.payment_jobs WHERE id > 7 OR id = 3`)
	other := connect(t, w.url)
	mustSQL(t, other, `BEGIN`)
	mustSQL(t, other, `SELECT FROM shop.payment_jobs WHERE id = 2 FOR UPDATE`)
	// An expression fails on row 4, and what it makes of the others is no JSON.
	code, stdout, stderr := w.run(t)
	if code != exitFound || !strings.Contains(stdout, "left: 1 skipped, 0 leased, 1 locked, 4 bad") ||
		!strings.Contains(stderr, "row 4 is left: ERROR: division by zero") || !strings.Contains(stderr, "row 5 is left: payload must be one JSON value") {
		t.Errorf("it ends with %d and says\n%s%s", code, stdout, stderr)
	}
	mustSQL(t, other, `SELECT pg_advisory_lock(hashtextextended('payment_jobs', 7310868735420870004))`)
	if code, _, stderr := w.run(t); code != exitFailed || !strings.Contains(stderr, "is running already") {
		t.Errorf("beside another it ends with %d and says %s", code, stderr)
	}
	mustSQL(t, other, `ROLLBACK`)
	mustSQL(t, other, `SELECT pg_advisory_unlock_all()`)
	text, err := os.ReadFile(w.mapping)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(w.mapping, []byte(strings.Replace(string(text), `100 / (amount - 40) || ' ' || `, "", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := w.run(t); code != exitDone {
		t.Errorf("mended, it ends with %d and says %s", code, stderr)
	}
	reason := sqlValue[string](t, w.conn, `SELECT s.state_reason FROM leasehold.stuck_jobs s WHERE s.diagnosis = 'HELD' AND s.subject = 'payment/104'`)
	if !strings.HasPrefix(reason, "imported: its lease of w-2 ran out at ") {
		t.Errorf("the reason is %q", reason)
	}
}

func TestImportRefusesBadMappings(t *testing.T) {
	t.Parallel()
	w := newImportWorld(t, nil)
	good, err := os.ReadFile(w.mapping)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		from, to string
		code     int
		says     string
	}{
		"no YAML":             {string(good), "{", exitUsage, "cannot be read"},
		"empty":               {string(good), "", exitUsage, "import: must be a name"},
		"an unknown field":    {"subject:", "subjekt:", exitUsage, "subjekt"},
		"an unknown state":    {"done: COMPLETED", "done: FINISHED", exitUsage, `states.done: must be one of`},
		"no end of a lease":   {"  lease_until: lease_until\n", "", exitUsage, "fields.lease_until: is required"},
		"no queue":            {`queue: "'payments'"`, "queue:", exitUsage, "fields.queue"},
		"two payloads":        {`  payload: `, "  data: \"''\"\n  payload: ", exitUsage, "must not both be set"},
		"held otherwise":      {"expired: PENDING", "expired: DEAD", exitUsage, "expired: must be"},
		"nothing afterwards":  {"after: keep", "after: archive", exitUsage, "after: must be"},
		"no such table":       {"shop.payment_jobs", "shop.nothing", exitFailed, "does not exist"},
		"no such key":         {"key: id", "key: uid", exitFailed, "no column uid"},
		"no such column":      {"state: status", "state: stratus", exitFailed, "stratus"},
		"not of the type":     {"attempts: attempts", "attempts: last_error::inet", exitFailed, "cannot cast"},
		"a bad name of a key": {"key: id", `key: 'id" OR true --'`, exitFailed, "no column"},
	} {
		path := filepath.Join(t.TempDir(), "mapping.yaml")
		text := strings.Replace(string(good), c.from, c.to, 1)
		if text == string(good) {
			t.Fatalf("%s: the guide's mapping has no %q", name, c.from)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		mustSQL(t, w.conn, `TRUNCATE shop.payment_jobs`)
		mustSQL(t, w.conn, sqlPaymentJobs)
		code, stdout, stderr := runIn(t, nil, "import", "--database-url", w.url, "--mapping", path)
		if code != c.code || !strings.Contains(stderr, c.says) {
			t.Errorf("%s: it ends with %d and says\n%s%s", name, code, stdout, stderr)
		}
	}
	for _, args := range [][]string{{"import"}, {"import", "--database-url", w.url}, {"import", "--database-url", w.url, "--mapping", "/nonexistent"},
		{"import", "--database-url", w.url, "--mapping", w.mapping, "--batch", "0"}} {
		if code, _, stderr := runIn(t, nil, args...); code != exitUsage {
			t.Errorf("%v ends with %d: %s", args, code, stderr)
		}
	}
	if got := sqlValue[string](t, w.conn, sqlImported); got != "" {
		t.Errorf("something was imported: %s", got)
	}
}
