package postgres

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"log/slog"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/store"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

const versionTable = "leasehold.schema_versions"

// sqlPrepareSchema makes the schema and may lose a race against another replica, which is
// why it is repeated on a unique violation.
const sqlPrepareSchema = `CREATE SCHEMA IF NOT EXISTS leasehold`

// Migrate brings the schema to this binary's version. Replicas that race take turns by an
// advisory lock that they poll, so that nobody waits with an open snapshot. Forward only. A newer
// schema that still serves this binary is left as it is. url must reach the server itself, not a
// pooler.
//
// A table's lock is waited for in short tries, so that nobody queues behind the migration for
// longer than one of them. It returns *store.UnavailableError with the cause *LockedError where
// other sessions kept a lock for too long: nothing is half done then, and it may be tried again.
func Migrate(ctx context.Context, url string, log *slog.Logger) error {
	files, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		return err
	}
	return migration{url: url, files: files, log: log, patience: lockPatience}.run(ctx)
}

// CheckSchema returns *store.UnsupportedError where the schema does not serve this binary,
// without changing anything.
func CheckSchema(ctx context.Context, url string) error {
	current, err := schemaVersion(ctx, url)
	if err != nil {
		return err
	}
	switch want := SchemaVersion(); {
	case current > want:
		return checkNewer(ctx, url, current)
	case current < want:
		return &store.UnsupportedError{Reason: fmt.Sprintf("the schema is at version %d and this binary needs %d: run `leasehold migrate`, or start with --migrate=auto", current, want)}
	}
	return nil
}

// GrantRoles makes the roles of the schema where the user of url may, gives them their rights in
// this database, and returns those that are missing. Only the owner of the schema may do that.
// url must reach the server itself.
func GrantRoles(ctx context.Context, url string) (missing []string, err error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, connectError(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // the statement has been answered
	if err := conn.QueryRow(ctx, sqlGrantRoles).Scan(&missing); err != nil {
		return nil, connectError(err)
	}
	return missing, nil
}

const sqlGrantRoles = `SELECT leasehold.grant_roles()`

func newerSchema(current int64) error {
	return &store.UnsupportedError{Reason: fmt.Sprintf("the schema is at version %d, newer than this binary's %d: use a newer binary", current, SchemaVersion())}
}

func schemaVersion(ctx context.Context, url string) (int64, error) {
	cc, err := pgx.ParseConfig(url)
	if err != nil {
		return 0, &store.UnsupportedError{Reason: "the database URL cannot be parsed"}
	}
	conn, err := pgx.ConnectConfig(ctx, cc)
	if err != nil {
		return 0, connectError(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // only read from
	var version int64
	err = conn.QueryRow(ctx, sqlSchemaVersion).Scan(&version)
	if isCode(err, "42P01") || isCode(err, "3F000") {
		return 0, nil // no such table or schema yet
	}
	if err != nil {
		return 0, &store.UnavailableError{Cause: err}
	}
	return version, nil
}

const sqlSchemaVersion = `SELECT coalesce(max(version_id) FILTER (WHERE is_applied), 0) FROM leasehold.schema_versions`

// SchemaVersion is the version that this binary needs.
func SchemaVersion() int64 {
	names, err := fs.Glob(migrationFiles, "migrations/*.sql")
	if err != nil {
		return 0
	}
	return int64(len(names))
}
