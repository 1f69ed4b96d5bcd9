#!/usr/bin/env bash
# A consumer of librdkafka shows no headers at all of a record that has more than 100,000, and no error.
#
# Kafka limits the size of a record and not the number of its headers; 100,001 empty ones are 300 kB. One would expect the headers or
# an error, all the more since a producer of the same library sends this record. The message has key and value,
# and its headers are None, as if the sender had written none. A program that decides by a header takes its default.
#
# Seen with confluent-kafka 2.16.1, its simulated broker, and aiokafka 0.14.0, on Python 3.11.
# Prints: "confluent-kafka: 100000 None. aiokafka: 100000 100001" for records with 100,000 and 100,001 headers.
# What it means for us: docs/security.md#limits-of-what-is-sent says so for receivers of callbacks.
# Needs the package index; listens on a free local port.
set -euo pipefail
target=$(mktemp -d)
trap 'rm -rf "$target"' EXIT
python3 -m venv "$target/venv"
"$target/venv/bin/python" -m pip install --quiet --disable-pip-version-check 'confluent-kafka==2.16.1' 'aiokafka==0.14.0'
cd "$target"
cat >program.py <<'PROGRAM'
import asyncio

from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, Producer, TopicPartition

cluster = Producer({"test.mock.num.brokers": 1, "log_level": 0})  # it runs as long as this producer
brokers = ",".join(f"{each.host}:{each.port}" for each in cluster.list_topics(timeout=30).brokers.values())
producer = Producer({"bootstrap.servers": brokers, "log_level": 0})
for count in (100_000, 100_001):
    producer.produce("records", b"value", headers=[("", b"")] * count, partition=0)
assert producer.flush(30) == 0

consumer = Consumer({"bootstrap.servers": brokers, "group.id": "group", "log_level": 0})
consumer.assign([TopicPartition("records", 0, 0)])
messages = consumer.consume(2, timeout=30)
counts = [each.headers() and len(each.headers()) for each in messages if each.error() is None]
consumer.close()


async def read():
    async with AIOKafkaConsumer("records", bootstrap_servers=brokers, auto_offset_reset="earliest") as consumer:
        return [len((await asyncio.wait_for(consumer.getone(), 30)).headers) for _ in range(2)]


print("confluent-kafka:", *counts, end=". ")
print("aiokafka:", *asyncio.run(read()))
PROGRAM
seen=$("$target/venv/bin/python" program.py 2>log) || { cat log >&2; exit 1; }
expected="confluent-kafka: 100000 None. aiokafka: 100000 100001"
echo "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'This has changed. Expected:\n%s\nSeen:\n%s\n' "$expected" "$seen" >&2
    exit 1
fi
