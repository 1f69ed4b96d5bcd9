"""Brokers that answer at their bootstrap address, but advertise one that clients cannot reach: each error names it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.harness.advertising import bootstrap_server
from timers.client import AsyncTimersClient, TimerRequest, TimersClient
from timers.errors import TimersError
from timers.kafka import connection
from timers.process.config.settings import Settings
from timers.queue import Queue

TOPIC = "timer-request"


def schedule(brokers: str, limit_s: float) -> None:
    with TimersClient(brokers, timeout_s=2 * limit_s) as client:
        client.schedule("t", "k", b"v", delay=5)


def schedule_many(brokers: str, limit_s: float) -> None:
    with TimersClient(brokers, timeout_s=2 * limit_s) as client:
        client.schedule_many([TimerRequest("t", "k", b"v", delay=5)])


def schedule_with_id(brokers: str, limit_s: float) -> None:
    with TimersClient(brokers, timeout_s=2 * limit_s) as client:
        client.schedule("t", "k", b"v", delay=5, id="a")


def schedule_with_a_limit(brokers: str, limit_s: float) -> None:
    with TimersClient(brokers, timeout_s=3 * limit_s) as client:
        client.schedule("t", "k", b"v", delay=5, timeout_s=limit_s)


def schedule_in_a_task(brokers: str, limit_s: float) -> None:
    async def schedule() -> None:
        async with AsyncTimersClient(brokers, timeout_s=3 * limit_s) as client:
            await client.schedule("t", "k", b"v", delay=5, timeout_s=limit_s)

    asyncio.run(schedule())


def send_to_a_queue(brokers: str, limit_s: float) -> None:
    with Queue(TOPIC, brokers=brokers, timeout_s=2 * limit_s) as queue:
        queue.send(b"v")


CALLS = [schedule_with_a_limit, schedule_in_a_task, schedule, schedule_many, schedule_with_id, send_to_a_queue]


@pytest.mark.parametrize("host", ["127.0.0.1", "kafka.invalid"])
def test_each_error_names_the_address_that_cannot_be_reached(host: str) -> None:
    """Within a second, if a client has tried the address by then: on a busy machine it gets ten."""

    def failure(call: Callable[[str, float], object]) -> tuple[str, float]:
        for limit_s in (1, 10):
            with pytest.raises(TimersError) as error:
                call(brokers, limit_s)
            if named in str(error.value):
                break
        return str(error.value), limit_s

    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))  # nothing listens there, and nothing else can
        port = unheard.getsockname()[1]
        with bootstrap_server(host, port) as brokers, ThreadPoolExecutor(len(CALLS)) as threads:
            named = f"cannot reach the broker at {host}:{port}, which the brokers at {brokers} have named"
            failures = list(threads.map(failure, CALLS))
    assert all(f"acknowledged within {limit_s} s: " in failure for failure, limit_s in failures[:2])
    assert [said for said, _ in failures if named not in said or "advertised.listeners" not in said] == []


@pytest.mark.parametrize("more", ["", ", 30 identical error(s) suppressed"])
def test_a_report_that_stands_for_several_is_one_too(more: str) -> None:
    """librdkafka says the same at most once in 30 s, and then how often: a longer call sees only this."""
    reports = connection.ErrorReports(Settings.load({"TIMERS_BROKERS": "kafka:9092"}))
    text = f"b2.invalid:9092/2: Failed to resolve 'b2.invalid:9092': Name not known (after 3ms in state CONNECT{more})"
    reports(SimpleNamespace(code=lambda: KafkaError._RESOLVE, str=lambda: text))  # type: ignore[arg-type]
    assert "cannot reach the broker at b2.invalid:9092" in reports.causes()


def test_a_client_that_is_held_back_is_told_so_and_not_that_no_broker_runs() -> None:
    """As where many topics are made, with controller_mutation_rate: the brokers then read nothing from the client."""
    reports = connection.ErrorReports(Settings.load({"TIMERS_BROKERS": "kafka:9092"}))
    reports.callbacks["throttle_cb"](SimpleNamespace(throttle_time=40.0))
    failure = KafkaException(KafkaError(KafkaError._TIMED_OUT))
    said = str(reports.user_error(failure, "topic 'orders' cannot be created"))
    assert said.startswith("topic 'orders' cannot be created: a quota of the brokers holds this client back")
    assert "consumer_byte_rate" in said, "a reader may be what is held back"


def test_an_old_report_is_not_the_cause_of_a_later_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(connection, "monotonic", lambda: now_s)
    reports = connection.ErrorReports(Settings.load({"TIMERS_BROKERS": "kafka:9092"}))
    text = "b2:9092/2: Connect to ipv4#10.0.0.2:9092 failed: Connection refused (after 0ms in state CONNECT)"
    error: Any = SimpleNamespace(code=lambda: KafkaError._TRANSPORT, str=lambda: text)
    reports(error)
    assert "cannot reach the broker at b2:9092" in reports.causes()
    now_s = 60.0  # it is back
    assert reports.causes().startswith("is it running, is TIMERS_BROKERS right")
