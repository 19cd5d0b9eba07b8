package sidecar

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/stats"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

const (
	// maxRequestBytes is above what the service takes, which refuses the rest with a reason.
	maxRequestBytes = 16 << 20
	maxStreams      = 10_000
	// checkTimeout bounds the look whether the service is there.
	checkTimeout = 2 * time.Second
	// lastAnswers bounds the calls that still run when the drain is over.
	lastAnswers = 2 * time.Second
	// minPing is how often workers may ping, as often as at the service.
	minPing = 5 * time.Second
)

// Config says what a sidecar works with.
type Config struct {
	// Polls, Beats and Calls lead to the replicas. They are three, so that neither parked polls
	// nor a big answer can hold up a heartbeat. Required.
	Polls, Beats, Calls grpc.ClientConnInterface
	// Log gets what is worth a line. Required.
	Log *slog.Logger
	// Registry gets the metrics grpc_server_*. Required.
	Registry *prometheus.Registry
}

// Sidecar serves workers of this machine.
type Sidecar struct {
	cfg    Config
	grpc   *grpc.Server
	health *health.Server

	heartbeats *lane[*pb.HeartbeatRequest, *pb.HeartbeatResponse]
	completes  *lane[*pb.CompleteRequest, *pb.CompleteResponse]
	fails      *lane[*pb.FailRequest, *pb.FailResponse]
	releases   *lane[*pb.ReleaseRequest, *pb.ReleaseResponse]

	drainBegan context.Context
	beginDrain context.CancelFunc
	workers    connections
}

// New makes a sidecar. Its error is about metrics that are registered already.
func New(cfg Config) (*Sidecar, error) {
	calls := grpcprom.NewServerMetrics()
	if err := cfg.Registry.Register(calls); err != nil {
		return nil, err
	}
	s := &Sidecar{cfg: cfg, health: health.NewServer()}
	s.drainBegan, s.beginDrain = context.WithCancel(context.Background())
	s.assemble()
	s.grpc = grpc.NewServer(
		grpc.ForceServerCodecV2(newCodec()),
		grpc.UnknownServiceHandler(s.forward),
		grpc.MaxRecvMsgSize(maxRequestBytes),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.StatsHandler(&s.workers),
		grpc.ChainUnaryInterceptor(calls.UnaryServerInterceptor()),
		grpc.ChainStreamInterceptor(calls.StreamServerInterceptor()),
	)
	s.grpc.RegisterService(&leaseCalls, s)
	healthpb.RegisterHealthServer(s.grpc, s.health)
	return s, nil
}

// Serve answers workers until Drain. It returns nil after a drain.
func (s *Sidecar) Serve(l net.Listener) error { return s.grpc.Serve(l) }

// Drain ends the service in order: no leases any more, and parked polls end; heartbeats and ends
// of leases go on until the workers have closed their connections, or ctx ends.
func (s *Sidecar) Drain(ctx context.Context) {
	s.beginDrain()
	s.health.Shutdown()
	s.workers.gone(ctx)
	stop := time.AfterFunc(lastAnswers, s.grpc.Stop)
	defer stop.Stop()
	s.grpc.GracefulStop()
}

func (s *Sidecar) draining() bool { return s.drainBegan.Err() != nil }

// untilDrain is ctx until the drain begins.
func (s *Sidecar) untilDrain(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.drainBegan, cancel)
	return ctx, func() { stop(); cancel() }
}

// HTTP answers /healthz (the process works), /readyz (a replica of the service is ready, and this
// sidecar does not drain) and /metrics.
func (s *Sidecar) HTTP() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if err := s.ready(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.cfg.Registry, promhttp.HandlerOpts{}))
	return mux
}

// ready says why workers cannot be served.
func (s *Sidecar) ready(ctx context.Context) error {
	if s.draining() {
		return errors.New("draining")
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	resp, err := healthpb.NewHealthClient(s.cfg.Calls).Check(ctx, &healthpb.HealthCheckRequest{})
	switch {
	case err != nil:
		return errors.New("no replica of the service answers")
	case resp.GetStatus() != healthpb.HealthCheckResponse_SERVING:
		return errors.New("the service is not ready")
	}
	return nil
}

// connections counts those of workers.
type connections struct {
	mu      sync.Mutex
	open    int
	waiters []chan struct{}
}

var _ stats.Handler = (*connections)(nil)

// gone waits until none is open, or ctx ends.
func (c *connections) gone(ctx context.Context) {
	closed := make(chan struct{})
	c.mu.Lock()
	if c.open == 0 {
		c.mu.Unlock()
		return
	}
	c.waiters = append(c.waiters, closed)
	c.mu.Unlock()
	select {
	case <-closed:
	case <-ctx.Done():
	}
}

// HandleConn implements stats.Handler.
func (c *connections) HandleConn(_ context.Context, s stats.ConnStats) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch s.(type) {
	case *stats.ConnBegin:
		c.open++
	case *stats.ConnEnd:
		if c.open--; c.open == 0 {
			for _, w := range c.waiters {
				close(w)
			}
			c.waiters = nil
		}
	}
}

// TagConn implements stats.Handler.
func (*connections) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// TagRPC implements stats.Handler.
func (*connections) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements stats.Handler.
func (*connections) HandleRPC(context.Context, stats.RPCStats) {}
