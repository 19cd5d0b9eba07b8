package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/leasehold/leasehold/server"
	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/postgres"
)

const (
	// connectFirst and connectMax are the pauses between tries to reach the database.
	connectFirst = 200 * time.Millisecond
	connectMax   = 5 * time.Second
)

// connect opens the store, brings the schema up to date or checks it, and makes the server.
// It waits for a database that is not there yet, because in a cluster nobody starts things
// in order; what waiting does not mend is an error. /readyz says what it waits for.
func (s *service) connect(ctx context.Context) (*postgres.Store, *server.Server, error) {
	for pause := connectFirst; ; pause = min(2*pause, connectMax) {
		st, srv, err := s.connectOnce(ctx)
		if _, away := errors.AsType[*store.UnavailableError](err); !away || ctx.Err() != nil {
			return st, srv, err
		}
		s.ready.Waiting("waiting for the database: " + explain(err))
		s.log.WarnContext(ctx, "waiting for the database", "error", explain(err))
		timer := time.NewTimer(pause/2 + rand.N(pause/2))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, nil, ctx.Err()
		}
	}
}

func (s *service) connectOnce(ctx context.Context) (*postgres.Store, *server.Server, error) {
	cfg := s.cfg.database()
	cfg.Logger, cfg.Observer, cfg.Tracing = s.log, s.leases, s.tracing
	st, err := postgres.Open(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	srv, err := s.prepare(ctx, st)
	if err != nil {
		st.Close()
		return nil, nil, err
	}
	return st, srv, nil
}

func (s *service) prepare(ctx context.Context, st *postgres.Store) (*server.Server, error) {
	bring := func() error { return postgres.CheckSchema(ctx, s.cfg.directURL()) }
	if s.cfg.Migrate == migrateAuto {
		s.ready.Waiting("migrating the schema")
		bring = func() error { return postgres.Migrate(ctx, s.cfg.directURL(), s.log) }
	}
	if err := bring(); err != nil {
		return nil, err
	}
	cfg := server.Config{
		Log: s.log, Registry: s.registry, AutoCreateQueues: s.cfg.AutoCreateQueues,
		ConcurrentClaims: max(1, s.cfg.PoolSize/4), Audit: s.audit, Tracing: s.tracing,
		MaxConnectionAge: s.cfg.MaxConnectionAge,
	}
	s.security.configure(&cfg)
	return server.New(ctx, st, cfg)
}
