"""A program with OpenTelemetry: it sets a timer, fails with its callback until that is a dead letter, and retries that.

``python -m tests.harness.traced_chain TARGET plain|instrumented ADDRESS`` prints, as JSON, the contexts of all that it
received, and its spans. With ``instrumented`` OpenTelemetry replaces the classes of confluent-kafka before our package
is imported, as ``opentelemetry-instrument`` does, and the handlers of the first attempts have no span but that of the
consumer.
"""

import contextlib
import json
import os
import sys
from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.confluent_kafka import ConfluentKafkaInstrumentor
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


def named(context: Any) -> str:
    """The header that names a span."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def shown(span: ReadableSpan) -> dict[str, Any]:
    return {
        "name": span.name,
        "self": named(span.context),
        "is_root": span.parent is None,
        "links": [named(link.context) for link in span.links],
        "attributes": dict(span.attributes or {}),
    }


def of_a_queue(topic: str, handled: list[str]) -> tuple[list[list[str]], trace.Span]:
    """The contexts of a message of a queue whose handler fails twice, and the span in which it was sent."""
    from timers.queue import Backoff, Message, Queue

    of_queue: list[list[str]] = []

    def handler(message: Message) -> None:
        of_queue.append([value.decode() for name, value in message.headers if name == "traceparent" and value])
        handled.append(named(trace.get_current_span().get_span_context()))
        if len(of_queue) == 3:
            queue.stop()
        else:
            raise ValueError("again")

    with Queue(topic, backoff=Backoff(first_s=0, retries=5)) as queue:
        with trace.get_tracer("chain").start_as_current_span("job") as job:
            queue.send(b"job")
        queue.run(handler)
    return of_queue, job


def main(target: str, *, instrumented: bool) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    if "OTEL_EXPORTER_OTLP_ENDPOINT" in os.environ:
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    if instrumented:
        ConfluentKafkaInstrumentor().instrument()

    import confluent_kafka

    from timers.cli.main import main as command
    from timers.client import Backoff, TimersClient, callback_span
    from timers.kafka.records import headers_of

    received: list[list[str]] = []
    handled: list[str] = []
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": sys.argv[-1], "group.id": f"of-{target}", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([target])

    def receive() -> confluent_kafka.Message:
        message = consumer.poll(60)
        assert message is not None and message.error() is None
        received.append([(value or b"").decode() for name, value in headers_of(message) if name == "traceparent"])
        return message

    tracer = trace.get_tracer("chain")
    with TimersClient() as client:
        with tracer.start_as_current_span("order") as order:
            client.schedule(target, "o-1", b"unpaid", delay=0)
        for _ in range(3):
            message = receive()
            handling = contextlib.nullcontext() if instrumented else callback_span(message, group=f"of-{target}")
            with handling:
                handled.append(named(trace.get_current_span().get_span_context()))
                client.retry_later(message, backoff=Backoff(first_s=0, retries=2))
        with contextlib.redirect_stdout(sys.stderr):
            assert command(["dead-letters", "retry", "--topic", target, "--yes"]) == 0
        with callback_span(receive(), group=f"of-{target}") as span:
            handled.append(named(span.get_span_context()))
    consumer.close()

    of_queue, job = of_a_queue(f"{target}-queue", handled)
    provider.force_flush()
    print(
        json.dumps(
            {
                "order": named(order.get_span_context()),
                "job": named(job.get_span_context()),
                "received": received,
                "handled": handled,
                "of_queue": of_queue,
                "spans": [shown(span) for span in exporter.get_finished_spans()],
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], instrumented="instrumented" in sys.argv)
