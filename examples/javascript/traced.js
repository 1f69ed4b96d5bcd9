// Opens a span around the work of one callback: the root of a new trace, with a link to the one in which the timer was
// set. As its child, the span would belong to a trace that has ended. Without an SDK of OpenTelemetry it does nothing.

import { ROOT_CONTEXT, SpanKind, SpanStatusCode, propagation, trace } from "@opentelemetry/api";

const newest = {
  keys: (headers) => Object.keys(headers),
  get: (headers, name) => [headers[name]].flat().at(-1)?.toString(), // of several, the one that was added last
};

// A time or a count; undefined: there is none. Any sender may write these headers.
const number = (text) => (/^[0-9]{1,14}$/.test(text ?? "") ? Number(text) : undefined);

export function traced({ topic, partition, message: { key, offset, headers = {} } }, group, work) {
  const text = (name) => newest.get(headers, name);
  const [due, nominal, fired] = ["timer-due", "timer-nominal", "timer-fired"].map((name) => number(text(name)));
  const attempt = (number(text("retry-attempt")) ?? 0) + 1;
  const way = nominal !== undefined ? "repeat" : due !== undefined ? "timer" : "message";
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
      "messaging.kafka.message.key": key?.toString(), // what is undefined is left out
      "messaging.consumer.group.name": group,
      "timers.id": text("timer-id"),
      "timers.due_s": due,
      "timers.nominal_s": nominal,
      "timers.fired_ms": fired,
      "timers.lag_ms": due === undefined || fired === undefined ? undefined : fired - due * 1000,
      "timers.way": attempt > 1 ? "retry" : way,
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
