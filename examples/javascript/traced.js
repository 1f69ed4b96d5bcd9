// Opens a span around the work of one callback: the root of a new trace, with a link to the one in which the timer was
// set. As its child, the span would belong to a trace that has ended. Without an SDK of OpenTelemetry it does nothing.

import { ROOT_CONTEXT, SpanKind, SpanStatusCode, propagation, trace } from "@opentelemetry/api";

const newest = {
  keys: (headers) => Object.keys(headers),
  get: (headers, name) => [headers[name]].flat().at(-1)?.toString(), // of several, the one that was added last
};

export function traced({ topic, partition, message: { offset, headers = {} } }, work) {
  const text = (name) => newest.get(headers, name);
  const due = Number(text("timer-due") ?? NaN);
  const fired = Number(text("timer-fired") ?? NaN);
  const attempt = Number(text("retry-attempt") ?? 0) + 1;
  const known = Number.isFinite(due) && Number.isFinite(fired);
  const asked = trace.getSpanContext(propagation.extract(ROOT_CONTEXT, headers, newest));
  const options = {
    root: true,
    kind: SpanKind.CONSUMER,
    links: asked ? [{ context: asked }] : [],
    attributes: {
      "messaging.system": "kafka",
      "messaging.operation.name": "process",
      "messaging.operation.type": "process",
      "messaging.destination.name": topic,
      "messaging.destination.partition.id": String(partition),
      "messaging.kafka.offset": Number(offset),
      "timers.id": text("timer-id"),
      ...(known ? { "timers.due_s": due, "timers.fired_ms": fired, "timers.lag_ms": fired - due * 1000 } : {}),
      "timers.way": attempt > 1 ? "retry" : text("timer-nominal") ? "repeat" : known ? "timer" : "message",
      "timers.attempt": attempt,
    },
  };
  return trace.getTracer("receive").startActiveSpan(`process ${topic}`, options, async (span) => {
    try {
      return await work();
    } catch (error) {
      span.recordException(error);
      span.setStatus({ code: SpanStatusCode.ERROR });
      throw error;
    } finally {
      span.end();
    }
  });
}
