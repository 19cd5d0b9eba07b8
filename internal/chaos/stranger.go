package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// stranger is somebody else who works on the same database, straight past the proxies.
type stranger struct{ url string }

// strangerName is told apart from the service by this.
const strangerName = "chaos"

const (
	// sqlLockRows locks some of the jobs that are worked on now.
	sqlLockRows = `SELECT j.id FROM leasehold.jobs j WHERE j.state IN (1, 2) ORDER BY random() LIMIT 40 FOR UPDATE SKIP LOCKED`
	// sqlPinRows holds them as somebody does whose rows refer to them.
	sqlPinRows = `SELECT j.id FROM leasehold.jobs j WHERE j.state = 2 ORDER BY random() LIMIT 40 FOR KEY SHARE SKIP LOCKED`
	// sqlLockKeys locks keys that are likely to be used again.
	sqlLockKeys = `SELECT k.key FROM leasehold.idempotency_keys k WHERE k.key LIKE 'shared/%' ORDER BY k.job_id DESC LIMIT 40 FOR UPDATE SKIP LOCKED`
	// sqlTakeKeys holds the lock under which a key that nobody has yet is taken.
	sqlTakeKeys = `SELECT pg_advisory_xact_lock(hashtextextended('shared/' || n, q.id)) FROM leasehold.queues q, generate_series(1, 2000, 7) n WHERE q.name = 'orders'`
	// sqlLockTable is what a migration or a VACUUM FULL does.
	sqlLockTable = `LOCK TABLE leasehold.jobs IN ACCESS EXCLUSIVE MODE`
	// sqlLook pins what vacuum could remove, and counts as a transaction that has written.
	sqlLook = `SELECT count(*), pg_current_xact_id()::text FROM leasehold.jobs`
	// sqlEvict ends every session of the service, also the one that listens.
	sqlEvict = `SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.backend_type = 'client backend' AND a.application_name <> '` + strangerName + `'`
)

// connect needs patience: PostgreSQL may be down, stopped or recovering just now.
func (s *stranger) connect(ctx context.Context) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(s.url)
	if err != nil {
		return nil, err
	}
	cfg.RuntimeParams["application_name"] = strangerName
	cfg.RuntimeParams["default_transaction_read_only"] = "off"
	cfg.RuntimeParams["lock_timeout"] = "2s"
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return pgx.ConnectConfig(ctx, cfg)
}

// meddle does a fault of SQL. Where PostgreSQL is away there is nothing to meddle with.
func (s *stranger) meddle(ctx context.Context, f fault) error {
	if f.kind == sqlReadOnly {
		return s.forbidWriting(ctx, f.length)
	}
	conn, err := s.connect(ctx)
	if err != nil {
		return nil
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // it may be broken
	if f.kind == sqlTerminate {
		_, _ = conn.Exec(ctx, sqlEvict) // PostgreSQL may go away in the middle
		return nil
	}
	statements := map[kind][]string{
		sqlRows: {sqlLockRows, sqlPinRows}, sqlKeys: {sqlLockKeys, sqlTakeKeys}, sqlTable: {sqlLockTable}, sqlSnapshot: {sqlLook},
	}[f.kind]
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return nil
	}
	if _, err = tx.Exec(ctx, statements[int(f.how*float64(len(statements)))]); err == nil {
		rest(ctx, f.length)
	}
	_ = tx.Rollback(context.WithoutCancel(ctx)) // what is broken needs none
	return nil
}

// forbidWriting makes the server answer as one that was demoted.
func (s *stranger) forbidWriting(ctx context.Context, length time.Duration) error {
	if err := s.configure(ctx, `ALTER SYSTEM SET default_transaction_read_only = on`); err != nil {
		return nil // it is away
	}
	rest(ctx, length)
	return s.allowWriting(context.WithoutCancel(ctx))
}

// allowWriting takes that back, whatever else goes on.
func (s *stranger) allowWriting(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	for {
		err := s.configure(ctx, `ALTER SYSTEM RESET default_transaction_read_only`)
		if err == nil {
			return nil
		}
		if !rest(ctx, 200*time.Millisecond) {
			return fmt.Errorf("the database stays read-only: %w", err)
		}
	}
}

func (s *stranger) configure(ctx context.Context, statement string) error {
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // it may be broken
	if _, err := conn.Exec(ctx, statement); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, `SELECT pg_reload_conf()`)
	return err
}

// standing is how far the jobs are.
type standing struct {
	Stored, Ended   int64
	Waiting, Leased int64
}

const sqlStanding = `
SELECT (SELECT count(*) FROM leasehold.jobs) + (SELECT count(*) FROM leasehold.finished_jobs) AS stored,
       (SELECT count(*) FROM leasehold.finished_jobs) AS ended,
       (SELECT count(*) FROM leasehold.jobs j WHERE j.state = 1) AS waiting,
       (SELECT count(*) FROM leasehold.jobs j WHERE j.state = 2) AS leased`

// look reads how far the jobs are, if the database answers at once.
func (s *stranger) look(ctx context.Context) (standing, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	conn, err := s.connect(ctx)
	if err != nil {
		return standing{}, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // only read from
	rows, err := conn.Query(ctx, sqlStanding)
	if err != nil {
		return standing{}, err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[standing])
}
