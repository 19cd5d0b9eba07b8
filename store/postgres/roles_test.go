package postgres_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/postgres"
)

// roleColumns are who the table of rights speaks of; the last is anybody else.
var roleColumns = []string{"leasehold_producer", "leasehold_worker", "leasehold_reader", "leasehold_service", noneLogin}

const (
	selects       = "SELECT"
	readsAdds     = "SELECT INSERT"
	readsChanges  = "SELECT UPDATE"
	addsChanges   = "SELECT INSERT UPDATE"
	everythingBut = "SELECT INSERT UPDATE DELETE"
	execute       = "EXECUTE"
	usage         = "USAGE"
)

// rights are those of each role, in the order of roleColumns. An object of the schema that is
// not here fails the test: whoever adds one decides who may do what with it.
var rights = map[string][5]string{
	"schema leasehold":    {usage, usage, usage, usage, ""},
	"sequence job_id_seq": {"", "", "", usage, ""},

	"table jobs":             {"", "", "", everythingBut, ""},
	"table finished_jobs":    {"", "", "", everythingBut, ""},
	"table checkpoints":      {"", "", "", everythingBut, ""},
	"table idempotency_keys": {"", "", "", everythingBut, ""},
	"table acquire_requests": {"", "", "", everythingBut, ""},
	"table queues":           {"", "", "", addsChanges, ""},
	"table job_results":      {"", "", "", addsChanges, ""},
	"table stages":           {"", "", "", addsChanges, ""},
	"table late_calls":       {"", "", "", addsChanges, ""},
	"table queue_waits":      {"", "", "", addsChanges, ""},
	"table service":          {"", "", "", readsChanges, ""},
	"table attempts":         {"", "", "", readsAdds, ""},
	"table job_data":         {"", "", "", readsAdds, ""},
	"table lease_errors":     {"", "", "", readsAdds, ""},
	"table operator_acts":    {"", "", "", readsAdds, ""},
	"table secrets":          {"", "", "", selects, ""},
	"table schema_versions":  {"", "", "", selects, ""},
	"table imported_jobs":    {},

	"view all_jobs":    {"", "", selects, "", ""},
	"view all_leases":  {"", "", selects, "", ""},
	"view stuck_jobs":  {"", "", selects, "", ""},
	"view queue_stats": {"", "", selects, "", ""},

	"function enqueue":      {execute, "", "", "", ""},
	"function enqueue_many": {execute, "", "", "", ""},
	"function assert_lease": {"", execute, "", "", ""},
	"function complete":     {"", execute, "", "", ""},

	"function ensure_partitions": {"", "", "", execute, ""},
	"function partitions_ahead":  {"", "", "", execute, ""},
	"function drop_partitions":   {"", "", "", execute, ""},
	"function has_partition":     {"", "", "", execute, ""},
	"function partition_width":   {"", "", "", execute, ""},
	"function backoff":           {"", "", "", execute, ""},
	"function may_blame":         {"", "", "", execute, ""},

	// What the views are made of reads nothing by itself.
	"function state_word":      {execute, execute, execute, execute, execute},
	"function end_word":        {execute, execute, execute, execute, execute},
	"function diagnosis_word":  {execute, execute, execute, execute, execute},
	"function bytes_as_text":   {execute, execute, execute, execute, execute},
	"function diagnosis":       {execute, execute, execute, execute, execute},
	"function diagnosed_since": {execute, execute, execute, execute, execute},

	// The owner's alone.
	"function partitioned_tables": {}, "function partition_in_use": {}, "function keep_queue": {}, "function refuse": {}, "function content_of": {},
	"function content_digest": {}, "function exact": {}, "function check_job": {}, "function check_headers": {}, "function lock_key": {},
	"function store_job": {}, "function job_of_item": {}, "function judge_lease": {}, "function move_completed": {}, "function complete_dead": {},
	"function grant_roles": {}, "function import_job": {}, "function move_imported": {},
}

// sqlObjects finds every object of the schema, and what a role may do with it. Partitions are
// reached through their parents, and are nobody's.
const sqlObjects = `
SELECT 'schema leasehold' AS object, concat_ws(' ', CASE WHEN has_schema_privilege($1, 'leasehold', 'USAGE') THEN 'USAGE' END,
       CASE WHEN has_schema_privilege($1, 'leasehold', 'CREATE') THEN 'CREATE' END) AS acts
UNION ALL
SELECT CASE c.relkind WHEN 'S' THEN 'sequence ' WHEN 'v' THEN 'view ' ELSE 'table ' END || c.relname,
       (SELECT coalesce(string_agg(p.act, ' ' ORDER BY p.n), '')
        FROM unnest(CASE WHEN c.relkind = 'S' THEN ARRAY['USAGE', 'SELECT', 'UPDATE']
                         ELSE ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER'] END) WITH ORDINALITY AS p(act, n)
        WHERE CASE WHEN c.relkind = 'S' THEN has_sequence_privilege($1, c.oid, p.act)
                   ELSE has_table_privilege($1, c.oid, p.act) OR p.act IN ('SELECT', 'INSERT', 'UPDATE', 'REFERENCES') AND has_any_column_privilege($1, c.oid, p.act) END)
FROM pg_class c
WHERE c.relnamespace = 'leasehold'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND NOT c.relispartition
  AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND c.relkind = 'S' AND d.deptype IN ('a', 'i'))
UNION ALL
SELECT 'function ' || p.proname, CASE WHEN has_function_privilege($1, p.oid, 'EXECUTE') THEN 'EXECUTE' ELSE '' END
FROM pg_proc p WHERE p.pronamespace = 'leasehold'::regnamespace
ORDER BY 1`

func TestR46TheTableOfRightsIsComplete(t *testing.T) {
	t.Parallel()
	h := newSQLRoles(t)
	for n, role := range roleColumns {
		rows, err := h.SQL.Query(t.Context(), sqlObjects, role)
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]string{}
		_, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (struct{}, error) {
			var object, acts string
			err := row.Scan(&object, &acts)
			found[object] = acts
			return struct{}{}, err
		})
		if err != nil {
			t.Fatal(err)
		}
		for object, acts := range found {
			want, decided := rights[object]
			if !decided {
				t.Errorf("nobody has decided who may use the %s: say it here, and in leasehold.grant_roles", object)
			} else if acts != want[n] {
				t.Errorf("%s may %q the %s, want %q", role, acts, object, want[n])
			}
		}
		for object := range rights {
			if _, there := found[object]; !there {
				t.Errorf("there is no %s", object)
			}
		}
	}
	partitions := h.rows(t, `SELECT c.relname::text FROM pg_class c WHERE c.relnamespace = 'leasehold'::regnamespace AND c.relispartition AND c.relacl IS NOT NULL`)
	if len(partitions) > 0 {
		t.Errorf("partitions have rights of their own: %q", partitions)
	}
	if unsafe := h.rows(t, `SELECT p.proname::text FROM pg_proc p WHERE p.pronamespace = 'leasehold'::regnamespace AND p.prosecdef
		AND NOT 'search_path=pg_catalog, pg_temp' = ANY (coalesce(p.proconfig, '{}'))`); len(unsafe) > 0 {
		t.Errorf("functions with the owner's rights and the caller's search_path: %q", unsafe)
	}
}

// acts are what somebody may try with a table or view.
var acts = []string{`SELECT FROM %s LIMIT 1`, `INSERT INTO %s DEFAULT VALUES`, `DELETE FROM %s`, `TRUNCATE %s`, `DROP TABLE %s`}

// TestR46AProducerCanEnqueueAndNothingMore tries everything.
func TestR46AProducerCanEnqueueAndNothingMore(t *testing.T) {
	t.Parallel()
	h := newSQLRoles(t)
	app := h.producer(t)
	app.exec(`SELECT leasehold.enqueue('q')`)
	app.exec(`SELECT leasehold.enqueue_many('q', ARRAY['{}']::json[])`)
	allowed := map[string]bool{"enqueue": true, "enqueue_many": true}
	tried := 0
	try := func(sql string) {
		tried++
		if got := app.refused(sql); got != "42501" {
			t.Errorf("%s: %s", sql, got)
		}
	}
	for object := range rights {
		kind, name, _ := strings.Cut(object, " ")
		switch kind {
		case "table":
			for _, act := range acts {
				try(strings.Replace(act, "%s", "leasehold."+name, 1))
			}
		case "view":
			try(`SELECT FROM leasehold.` + name)
		case "sequence":
			try(`SELECT nextval('leasehold.` + name + `')`)
		case "function":
			if !allowed[name] && rights[object][4] == "" && name != "keep_queue" {
				try(h.callWithNulls(t, name))
			}
		}
	}
	for _, sql := range []string{`CREATE TABLE leasehold.mine ()`, `LISTEN x; ALTER FUNCTION leasehold.enqueue RESET ALL`, `SET ROLE leasehold_service`} {
		try(sql)
	}
	if tried < 100 {
		t.Errorf("only %d acts were tried", tried)
	}
	// What it can call runs with the owner's rights, and must not look into its own schemas.
	app.exec(`CREATE TEMPORARY TABLE jobs (id int)`)
	app.exec(`SET search_path = pg_temp, public`)
	app.exec(`SELECT leasehold.enqueue('q')`)
}

// callWithNulls calls a function with NULL for each argument of its type.
func (h *harness) callWithNulls(t *testing.T, name string) string {
	t.Helper()
	return one[string](t, h, `
SELECT 'SELECT leasehold.' || p.proname || '(' || coalesce((SELECT string_agg('NULL::' || format_type(a.type, NULL), ', ' ORDER BY a.n)
    FROM unnest(p.proargtypes) WITH ORDINALITY AS a(type, n)), '') || ')'
FROM pg_proc p WHERE p.pronamespace = 'leasehold'::regnamespace AND p.proname = $1`, name)
}

// The roles belong to the server and not to the database: a database whose owner may make none
// has its schema all the same, and the rights come when the roles are there.
func TestR46RolesMayBeMadeByOthers(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t)
	admin := newStranger(t, server.URL("postgres"))
	admin.exec(`CREATE ROLE plain LOGIN PASSWORD '` + loginPassword + `'`)
	admin.exec(`CREATE DATABASE app OWNER plain`)
	url := as(t, server.URL("app"), "plain")
	if err := migrate(t.Context(), url); err != nil {
		t.Fatalf("migrating without CREATEROLE: %v", err)
	}
	missing, err := postgres.GrantRoles(t.Context(), url)
	slices.Sort(missing)
	want := slices.Sorted(maps.Keys(map[string]bool{"leasehold_producer": true, "leasehold_reader": true, "leasehold_service": true, "leasehold_worker": true}))
	if err != nil || !slices.Equal(missing, want) {
		t.Errorf("missing %q, %v", missing, err)
	}
	for _, role := range want {
		admin.exec(`CREATE ROLE ` + role)
	}
	if missing, err := postgres.GrantRoles(t.Context(), url); err != nil || len(missing) > 0 {
		t.Errorf("once they are there: missing %q, %v", missing, err)
	}
	if !one[bool](t, newHarnessOn(t, url), `SELECT has_function_privilege('leasehold_producer', (SELECT oid FROM pg_proc WHERE proname = 'enqueue'), 'EXECUTE')`) {
		t.Error("the producer cannot enqueue")
	}
	// A second database of the server, whose owner may make roles and finds them made.
	admin.exec(`CREATE DATABASE other`)
	if err := migrate(t.Context(), server.URL("other")); err != nil {
		t.Errorf("the second database: %v", err)
	}
	if _, err := postgres.GrantRoles(t.Context(), as(t, server.URL("other"), "plain")); !is[*store.UnsupportedError](err) {
		t.Errorf("who does not own the schema gives rights: %v", err)
	}
}
