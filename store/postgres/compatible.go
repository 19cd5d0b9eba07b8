package postgres

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/store"
)

// oldestServed is the schema version of the oldest binaries that run on this schema. It is raised
// by a migration that contracts: one that takes away what those binaries still use. Without such
// a mark no replica of the version before could be started once the first of the new version has
// migrated: no restart in the middle of an upgrade, and no way back.
const oldestServed = 4

// declaration stands as the comment of the schema, where it needs no migration, and where a binary
// that does not know the schema's tables can read it.
const declaration = "leasehold: schema %d, serves binaries of schema %d and later"

// declare writes the declaration where it is not there. Who may not write it is no owner, and has
// migrated nothing.
func declare(ctx context.Context, db *sql.DB, version int64) error {
	_, err := db.ExecContext(ctx, fmt.Sprintf(sqlDeclare, fmt.Sprintf(declaration, version, oldestServed)))
	if err == nil || isCode(err, "42501") {
		return nil
	}
	return fmt.Errorf("declaring the schema: %w", err)
}

// sqlDeclare takes turns: two replicas that start at once would else meet in the catalog.
const sqlDeclare = `
DO $$
BEGIN
    PERFORM pg_advisory_xact_lock(7310868735420870004);
    IF obj_description('leasehold'::regnamespace, 'pg_namespace') IS DISTINCT FROM '%[1]s' THEN
        COMMENT ON SCHEMA leasehold IS '%[1]s';
    END IF;
END $$`

const sqlDeclared = `SELECT coalesce(obj_description(to_regnamespace('leasehold'), 'pg_namespace'), '')`

// checkNewer refuses a schema that is newer than this binary, unless it says that it serves it.
func checkNewer(ctx context.Context, url string, current int64) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return connectError(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // only read from
	var said string
	if err := conn.QueryRow(ctx, sqlDeclared).Scan(&said); err != nil {
		return &store.UnavailableError{Cause: err}
	}
	var version, oldest int64
	// A comment of another version was left by a migrator that did not come to its end.
	if n, _ := fmt.Sscanf(said, declaration, &version, &oldest); n == 2 && version == current && oldest <= SchemaVersion() {
		return nil
	}
	return newerSchema(current)
}
