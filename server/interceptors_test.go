package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
)

// TestInterceptorOrder is the order of the package comment, outermost first.
func TestInterceptorOrder(t *testing.T) {
	s := newHandlers(t, newStore(t), Config{})
	var unary, stream []string
	for _, l := range s.unaryLayers() {
		unary = append(unary, l.name)
	}
	for _, l := range s.streamLayers() {
		stream = append(stream, l.name)
	}
	if want := "request id, metrics, logging, errors, auth, validation, recovery"; strings.Join(unary, ", ") != want {
		t.Errorf("unary: %v, want %v", unary, want)
	}
	if want := "request id, metrics, logging, errors, auth, drain, recovery"; strings.Join(stream, ", ") != want {
		t.Errorf("streams: %v, want %v", stream, want)
	}
}

// logLines is a log that a test reads back.
type logLines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logLines) logger(level slog.Level) *slog.Logger {
	return slog.New(slog.NewJSONHandler(l, &slog.HandlerOptions{Level: level}))
}

// rpcs are the lines of finished RPCs.
func (l *logLines) rpcs(t *testing.T) []map[string]any {
	t.Helper()
	return l.lines(t, "rpc")
}

// lines are those with a message.
func (l *logLines) lines(t *testing.T, msg string) []map[string]any {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []map[string]any
	for line := range strings.Lines(l.buf.String()) {
		m := map[string]any{}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err)
		}
		if m["msg"] == msg {
			out = append(out, m)
		}
	}
	return out
}

func (l *logLines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// TestPanicIsAnInternalErrorAndNothingMore: the client gets a fixed message and the request
// id, the log the stack, the metrics the code, and the server goes on.
func TestPanicIsAnInternalErrorAndNothingMore(t *testing.T) {
	var logs logLines
	registry := prometheus.NewRegistry()
	st := newStore(t, "q")
	st.getQueue = func(context.Context, string) (*store.Queue, error) { panic("secret of the handler") }
	s := serve(t, st, Config{Log: logs.logger(slog.LevelInfo), Registry: registry})
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-request-id", "call-1")
	_, err := s.queues.GetQueue(ctx, &pb.GetQueueRequest{Name: "q"})
	got := status.Convert(err)
	if got.Code() != codes.Internal || got.Message() != "internal error; quote request id call-1" {
		t.Errorf("got %v", got)
	}
	if text := fmt.Sprint(got.Proto()); strings.Contains(text, "secret") || strings.Contains(text, ".go:") {
		t.Errorf("the client sees %s", text)
	}
	lines := logs.rpcs(t)
	if len(lines) != 1 || lines[0]["level"] != "ERROR" || lines[0]["reason"] != "INTERNAL" || lines[0]["request_id"] != "call-1" {
		t.Fatalf("logged %v", lines)
	}
	if text := lines[0]["error"].(string); !strings.Contains(text, "secret of the handler") || !strings.Contains(text, "interceptors_test.go") {
		t.Errorf("the log has no stack: %s", text)
	}
	if n := countMetric(t, registry, "GetQueue", "Internal"); n != 1 {
		t.Errorf("%v counted as Internal", n)
	}
	st.getQueue = nil
	if _, err := s.queues.GetQueue(ctx, &pb.GetQueueRequest{Name: "q"}); err != nil {
		t.Errorf("the next call: %v", err)
	}
}

func countMetric(t *testing.T, registry *prometheus.Registry, method, code string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "grpc_server_handled_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["grpc_method"] == method && labels["grpc_code"] == code {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

func countSeries(t *testing.T, registry *prometheus.Registry) int {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range families {
		n += len(f.GetMetric())
	}
	return n
}

// TestMetricsHaveNoNamesOfClients: series stay constant whatever clients send.
func TestMetricsHaveNoNamesOfClients(t *testing.T) {
	registry := prometheus.NewRegistry()
	s := serve(t, newStore(t, "q"), Config{Registry: registry})
	before := countSeries(t, registry)
	for i := range 50 {
		_, _ = s.queues.GetQueue(t.Context(), &pb.GetQueueRequest{Name: fmt.Sprint("q", i)})
		_, _ = s.leases.AcquireLease(t.Context(), &pb.AcquireLeaseRequest{Queues: []string{"q"}, LeaseOwner: fmt.Sprint(i)})
		_ = s.conn.Invoke(t.Context(), fmt.Sprint("/leasehold.v1.QueueService/Made", i), &pb.GetQueueRequest{}, &pb.GetQueueResponse{})
	}
	if after := countSeries(t, registry); after != before {
		t.Errorf("%d series became %d", before, after)
	}
}

func TestRequestID(t *testing.T) {
	s := serve(t, newStore(t, "q"), Config{})
	for name, c := range map[string]struct {
		sent []string
		kept bool
	}{
		"as sent":      {[]string{"a-B_9.x:/y"}, true},
		"none":         {nil, false},
		"empty":        {[]string{""}, false},
		"two":          {[]string{"a", "b"}, false},
		"too long":     {[]string{strings.Repeat("a", 129)}, false},
		"forged line":  {[]string{`x" level="ERROR`}, false},
		"with a space": {[]string{"a b"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			for _, id := range c.sent {
				ctx = metadata.AppendToOutgoingContext(ctx, "x-request-id", id)
			}
			for _, queue := range []string{"q", "unknown"} { // an answer and an error
				var header, trailer metadata.MD
				_, _ = s.queues.GetQueue(ctx, &pb.GetQueueRequest{Name: queue}, grpc.Header(&header), grpc.Trailer(&trailer))
				ids := append(header.Get("x-request-id"), trailer.Get("x-request-id")...)
				if len(ids) != 1 || c.kept != (len(c.sent) == 1 && ids[0] == c.sent[0]) || len(ids[0]) == 0 {
					t.Errorf("queue %s: sent %q, got %q", queue, c.sent, ids)
				}
			}
		})
	}
}

// logCase is a call and what its line says.
type logCase struct {
	call   func(context.Context, *served)
	level  string
	code   string
	reason any
	has    map[string]any
}

var logCases = map[string]logCase{
	"answer": {func(ctx context.Context, s *served) {
		_, _ = s.jobs.Enqueue(ctx, &pb.EnqueueRequest{Queue: "q", Payload: jsonPayload(`"payload-secret"`)})
	}, "INFO", "OK", nil, nil},
	"empty acquire": {func(ctx context.Context, s *served) {
		_, _ = s.leases.AcquireLease(ctx, &pb.AcquireLeaseRequest{Queues: []string{"empty"}, LeaseOwner: "w"})
	}, "DEBUG", "OK", nil, map[string]any{"leases": 0.0}},
	"acquire": {func(ctx context.Context, s *served) {
		_, _ = s.leases.AcquireLease(ctx, &pb.AcquireLeaseRequest{Queues: []string{"full"}, LeaseOwner: "w"})
	}, "INFO", "OK", nil, map[string]any{"leases": 1.0}},
	"superseded": {func(ctx context.Context, s *served) {
		_, _ = s.leases.Heartbeat(ctx, &pb.HeartbeatRequest{LeaseToken: s.tokens.Seal(lease72)})
	}, "INFO", "FailedPrecondition", "LEASE_SUPERSEDED", nil},
	"refused": {func(ctx context.Context, s *served) {
		_, _ = s.jobs.Enqueue(ctx, &pb.EnqueueRequest{Payload: jsonPayload(`"payload-secret"`)})
	}, "INFO", "InvalidArgument", "INVALID_REQUEST", nil},
	"database away": {func(ctx context.Context, s *served) {
		_, _ = s.queues.GetQueue(ctx, &pb.GetQueueRequest{Name: "q"})
	}, "WARN", "Unavailable", "DATABASE_UNAVAILABLE", map[string]any{"error": "dial tcp 10.1.2.3"}},
	"health": {func(ctx context.Context, s *served) {
		_, _ = grpc_health_v1.NewHealthClient(s.conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	}, "DEBUG", "OK", nil, nil},
}

// TestOneLinePerCall with the level that an operator wants, and nothing of the payload.
func TestOneLinePerCall(t *testing.T) {
	for name, c := range logCases {
		t.Run(name, func(t *testing.T) {
			var logs logLines
			st := newStore(t, "q", "empty", "full")
			if _, err := st.Memory.Enqueue(t.Context(), []store.NewJob{{Queue: "full", Payload: store.Payload{Data: []byte("payload-secret")}}}); err != nil {
				t.Fatal(err)
			}
			st.heartbeat = func(context.Context, []store.Heartbeat) ([]store.Beaten, error) {
				return []store.Beaten{{Err: &store.SupersededError{Lease: lease72, CurrentLeaseNo: 3}}}, nil
			}
			st.getQueue = func(context.Context, string) (*store.Queue, error) {
				return nil, &store.UnavailableError{Cause: errors.New("dial tcp 10.1.2.3")}
			}
			s := serve(t, st, Config{Log: logs.logger(slog.LevelDebug)})
			c.call(t.Context(), s)
			lines := logs.rpcs(t)
			if len(lines) != 1 {
				t.Fatalf("%d lines: %v", len(lines), lines)
			}
			got := lines[0]
			if got["level"] != c.level || got["code"] != c.code || got["reason"] != c.reason || got["request_id"] == "" || got["duration"] == nil {
				t.Errorf("logged %v", got)
			}
			for key, want := range c.has {
				if got[key] != want {
					t.Errorf("%s is %v, want %v", key, got[key], want)
				}
			}
			if strings.Contains(logs.text(), "payload-secret") {
				t.Error("the payload is in the log")
			}
		})
	}
}
