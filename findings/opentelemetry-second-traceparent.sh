#!/usr/bin/env bash
# A message that is received and sent again through OpenTelemetry's instrumentation of confluent-kafka has two headers
# "traceparent", and the next receiver's span links to the first one: to the send before the last.
#
# One would expect one header, of the newest send, as in a dict of HTTP headers: the instrumentation appends a header to the list
# that the program gives, and reads the first one of the name. So each attempt of a message that is retried links to the first
# send, and none to the attempt before it.
#
# Seen with opentelemetry-instrumentation-confluent-kafka 0.66b1, opentelemetry-sdk 1.45.1 and the simulated broker of
# confluent-kafka 2.16.1, on Python 3.11.
# Prints: "headers: 2. links to send: 1" for the second message, whose sends are 1 and 2.
# What it means for us: retries of the client replace the context (docs/tracing.md), so that a message never has two.
# Needs the package index; listens on a free local port.
set -euo pipefail
target=$(mktemp -d)
trap 'rm -rf "$target"' EXIT
python3 -m venv "$target/venv"
"$target/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    'opentelemetry-instrumentation-confluent-kafka==0.66b1' 'opentelemetry-sdk==1.45.1' 'confluent-kafka==2.16.1'
cd "$target"
cat >program.py <<'PROGRAM'
import time

from confluent_kafka import Consumer, Producer
from opentelemetry import trace
from opentelemetry.instrumentation.confluent_kafka import ConfluentKafkaInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

spans = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)

cluster = Producer({"test.mock.num.brokers": 1, "log_level": 0})  # it runs as long as this producer
brokers = ",".join(f"{each.host}:{each.port}" for each in cluster.list_topics(timeout=30).brokers.values())
of_group = {"group.id": "group", "auto.offset.reset": "earliest"}
producer = ConfluentKafkaInstrumentor.instrument_producer(Producer({"bootstrap.servers": brokers, "log_level": 0}))
consumer = ConfluentKafkaInstrumentor.instrument_consumer(Consumer({"bootstrap.servers": brokers, "log_level": 0, **of_group}))
consumer.subscribe(["messages"])


def received():
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            return message
    raise SystemExit("no message came within 60 s")


producer.produce("messages", b"value")
producer.flush(30)
first = received()
producer.produce("messages", first.value(), headers=first.headers())
producer.flush(30)
second = received()
consumer.close()
sends = [each.context.span_id for each in spans.get_finished_spans() if each.name == "messages send"]
processed = [each for each in spans.get_finished_spans() if each.name == "messages process"]
links = [sends.index(each.context.span_id) + 1 for each in processed[-1].links]
names = [name for name, _ in second.headers()]
print(f"headers: {names.count('traceparent')}. links to send: {', '.join(map(str, links))}")
PROGRAM
seen=$("$target/venv/bin/python" program.py 2>"$target/log") || { cat "$target/log" >&2; exit 1; }
expected="headers: 2. links to send: 1"
echo "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'This has changed. Expected:\n%s\nSeen:\n%s\n' "$expected" "$seen" >&2
    exit 1
fi
