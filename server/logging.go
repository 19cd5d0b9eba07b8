package server

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// call collects what the one log line of an RPC tells beside its status. Its methods work
// on nil, for code that runs outside of an RPC.
type call struct {
	mu          sync.Mutex
	causes      []error
	leases      int
	undelivered int
	claimed     time.Time // when the last claim began
	caller      string    // name of the identity
}

// maxCauses is how many causes a log line repeats: the items of a batch tend to fail alike.
const maxCauses = 3

type callKey struct{}

func callOf(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}

// noteClaim notes that a claim begins now.
func (c *call) noteClaim() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.claimed = time.Now()
}

// waited is how long after start the last claim began.
func (c *call) waited(start time.Time) time.Duration {
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(0, c.claimed.Sub(start))
}

func (c *call) setCaller(name string) {
	if c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.caller = name
	}
}

// addCause notes an error that the client does not see.
func (c *call) addCause(err error) {
	if c == nil || err == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.causes) < maxCauses {
		c.causes = append(c.causes, err)
	}
}

func (c *call) setLeases(n int) {
	if c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.leases = n
	}
}

func (c *call) setUndelivered(n int) {
	if c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.undelivered = n
	}
}

// acquireMethod is the one whose OK without content is not worth an info line: an idle
// worker makes one every few seconds, for ever.
const acquireMethod = pb.LeaseService_AcquireLease_FullMethodName

// level is how loud the line of a call is. Contention and refusals are normal work of a
// lease service: only what an operator should act on is louder than info.
func level(method string, code codes.Code, reason string, leases int) slog.Level {
	switch code {
	case codes.OK:
		if method == acquireMethod && leases == 0 || strings.HasPrefix(method, "/grpc.") {
			return slog.LevelDebug
		}
		return slog.LevelInfo
	case codes.Internal:
		return slog.LevelError
	case codes.Unavailable, codes.Unknown, codes.DataLoss, codes.ResourceExhausted:
		if reason == "DRAINING" || reason == "JOB_BUSY" {
			return slog.LevelInfo
		}
		return slog.LevelWarn
	default:
		return slog.LevelInfo
	}
}

// logUnary writes one line per finished RPC. Requests and answers are not in it: payloads,
// tokens and error texts of workers belong to the caller.
func (s *Server) logUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	c, start := &call{}, time.Now()
	ctx = context.WithValue(ctx, callKey{}, c)
	resp, err := handler(ctx, req)
	s.logFinished(ctx, c, info.FullMethod, start, err)
	return resp, err
}

func (s *Server) logStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	c, start := &call{}, time.Now()
	ctx := context.WithValue(stream.Context(), callKey{}, c)
	err := handler(srv, &streamWith{ServerStream: stream, ctx: ctx})
	s.logFinished(ctx, c, info.FullMethod, start, err)
	return err
}

func (s *Server) logFinished(ctx context.Context, c *call, method string, start time.Time, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	code, reason := status.Code(err), reasonOf(err)
	lvl := level(method, code, reason, c.leases)
	if !s.log.Enabled(ctx, lvl) {
		return
	}
	attrs := []slog.Attr{
		slog.String("method", method),
		slog.String("code", code.String()),
		slog.Duration("duration", time.Since(start)),
		slog.String("request_id", requestIDOf(ctx)),
	}
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		attrs = append(attrs, slog.String("peer", p.Addr.String()))
	}
	if c.caller != "" {
		attrs = append(attrs, slog.String("identity", c.caller))
	}
	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		attrs = append(attrs, slog.String("trace_id", span.TraceID().String()))
	}
	if reason != "" {
		attrs = append(attrs, slog.String("reason", reason))
	}
	if method == acquireMethod {
		attrs = append(attrs, slog.Int("leases", c.leases))
	}
	if c.undelivered > 0 {
		attrs = append(attrs, slog.Int("undelivered", c.undelivered))
	}
	if len(c.causes) > 0 {
		attrs = append(attrs, slog.String("error", errors.Join(c.causes...).Error()))
	}
	s.log.LogAttrs(ctx, lvl, "rpc", attrs...)
}

// streamWith is a stream with another context.
type streamWith struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *streamWith) Context() context.Context { return s.ctx }
