package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.opentelemetry.io/otel/trace"

	"github.com/leasehold/leasehold/server"
	"github.com/leasehold/leasehold/server/identity"
	"github.com/leasehold/leasehold/store/postgres"
)

// httpPatience bounds the answering of the last HTTP requests at shutdown.
const httpPatience = 2 * time.Second

// service is one replica, from start to exit.
type service struct {
	cfg      *Config
	log      *slog.Logger
	ready    *server.Readiness
	registry *prometheus.Registry
	leases   *server.LeaseMetrics
	security *security
	tracing  trace.TracerProvider // nil: off
	// audit gets the acts of operators.
	audit *slog.Logger
	// onReady is called once, with the actual addresses of gRPC and HTTP.
	onReady func(grpc, http string)
	// broken ends the service with its error, where something beside it broke.
	broken <-chan error
}

func newService(cfg *Config, log *slog.Logger) *service {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return &service{
		cfg: cfg, log: log, audit: auditLogger(log), registry: registry, onReady: func(string, string) {},
		ready: server.NewReadiness(server.ReadinessConfig{
			WatcherInterval: cfg.WatcherInterval, SchemaVersion: postgres.SchemaVersion(),
		}),
	}
}

// run serves until ctx ends, and then shuts down in order: not ready, calls answered, loops
// ended, pool closed, HTTP last. HTTP comes first at the start, too: a replica that waits
// for its database is alive and says why it is not ready.
func (s *service) run(ctx context.Context) (err error) {
	s.log.InfoContext(ctx, "starting", "version", version(), "config", s.cfg)
	if err := (readyFile{s.cfg.ReadyFile}).remove(); err != nil {
		return err
	}
	if s.leases, err = server.NewLeaseMetrics(s.registry); err != nil {
		return err
	}
	s.cfg.Security.logOpen(ctx, s.cfg.Listen, s.log)
	if s.security, err = openSecurity(ctx, &s.cfg.Security, s.log); err != nil {
		return err
	}
	var flush func()
	if s.tracing, flush, err = openTracing(ctx, s.log); err != nil {
		return err
	}
	defer flush()
	httpListener, err := listen(ctx, s.cfg.HTTP)
	if err != nil {
		return err
	}
	stopHTTP := s.serveHTTP(httpListener)
	defer func() { err = errors.Join(err, stopHTTP()) }()

	st, srv, err := s.connect(ctx)
	if ctx.Err() != nil {
		if st != nil {
			st.Close()
		}
		return nil // told to end while it waited for the database
	}
	if err != nil {
		return err
	}
	defer st.Close()
	if err := s.registry.Register(newPoolMetrics(st.Pool())); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	return withHeapFloor(func() error { return s.serve(ctx, srv, actualAddress(httpListener)) })
}

// serveHTTP serves until the function that it returns is called.
func (s *service) serveHTTP(l net.Listener) (stop func() error) {
	hs := server.NewHTTPServer(s.ready, s.registry, s.log)
	ended := make(chan error, 1)
	go func() { ended <- hs.Serve(l) }()
	return func() error {
		ctx, cancel := context.WithTimeout(context.Background(), httpPatience)
		defer cancel()
		if err := hs.Shutdown(ctx); err != nil {
			_ = hs.Close() // the patience is over
		}
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("HTTP: %w", err)
		}
		return nil
	}
}

// serve runs gRPC and the loops until ctx ends or one of them fails.
func (s *service) serve(ctx context.Context, srv *server.Server, httpAddress string) error {
	background, err := server.NewBackground(srv, s.ready, server.BackgroundConfig{
		WatcherInterval: s.cfg.WatcherInterval, RetainFacts: s.cfg.RetainFacts, RetainPayloads: s.cfg.RetainPayloads,
		Log: s.log, Registry: s.registry, Leases: s.leases,
	})
	if err != nil {
		return err
	}
	l, err := listen(ctx, s.cfg.Listen)
	if err != nil {
		return err
	}
	// The loops outlive ctx: calls that are answered during the drain need them.
	loops, endLoops := context.WithCancel(context.WithoutCancel(ctx))
	defer endLoops()
	loopsEnded, grpcEnded := make(chan error, 1), make(chan error, 1)
	go func() { loopsEnded <- background.Run(loops) }()
	watchEnded := make(chan struct{})
	go func() { defer close(watchEnded); identity.Watch(loops, s.security.watched...) }()
	go func() { grpcEnded <- srv.Serve(l) }()

	err = s.await(ctx, grpcEnded, loopsEnded, actualAddress(l), httpAddress)
	err = errors.Join(err, s.drain(srv))
	endLoops()
	<-watchEnded
	return errors.Join(err, <-loopsEnded)
}

// await announces the service when it is ready and returns when it shall end.
func (s *service) await(ctx context.Context, grpcEnded, loopsEnded chan error, grpcAddress, httpAddress string) error {
	turnedReady := s.ready.Ready()
	for {
		select {
		case <-turnedReady:
			turnedReady = nil
			if err := (readyFile{s.cfg.ReadyFile}).write(grpcAddress, httpAddress); err != nil {
				return err
			}
			s.log.InfoContext(ctx, "serving", "grpc", grpcAddress, "http", httpAddress)
			s.onReady(grpcAddress, httpAddress)
		case <-ctx.Done():
			return nil
		case err := <-s.broken:
			return err
		case err := <-grpcEnded:
			return fmt.Errorf("gRPC stopped serving: %w", err)
		case err := <-loopsEnded:
			loopsEnded <- err // serve waits for it
			return errors.New("the background loops ended")
		}
	}
}

// drain takes the replica out of service and lets calls under way be answered.
func (s *service) drain(srv *server.Server) error {
	s.ready.Drain()
	err := (readyFile{s.cfg.ReadyFile}).remove()
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.DrainTimeout)
	defer cancel()
	if late := srv.Drain(ctx); late != nil {
		s.log.Warn("calls were still under way after the drain timeout and were cut off", "drain_timeout", s.cfg.DrainTimeout)
	}
	s.log.Info("drained")
	return err
}
