"""The request reader while brokers do not answer. The broker tests read real logs."""

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from confluent_kafka import Producer

from tests.harness.constants import Constants
from timers.core.ports import Lost
from timers.kafka.aiokafka_internals import fetch, sessions
from timers.kafka.request_formats import NATIVE
from timers.kafka.request_reader import RequestReader
from timers.process import threads
from timers.process.config.settings import Settings
from timers.wire.formats import RequestRecord


def test_brokers_that_do_not_answer_end_the_transaction_and_not_the_worker() -> None:
    request_reader = RequestReader(Settings(brokers="localhost:1"), {"timer-request": NATIVE})
    try:
        with pytest.raises(Lost, match="timer-request/0 cannot be read for a dead letter"):
            request_reader.read(["timer-request/0/17"], lambda: True)
    finally:
        request_reader.close()


def test_reading_ends_when_the_machine_may_not_wait() -> None:
    with socket.create_server(("localhost", 0)) as silent:
        port = silent.getsockname()[1]
        request_reader = RequestReader(Settings(brokers=f"localhost:{port}"), {"timer-request": NATIVE})
        try:
            with pytest.raises(Lost, match="told to stop"):
                request_reader.read(["timer-request/0/17"], lambda: False)
        finally:
            request_reader.close()


def test_a_request_that_is_too_large_to_hold_is_not_found_and_those_of_its_batch_are() -> None:
    options = {"test.mock.num.brokers": 1, "compression.type": "gzip", "message.max.bytes": 10**8, "linger.ms": 100}
    producer = Producer({"bootstrap.servers": "mock", "batch.size": 10**8, **options})
    (broker,) = producer.list_topics(timeout=10).brokers.values()
    for number in range(20):
        value = bytes(3_000_000) if number == 7 else b"v%d" % number
        producer.produce("timer-request", value, b"%d" % number, 0, headers=[("a", None)])
    assert producer.flush(30) == 0
    request_reader = RequestReader(
        Settings(brokers=f"{broker.host}:{broker.port}"),
        {"timer-request": NATIVE, "gone": NATIVE},
        value_limit={("timer-request", 0): 1_000_000}.get,
    )
    try:
        sources = [f"timer-request/0/{offset}" for offset in (3, 7, 8, 500)]
        found = request_reader.read([*sources, "timer-request/99/0", "gone/0/3"], lambda: True)
    finally:
        request_reader.close()
    records = {source: each for source, each in found.items() if isinstance(each, RequestRecord)}
    assert len(records) == len(found)
    assert {source: (each.key, each.value, each.headers) for source, each in records.items()} == {
        "timer-request/0/3": (b"3", b"v3", [("a", None)]),
        "timer-request/0/8": (b"8", b"v8", [("a", None)]),
    }


async def hang() -> None:
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


async def end_as_if_cancelled() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize("stop", [hang, end_as_if_cancelled])
def test_a_consumer_that_does_not_stop_is_closed_with_its_thread(
    stop: Callable[[], Coroutine[Any, Any, None]], constants: Constants
) -> None:
    constants(sessions, END_S=0.05)
    constants(threads, END_S=0.05)
    producer = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1})
    producer.produce("timer-request", b"v", b"k", 0)
    assert producer.flush(30) == 0
    (broker,) = producer.list_topics(timeout=10).brokers.values()
    request_reader = RequestReader(Settings(brokers=f"{broker.host}:{broker.port}"), {"timer-request": NATIVE})
    assert len(request_reader.read(["timer-request/0/0"], lambda: True)) == 1
    (thread,) = (each for each in threading.enumerate() if each.name == "timers-request-reader")
    consumer: Any = request_reader._consumer
    connections = list(consumer._client._conns.values())
    assert any(each.connected() for each in connections)
    consumer.stop = stop
    request_reader.close()
    thread.join(60)
    assert not thread.is_alive()
    assert not any(each.connected() for each in connections)


@pytest.mark.parametrize("steps", range(8))
async def test_a_consumer_that_is_dropping_its_fetches_can_be_stopped(steps: int, constants: Constants) -> None:
    """A few steps of the event loop after its partitions were taken away, aiokafka's fetcher waits for its fetches."""
    constants(sessions, END_S=0.2)
    producer = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1})
    (broker,) = producer.list_topics("timer-request", timeout=10).brokers.values()
    consumer = AIOKafkaConsumer(bootstrap_servers=f"{broker.host}:{broker.port}", fetch_max_wait_ms=5000)
    await consumer.start()
    place = TopicPartition("timer-request", 0)
    consumer.assign([place])
    await consumer.seek_to_beginning(place)
    while not consumer._fetcher._pending_tasks:
        await asyncio.sleep(0)
    consumer.unsubscribe()
    for _ in range(steps):
        await asyncio.sleep(0)
    async with asyncio.timeout(20) as limit:
        await fetch.stop(consumer)
    assert not limit.expired()  # the cancel of a time-out would end the wait, too
    assert consumer._fetcher._fetch_task.done()


def test_other_consumers_of_the_program_get_the_records_of_aiokafka() -> None:
    """The reader changes classes of aiokafka, which a program with the client or a worker may use too."""
    producer = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1})
    (broker,) = producer.list_topics(timeout=10).brokers.values()
    address = f"{broker.host}:{broker.port}"
    for number in range(20):
        producer.produce("timer-request", b"v%d" % number, b"%d" % number, 0)
    assert producer.flush(30) == 0
    request_reader = RequestReader(Settings(brokers=address), {"timer-request": NATIVE})
    try:
        assert len(request_reader.read(["timer-request/0/3"], lambda: True)) == 1
    finally:
        request_reader.close()

    async def values() -> list[str]:
        async with AIOKafkaConsumer(
            "timer-request", bootstrap_servers=address, auto_offset_reset="earliest", key_deserializer=bytes.decode
        ) as consumer:
            keys = [(await consumer.getone()).key]
            while len(keys) < 4:  # an answer holds the records of one batch, and the producer may have sent several
                fetched = await consumer.getmany(timeout_ms=1000, max_records=4 - len(keys))
                keys += [each.key for records in fetched.values() for each in records]
            async for last in consumer:
                return [*keys, last.key]
        raise AssertionError

    assert asyncio.run(asyncio.wait_for(values(), 60)) == ["0", "1", "2", "3", "4"]
