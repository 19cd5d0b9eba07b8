package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/leasehold/leasehold/store"
)

const (
	// lockTry is how long a migration waits for a table's lock, and with it everybody who comes
	// behind it in the queue for that lock, heartbeats too.
	lockTry = 500 * time.Millisecond
	// vacuumTry is that where autovacuum has the lock. PostgreSQL ends autovacuum for a waiter,
	// but only after one deadlock_timeout of 1 s: shorter tries would wait for the vacuum of a
	// big table, for hours.
	vacuumTry = 1300 * time.Millisecond
	// lockPause is between two tries, in which those who queued get their turn.
	lockPause = time.Second
	// lockPatience is for how long it is tried in all.
	lockPatience = 5 * time.Minute
)

// LockedError says that a migration did not get a lock because others kept it. Nothing was
// changed by the migration of that version.
type LockedError struct {
	Version int64
	For     time.Duration // how long it was tried
	Holders []string      // sessions that have locks in the schema, those with the oldest transaction first
}

func (e *LockedError) Error() string {
	who := "no session that is still there"
	if len(e.Holders) > 0 {
		who = strings.Join(e.Holders, "; ")
	}
	return fmt.Sprintf("migration %d got no lock within %v and changed nothing; locks are held by: %s. End that transaction (SELECT pg_terminate_backend(PID)) and migrate again", e.Version, e.For, who)
}

// migration brings one database to the newest version of files.
type migration struct {
	url      string
	files    fs.FS
	log      *slog.Logger
	patience time.Duration
}

// run repeats tries until one gets its locks or the patience is over.
func (m migration) run(ctx context.Context) error {
	wait := lockTry
	for began := time.Now(); ; {
		err := m.try(ctx, wait)
		if err == nil || !isCode(err, codeLockNotAvailable) {
			return err
		}
		locked := &LockedError{For: time.Since(began).Round(time.Millisecond)}
		wait = lockTry
		for _, h := range m.holders(ctx) {
			locked.Holders = append(locked.Holders, h.Who)
			if h.Vacuum {
				wait = vacuumTry
			}
		}
		if partial, is := errors.AsType[*goose.PartialError](err); is {
			locked.Version = partial.Failed.Source.Version
		}
		if time.Since(began) > m.patience || !sleep(ctx, jittered(lockPause)) {
			return &store.UnavailableError{Cause: locked}
		}
		m.log.Warn("a migration waits for a lock", "version", locked.Version, "held_by", locked.Holders)
	}
}

// try applies what is left to apply, each file in a transaction of its own unless it says no.
func (m migration) try(ctx context.Context, wait time.Duration) error {
	db, provider, err := m.open(wait)
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
	if current > SchemaVersion() && current > m.newest() {
		return checkNewer(ctx, m.url, current)
	}
	results, err := provider.Up(ctx)
	for _, r := range results {
		m.log.Info("migrated", "version", r.Source.Version, "took", r.Duration)
	}
	if err != nil {
		return fmt.Errorf("migrating the schema: %w", err)
	}
	return declare(ctx, db, m.newest())
}

func (m migration) newest() int64 {
	names, err := fs.Glob(m.files, "*.sql")
	if err != nil {
		return 0
	}
	return int64(len(names))
}

func (m migration) open(wait time.Duration) (*sql.DB, *goose.Provider, error) {
	cc, err := pgx.ParseConfig(m.url)
	if err != nil {
		return nil, nil, &store.UnsupportedError{Reason: "the database URL cannot be parsed"}
	}
	cc.RuntimeParams["lock_timeout"] = millis(wait)
	setDefault(cc.RuntimeParams, "application_name", "leasehold-migrate")
	db := stdlib.OpenDB(*cc)
	locker, err := lock.NewPostgresSessionLocker(
		lock.WithLockID(7310868735420870002), lock.WithLockTimeout(1, 300), lock.WithUnlockTimeout(1, 10))
	if err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	options := []goose.ProviderOption{goose.WithTableName(versionTable), goose.WithLogger(goose.NopLogger()), goose.WithSessionLocker(locker)}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, m.files, options...)
	if err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	return db, provider, nil
}

// holder is a session that has locks in the schema.
type holder struct {
	Who    string `db:"who"`
	Vacuum bool   `db:"vacuum"`
}

// holders are for the message: without them, nobody is told whom to ask.
func (m migration) holders(ctx context.Context) []holder {
	conn, err := pgx.Connect(ctx, m.url)
	if err != nil {
		return nil
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // only read from
	rows, err := conn.Query(ctx, sqlHolders)
	if err != nil {
		return nil
	}
	holders, err := pgx.CollectRows(rows, pgx.RowToStructByName[holder])
	if err != nil {
		return nil
	}
	return holders
}

// sqlHolders leaves out the service's own sessions, which hold a lock for milliseconds. A worker of
// autovacuum is the only one without a user, which everybody may see.
const sqlHolders = `
SELECT format('pid %s, user %s, application %L, %s, in a transaction for %s s', a.pid, coalesce(a.usename, '?'), coalesce(a.application_name, ''),
              coalesce(a.state, '?'), coalesce(round(extract(epoch FROM clock_timestamp() - a.xact_start))::text, '?')) AS who,
       a.usesysid IS NULL AS vacuum
FROM pg_stat_activity a
WHERE a.pid <> pg_backend_pid() AND a.datname = current_database()
  AND a.pid IN (SELECT l.pid FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
                WHERE l.granted AND c.relnamespace = to_regnamespace('leasehold'))
  AND (a.xact_start IS NULL OR a.xact_start < clock_timestamp() - interval '400 milliseconds')
ORDER BY a.xact_start NULLS LAST LIMIT 5`

func prepareSchema(ctx context.Context, db *sql.DB) error {
	for {
		_, err := db.ExecContext(ctx, sqlPrepareSchema)
		if !isCode(err, codeUniqueViolation) || !sleep(ctx, jittered(50*time.Millisecond)) {
			return err
		}
	}
}
