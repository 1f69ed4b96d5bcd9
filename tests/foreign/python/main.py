"""Does the same with each Kafka client of Python: see ../README.md for its arguments. It has its own environment."""

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid
from collections.abc import Iterator
from typing import Any

IDLE_S = 8.0
"""How long a reader waits for a further record."""

NAME, COMMAND, BROKERS, TOPIC, *REST = sys.argv[1:]

Headers = list[tuple[str, str | bytes | None]]


def text(data: bytes | None) -> str | None:
    return None if data is None else bytes(data).hex()


def show(key: bytes | None, value: bytes | None, headers: Any) -> None:
    pairs = [[name, text(data)] for name, data in headers or []]
    print(json.dumps({"key": text(key), "value": text(value), "headers": pairs}))


class LibrdkafkaClient:
    """confluent-kafka."""

    def read(self) -> None:
        from confluent_kafka import Consumer

        consumer = Consumer(
            {"bootstrap.servers": BROKERS, "group.id": f"foreign-{uuid.uuid4()}", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe([TOPIC])
        until_s = time.monotonic() + 2 * IDLE_S  # joining takes time, too
        while time.monotonic() < until_s:
            if (record := consumer.poll(0.2)) is not None and not record.error():
                until_s = time.monotonic() + IDLE_S
                show(record.key(), record.value(), record.headers())
        consumer.close()

    def open(self, configured: bool) -> None:
        from confluent_kafka import Producer

        more = {"partitioner": "murmur2_random", "enable.idempotence": True} if configured else {}
        self._producer = Producer({"bootstrap.servers": BROKERS, "linger.ms": 0, **more})

    def send(self, key: bytes, value: bytes | None, headers: Headers) -> None:
        self._producer.produce(TOPIC, value, key, headers=headers)
        self._producer.flush(IDLE_S)


class KafkaPythonClient:
    """kafka-python."""

    def read(self) -> None:
        from kafka import KafkaConsumer  # type: ignore[import-not-found]

        consumer = KafkaConsumer(
            TOPIC,
            bootstrap_servers=BROKERS,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            consumer_timeout_ms=int(1000 * IDLE_S),
        )
        for record in consumer:
            show(record.key, record.value, record.headers)
        consumer.close()

    def open(self, configured: bool) -> None:
        from kafka import KafkaProducer

        more: Any = {"acks": "all", "enable_idempotence": True} if configured else {}
        self._producer = KafkaProducer(bootstrap_servers=BROKERS, **more)

    def send(self, key: bytes, value: bytes | None, headers: Headers) -> None:
        self._producer.send(TOPIC, key=key, value=value, headers=headers).get(IDLE_S)


class AiokafkaClient:
    """aiokafka."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def read(self) -> None:
        self._loop.run_until_complete(self._read())

    async def _read(self) -> None:
        from aiokafka import AIOKafkaConsumer

        consumer = AIOKafkaConsumer(
            TOPIC, bootstrap_servers=BROKERS, auto_offset_reset="earliest", isolation_level="read_committed"
        )
        await consumer.start()
        while records := await consumer.getmany(timeout_ms=int(1000 * IDLE_S)):
            for record in (each for several in records.values() for each in several):
                show(record.key, record.value, record.headers)
        await consumer.stop()

    def open(self, configured: bool) -> None:
        self._loop.run_until_complete(self._open(configured))

    async def _open(self, configured: bool) -> None:
        from aiokafka import AIOKafkaProducer

        more: Any = {"enable_idempotence": True} if configured else {}
        self._producer = AIOKafkaProducer(bootstrap_servers=BROKERS, **more)
        await self._producer.start()

    def send(self, key: bytes, value: bytes | None, headers: Headers) -> None:
        self._loop.run_until_complete(self._producer.send_and_wait(TOPIC, value, key, headers=headers))


CLIENTS: dict[str, Any] = {
    "confluent-kafka": LibrdkafkaClient,
    "kafka-python": KafkaPythonClient,
    "aiokafka": AiokafkaClient,
}

RECORDS: list[tuple[bytes, bytes | None, Headers]] = [
    (b"null value", None, []),
    (b"empty value", b"", []),
    (b"null header", b"v", [("h", None)]),
    (b"empty header", b"v", [("h", b"")]),
]


def ids(count: str, prefix: str = "id") -> Iterator[bytes]:
    return (f"{prefix}-{index}".encode() for index in range(int(count)))


def main() -> None:
    client = CLIENTS[NAME]()
    if COMMAND == "read":
        client.read()
        return
    client.open(COMMAND == "nulls" or REST[0] == "configured")
    if COMMAND == "send":
        for id in ids(REST[1]):
            client.send(id, b"v", [])
    elif COMMAND == "nulls":
        for key, value, headers in RECORDS:
            try:
                client.send(key, value, headers)
            except Exception as error:
                print(f"{key.decode()}: error {type(error).__name__}")
    elif COMMAND == "timers":
        _, target, due, count = REST
        for id in ids(count, target):
            client.send(id, b"v", [("timer-topic", target.encode()), ("timer-due", due.encode())])
        for id in ids(count, target):
            client.send(id, None, [])


main()
