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
func traced(ctx context.Context, r *kgo.Record, group string, work func(context.Context)) {
	headers := propagation.MapCarrier{}
	for _, each := range r.Headers {
		headers[each.Key] = string(each.Value) // of several, the one that was added last
	}
	options := []trace.SpanStartOption{trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithAttributes(attributesOf(r, headers, group)...)}
	asked := trace.SpanContextFromContext(otel.GetTextMapPropagator().Extract(context.Background(), headers))
	if asked.IsValid() {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: asked}))
	}
	ctx, span := otel.Tracer("receive").Start(ctx, "process "+r.Topic, options...)
	defer span.End()
	work(ctx)
}

func attributesOf(r *kgo.Record, headers map[string]string, group string) []attribute.KeyValue {
	retries, _ := number(headers["retry-attempt"])
	known := []attribute.KeyValue{
		attribute.String("messaging.system", "kafka"),
		attribute.String("messaging.operation.name", "process"),
		attribute.String("messaging.operation.type", "process"),
		attribute.String("messaging.destination.name", r.Topic),
		attribute.String("messaging.destination.partition.id", strconv.Itoa(int(r.Partition))),
		attribute.Int64("messaging.kafka.offset", r.Offset),
		attribute.String("messaging.consumer.group.name", group),
		attribute.Int64("timers.attempt", retries+1),
	}
	if r.Key != nil {
		known = append(known, attribute.String("messaging.kafka.message.key", string(r.Key)))
	}
	if id, ok := headers["timer-id"]; ok {
		known = append(known, attribute.String("timers.id", id))
	}
	due, isTimer := number(headers["timer-due"])
	nominal, isRepeat := number(headers["timer-nominal"])
	fired, hasFired := number(headers["timer-fired"])
	way := "message"
	if isTimer {
		way = "timer"
		known = append(known, attribute.Int64("timers.due_s", due))
	}
	if hasFired {
		known = append(known, attribute.Int64("timers.fired_ms", fired))
	}
	if isTimer && hasFired {
		known = append(known, attribute.Int64("timers.lag_ms", fired-due*1000))
	}
	if isRepeat {
		way = "repeat"
		known = append(known, attribute.Int64("timers.nominal_s", nominal))
	}
	if retries > 0 {
		way = "retry"
	}
	return append(known, attribute.String("timers.way", way))
}

// number reads a time or a count. Any sender may write these headers.
func number(digits string) (int64, bool) {
	value, err := strconv.ParseUint(digits, 10, 46)
	return int64(value), err == nil
}
