package client

import (
	"context"
	"maps"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// The W3C trace context travels in a job's headers "traceparent" and "tracestate".

const (
	traceHeader = "traceparent"
	// maxHeaders is the contract's; a job at the bound goes without a trace.
	maxHeaders = 64
	// traceHeaders is how many a trace context may add.
	traceHeaders = 2
)

var w3c propagation.TraceContext

// withTrace is headers with the trace of ctx, unless the caller has put one there.
func withTrace(ctx context.Context, headers map[string]string) map[string]string {
	if !trace.SpanContextFromContext(ctx).IsValid() || headers[traceHeader] != "" || len(headers) > maxHeaders-traceHeaders {
		return headers
	}
	out := maps.Clone(headers)
	if out == nil {
		out = make(map[string]string, traceHeaders)
	}
	w3c.Inject(ctx, propagation.MapCarrier(out))
	return out
}

// traced is ctx with the trace of the job's producer, and what ends the job's span. With a tracer
// the job has a span of its own, linked to the producer's: the work may come hours later, and many
// times. Without one the producer's context is passed on, so that what the handler calls joins
// its trace.
func traced(ctx context.Context, tracer trace.Tracer, job *Job) (context.Context, func(error)) {
	headers := job.wire.GetJob().GetHeaders()
	var producer trace.SpanContext
	if headers[traceHeader] != "" {
		producer = trace.SpanContextFromContext(w3c.Extract(context.Background(), propagation.MapCarrier(headers)))
	}
	if tracer == nil {
		if producer.IsValid() {
			ctx = trace.ContextWithRemoteSpanContext(ctx, producer)
		}
		return ctx, func(error) {}
	}
	options := []trace.SpanStartOption{
		trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithAttributes(
			attribute.String("messaging.system", "leasehold"),
			attribute.String("messaging.operation.type", "process"),
			attribute.String("messaging.destination.name", job.Queue()),
			attribute.String("messaging.message.id", job.ID()),
			attribute.Int64("leasehold.lease_no", job.LeaseNo()),
			attribute.Int("leasehold.attempt", job.Attempt()),
		),
	}
	if producer.IsValid() {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: producer}))
	}
	ctx, span := tracer.Start(ctx, "process "+job.Queue(), options...)
	return ctx, func(err error) {
		if err != nil {
			span.RecordError(err)
			span.SetStatus(codes.Error, "")
		}
		span.End()
	}
}
