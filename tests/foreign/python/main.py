"""Does the same with each Kafka client of Python: see ../README.md for its arguments. It has its own environment."""

import asyncio
import json
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from typing import Any

IDLE_S = 8.0
"""How long a reader waits for a further record."""

NAME, COMMAND, BROKERS, TOPIC, *REST = sys.argv[1:]

OUTPUT = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what a framework prints is no record

Headers = list[tuple[str, str | bytes | None]]


def text(data: bytes | None) -> str | None:
    return None if data is None else bytes(data).hex()


def show(key: bytes | None, value: bytes | None, headers: Any) -> None:
    pairs = [[name, text(data)] for name, data in headers or []]
    print(json.dumps({"key": text(key), "value": text(value), "headers": pairs}), file=OUTPUT, flush=True)


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


class Idle:
    """Waits until no record came for a while, and ends the process: a program that serves ends by itself only if it is
    told to."""

    def __init__(self) -> None:
        self._until_s = time.monotonic() + 4 * IDLE_S  # joining takes time, too

    def note(self) -> None:
        self._until_s = time.monotonic() + IDLE_S

    async def wait(self) -> None:
        while (left_s := self._until_s - time.monotonic()) > 0:
            await asyncio.sleep(left_s)
        os._exit(0)


class FaustApp:
    """Faust as a worker: an app that its program starts by ``app.start()`` reads uncommitted records."""

    def read(self) -> None:
        import faust  # type: ignore[import-untyped,unused-ignore]

        app = faust.App(
            f"foreign-{uuid.uuid4()}",
            broker=f"kafka://{BROKERS}",
            processing_guarantee="exactly_once",
            topic_disable_leader=True,
            web_enabled=False,
            datadir=tempfile.mkdtemp(prefix="foreign-faust-"),
        )
        idle = Idle()

        @app.agent(app.topic(TOPIC, key_serializer="raw", value_serializer="raw"))  # type: ignore[untyped-decorator,unused-ignore]
        async def reader(stream: Any) -> None:
            async for event in stream.events():
                idle.note()
                show(event.key, event.value, event.headers.items())

        app.task(idle.wait)
        faust.Worker(app, quiet=True, loglevel="error", redirect_stdouts=False).execute_from_commandline()


class FastStreamApp:
    """FastStream."""

    def read(self) -> None:
        asyncio.run(self._read())

    async def _read(self) -> None:
        from faststream.kafka import KafkaBroker  # type: ignore[import-not-found,unused-ignore]
        from faststream.kafka.annotations import KafkaMessage  # type: ignore[import-not-found,unused-ignore]

        broker, idle = KafkaBroker(BROKERS, logger=None), Idle()

        @broker.subscriber(  # type: ignore[untyped-decorator,unused-ignore]
            TOPIC, auto_offset_reset="earliest", isolation_level="read_committed", group_id=f"foreign-{uuid.uuid4()}"
        )
        async def reader(body: Any, message: KafkaMessage) -> None:
            idle.note()
            show(message.raw_message.key, body, [(name, text.encode()) for name, text in message.headers.items()])

        await broker.start()
        await idle.wait()


CLIENTS: dict[str, Any] = {
    "confluent-kafka": LibrdkafkaClient,
    "kafka-python": KafkaPythonClient,
    "aiokafka": AiokafkaClient,
    "faust-streaming": FaustApp,
    "faststream": FastStreamApp,
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
                print(f"{key.decode()}: error {type(error).__name__}", file=OUTPUT, flush=True)
    elif COMMAND == "timers":
        _, target, due, count = REST
        for id in ids(count, target):
            client.send(id, b"v", [("timer-topic", target.encode()), ("timer-due", due.encode())])
        for id in ids(count, target):
            client.send(id, None, [])


main()
