package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/store"
)

// sqlHeldSnapshots finds, of each kind of holder, the one that holds back vacuum on this
// database the furthest. The session that asks does not count. A session's own time is that
// of its transaction; nobody keeps the time of a slot. Without the right to read the
// statistics of others (pg_read_all_stats) only sessions of the same user are seen.
const sqlHeldSnapshots = `
WITH held AS (
    SELECT CASE WHEN a.backend_type = 'walsender' THEN 'standby' ELSE 'session' END AS holder,
           a.pid::text || ' of ' || coalesce(a.usename, '') || ', application ' || coalesce(nullif(a.application_name, ''), '(none)')
               || ', ' || coalesce(a.state, 'state unknown') AS name,
           greatest(age(a.backend_xmin), age(a.backend_xid))::bigint AS transactions,
           coalesce(extract(epoch FROM clock_timestamp() - a.xact_start), 0)::float8 AS seconds
    FROM pg_stat_activity a
    WHERE (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL) AND a.pid <> pg_backend_pid()
      AND (a.datname = current_database() OR a.backend_type = 'walsender')
    UNION ALL
    SELECT 'slot', s.slot_name::text || CASE WHEN s.active THEN ', active' ELSE ', not active' END, age(s.xmin)::bigint, 0
    FROM pg_replication_slots s WHERE s.xmin IS NOT NULL
    UNION ALL
    SELECT 'prepared', p.gid || ' of ' || p.owner::text, age(p.transaction)::bigint, extract(epoch FROM clock_timestamp() - p.prepared)::float8
    FROM pg_prepared_xacts p WHERE p.database = current_database()
)
SELECT DISTINCT ON (h.holder) h.holder, h.name, h.transactions, h.seconds
FROM held h ORDER BY h.holder, h.transactions DESC, h.seconds DESC`

// HeldSnapshots tells who holds back vacuum, see store.Maintenance.
func (s *Store) HeldSnapshots(ctx context.Context) ([]store.HeldSnapshot, error) {
	return s.heldBy(ctx, sqlHeldSnapshots)
}

func (s *Store) heldBy(ctx context.Context, sql string, args ...any) ([]store.HeldSnapshot, error) {
	type heldRow struct {
		Holder       string
		Name         string
		Transactions int64
		Seconds      float64
	}
	rows, err := query(ctx, s, unit{lane: s.reads, sql: sql, args: args, idempotent: true}, pgx.RowToStructByName[heldRow])
	held := make([]store.HeldSnapshot, len(rows))
	for i, r := range rows {
		held[i] = store.HeldSnapshot{Holder: r.Holder, Name: r.Name, Transactions: r.Transactions, For: seconds(r.Seconds)}
	}
	return held, err
}
