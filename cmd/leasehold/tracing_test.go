package main

import (
	"context"
	"encoding/hex"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
)

// spans is an OTLP collector: it keeps what is sent to it.
type spans struct {
	collector.UnimplementedTraceServiceServer
	mu   sync.Mutex
	all  []*otlp.Span
	from []string // names of services
}

func (s *spans) Export(_ context.Context, req *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range req.GetResourceSpans() {
		for _, a := range r.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				s.from = append(s.from, a.GetValue().GetStringValue())
			}
		}
		for _, scope := range r.GetScopeSpans() {
			s.all = append(s.all, scope.GetSpans()...)
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// collect starts a collector and returns its address.
func collect(t *testing.T) (*spans, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, srv := &spans{}, grpc.NewServer()
	collector.RegisterTraceServiceServer(srv, s)
	var served sync.WaitGroup
	served.Go(func() { _ = srv.Serve(l) })
	t.Cleanup(func() { srv.Stop(); served.Wait() })
	return s, l.Addr().String()
}

// of returns the spans whose name ends so.
func (s *spans) of(name string) []*otlp.Span {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.all), func(o *otlp.Span) bool { return !strings.HasSuffix(o.GetName(), name) })
}

// The trace ids of a producer and of a worker, as they come in the header traceparent.
const (
	producerTrace = "0af7651916cd43dd8448eb211c80319c"
	producerSpan  = "b7ad6b7169203331"
	workerTrace   = "11f7651916cd43dd8448eb211c80319c"
)

func traceparent(traceID, spanID string) string { return "00-" + traceID + "-" + spanID + "-01" }

// beginTraced starts a service that sends its spans to an endpoint.
func beginTraced(t *testing.T, endpoint string, more ...string) *process {
	t.Helper()
	env := append([]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + endpoint, "OTEL_BSP_SCHEDULE_DELAY=100"}, more...)
	return beginServiceIn(t, env, "serve", "--database-url", pgtest.Database(t, nil))
}

// TestTracesLinkProducersToLeases: the span of an acquire is in the worker's trace, has the SQL
// under it, and is linked to the span in which the job was enqueued; nothing of the job's
// content is in any span.
func TestTracesLinkProducersToLeases(t *testing.T) {
	t.Parallel()
	sent, endpoint := collect(t)
	p := beginTraced(t, endpoint)
	address, _ := p.addresses(t)
	conn := dial(t, address)
	ctx := t.Context()
	if _, err := pb.NewQueueServiceClient(conn).CreateQueue(ctx, &pb.CreateQueueRequest{Queue: &pb.Queue{Name: "payments"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := pb.NewJobServiceClient(conn).Enqueue(ctx, &pb.EnqueueRequest{
		Queue: "payments", Headers: map[string]string{"traceparent": traceparent(producerTrace, producerSpan)}, Payload: planted("card 4111"),
	}); err != nil {
		t.Fatal(err)
	}
	worker := metadata.AppendToOutgoingContext(ctx, "traceparent", traceparent(workerTrace, "c7ad6b7169203331"))
	leases := pb.NewLeaseServiceClient(conn)
	got, err := leases.AcquireLease(worker, &pb.AcquireLeaseRequest{Queues: []string{"payments"}, LeaseOwner: "w/1"})
	if err != nil || len(got.GetLeases()) != 1 {
		t.Fatal(got, err)
	}
	eventually(t, "the spans of an acquire", func() bool {
		return len(sent.of("LeaseService/AcquireLease")) == 1 && len(sent.of("batch AcquireLease")) == 1 && len(sent.of("SQL")) > 0
	})
	acquire, batch := sent.of("LeaseService/AcquireLease")[0], sent.of("batch AcquireLease")[0]
	if hex.EncodeToString(acquire.GetTraceId()) != workerTrace {
		t.Errorf("an acquire is in trace %s, not in that of its caller", hex.EncodeToString(acquire.GetTraceId()))
	}
	if len(acquire.GetLinks()) != 1 || hex.EncodeToString(acquire.GetLinks()[0].GetTraceId()) != producerTrace || hex.EncodeToString(acquire.GetLinks()[0].GetSpanId()) != producerSpan {
		t.Errorf("an acquire is linked to %v, not to the producer of its job", acquire.GetLinks())
	}
	if hex.EncodeToString(batch.GetParentSpanId()) != hex.EncodeToString(acquire.GetSpanId()) {
		t.Error("the batch is not under the acquire that it ran for")
	}
	if !slices.ContainsFunc(sent.of("SQL"), func(s *otlp.Span) bool {
		return hex.EncodeToString(s.GetParentSpanId()) == hex.EncodeToString(batch.GetSpanId())
	}) {
		t.Error("no SQL is under the batch")
	}
	p.signal(t, syscall.SIGTERM)
	p.mustExit(t, 0)
	for _, s := range sent.of("") {
		if text := s.String(); strings.Contains(text, "4111") {
			t.Errorf("a payload is in a span: %s", text)
		}
	}
	if slices.ContainsFunc(sent.from, func(name string) bool { return name != "leasehold" }) {
		t.Errorf("the service calls itself %v", sent.from)
	}
}

// TestTracingIsOffOnRequest: OTEL_SDK_DISABLED wins over an endpoint.
func TestTracingIsOffOnRequest(t *testing.T) {
	t.Parallel()
	sent, endpoint := collect(t)
	p := beginTraced(t, endpoint, "OTEL_SDK_DISABLED=true")
	address, _ := p.addresses(t)
	if _, err := pb.NewQueueServiceClient(dial(t, address)).ListQueues(t.Context(), &pb.ListQueuesRequest{}); err != nil {
		t.Fatal(err)
	}
	p.signal(t, syscall.SIGTERM)
	p.mustExit(t, 0) // sends what is left
	if n := len(sent.of("")); n != 0 {
		t.Errorf("%d spans were sent", n)
	}
}

// TestServiceOutlivesItsCollector: a collector that is away costs no call and no start, and a
// protocol that is not spoken is refused.
func TestServiceOutlivesItsCollector(t *testing.T) {
	t.Parallel()
	p := beginTraced(t, freeAddress(t), "OTEL_EXPORTER_OTLP_TIMEOUT=500")
	address, _ := p.addresses(t)
	if _, err := pb.NewQueueServiceClient(dial(t, address)).ListQueues(t.Context(), &pb.ListQueuesRequest{}); err != nil {
		t.Fatal(err)
	}
	p.says(t, "spans cannot be sent")
	p.signal(t, syscall.SIGTERM)
	p.mustExit(t, 0)

	refused := beginTraced(t, freeAddress(t), "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf")
	refused.says(t, "spans are sent by grpc only")
	refused.mustExit(t, 1)
}
