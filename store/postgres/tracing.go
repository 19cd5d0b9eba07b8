package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// tracer gives each round trip to the database a span, inside of a call that has one. Of an
// error only the SQLSTATE is in it: the server's texts quote values, and with them payloads.
type tracer struct{ trace.Tracer }

var (
	_ pgx.QueryTracer = tracer{}
	_ pgx.BatchTracer = tracer{}
)

// newTracer is nil, which pgx takes for no tracing, without a provider.
func newTracer(provider trace.TracerProvider) pgx.QueryTracer {
	if provider == nil {
		return nil
	}
	return tracer{provider.Tracer("github.com/leasehold/leasehold/store/postgres")}
}

func (t tracer) start(ctx context.Context, statements int) context.Context {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return ctx
	}
	ctx, _ = t.Start(ctx, "SQL", trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		attribute.String("db.system.name", "postgresql"), attribute.Int("db.operation.batch.size", statements)))
	return ctx
}

func (t tracer) end(ctx context.Context, err error) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	if err != nil {
		reason := "the server did not answer"
		if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
			reason = "SQLSTATE " + pgErr.Code
		}
		span.SetStatus(codes.Error, reason)
	}
	span.End()
}

func (t tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return t.start(ctx, 1)
}

func (t tracer) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	t.end(ctx, data.Err)
}

func (t tracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	return t.start(ctx, data.Batch.Len())
}

func (t tracer) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (t tracer) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchEndData) {
	t.end(ctx, data.Err)
}
