#!/usr/bin/env bash
# FastStream commits a record that has a header with a null value, and never gives it to the subscriber, also with
# AckPolicy.NACK_ON_ERROR.
#
# Kafka allows null as the value of a header. One would expect the record, or, with NACK_ON_ERROR, that it is read again until it is
# handled. The parser reads each value of a header as text and raises an error. The code that acknowledges parses the record once
# more, fails again, and so asks for nothing; the next record's commit covers it. Only the log has an
# error; the program below turns that off.
#
# Seen with faststream 0.7.8, aiokafka 0.14.0 and the simulated broker of confluent-kafka 2.16.1, on Python 3.11.
# Prints: "handled: first, last. committed: 3 of 3" for the records first, null and last.
# What it means for us: a receiver on FastStream loses a callback whose request had a null header. docs/other-clients.md says so.
# Needs the package index; listens on a free local port.
set -euo pipefail
target=$(mktemp -d)
trap 'rm -rf "$target"' EXIT
python3 -m venv "$target/venv"
"$target/venv/bin/python" -m pip install --quiet --disable-pip-version-check 'faststream[kafka]==0.7.8' 'aiokafka==0.14.0' \
    'confluent-kafka==2.16.1'
cd "$target"
cat >program.py <<'PROGRAM'
import asyncio

from confluent_kafka import Consumer, Producer, TopicPartition
from faststream import AckPolicy
from faststream.kafka import KafkaBroker

cluster = Producer({"test.mock.num.brokers": 1, "log_level": 0})  # it runs as long as this producer
brokers = ",".join(f"{each.host}:{each.port}" for each in cluster.list_topics(timeout=30).brokers.values())
producer = Producer({"bootstrap.servers": brokers, "log_level": 0})
for name, value in (("first", b"1"), ("null", None), ("last", b"1")):
    producer.produce("records", name, headers=[("header", value)], partition=0)
producer.flush(30)

handled = []
is_over = asyncio.Event()
broker = KafkaBroker(brokers, logger=None)


@broker.subscriber("records", group_id="group", auto_offset_reset="earliest", ack_policy=AckPolicy.NACK_ON_ERROR)
async def handle(body: str) -> None:
    handled.append(body)
    if body == "last":
        is_over.set()


async def main() -> None:
    await broker.start()
    await asyncio.wait_for(is_over.wait(), 60)
    await broker.stop()


asyncio.run(main())
group = Consumer({"bootstrap.servers": brokers, "group.id": "group", "log_level": 0})
offset = group.committed([TopicPartition("records", 0)], timeout=30)[0].offset
print(f"handled: {', '.join(handled)}. committed: {offset} of 3")
PROGRAM
seen=$("$target/venv/bin/python" program.py 2>"$target/log") || { cat "$target/log" >&2; exit 1; }
expected="handled: first, last. committed: 3 of 3"
echo "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'This has changed. Expected:\n%s\nSeen:\n%s\n' "$expected" "$seen" >&2
    exit 1
fi
