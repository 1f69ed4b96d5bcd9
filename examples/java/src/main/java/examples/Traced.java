package examples;

import io.opentelemetry.api.GlobalOpenTelemetry;
import io.opentelemetry.api.OpenTelemetry;
import io.opentelemetry.api.trace.Span;
import io.opentelemetry.api.trace.SpanBuilder;
import io.opentelemetry.api.trace.SpanContext;
import io.opentelemetry.api.trace.SpanKind;
import io.opentelemetry.api.trace.StatusCode;
import io.opentelemetry.context.Context;
import io.opentelemetry.context.Scope;
import io.opentelemetry.context.propagation.TextMapGetter;
import java.nio.charset.StandardCharsets;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.header.Header;

/**
 * Opens a span around the work of one callback: the root of a new trace, with a link to the one in which the timer was
 * set. As its child, the span would belong to a trace that has ended. Without an SDK of OpenTelemetry it does nothing.
 */
final class Traced {
  static void run(ConsumerRecord<String, ?> record, String group, Runnable work) {
    OpenTelemetry telemetry = GlobalOpenTelemetry.get();
    Context sent = telemetry.getPropagators().getTextMapPropagator().extract(Context.root(), record, new Newest());
    SpanBuilder builder =
        telemetry
            .getTracer("receive")
            .spanBuilder("process " + record.topic())
            .setNoParent()
            .setSpanKind(SpanKind.CONSUMER);
    SpanContext asked = Span.fromContext(sent).getSpanContext();
    if (asked.isValid()) {
      builder.addLink(asked);
    }
    Span span = builder.startSpan();
    describe(span, record, group);
    try (Scope scope = sent.with(span).makeCurrent()) {
      work.run();
    } catch (RuntimeException error) {
      span.recordException(error).setStatus(StatusCode.ERROR);
      throw error;
    } finally {
      span.end();
    }
  }

  private static void describe(Span span, ConsumerRecord<String, ?> record, String group) {
    Long due = number(record, "timer-due");
    Long nominal = number(record, "timer-nominal");
    Long fired = number(record, "timer-fired");
    Long retries = number(record, "retry-attempt");
    long attempt = retries == null ? 1 : retries + 1;
    span.setAttribute("messaging.system", "kafka")
        .setAttribute("messaging.operation.name", "process")
        .setAttribute("messaging.operation.type", "process")
        .setAttribute("messaging.destination.name", record.topic())
        .setAttribute("messaging.destination.partition.id", Integer.toString(record.partition()))
        .setAttribute("messaging.kafka.offset", record.offset())
        .setAttribute("messaging.kafka.message.key", record.key()) // what is null is left out
        .setAttribute("messaging.consumer.group.name", group)
        .setAttribute("timers.id", text(record, "timer-id"))
        .setAttribute("timers.attempt", attempt);
    if (due != null) {
      span.setAttribute("timers.due_s", due);
    }
    if (nominal != null) {
      span.setAttribute("timers.nominal_s", nominal);
    }
    if (fired != null) {
      span.setAttribute("timers.fired_ms", fired);
    }
    if (due != null && fired != null) {
      span.setAttribute("timers.lag_ms", fired - 1000 * due);
    }
    String way = due == null ? "message" : "timer";
    span.setAttribute("timers.way", attempt > 1 ? "retry" : nominal != null ? "repeat" : way);
  }

  /** Returns the text of a header; of several, of the one that was added last; null: there is none. */
  static String text(ConsumerRecord<?, ?> record, String name) {
    Header header = record.headers().lastHeader(name);
    return header == null || header.value() == null ? null : new String(header.value(), StandardCharsets.UTF_8);
  }

  private static Long number(ConsumerRecord<?, ?> record, String name) {
    String text = text(record, name);
    return text != null && text.matches("[0-9]{1,14}") ? Long.valueOf(text) : null;
  }

  private static final class Newest implements TextMapGetter<ConsumerRecord<String, ?>> {
    @Override
    public Iterable<String> keys(ConsumerRecord<String, ?> record) {
      Set<String> names = new TreeSet<>();
      record.headers().forEach(each -> names.add(each.key()));
      return names;
    }

    @Override
    public String get(ConsumerRecord<String, ?> record, String name) {
      return text(record, name);
    }
  }
}
