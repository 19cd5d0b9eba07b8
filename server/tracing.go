package server

import (
	"context"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc/filters"
	"go.opentelemetry.io/otel/attribute"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	"github.com/leasehold/leasehold/store"
)

const tracerName = "github.com/leasehold/leasehold/server"

// w3c reads and writes the headers traceparent and tracestate, of calls and of jobs.
var w3c propagation.TraceContext

// tracing are the options of a server whose calls have spans: none without a provider, so that
// tracing that is off costs nothing. Health checks have none.
func (s *Server) tracing() []grpc.ServerOption {
	if s.cfg.Tracing == nil {
		return nil
	}
	return []grpc.ServerOption{grpc.StatsHandler(otelgrpc.NewServerHandler(
		otelgrpc.WithTracerProvider(s.cfg.Tracing), otelgrpc.WithPropagators(w3c),
		otelgrpc.WithMeterProvider(metricnoop.NewMeterProvider()), // calls are counted by Prometheus
		otelgrpc.WithFilter(filters.Not(filters.HealthCheck())),
	))}
}

// trace makes batches have spans, unless there is no provider.
func (s *mergedStore) trace(provider trace.TracerProvider) {
	if provider == nil {
		return
	}
	t := provider.Tracer(tracerName)
	s.enqueues.tracer, s.acquires.tracer, s.heartbeats.tracer = t, t, t
	s.completes.tracer, s.fails.tracer, s.releases.tracer = t, t, t
}

// linkProducers links the span of an acquire to those in which its jobs were enqueued. It is a
// link and not a parent: the work may begin days later, and more than once.
func linkProducers(ctx context.Context, leases []store.Lease) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	for i := range leases {
		l := &leases[i]
		producer := trace.SpanContextFromContext(w3c.Extract(context.Background(), propagation.MapCarrier(l.Job.Headers)))
		if !producer.IsValid() {
			continue
		}
		span.AddLink(trace.Link{SpanContext: producer, Attributes: []attribute.KeyValue{
			attribute.String("leasehold.queue", l.Job.Queue),
			attribute.Int64("leasehold.job_id", int64(l.Job.ID)),
			attribute.Int64("leasehold.lease_no", l.LeaseNo),
		}})
	}
}

// span is the span of a batch, and what ends it. Its statements serve many calls: it belongs
// to the trace of the first that has one, and is linked with the spans of the others.
func (m *merger[I, O]) span(ctx context.Context, batch []*mergeCall[I, O]) (context.Context, func()) {
	if m.tracer == nil {
		return ctx, func() {}
	}
	var first trace.Span
	var links []trace.Link
	for _, c := range batch {
		switch span := trace.SpanFromContext(c.ctx); {
		case !span.IsRecording():
		case first == nil:
			first = span
		default:
			links = append(links, trace.Link{SpanContext: span.SpanContext()})
		}
	}
	if first == nil {
		return ctx, func() {}
	}
	ctx, span := m.tracer.Start(trace.ContextWithSpan(ctx, first), "batch "+m.name,
		trace.WithLinks(links...), trace.WithAttributes(attribute.Int("leasehold.calls", len(batch))))
	return ctx, func() { span.End() }
}
