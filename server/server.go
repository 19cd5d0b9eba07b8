package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

const (
	// maxRequestBytes is gRPC's default, stated because the contract names it.
	maxRequestBytes = 4 << 20
	// maxStreams caps the calls of one connection. A proxy may carry the polls of thousands
	// of workers over one, so it is high; without a cap a single client could hold any
	// number of goroutines.
	maxStreams = 10_000
	// minPing is how often a client may ping. gRPC's default of 5 minutes answers a polite
	// keepalive of 10 s with GOAWAY, which ends every parked poll of the connection.
	minPing = 5 * time.Second
	// pingAfter and pingTimeout end a connection whose peer vanished without a word, so
	// that its parked polls are noticed before they are given jobs.
	pingAfter   = 30 * time.Second
	pingTimeout = 10 * time.Second
	// ageGrace lets the calls of a connection that has grown old be answered: longer than the
	// longest poll, whose client would else meet an error for no fault of its own.
	ageGrace = 2 * time.Minute
	// defaultClaims keeps the database busy while answers travel; more would only make the
	// batches of merged acquires smaller.
	defaultClaims = 2
)

// Config of a Server. The zero value is usable.
type Config struct {
	// Log gets one line per finished RPC. Default: slog.Default().
	Log *slog.Logger
	// Registry gets the metrics. Default: none.
	Registry prometheus.Registerer
	// AutoCreateQueues makes unknown queues at enqueue and acquire instead of refusing them.
	AutoCreateQueues bool
	// ConcurrentClaims is how many statements of merged acquires may run at a time, at least
	// 1. Default: 2.
	ConcurrentClaims int
	// Access finds out who calls. Default: nobody is asked, and anyone may do everything.
	Access Authenticator
	// Transport is TLS. Default: plain text.
	Transport credentials.TransportCredentials
	// MaxConnectionAge is after how long a client is asked to connect anew, which spreads clients
	// over replicas that came later; calls under way are answered. Default: never.
	MaxConnectionAge time.Duration
	// NoReflection keeps grpcurl and others from reading the API from the server.
	NoReflection bool
	// Tracing makes the spans of calls, and links those of acquires to the producers of their
	// jobs. Default: calls have no spans.
	Tracing trace.TracerProvider
	// Audit gets one line for each act of an operator, at level info. Default: Log.
	Audit *slog.Logger
}

// Validate reports all faults at once.
func (c Config) Validate() error {
	var faults []error
	if c.ConcurrentClaims < 0 {
		faults = append(faults, errors.New("ConcurrentClaims must be at least 1, or 0 for the default"))
	}
	if c.MaxConnectionAge < 0 {
		faults = append(faults, errors.New("MaxConnectionAge must not be negative; 0: never"))
	}
	return errors.Join(faults...)
}

// Server serves the API over one store. See the package comment.
type Server struct {
	store     store.Store
	cfg       Config
	log       *slog.Logger
	auditLog  *slog.Logger
	tokens    *store.Tokens
	pages     *pageTokens
	validator *validator
	metrics   *metrics

	polls    *longPoll
	wakes    *wakes
	sweep    *earlySweep
	listener *hintListener

	queuesOf *jobQueues

	health   *health.Server
	grpc     *grpc.Server
	draining chan struct{}
	drain    sync.Once

	// watcherInterval is that of this replica's Background, as time.Duration; 0: none runs.
	watcherInterval atomic.Int64
}

// New assembles a server. It reads the key of the lease tokens from the store, and returns
// the store's error where that is not possible yet. The server answers its health as
// NOT_SERVING until SetServing.
func New(ctx context.Context, st store.Store, cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	key, err := st.TokenKey(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the key of the lease tokens: %w", err)
	}
	v, err := compiled()
	if err != nil {
		return nil, err
	}
	merged := newMergedStore(st, cmp.Or(cfg.ConcurrentClaims, defaultClaims))
	merged.trace(cfg.Tracing)
	if err := merged.measure(cfg.Registry); err != nil {
		return nil, err
	}
	s := &Server{
		store: merged, cfg: cfg, log: cmp.Or(cfg.Log, slog.Default()),
		tokens: store.NewTokens(key), pages: newPageTokens(key),
		validator: v, health: health.NewServer(), draining: make(chan struct{}),
	}
	s.queuesOf, s.auditLog = newJobQueues(s.store), cmp.Or(cfg.Audit, s.log)
	ws := newWaiters()
	if s.metrics, err = newMetrics(cfg.Registry, ws); err != nil {
		return nil, err
	}
	s.assemblePolls(ws)
	s.assembleGRPC()
	return s, nil
}

// assemblePolls puts together what parks and wakes.
func (s *Server) assemblePolls(ws *waiters) {
	s.wakes = &wakes{waiters: ws, hints: newHintSender(s.store, s.log)}
	s.sweep = newEarlySweep(s.store, ws, s.log, s.wakes.look)
	s.wakes.poll = newPollLoop(s.store, ws, s.log)
	s.listener = &hintListener{store: s.store, waiters: ws, poll: s.wakes.poll, log: s.log}
	s.polls = &longPoll{
		claims:  &claims{acquire: s.acquires()},
		waiters: ws, wakes: s.wakes, sweep: s.sweep, draining: s.draining,
	}
}

func (s *Server) assembleGRPC() {
	options := append(append(s.chain(), s.tracing()...),
		grpc.MaxRecvMsgSize(maxRequestBytes),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: pingAfter, Timeout: pingTimeout,
			MaxConnectionAge: s.cfg.MaxConnectionAge, MaxConnectionAgeGrace: ageGrace,
		}),
	)
	if s.cfg.Transport != nil {
		options = append(options, grpc.Creds(newLoggedHandshakes(s.cfg.Transport, s.log)))
	}
	s.grpc = grpc.NewServer(options...)
	pb.RegisterLeaseServiceServer(s.grpc, &leaseService{Server: s})
	pb.RegisterJobServiceServer(s.grpc, &jobService{Server: s})
	pb.RegisterQueueServiceServer(s.grpc, &queueService{Server: s})
	s.SetServing(false)
	grpc_health_v1.RegisterHealthServer(s.grpc, s.health)
	if !s.cfg.NoReflection {
		reflection.Register(s.grpc)
	}
	s.metrics.rpcs.InitializeMetrics(s.grpc)
}

// GRPC is the server to register further services on, before Serve.
func (s *Server) GRPC() *grpc.Server { return s.grpc }

// Serve accepts connections until Drain. It returns nil after a drain.
func (s *Server) Serve(l net.Listener) error { return s.grpc.Serve(l) }

func (s *Server) intake() *intake { return &intake{now: time.Now} }

// acquires is the store's Acquire, with auto-creation of queues where that is on.
func (s *Server) acquires() func(context.Context, []store.Acquire) ([]store.Acquired, error) {
	if !s.cfg.AutoCreateQueues {
		return s.store.Acquire
	}
	return autoCreate[store.Acquire, store.Acquired]{
		store: s.store, run: s.store.Acquire,
		queues: func(a store.Acquire) []string { return a.Queues },
		err:    func(r *store.Acquired) *error { return &r.Err },
	}.do
}
