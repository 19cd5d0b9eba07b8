package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasehold/leasehold/internal/bench"
	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/postgres"
)

// benchName is how the benchmark's own connections name themselves, so that those of the
// service can be counted.
const benchName = "leasehold-bench"

// benchServer is the server that the benchmark makes its databases on.
type benchServer struct {
	url        string // of a database that exists
	admin      *pgxpool.Pool
	template   string
	postmaster int
	made       int
}

// newBenchServer makes the template: a database with the schema, migrated once.
func newBenchServer(ctx context.Context, serverURL string) (*benchServer, error) {
	admin, err := pgxpool.New(ctx, serverURL)
	if err != nil {
		return nil, err
	}
	s := &benchServer{url: serverURL, admin: admin, template: "leasehold_bench_" + strings.ToLower(rand.Text()[:10])}
	if err := s.prepare(ctx); err != nil {
		return nil, errors.Join(err, s.close(ctx))
	}
	return s, nil
}

func (s *benchServer) prepare(ctx context.Context) error {
	var backend int
	if err := s.admin.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&backend); err != nil {
		return err
	}
	s.postmaster = bench.PostmasterOf(backend)
	if err := s.exec(ctx, "CREATE DATABASE "+s.template+" TEMPLATE template0"); err != nil {
		return err
	}
	at, err := databaseURL(s.url, s.template, "")
	if err != nil {
		return err
	}
	return postgres.Migrate(ctx, at, slog.New(slog.DiscardHandler))
}

func (s *benchServer) exec(ctx context.Context, statement string) error {
	_, err := s.admin.Exec(ctx, statement)
	return err
}

func (s *benchServer) close(ctx context.Context) error {
	defer s.admin.Close()
	return s.exec(ctx, "DROP DATABASE IF EXISTS "+s.template+" WITH (FORCE)")
}

// Postmaster implements bench.Server.
func (s *benchServer) Postmaster() int { return s.postmaster }

// NewDatabase implements bench.Server.
func (s *benchServer) NewDatabase(ctx context.Context) (bench.Database, error) {
	s.made++
	name := s.template + "_" + strconv.Itoa(s.made)
	if err := s.exec(ctx, "CREATE DATABASE "+name+" TEMPLATE "+s.template); err != nil {
		return nil, err
	}
	d := &benchDatabase{server: s, name: name}
	var err error
	if d.url, err = databaseURL(s.url, name, ""); err != nil {
		return nil, errors.Join(err, d.Drop(ctx))
	}
	own, err := databaseURL(s.url, name, benchName)
	if err != nil {
		return nil, errors.Join(err, d.Drop(ctx))
	}
	if d.pool, err = pgxpool.New(ctx, own); err != nil {
		return nil, errors.Join(err, d.Drop(ctx))
	}
	return d, nil
}

// databaseURL is the URL of another database on the same server.
func databaseURL(serverURL, database, application string) (string, error) {
	u, err := url.Parse(serverURL)
	if err != nil || u.Scheme == "" {
		// The parser's text may quote the password.
		return "", errors.New("--database-url must be a URL, as postgres://user@host/database")
	}
	u.Path = "/" + database
	if application != "" {
		query := u.Query()
		query.Set("application_name", application)
		u.RawQuery = query.Encode()
	}
	return u.String(), nil
}

// openBenchStore opens the store itself beside the service.
func openBenchStore(ctx context.Context, at string) (store.Store, func(), error) {
	u, err := url.Parse(at)
	if err != nil {
		return nil, nil, err
	}
	query := u.Query()
	query.Set("application_name", benchName)
	u.RawQuery = query.Encode()
	st, err := postgres.Open(ctx, postgres.Config{URL: u.String(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, nil, fmt.Errorf("open the store: %w", err)
	}
	return st, st.Close, nil
}

// benchDatabase is one database of the benchmark.
type benchDatabase struct {
	server *benchServer
	name   string
	url    string
	pool   *pgxpool.Pool
}

// URL implements bench.Database.
func (d *benchDatabase) URL() string { return d.url }

// Drop implements bench.Database.
func (d *benchDatabase) Drop(ctx context.Context) error {
	if d.pool != nil {
		d.pool.Close()
	}
	return d.server.exec(ctx, "DROP DATABASE IF EXISTS "+d.name+" WITH (FORCE)")
}

// fillChunk is how many jobs one statement makes: a partition must not be outgrown.
const fillChunk = 200_000

func (d *benchDatabase) fill(ctx context.Context, statement, queue string, n int64, payload []byte) error {
	for left := n; left > 0; left -= fillChunk {
		if _, err := d.pool.Exec(ctx, `SELECT leasehold.ensure_partitions()`); err != nil {
			return err
		}
		if _, err := d.pool.Exec(ctx, statement, queue, min(left, fillChunk), payload); err != nil {
			return err
		}
	}
	return nil
}

// FillPending implements bench.Database.
func (d *benchDatabase) FillPending(ctx context.Context, queue string, n int64, payload []byte) error {
	return d.fill(ctx, sqlBenchFillPending, queue, n, payload)
}

// FillFinished implements bench.Database.
func (d *benchDatabase) FillFinished(ctx context.Context, queue string, n int64, payload []byte) error {
	return d.fill(ctx, sqlBenchFillFinished, queue, n, payload)
}

// Settle implements bench.Database.
func (d *benchDatabase) Settle(ctx context.Context) error {
	_, err := d.pool.Exec(ctx, `VACUUM ANALYZE leasehold.jobs, leasehold.job_data, leasehold.finished_jobs`)
	return err
}

// RemoveDead implements bench.Database.
func (d *benchDatabase) RemoveDead(ctx context.Context) error {
	_, err := d.pool.Exec(ctx, `VACUUM leasehold.jobs`)
	return err
}

// HoldSnapshot implements bench.Database.
func (d *benchDatabase) HoldSnapshot(ctx context.Context) (end func() error, err error) {
	conn, err := pgx.ConnectConfig(ctx, d.pool.Config().ConnConfig)
	if err != nil {
		return nil, err
	}
	for _, statement := range []string{`BEGIN ISOLATION LEVEL REPEATABLE READ`, `SELECT id FROM leasehold.queues`} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			conn.Close(ctx)
			return nil, err
		}
	}
	return func() error { return conn.Close(context.WithoutCancel(ctx)) }, nil
}

// Commit implements bench.Database.
func (d *benchDatabase) Commit(ctx context.Context) error {
	_, err := d.pool.Exec(ctx, sqlBenchCommit)
	return err
}

// Transactions implements bench.Database. It asks from another database.
func (d *benchDatabase) Transactions(ctx context.Context) (n int64, err error) {
	err = d.server.admin.QueryRow(ctx, sqlBenchTransactions, d.name).Scan(&n)
	return n, err
}

// Connections implements bench.Database.
func (d *benchDatabase) Connections(ctx context.Context) (n int, err error) {
	err = d.server.admin.QueryRow(ctx, sqlBenchConnections, d.name, benchName).Scan(&n)
	return n, err
}

// Updates implements bench.Database.
func (d *benchDatabase) Updates(ctx context.Context) (all, hot int64, err error) {
	err = d.pool.QueryRow(ctx, sqlBenchUpdates).Scan(&all, &hot)
	return all, hot, err
}

// LiveLeases implements bench.Database.
func (d *benchDatabase) LiveLeases(ctx context.Context) (n int64, err error) {
	err = d.pool.QueryRow(ctx, sqlBenchLiveLeases).Scan(&n)
	return n, err
}
