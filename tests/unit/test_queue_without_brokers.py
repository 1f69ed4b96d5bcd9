"""A queue whose brokers refuse connections, or take them and say nothing."""

import asyncio
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.constants import Constants
from tests.harness.process import Process, clean_environment, python
from timers.errors import SettingsError
from timers.kafka import connection
from timers.queue import AsyncQueue, Queue, QueueError

WAIT_S = 60.0
"""Longer than the error takes. Tests ask for it at once, and the error interrupts the wait."""


@pytest.fixture
def refusing(constants: Constants) -> Iterator[str]:
    """An address that refuses connections. Whoever waits for the time-out of a request waits too long."""
    constants(connection, CALL_TIMEOUT_S=10 * WAIT_S)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.mark.parametrize("member", ["a\x00b", "a\nb", "\u202ea", "\udcff", "a" * 201, 7])
def test_a_name_that_librdkafka_would_cut_or_refuse_is_an_error_at_once(member: Any, refusing: str) -> None:
    with pytest.raises(SettingsError, match="is not 1 to 200 printable characters"):
        Queue("jobs", brokers=refusing, member=member)


def test_receive_says_soon_that_no_broker_answers(refusing: str) -> None:
    with Queue("jobs", brokers=refusing) as queue:
        with pytest.raises(QueueError, match=rf"^no broker answers at {refusing}: is it running"):
            assert queue.receive(1, WAIT_S)
        assert queue.stuck() and queue.unready()
        with pytest.raises(QueueError, match="no broker answers"):
            queue.settle()
        with pytest.raises(QueueError, match="no broker answers"):
            queue.receive(1, WAIT_S)


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"concurrency": 3}, {"processes": 1}], ids=str)
def test_run_says_soon_that_no_broker_answers(refusing: str, how: dict[str, int]) -> None:
    with Queue("jobs", brokers=refusing) as queue, pytest.raises(QueueError, match=f"no broker answers at {refusing}"):
        queue.run(print, **how)


def test_the_asynchronous_queue_says_soon_that_no_broker_answers(refusing: str) -> None:
    async def receive() -> None:
        async with AsyncQueue(Queue("jobs", brokers=refusing)) as queue:
            await queue.receive(1, WAIT_S)

    with pytest.raises(QueueError, match=f"no broker answers at {refusing}"):
        asyncio.run(receive())


def test_a_process_that_waits_for_silent_brokers_ends_at_sigterm(silent: str, tmp_path: Path) -> None:
    command = python("timers.cli.main", "queue", "run", "jobs", "tests.harness.queue_handlers:handle")
    environment = clean_environment(TIMERS_BROKERS=silent)
    process = Process("queue run", command, environment, tmp_path, tmp_path / "log", forked=True)
    try:
        process.start().wait_for("handling messages of 'jobs'")
        process.send(signal.SIGTERM)
        process.wait_for("stopping when the running functions have returned")
        assert process.exit_code() == 0, process.tail()
    finally:
        process.clean_up()
