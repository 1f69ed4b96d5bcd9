package main

import (
	"context"
	"log"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/trace"
)

// The SDK, which tests/broker/test_tracing_export.py puts beside the receiver. It reads the variables OTEL_*.
func init() {
	exporter, err := otlptracehttp.New(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	otel.SetTracerProvider(trace.NewTracerProvider(trace.WithBatcher(exporter)))
	otel.SetTextMapPropagator(propagation.TraceContext{})
}
