"""A receiver with OpenTelemetry: ``python -m tests.harness.traced_receiver TOPIC GROUP``. SIGINT ends it.

It prints, as the examples in other languages do, what names each callback. Its spans go where ``OTEL_*`` says.
"""

import contextlib
import os
import sys

import confluent_kafka
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from timers.client import callback_span
from timers.kafka.records import headers_of


def main(topic: str, group: str) -> None:
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    brokers = os.environ["TIMERS_BROKERS"]
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": brokers, "group.id": group, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    while True:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            with callback_span(message, group=group):
                headers = dict(headers_of(message))
                print((headers.get("timer-source") or headers["timer-id"] or b"").decode(), "")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(*sys.argv[1:])
