package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/leasehold/leasehold/store"
)

// Tracing is set up by OpenTelemetry's own variables and not by flags: whoever runs a collector
// sets them for all services alike.
const (
	otlpEndpoint       = "OTEL_EXPORTER_OTLP_ENDPOINT"
	otlpTracesEndpoint = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	otlpProtocol       = "OTEL_EXPORTER_OTLP_PROTOCOL"
	otlpTracesProtocol = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
	otelTracesExporter = "OTEL_TRACES_EXPORTER"
	otelDisabled       = "OTEL_SDK_DISABLED"
)

// flushPatience bounds the sending of the last spans at shutdown.
const flushPatience = 2 * time.Second

// openTracing sends spans by OTLP over gRPC where the environment names an endpoint, and
// returns what sends the rest. Without one the provider is nil. A collector that is away costs
// spans and nothing else.
func openTracing(ctx context.Context, log *slog.Logger) (trace.TracerProvider, func(), error) {
	if !tracingWanted() {
		return nil, func() {}, nil
	}
	for _, name := range []string{otlpTracesProtocol, otlpProtocol} {
		if protocol := os.Getenv(name); protocol != "" && protocol != "grpc" {
			return nil, nil, fmt.Errorf("%s is %q: spans are sent by grpc only", name, protocol)
		}
	}
	// What the library has to say about a collector goes to our log, in our format.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("spans cannot be sent", "error", err) }))
	exporter, err := otlptracegrpc.New(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("set up the sending of spans by OTLP: %w", err)
	}
	about, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(),
		resource.WithAttributes(attribute.String("service.name", "leasehold"), attribute.String("service.version", version())),
		resource.WithFromEnv())
	if err != nil {
		return nil, nil, fmt.Errorf("describe this service to the collector: %w", err)
	}
	limits := sdktrace.NewSpanLimits()
	limits.LinkCountLimit = max(limits.LinkCountLimit, store.MaxBatch) // a link for each lease of an answer
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about), sdktrace.WithRawSpanLimits(limits))
	return provider, func() {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushPatience)
		defer cancel()
		if err := provider.Shutdown(bounded); err != nil {
			log.WarnContext(ctx, "the last spans are not sent", "error", err)
		}
	}, nil
}

func tracingWanted() bool {
	if strings.EqualFold(os.Getenv(otelDisabled), "true") || os.Getenv(otelTracesExporter) == "none" {
		return false
	}
	return os.Getenv(otlpTracesEndpoint) != "" || os.Getenv(otlpEndpoint) != ""
}
