package postgres_test

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/postgres"
)

// sqlSchema describes every table, index and function of the schema, and what is applied.
const sqlSchema = `
SELECT c.oid || ' ' || c.relname || ' ' || c.relfilenode FROM pg_class c WHERE c.relnamespace = 'leasehold'::regnamespace
UNION ALL SELECT p.oid || ' ' || p.proname || ' ' || md5(p.prosrc) FROM pg_proc p WHERE p.pronamespace = 'leasehold'::regnamespace
UNION ALL SELECT 'version ' || v.id || ' ' || v.version_id FROM leasehold.schema_versions v
ORDER BY 1`

func TestR40ReplicasThatStartAtOnceMigrateOnce(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t, nil)
	if err := postgres.CheckSchema(t.Context(), url); !is[*store.UnsupportedError](err) {
		t.Errorf("an empty database is taken for %v", err)
	}
	var all sync.WaitGroup
	start := make(chan struct{})
	failures := make([]error, 5)
	for n := range failures {
		all.Go(func() {
			<-start
			failures[n] = migrate(context.Background(), url)
		})
	}
	close(start)
	all.Wait()
	for n, err := range failures {
		if err != nil {
			t.Errorf("replica %d: %v", n, err)
		}
	}
	if err := postgres.CheckSchema(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	h := newHarnessOn(t, url)
	before := h.rows(t, sqlSchema)
	if err := migrate(t.Context(), url); err != nil {
		t.Fatalf("again: %v", err)
	}
	if after := h.rows(t, sqlSchema); !slices.Equal(before, after) || len(after) < 50 {
		t.Errorf("migrating again changed the schema from\n%s\nto\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
	applied := h.rows(t, `SELECT version_id::text FROM leasehold.schema_versions WHERE version_id > 0 ORDER BY 1`)
	if len(applied) != int(postgres.SchemaVersion()) {
		t.Errorf("applied %v", applied)
	}
	h.complete(t, h.leases(t, 1)[0])
}

func TestR40OtherSchemaVersionsAreRefused(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	check := func() error { return postgres.CheckSchema(t.Context(), h.URL) }
	for _, c := range []struct {
		name, sql string
		call      func() error
		want      string
	}{
		{"older", `DELETE FROM leasehold.schema_versions WHERE version_id = $1`, check, "needs"},
		{"newer", `INSERT INTO leasehold.schema_versions (version_id, is_applied) VALUES ($1, true), ($1 + 1, true)`, check, "newer"},
		{"newer, migrating", `UPDATE leasehold.schema_versions SET is_applied = true WHERE version_id = $1`, func() error { return migrate(t.Context(), h.URL) }, "newer"},
	} {
		h.Exec(t, c.sql, postgres.SchemaVersion())
		err := c.call()
		if !is[*store.UnsupportedError](err) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if err := postgres.CheckSchema(t.Context(), "postgres://localhost:1/none?connect_timeout=2"); !is[*store.UnavailableError](err) {
		t.Errorf("no server: %v", err)
	}
}

// sqlOtherTimes finds columns of types that hold a time without its zone, or only a part.
const sqlOtherTimes = `
SELECT c.relname || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relnamespace = 'leasehold'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'c')
  AND a.atttypid IN ('timestamp'::regtype, 'time'::regtype, 'timetz'::regtype, 'date'::regtype)
ORDER BY 1`

// A time without its zone changes its meaning with the settings of the session that reads it.
func TestR30EveryStoredTimeHasItsZone(t *testing.T) {
	t.Parallel()
	if found := newHarness(t).rows(t, sqlOtherTimes); len(found) > 0 {
		t.Errorf("not timestamptz: %s", strings.Join(found, ", "))
	}
}

// defaultLiteral is the end of a coalesce of a policy column with a literal.
var defaultLiteral = regexp.MustCompile(`\b(max_attempts|max_expirations|cancel_grace|idempotency_retention|lease_duration|` +
	`initial|factor|cap|jitter|priority), (interval '[^']+'|[0-9.]+)\)`)

// Each literal of the SQL that stands for a value that nobody set is the one that package
// store documents: two that differ would make the answer depend on the statement.
func TestR27LiteralsInSQLAreTheDocumentedDefaults(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	seconds := func(d time.Duration) float64 { return d.Seconds() }
	want := map[string]float64{
		"max_attempts": store.DefaultMaxAttempts, "max_expirations": store.DefaultMaxExpirations,
		"initial": seconds(store.DefaultBackoffInitial), "factor": store.DefaultBackoffFactor, "cap": seconds(store.DefaultBackoffCap),
		"jitter": store.DefaultBackoffJitter, "lease_duration": seconds(store.DefaultLeaseDuration),
		"cancel_grace": seconds(store.DefaultCancelGrace), "idempotency_retention": seconds(store.DefaultIdempotencyRetention),
		"priority": store.DefaultPriority,
	}
	found := map[string]int{}
	for _, pattern := range []string{"*.go", "migrations/*.sql"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, match := range defaultLiteral.FindAllStringSubmatch(string(text), -1) {
				expression := match[2]
				if strings.HasPrefix(expression, "interval") {
					expression = "extract(epoch FROM " + expression + ")"
				}
				value := one[float64](t, h, "SELECT ("+expression+")::float8")
				found[match[1]]++
				if value != want[match[1]] {
					t.Errorf("%s: %s, the documented default is %v", file, match[0], want[match[1]])
				}
			}
		}
	}
	for column := range want {
		if found[column] == 0 {
			t.Errorf("no literal of %s was found: the scan is blind", column)
		}
	}
}
