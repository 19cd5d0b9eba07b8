package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/internal/privatepg"
	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
	"github.com/leasehold/leasehold/store"
)

func migrateQuietly(ctx context.Context, url string) error {
	return Migrate(ctx, url, slog.New(slog.DiscardHandler))
}

// later are migrations of the kinds that the policy allows, as they would follow those of files.
func later(t *testing.T, files fs.FS) fs.FS {
	t.Helper()
	all := fstest.MapFS{}
	names, err := fs.Glob(files, "*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			t.Fatal(err)
		}
		all[name] = &fstest.MapFile{Data: text}
	}
	for i, sql := range []string{
		"-- +goose Up\nALTER TABLE leasehold.jobs ADD COLUMN sample integer;\n",
		"-- +goose Up\nALTER TABLE leasehold.jobs ADD CONSTRAINT sample_is_small CHECK (sample < 10) NOT VALID;\n",
		"-- +goose Up\nALTER TABLE leasehold.jobs VALIDATE CONSTRAINT sample_is_small;\n",
		"-- +goose NO TRANSACTION\n-- +goose Up\nSET lock_timeout = 0;\nDROP INDEX CONCURRENTLY IF EXISTS leasehold.jobs_sample;\n" +
			"CREATE INDEX CONCURRENTLY jobs_sample ON leasehold.jobs (sample) WHERE sample IS NOT NULL;\nRESET lock_timeout;\n",
	} {
		all[fmt.Sprintf("%05d_sample.sql", len(names)+1+i)] = &fstest.MapFile{Data: []byte(sql)}
	}
	for name, file := range all {
		for _, b := range breaches(name, string(file.Data)) {
			if !isBase(name) {
				t.Errorf("%s: the sample breaks the policy: %s", name, b)
			}
		}
	}
	return all
}

func embedded(t *testing.T) fs.FS {
	t.Helper()
	files, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// beats measures heartbeats and claims that are made all the time.
type beats struct {
	mu      sync.Mutex
	n       int
	longest time.Duration
	failed  error
}

func (b *beats) note(began time.Time, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n++
	b.longest = max(b.longest, time.Since(began))
	b.failed = cmp.Or(b.failed, err)
}

// again repeats a call that is busy or away until it is answered, and measures all of it.
func again[T any](b *beats, call func() ([]T, error), item func(T) error) (out []T) {
	for began := time.Now(); ; {
		out, err := call()
		if err == nil {
			err = item(out[0])
		}
		var busy *store.BusyError
		var away *store.UnavailableError
		if (errors.As(err, &busy) || errors.As(err, &away)) && time.Since(began) < time.Minute {
			continue
		}
		b.note(began, err)
		return out
	}
}

func (b *beats) look() (int, time.Duration, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.n, b.longest, b.failed
}

// beating takes jobs, renews their leases and completes them until the end of ctx.
func beating(ctx context.Context, s *Store) (b *beats, ended <-chan struct{}) {
	b = &beats{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			call, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
			got := again(b, func() ([]store.Acquired, error) {
				return s.Acquire(call, []store.Acquire{{Queues: []string{"q"}, Owner: "w", MaxJobs: 1}})
			}, func(a store.Acquired) error { return a.Err })
			for i := range got[0].Leases {
				lease := got[0].Leases[i].Ref()
				again(b, func() ([]store.Beaten, error) { return s.Heartbeat(call, []store.Heartbeat{{Lease: lease}}) },
					func(o store.Beaten) error { return o.Err })
				again(b, func() ([]store.Completion, error) { return s.Complete(call, []store.Complete{{Lease: lease}}) },
					func(o store.Completion) error { return o.Err })
			}
			cancel()
		}
	}()
	return b, done
}

const sqlManyJobs = `
INSERT INTO leasehold.jobs (id, queue_id, run_at)
SELECT nextval('leasehold.job_id_seq'), 1, clock_timestamp() FROM generate_series(1, $1::int)`

// idle opens a transaction that has read jobs and does nothing more.
func idle(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	if _, err := conn.Exec(t.Context(), `SET application_name = 'a tester'; BEGIN; SELECT count(*) FROM (SELECT FROM leasehold.jobs LIMIT 1) j`); err != nil {
		t.Fatal(err)
	}
	return conn
}

// migrateBesideAnIdleTransaction migrates a big table under load while a transaction that has read
// it is idle for so long. It returns the longest call.
func migrateBesideAnIdleTransaction(t *testing.T, jobs int, idleFor time.Duration) time.Duration {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	url := pgtest.Database(t, migrateQuietly)
	s, err := Open(t.Context(), Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if _, err := s.CreateQueue(t.Context(), store.Queue{Name: "q"}); err != nil {
		t.Fatal(err)
	}
	for left := jobs; left > 0; left -= 100_000 {
		if _, err := conn.Exec(t.Context(), sqlManyJobs, min(left, 100_000)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := conn.Exec(t.Context(), `VACUUM ANALYZE leasehold.jobs`); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `SELECT leasehold.ensure_partitions()`); err != nil {
		t.Fatal(err)
	}
	tester := idle(t, url)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	b, ended := beating(ctx, s)
	migrated := make(chan error, 1)
	began := time.Now()
	go func() {
		migrated <- migration{url: url, files: later(t, embedded(t)), log: quiet, patience: 10 * time.Minute}.run(ctx)
	}()
	timer := time.NewTimer(idleFor)
	select {
	case err := <-migrated:
		t.Fatalf("it did not wait for the idle transaction: %v", err)
	case <-timer.C:
	}
	if _, err := tester.Exec(t.Context(), `ROLLBACK`); err != nil {
		t.Fatal(err)
	}
	if err := <-migrated; err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	stop()
	<-ended
	n, longest, err := b.look()
	if err != nil || n < 20 {
		t.Errorf("%d calls, the first failure: %v", n, err)
	}
	t.Logf("%d jobs, a transaction idle for %v: migrated in %v; %d calls meanwhile, the longest took %v", jobs, idleFor, took.Round(time.Millisecond), n, longest.Round(time.Millisecond))
	return longest
}

// TestMigrationsKeepNobodyWaiting: no call fails, and none waits for as long as the idle
// transaction does. What is measured is logged; large_migration_test.go has the 5 million rows.
func TestMigrationsKeepNobodyWaiting(t *testing.T) {
	t.Parallel()
	const idleFor = 12 * time.Second
	if longest := migrateBesideAnIdleTransaction(t, 100_000, idleFor); longest > idleFor-time.Second {
		t.Errorf("a call took %v: it waited for the idle transaction", longest)
	}
}

// TestAMigrationGivesUpAndNamesWhoKeepsIt: nothing is half done, and it may be tried again.
func TestAMigrationGivesUpAndNamesWhoKeepsIt(t *testing.T) {
	t.Parallel()
	quiet := slog.New(slog.DiscardHandler)
	url := pgtest.Database(t, migrateQuietly)
	tester := idle(t, url)
	m := migration{url: url, files: later(t, embedded(t)), log: quiet, patience: time.Second}
	err := m.run(t.Context())
	var locked *LockedError
	var away *store.UnavailableError
	if !errors.As(err, &locked) || !errors.As(err, &away) {
		t.Fatalf("got %v", err)
	}
	if locked.Version != SchemaVersion()+1 || len(locked.Holders) == 0 || !strings.Contains(locked.Error(), "a tester") ||
		!strings.Contains(locked.Error(), fmt.Sprint("pid ", tester.PgConn().PID())) {
		t.Errorf("it says: %s", locked)
	}
	if err := CheckSchema(t.Context(), url); err != nil {
		t.Errorf("after it gave up: %v", err)
	}
	if _, err := tester.Exec(t.Context(), `ROLLBACK`); err != nil {
		t.Fatal(err)
	}
	m.patience = time.Minute
	if err := m.run(t.Context()); err != nil {
		t.Fatalf("again: %v", err)
	}
	// The schema is newer now and says that it serves this binary.
	if err := CheckSchema(t.Context(), url); err != nil {
		t.Errorf("a newer schema that serves this binary: %v", err)
	}
	if err := Migrate(t.Context(), url, quiet); err != nil {
		t.Errorf("starting on it: %v", err)
	}
	newer := SchemaVersion() + 4
	for said, served := range map[string]bool{
		fmt.Sprintf(declaration, newer, SchemaVersion()):   true,
		fmt.Sprintf(declaration, newer, SchemaVersion()+1): false,
		fmt.Sprintf(declaration, newer-1, 1):               false,
		"somebody's own words":                             false,
	} {
		if _, err := tester.Exec(t.Context(), fmt.Sprintf(`COMMENT ON SCHEMA leasehold IS '%s'`, strings.ReplaceAll(said, "'", "''"))); err != nil {
			t.Fatal(err)
		}
		var refused *store.UnsupportedError
		if err := CheckSchema(t.Context(), url); errors.As(err, &refused) == served {
			t.Errorf("%q: %v", said, err)
		}
	}
}

// TestAMigrationEndsAutovacuum, as every ALTER TABLE does that waits long enough: vacuum of a big
// table takes hours.
func TestAMigrationEndsAutovacuum(t *testing.T) {
	t.Parallel()
	url := pgtest.ServerWith(t, privatepg.Config{Ephemeral: true, ExtraSettings: map[string]string{"autovacuum_naptime": "1s"}}).URL("postgres")
	if err := migrateQuietly(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	for _, sql := range []string{
		`INSERT INTO leasehold.queues (name) VALUES ('q')`, `SELECT leasehold.ensure_partitions()`,
		// Of this table alone: a slow vacuum of the catalog would come first.
		`ALTER TABLE leasehold.jobs SET (autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1)`,
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := conn.Exec(t.Context(), sqlManyJobs, 100_000); err != nil {
		t.Fatal(err)
	}
	const sqlVacuums = `SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid)
		WHERE l.relation = 'leasehold.jobs'::regclass AND l.granted AND a.backend_type = 'autovacuum worker')`
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	patience := time.After(time.Minute)
	for vacuums := false; !vacuums; {
		select {
		case <-tick.C:
		case <-patience:
			t.Fatal("autovacuum never came")
		}
		if err := conn.QueryRow(t.Context(), sqlVacuums).Scan(&vacuums); err != nil {
			t.Fatal(err)
		}
	}
	m := migration{url: url, files: later(t, embedded(t)), log: slog.New(slog.DiscardHandler), patience: 2 * time.Minute}
	m.files = upTo(t, m.files, SchemaVersion()+1)
	if err := m.run(t.Context()); err != nil {
		t.Error(err)
	}
}

// upTo are the first files.
func upTo(t *testing.T, files fs.FS, n int64) fs.FS {
	t.Helper()
	some := fstest.MapFS{}
	names, err := fs.Glob(files, "*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names[:n] {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			t.Fatal(err)
		}
		some[name] = &fstest.MapFile{Data: text}
	}
	return some
}
