"""Processes of a queue that are killed, stopped, or replaced while their handlers work. Real processes."""

from __future__ import annotations

import json
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.process import Process, clean_environment, python
from tests.harness.system import System
from tests.harness.waiting import DEADLINE_S
from timers.queue import Queue

pytestmark = [pytest.mark.broker, pytest.mark.long]

SESSION_S = 6.0
Start = Callable[..., Process]


@pytest.fixture
def system(broker_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[System]:
    """A system with timers that have ids, and its worker."""
    system = System(broker_address, tmp_path, TIMERS_ID_TOPIC=f"by-id-{uuid.uuid4().hex[:8]}")
    for name, value in system.environment.items():
        monkeypatch.setenv(name, value)
    try:
        system.worker().start().ready()
        yield system
    finally:
        system.close()


@pytest.fixture
def start(system: System, tmp_path: Path) -> Iterator[Start]:
    """Start a process of a queue; arguments of the queue by name."""
    started: list[Process] = []

    def start(topic: str, **arguments: Any) -> Process:
        given = json.dumps({"session_timeout_s": SESSION_S, "lease_s": 600.0, **arguments})
        command = python("tests.harness.queue_worker", topic, str(tmp_path), given)
        log = tmp_path / f"queue-{len(started)}.log"
        process = Process(f"queue-{len(started)}", command, clean_environment(**system.environment), tmp_path, log)
        started.append(process)
        return process.start()

    yield start
    for process in started:
        process.clean_up()


def send(topic: str, *values: str) -> None:
    with Queue(topic, timeout_s=60) as queue:
        queue.send_many((value, value, ()) for value in values)


def test_a_process_that_was_stopped_cannot_acknowledge(system: System, start: Start, tmp_path: Path) -> None:
    topic = system.target()
    send(topic, "wait")
    first = start(topic)
    first.wait_for("^started wait", 2 * DEADLINE_S)
    first.send(signal.SIGSTOP)
    second = start(topic)
    try:
        second.wait_for("^started wait", 4 * DEADLINE_S)
        (tmp_path / "wait").touch()
        second.wait_for("^acked wait$", 2 * DEADLINE_S)
    finally:
        first.send(signal.SIGCONT)
    first.wait_for("^lost wait$", 2 * DEADLINE_S)
