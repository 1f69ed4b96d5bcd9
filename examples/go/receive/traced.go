package main

import (
	"context"
	"strconv"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// traced opens a span around the work of one callback: the root of a new trace, with a link to the one in which the timer
// was set. As its child, the span would belong to a trace that has ended. Without an SDK of OpenTelemetry it does nothing.
func traced(ctx context.Context, r *kgo.Record, work func(context.Context)) {
	headers := propagation.MapCarrier{}
	for _, each := range r.Headers {
		headers[each.Key] = string(each.Value) // of several, the one that was added last
	}
	retries, _ := strconv.Atoi(headers["retry-attempt"])
	attributes := []attribute.KeyValue{
		attribute.String("messaging.system", "kafka"),
		attribute.String("messaging.operation.name", "process"),
		attribute.String("messaging.operation.type", "process"),
		attribute.String("messaging.destination.name", r.Topic),
		attribute.String("messaging.destination.partition.id", strconv.Itoa(int(r.Partition))),
		attribute.Int64("messaging.kafka.offset", r.Offset),
		attribute.String("timers.id", headers["timer-id"]),
		attribute.Int("timers.attempt", retries+1),
	}
	way := "message"
	due, noDue := strconv.ParseInt(headers["timer-due"], 10, 40)
	fired, noFired := strconv.ParseInt(headers["timer-fired"], 10, 50)
	if noDue == nil && noFired == nil {
		way = "timer"
		attributes = append(attributes, attribute.Int64("timers.due_s", due), attribute.Int64("timers.fired_ms", fired),
			attribute.Int64("timers.lag_ms", fired-due*1000))
	}
	if headers["timer-nominal"] != "" {
		way = "repeat"
	}
	if retries > 0 {
		way = "retry"
	}
	options := []trace.SpanStartOption{trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithAttributes(append(attributes, attribute.String("timers.way", way))...)}
	asked := trace.SpanContextFromContext(otel.GetTextMapPropagator().Extract(context.Background(), headers))
	if asked.IsValid() {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: asked}))
	}
	ctx, span := otel.Tracer("receive").Start(ctx, "process "+r.Topic, options...)
	defer span.End()
	work(ctx)
}
