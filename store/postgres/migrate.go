package postgres

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/leasehold/leasehold/store"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

const versionTable = "leasehold.schema_versions"

// sqlPrepareSchema makes the schema and may lose a race against another replica, which is
// why it is repeated on a unique violation.
const sqlPrepareSchema = `CREATE SCHEMA IF NOT EXISTS leasehold`

// Migrate brings the schema to this binary's version. Replicas that race take turns by an
// advisory lock that they poll, so that nobody waits with an open snapshot. Forward only.
// url must reach the server itself, not a pooler.
func Migrate(ctx context.Context, url string, log *slog.Logger) error {
	db, provider, err := migrations(url)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }() // nothing is buffered
	if err := prepareSchema(ctx, db); err != nil {
		return connectError(err)
	}
	current, err := provider.GetDBVersion(ctx)
	if err != nil {
		return &store.UnavailableError{Cause: err}
	}
	if current > SchemaVersion() {
		return newerSchema(current)
	}
	results, err := provider.Up(ctx)
	for _, r := range results {
		log.Info("migrated", "version", r.Source.Version, "took", r.Duration)
	}
	if err != nil {
		return fmt.Errorf("migrating the schema: %w", err)
	}
	return nil
}

// CheckSchema returns *store.UnsupportedError where the schema is not of this binary's
// version, without changing anything.
func CheckSchema(ctx context.Context, url string) error {
	current, err := schemaVersion(ctx, url)
	if err != nil {
		return err
	}
	switch want := SchemaVersion(); {
	case current > want:
		return newerSchema(current)
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

func migrations(url string) (*sql.DB, *goose.Provider, error) {
	cc, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, nil, &store.UnsupportedError{Reason: "the database URL cannot be parsed"}
	}
	cc.RuntimeParams["lock_timeout"] = "5s"
	db := stdlib.OpenDB(*cc)
	files, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		return nil, nil, err
	}
	locker, err := lock.NewPostgresSessionLocker(
		lock.WithLockID(7310868735420870002), lock.WithLockTimeout(1, 300), lock.WithUnlockTimeout(1, 10))
	if err != nil {
		return nil, nil, err
	}
	options := []goose.ProviderOption{goose.WithTableName(versionTable), goose.WithLogger(goose.NopLogger()), goose.WithSessionLocker(locker)}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files, options...)
	if err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	return db, provider, nil
}

func prepareSchema(ctx context.Context, db *sql.DB) error {
	for {
		_, err := db.ExecContext(ctx, sqlPrepareSchema)
		if !isCode(err, codeUniqueViolation) || !sleep(ctx, jittered(50*time.Millisecond)) {
			return err
		}
	}
}
