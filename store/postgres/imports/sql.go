package imports

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

const (
	// An import of one name runs once at a time: two would wait for each other's rows.
	sqlLock = `SELECT pg_try_advisory_lock(hashtextextended($1, 7310868735420870004))`

	sqlSettings = `SELECT set_config('lock_timeout', '5s', false), set_config('application_name', 'leasehold import', false)`

	// The table's name as SQL text, and the type of its key.
	sqlTable = `
SELECT $1::regclass::text AS name, format_type(a.atttypid, a.atttypmod) AS key_type
FROM pg_attribute a WHERE a.attrelid = $1::regclass AND a.attname = $2 AND a.attnum > 0 AND NOT a.attisdropped`

	sqlPartitions = `SELECT leasehold.ensure_partitions()`
)

// statements are made once of a mapping. What it holds is SQL of the operator, who could run it
// by hand as well.
type statements struct{ count, first, next, read, take, remove string }

func newStatements(m *Mapping, table, keyType string) statements {
	key := "t." + pgx.Identifier{m.Key}.Sanitize()
	where := "true"
	if m.Where != "" {
		where = m.Where
	}
	todo := fmt.Sprintf(`FROM %s AS t WHERE (%s)
  AND NOT EXISTS (SELECT FROM leasehold.imported_jobs i WHERE i.import = $1 AND i.source_key = %s::text)`, table, where, key)
	page := func(further string) string {
		return "SELECT " + key + "::text " + todo + further + " ORDER BY " + key + " LIMIT $2"
	}
	these := fmt.Sprintf("%s = ANY ($1::text[]::%s[])", key, keyType)
	return statements{
		count: "SELECT count(*) " + todo,
		first: page(""),
		next:  page(fmt.Sprintf(" AND %s > $3::text::%s", key, keyType)),
		// Locked, so that the other system cannot begin with a row while it is taken over.
		read: fmt.Sprintf("SELECT %s::text, %s FROM %s AS t WHERE %s AND (%s) ORDER BY %s FOR UPDATE OF t SKIP LOCKED",
			key, strings.Join(m.columns(), ", "), table, these, where, key),
		take:   sqlTake,
		remove: fmt.Sprintf("DELETE FROM %s AS t WHERE %s", table, these),
	}
}

// sqlTake takes rows over, in their order.
const sqlTake = `
SELECT r.source_key, j.outcome, j.reason
FROM unnest($4::text[], $5::text[], $6::text[], $7::bytea[], $8::text[], $9::jsonb[], $10::text[], $11::int[], $12::text[]::timestamptz[],
            $13::text[], $14::int[], $15::text[], $16::int[], $17::text[]::timestamptz[], $18::text[]::timestamptz[], $19::text[], $20::text[]::timestamptz[],
            $21::text[], $22::text[])
     WITH ORDINALITY AS r(source_key, queue, payload, data, content_type, headers, subject, priority, run_at, idempotency_key, max_attempts,
            state, attempts, created_at, finished_at, lease_owner, lease_until, result, error, n)
CROSS JOIN LATERAL leasehold.import_job($1, r.source_key, $2, $3, r.queue, r.payload, r.data, r.content_type, r.headers, r.subject, r.priority,
            r.run_at, r.idempotency_key, r.max_attempts, r.state, r.attempts, r.created_at, r.finished_at, r.lease_owner, r.lease_until,
            r.result, r.error) j
ORDER BY r.n`
