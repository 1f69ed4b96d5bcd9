"""Brokers that answer at their bootstrap address, but advertise one that clients cannot reach: each error names it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from tests.harness.advertising import bootstrap_server
from timers.client import TimerRequest, TimersClient
from timers.errors import TimersError
from timers.queue import Queue

TOPIC = "timer-request"


def schedule(brokers: str) -> object:
    return TimersClient(brokers, timeout_s=2).schedule("t", "k", b"v", delay=5)


def schedule_many(brokers: str) -> object:
    return TimersClient(brokers, timeout_s=2).schedule_many([TimerRequest("t", "k", b"v", delay=5)])


def schedule_with_id(brokers: str) -> object:
    return TimersClient(brokers, timeout_s=2).schedule("t", "k", b"v", delay=5, id="a")


def send_to_a_queue(brokers: str) -> object:
    return Queue(TOPIC, brokers=brokers, timeout_s=2).send(b"v")


CALLS = [schedule, schedule_many, schedule_with_id, send_to_a_queue]


@pytest.mark.parametrize("host", ["127.0.0.1", "kafka.invalid"])
def test_each_error_names_the_address_that_cannot_be_reached(host: str) -> None:
    def failure(call: Callable[[str], object]) -> str:
        with pytest.raises(TimersError) as error:
            call(brokers)
        return str(error.value)

    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        closed_port = listener.getsockname()[1]
    with bootstrap_server(host, closed_port) as brokers, ThreadPoolExecutor(len(CALLS)) as threads:
        failures = list(threads.map(failure, CALLS))
    named = (
        f"the brokers at {brokers} answer, and name a broker at {host}:{closed_port}, which this machine cannot reach"
    )
    assert [failure for failure in failures if named not in failure or "advertised.listeners" not in failure] == []
