package postgres

import (
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// lastBase is the last of the migrations that were made before the first release: they make what
// they change, on an empty database. The policy of docs/upgrades.md holds for all that follow.
const lastBase = 4

func isBase(name string) bool {
	n, err := strconv.Atoi(strings.SplitN(path.Base(name), "_", 2)[0])
	return err == nil && n <= lastBase
}

// ban is a kind of statement that a migration must not have.
type ban struct {
	pattern *regexp.Regexp
	unless  *regexp.Regexp // of the same statement
	why     string
}

func bans() []ban {
	re := func(pattern string) *regexp.Regexp { return regexp.MustCompile(`(?i)` + pattern) }
	return []ban{
		{re(`\bdrop\s+(table|column|view|materialized|function|procedure|type|domain|sequence|schema|trigger|constraint)\b`), nil, "takes away what the version before uses: contract one release later, and raise oldestServed (then list the file in contracting)"},
		{re(`\balter\s+table\b.*\bdrop\s+(?:if\s+exists\s+)?[a-z_"]`), re(`\bdrop\s+(default|not\s+null|expression)\b`), "drops a column: contract one release later"},
		{re(`\brename\b`), nil, "renames what the version before uses: add the new name beside the old"},
		{re(`\balter\s+(column\s+)?[a-z_"]+\s+(set\s+data\s+)?type\b`), nil, "changes a type: rewrites the table under its strongest lock; add another column"},
		{re(`\bset\s+not\s+null\b`), nil, "reads the whole table under its strongest lock: add a CHECK (… IS NOT NULL) NOT VALID and validate it in a file of its own"},
		{re(`\badd\s+column\b.*\bnot\s+null\b`), re(`\bdefault\b`), "the version before does not write the column: give it a constant default"},
		{re(`\badd\s+column\b.*\bdefault\s+[^,;]*\(`), nil, "a default that is computed may rewrite the table: add the column without one, and ALTER COLUMN SET DEFAULT"},
		{re(`\badd\s+column\b.*\bdefault\s+(current_|localtime|session_user|user\b)`), nil, "a default that is computed may rewrite the table"},
		{re(`\badd\s+column\b.*\b(generated|identity|bigserial|serial|smallserial|unique|primary\s+key)\b`), nil, "rewrites the table, or builds an index under its lock"},
		{re(`\badd\s+(constraint\s+\S+\s+)?(check|foreign\s+key)\b`), re(`\bnot\s+valid\b`), "reads the whole table under its lock: NOT VALID, and VALIDATE in a file of its own"},
		{re(`\badd\s+(constraint\s+\S+\s+)?(unique|primary\s+key|exclude)\b`), re(`\busing\s+index\b`), "builds an index under the table's lock: make it CONCURRENTLY, and add the constraint USING INDEX"},
		{re(`\bcreate\s+(unique\s+)?index\b`), re(`\bindex\s+concurrently\b`), "an index of a table that is in use is made CONCURRENTLY"},
		{re(`\bdrop\s+index\b`), re(`\bindex\s+concurrently\b`), "an index of a table that is in use is dropped CONCURRENTLY"},
		{re(`\b(vacuum\s+full|cluster\b|reindex)\b`), re(`\bconcurrently\b`), "rewrites under the table's strongest lock"},
		{re(`\block\s+table\b|\btruncate\b`), nil, "locks everybody out"},
		{re(`\bset\s+(tablespace|logged|unlogged|access\s+method)\b`), nil, "rewrites the table under its lock"},
		{re(`\bcreate\s+trigger\b|\bdisable\s+trigger\b`), nil, "changes what the version before does, under a lock that keeps writers out"},
		{re(`^\s*(update|delete\s+from)\b`), nil, "changes rows in one transaction: a backfill goes in batches, by the watcher, never by a migration"},
		{re(`\bset\s+(local\s+|session\s+)?lock_timeout\s*(=|to)\s*'?[1-9]`), nil, "the migrator's own lock_timeout is the bound"},
		{re(`\b(set|reset)\s+(local\s+|session\s+)?(role|session\s+authorization|statement_timeout)\b`), nil, "the session belongs to the migrator"},
	}
}

// contracting are migrations that take away what no binary from oldestServed on uses any more.
var contracting = []string{}

var (
	lockingTable  = regexp.MustCompile(`(?is)^\s*alter\s+table\s+(?:if\s+exists\s+)?(?:only\s+)?([a-z_."]+)`)
	functionBody  = regexp.MustCompile(`(?s)\$([a-zA-Z_]*)\$.*?\$[a-zA-Z_]*\$`)
	textLiteral   = regexp.MustCompile(`'(?:[^']|'')*'`)
	sqlComment    = regexp.MustCompile(`(?m)--.*$`)
	blockComment  = regexp.MustCompile(`(?s)/\*.*?\*/`)
	noTransaction = regexp.MustCompile(`(?m)^-- \+goose NO TRANSACTION\s*$`)
	unbounded     = regexp.MustCompile(`(?i)\bset\s+lock_timeout\s*(=|to)\s*'?0`)
	createdTable  = regexp.MustCompile(`(?i)\bcreate\s+table\s+(?:if\s+not\s+exists\s+)?([a-z_."]+)`)
	concurrently  = regexp.MustCompile(`(?i)\bconcurrently\b`)
	createdIndex  = regexp.MustCompile(`(?i)\bcreate\s+(?:unique\s+)?index\s+concurrently\s+(?:if\s+not\s+exists\s+)?([a-z_]+)`)
	indexedTable  = regexp.MustCompile(`(?i)\bindex\b.*?\bon\s+(?:only\s+)?([a-z_."]+)`)
	functionMade  = regexp.MustCompile(`(?i)\bdo\s*\$`)
)

// statementsOf are the statements of the Up part, without comments, texts and bodies of functions.
func statementsOf(text string) []string {
	if i := strings.Index(text, "-- +goose Down"); i >= 0 {
		text = text[:i]
	}
	text = blockComment.ReplaceAllString(sqlComment.ReplaceAllString(text, ""), "")
	text = textLiteral.ReplaceAllString(functionBody.ReplaceAllString(text, "BODY"), "'0'")
	var found []string
	for s := range strings.SplitSeq(text, ";") {
		if s = strings.Join(strings.Fields(s), " "); s != "" {
			found = append(found, s)
		}
	}
	return found
}

// breaches says what of a migration breaks the policy.
func breaches(name, text string) (found []string) {
	outside := noTransaction.MatchString(text)
	made, locked := map[string]bool{}, []string{}
	if functionMade.MatchString(sqlComment.ReplaceAllString(text, "")) {
		found = append(found, "DO hides statements from this test")
	}
	concurrent := 0
	statements := statementsOf(text)
	for _, s := range statements {
		for _, m := range createdTable.FindAllStringSubmatch(s, -1) {
			made[m[1]] = true
		}
		table := ""
		if m := lockingTable.FindStringSubmatch(s); m != nil {
			table = m[1]
		} else if m := indexedTable.FindStringSubmatch(s); m != nil {
			table = m[1]
		}
		if table != "" && made[table] {
			continue // nobody uses it yet
		}
		if lockingTable.MatchString(s) && !slices.Contains(locked, table) {
			locked = append(locked, table)
		}
		if concurrently.MatchString(s) {
			concurrent++
		}
		for _, b := range bans() {
			if b.pattern.MatchString(s) && (b.unless == nil || !b.unless.MatchString(s)) && !slices.Contains(contracting, path.Base(name)) {
				found = append(found, s+": "+b.why)
			}
		}
	}
	return append(found, breachesOfForm(statements, outside, concurrent, locked)...)
}

// breachesOfForm judges the file as a whole.
func breachesOfForm(statements []string, outside bool, concurrent int, locked []string) (found []string) {
	all := strings.Join(statements, ";\n")
	if len(locked) > 1 {
		found = append(found, "locks "+strings.Join(locked, " and ")+": one table for each file, or the first is held while the second is waited for")
	}
	if len(locked) > 0 && strings.Contains(strings.ToLower(all), "validate constraint") && len(statements) > 1 {
		found = append(found, "VALIDATE CONSTRAINT reads the whole table: in a file of its own, or the locks of the rest are held meanwhile")
	}
	if (concurrent > 0) != outside {
		found = append(found, "CONCURRENTLY needs -- +goose NO TRANSACTION, and nothing else may have it")
	}
	if unbounded.MatchString(all) != (concurrent > 0) {
		found = append(found, "SET lock_timeout = 0 is for CONCURRENTLY, which waits for old transactions and keeps nobody waiting, and for nothing else")
	}
	if concurrent > 0 && (len(locked) > 0 || !strings.EqualFold(statements[len(statements)-1], "reset lock_timeout")) {
		found = append(found, "a file with CONCURRENTLY ends with RESET lock_timeout and locks no table")
	}
	for _, m := range createdIndex.FindAllStringSubmatch(all, -1) {
		if !regexp.MustCompile(`(?i)drop index concurrently if exists (leasehold\.)?` + m[1] + `\b`).MatchString(all) {
			found = append(found, "an index that is made CONCURRENTLY may be left invalid: DROP INDEX CONCURRENTLY IF EXISTS goes before it")
		}
	}
	return found
}

// TestMigrationsKeepThePolicy of docs/upgrades.md.
func TestMigrationsKeepThePolicy(t *testing.T) {
	t.Parallel()
	files := embedded(t)
	names, err := fs.Glob(files, "*.sql")
	if err != nil || len(names) < lastBase {
		t.Fatal(names, err)
	}
	for i, name := range names {
		if !strings.HasPrefix(name, strings.Repeat("0", 5-len(strconv.Itoa(i+1)))+strconv.Itoa(i+1)+"_") {
			t.Errorf("%s is number %d: numbers have no gaps", name, i+1)
		}
		text, err := fs.ReadFile(files, name)
		if err != nil {
			t.Fatal(err)
		}
		if isBase(name) {
			continue
		}
		for _, b := range breaches(name, string(text)) {
			t.Errorf("%s: %s", name, b)
		}
	}
	if len(contracting) == 0 && oldestServed != lastBase {
		t.Errorf("no migration contracts, and binaries of schema %d are not served", lastBase)
	}
}

// TestThePolicyFindsWhatBreaksIt, and lets pass what does not. It is one long table.
func TestThePolicyFindsWhatBreaksIt(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{
		"ALTER TABLE leasehold.jobs DROP COLUMN subject",
		"ALTER TABLE leasehold.jobs DROP subject",
		"alter table leasehold.jobs\n  drop column if exists subject",
		"ALTER TABLE leasehold.jobs RENAME COLUMN subject TO topic",
		"ALTER TABLE leasehold.jobs RENAME TO tasks",
		"ALTER TABLE leasehold.jobs ALTER COLUMN beats TYPE bigint",
		"ALTER TABLE leasehold.jobs ALTER beats SET DATA TYPE bigint",
		"ALTER TABLE leasehold.jobs ALTER COLUMN subject SET NOT NULL",
		"ALTER TABLE leasehold.jobs ADD COLUMN x integer NOT NULL",
		"ALTER TABLE leasehold.jobs ADD COLUMN x uuid DEFAULT gen_random_uuid()",
		"ALTER TABLE leasehold.jobs ADD COLUMN x timestamptz DEFAULT clock_timestamp()",
		"ALTER TABLE leasehold.jobs ADD COLUMN x timestamptz DEFAULT CURRENT_TIMESTAMP",
		"ALTER TABLE leasehold.jobs ADD COLUMN x bigserial",
		"ALTER TABLE leasehold.jobs ADD COLUMN x integer GENERATED ALWAYS AS (1) STORED",
		"ALTER TABLE leasehold.jobs ADD COLUMN x integer UNIQUE",
		"ALTER TABLE leasehold.jobs ADD CONSTRAINT c CHECK (beats >= 0)",
		"ALTER TABLE leasehold.jobs ADD FOREIGN KEY (queue_id) REFERENCES leasehold.queues (id)",
		"ALTER TABLE leasehold.jobs ADD CONSTRAINT c UNIQUE (subject)",
		"CREATE INDEX jobs_x ON leasehold.jobs (subject)",
		"CREATE UNIQUE INDEX jobs_x ON leasehold.jobs (subject)",
		"DROP INDEX leasehold.jobs_subject",
		"DROP FUNCTION leasehold.backoff",
		"DROP VIEW leasehold.all_jobs",
		"TRUNCATE leasehold.late_calls",
		"LOCK TABLE leasehold.jobs",
		"VACUUM FULL leasehold.jobs",
		"UPDATE leasehold.jobs SET priority = 5",
		"DELETE FROM leasehold.late_calls",
		"SET lock_timeout = '1min'; ALTER TABLE leasehold.jobs ADD COLUMN x integer",
		"SET lock_timeout = 0; ALTER TABLE leasehold.jobs ADD COLUMN x integer",
		"ALTER TABLE leasehold.jobs ADD COLUMN x integer; ALTER TABLE leasehold.finished_jobs ADD COLUMN x integer",
		"ALTER TABLE leasehold.jobs ADD CONSTRAINT c CHECK (beats >= 0) NOT VALID; ALTER TABLE leasehold.jobs VALIDATE CONSTRAINT c",
		"DO $$ BEGIN EXECUTE 'DROP TABLE leasehold.jobs'; END $$",
		"CREATE INDEX CONCURRENTLY jobs_x ON leasehold.jobs (subject)",
		"-- +goose NO TRANSACTION\nCREATE INDEX CONCURRENTLY jobs_x ON leasehold.jobs (subject)",
		"-- +goose NO TRANSACTION\nSET lock_timeout = 0; CREATE INDEX CONCURRENTLY jobs_x ON leasehold.jobs (subject); RESET lock_timeout",
		"-- +goose NO TRANSACTION\nALTER TABLE leasehold.jobs ADD COLUMN x integer",
		"CREATE TABLE leasehold.x (id int); CREATE INDEX x_id ON leasehold.x (id); CREATE INDEX jobs_x ON leasehold.jobs (subject)",
	} {
		if len(breaches("00099_bad.sql", "-- +goose Up\n"+bad+";\n")) == 0 {
			t.Errorf("not found: %s", bad)
		}
	}
	for _, good := range []string{
		"ALTER TABLE leasehold.jobs ADD COLUMN x integer",
		"ALTER TABLE leasehold.jobs ADD COLUMN x integer NOT NULL DEFAULT 0",
		"ALTER TABLE leasehold.jobs ALTER COLUMN subject DROP NOT NULL",
		"ALTER TABLE leasehold.jobs ALTER COLUMN subject SET DEFAULT now()",
		"ALTER TABLE leasehold.jobs ADD CONSTRAINT c CHECK (beats >= 0) NOT VALID",
		"ALTER TABLE leasehold.jobs VALIDATE CONSTRAINT c",
		"CREATE TABLE leasehold.x (id int PRIMARY KEY, at timestamptz DEFAULT now()); CREATE INDEX x_at ON leasehold.x (at); ALTER TABLE leasehold.x ADD UNIQUE (at)",
		"CREATE OR REPLACE FUNCTION leasehold.f() RETURNS void LANGUAGE sql AS $$ DELETE FROM leasehold.jobs; DROP TABLE x $$",
		"COMMENT ON TABLE leasehold.jobs IS 'we never DROP COLUMN or rename; not once'",
		"-- DROP TABLE leasehold.jobs\n/* TRUNCATE x; */ SELECT 1",
		"INSERT INTO leasehold.queues (name) VALUES ('x')",
		"-- +goose NO TRANSACTION\nSET lock_timeout = 0; DROP INDEX CONCURRENTLY IF EXISTS leasehold.jobs_x; CREATE INDEX CONCURRENTLY jobs_x ON leasehold.jobs (subject); RESET lock_timeout",
	} {
		if found := breaches("00099_good.sql", "-- +goose Up\n"+good+";\n-- +goose Down\nDROP TABLE leasehold.jobs;\n"); len(found) > 0 {
			t.Errorf("%s\nis refused: %s", good, strings.Join(found, "\n"))
		}
	}
}
