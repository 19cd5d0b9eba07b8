package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/trace"

	"github.com/leasehold/leasehold/store"
)

// Config says how to reach the database.
type Config struct {
	// URL is a libpq connection string or URL. Several hosts and target_session_attrs
	// work as in libpq. Through a transaction-mode pooler DirectURL is needed as well.
	URL string
	// DirectURL reaches the server itself, for LISTEN and migrations. Default: URL.
	DirectURL string
	// PoolSize bounds the connections, 4..1000, without the one for LISTEN. Default: 8.
	PoolSize int
	// Logger gets what a caller is not told. Default: slog.Default().
	Logger *slog.Logger
	// Tracing makes a span of each round trip, in a trace that the caller has begun. Default: none.
	Tracing trace.TracerProvider
	// Observer hears what became of leases. Default: nobody does.
	Observer store.Observer
}

// Validate joins all faults.
func (c Config) Validate() error {
	var faults []error
	if c.URL == "" {
		faults = append(faults, errors.New("the database URL is missing"))
	} else if _, err := pgxpool.ParseConfig(c.URL); err != nil {
		// The parser's text may quote the password.
		faults = append(faults, errors.New("the database URL cannot be parsed"))
	}
	if c.DirectURL != "" {
		if _, err := pgx.ParseConfig(c.DirectURL); err != nil {
			faults = append(faults, errors.New("the direct database URL cannot be parsed"))
		}
	}
	if c.PoolSize != 0 && (c.PoolSize < minPoolSize || c.PoolSize > 1000) {
		faults = append(faults, fmt.Errorf("the pool size must be %d..1000, got %d", minPoolSize, c.PoolSize))
	}
	return errors.Join(faults...)
}

const (
	defaultPoolSize = 8
	// minPoolSize gives each lane at least one connection of its own.
	minPoolSize      = 4
	minServerVersion = 140000
	connectTimeout   = 5 * time.Second
)

// Store is the Store over one PostgreSQL database. It keeps no state that correctness
// needs: what it remembers are places to begin a scan at. Safe for concurrent use.
type Store struct {
	pool *pgxpool.Pool
	log  *slog.Logger
	seen store.Observer
	// ends renews and ends leases; work acquires and enqueues; reads lists and looks up,
	// on few connections, so that operators' reads never take the last one.
	ends, work, reads *lane
	direct            *pgx.ConnConfig
	marks             *marks
	// Where the next pages of idempotency keys and of live jobs to look at start.
	forgetAfter, setAsideAfter atomic.Int64
}

var _ store.Store = (*Store)(nil)

// Open connects, and refuses a set-up that cannot work with *store.UnsupportedError:
// a server below version 14, or a pooler without a direct URL. It returns
// *store.UnavailableError where no writable server answers yet: try again.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, &store.UnsupportedError{Reason: err.Error()}
	}
	if cfg.PoolSize == 0 {
		cfg.PoolSize = defaultPoolSize
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Observer == nil {
		cfg.Observer = store.Unobserved{}
	}
	poolConfig, err := pgxpool.ParseConfig(cfg.URL)
	if err != nil {
		return nil, &store.UnsupportedError{Reason: "the database URL cannot be parsed"}
	}
	direct, err := pgx.ParseConfig(cfg.directURL())
	if err != nil {
		return nil, &store.UnsupportedError{Reason: "the direct database URL cannot be parsed"}
	}
	direct.ConnectTimeout = connectTimeout
	seen := newTimelines(cfg.Logger)
	seen.guard(poolConfig.ConnConfig)
	seen.guard(direct)
	if err := checkServer(ctx, poolConfig.ConnConfig, direct); err != nil {
		return nil, err
	}
	tunePool(poolConfig, cfg)
	var pool *pgxpool.Pool
	lookAtIdle(poolConfig, func() { pool.Reset() })
	seen.left = func() { pool.Reset() }
	pool, err = pgxpool.NewWithConfig(ctx, poolConfig)
	if err != nil {
		return nil, &store.UnavailableError{Cause: err}
	}
	return newStore(pool, direct, cfg), nil
}

func (c Config) directURL() string {
	if c.DirectURL != "" {
		return c.DirectURL
	}
	return c.URL
}

func newStore(pool *pgxpool.Pool, direct *pgx.ConnConfig, cfg Config) *Store {
	size := cfg.PoolSize
	reads := max(1, size/4)
	ends := max(1, (size-reads)/2)
	work := size - reads - ends
	return &Store{
		pool: pool, log: cfg.Logger, seen: cfg.Observer, direct: direct, marks: newMarks(),
		ends:  newLane(pool, ends, 5*time.Second, time.Second),
		work:  newLane(pool, work, 5*time.Second, time.Second),
		reads: newLane(pool, reads, 10*time.Second, time.Second),
	}
}

func tunePool(pc *pgxpool.Config, cfg Config) {
	pc.MaxConns = int32(cfg.PoolSize)
	pc.MinConns = 0
	pc.MaxConnIdleTime = 5 * time.Minute
	pc.MaxConnLifetime = time.Hour
	pc.MaxConnLifetimeJitter = 10 * time.Minute
	pc.HealthCheckPeriod = 30 * time.Second
	pc.ConnConfig.ConnectTimeout = connectTimeout
	pc.ConnConfig.Tracer = newTracer(cfg.Tracing)
	if cfg.DirectURL == "" {
		// Preparing a statement locks its tables ahead of the timeouts that travel with each
		// statement. A pooler would refuse these settings, and is not prepared through.
		setDefault(pc.ConnConfig.RuntimeParams, "lock_timeout", "1s")
		setDefault(pc.ConnConfig.RuntimeParams, "statement_timeout", "10s")
	}
	setDefault(pc.ConnConfig.RuntimeParams, "application_name", "leasehold")
	// In a zone with summer time a day may have 23 hours, and a key would not live for its week.
	pc.ConnConfig.RuntimeParams["timezone"] = "UTC"
	if cfg.DirectURL != "" && pc.ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		// Poolers before PgBouncer 1.21 lose named prepared statements between transactions.
		pc.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	}
}

func setDefault(params map[string]string, name, value string) {
	if _, ok := params[name]; !ok {
		params[name] = value
	}
}

// Close ends all connections.
func (s *Store) Close() { s.pool.Close() }

// Pool is for metrics and tests.
func (s *Store) Pool() *pgxpool.Pool { return s.pool }

// checkServer refuses what cannot work, once, at start.
func checkServer(ctx context.Context, pooled, direct *pgx.ConnConfig) error {
	pooled = pooled.Copy()
	pooled.ConnectTimeout = connectTimeout
	ownPID, err := probe(ctx, direct)
	if err != nil {
		return err
	}
	if !ownPID {
		return &store.UnsupportedError{Reason: "the connection goes through a pooler: give the server's own address as --direct-database-url (LEASEHOLD_DIRECT_DATABASE_URL)"}
	}
	_, err = probe(ctx, pooled)
	return err
}

// probe checks one way to the server, and tells whether the server process is the one that
// the connection was told: a pooler puts itself between.
func probe(ctx context.Context, cc *pgx.ConnConfig) (ownPID bool, err error) {
	cc = cc.Copy()
	cc.DefaultQueryExecMode = pgx.QueryExecModeExec
	conn, err := pgx.ConnectConfig(ctx, cc)
	if err != nil {
		return false, connectError(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // only read from
	var version int
	var pid uint32
	var recovering bool
	err = conn.QueryRow(ctx, `SELECT current_setting('server_version_num')::int, pg_backend_pid(), pg_is_in_recovery()`).
		Scan(&version, &pid, &recovering)
	if err != nil {
		return false, &store.UnavailableError{Cause: err}
	}
	if version < minServerVersion {
		return false, &store.UnsupportedError{Reason: fmt.Sprintf("PostgreSQL 14 or later is needed, the server is version %d.%d", version/10000, version%10000)}
	}
	if recovering {
		return false, &store.UnavailableError{Cause: errors.New("the server is in recovery: a standby, or starting")}
	}
	return pid == conn.PgConn().PID(), nil
}

// connectError tells a server that is not there yet, for which waiting helps, from one that
// will never let us in.
func connectError(err error) error {
	for code, reason := range map[string]string{
		"28P01": "the database server refuses the password",
		"28000": "the database server refuses the user",
		"3D000": "the database of the URL does not exist",
		"42501": "the database user lacks a right that it needs: run migrations as the owner with `leasehold migrate`, or grant CREATE on the database",
	} {
		if isCode(err, code) {
			return &store.UnsupportedError{Reason: reason + " (SQLSTATE " + code + ")"}
		}
	}
	return &store.UnavailableError{Cause: err}
}
