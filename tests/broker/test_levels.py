"""Feature levels: workers of this version and of the next one side by side, the raise, and the way back before it."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.process import ROOT, clean_environment, python
from tests.harness.records import Record, Request
from tests.harness.scrape import health, wait_equal
from tests.harness.system import PARTITIONS, System
from tests.harness.waiting import DEADLINE_S, due_in, wait_until
from tests.harness.worker import Worker
from timers.core import levels
from timers.core.progress import FEATURE_LEVEL
from timers.testing.next_level import LEVEL, SHIFT, shift_of
from timers.wire import progress

pytestmark = pytest.mark.broker

SHIFT_S = 3
THIS, NEXT = "timers.app", "tests.harness.next_level_app"
"""Apps of workers of the two versions."""
REFUSED = rf"was raised to feature level {LEVEL}, and this version of timers supports {levels.SUPPORTED}"


def command(system: System, *arguments: str, code: int = 0) -> str:
    """Output of a command line of the next version."""
    done = subprocess.run(
        python("tests.harness.next_level", *arguments),
        cwd=ROOT,
        env=clean_environment(**system.environment),
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def shown(system: System) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(command(system, "levels", "-o", "json"))
    return found


def raised_from(system: System) -> dict[int, int]:
    """Request partition -> the offset from which it is at the next level, for those that were raised."""
    found = {}
    for record in system.reader(system.settings.progress_topic, append_time=False).rest():
        assert record.key is not None and record.value is not None
        topic, _, partition = record.key.decode().rpartition("/")
        if topic == system.request_topic:
            decoded, _ = progress.decode(record.value, supported=LEVEL)
            assert progress.level_of(record.value) == decoded.level
            found.update(
                {
                    int(partition): c.from_offset
                    for c in decoded.settings
                    if c.value == LEVEL and c.name == FEATURE_LEVEL
                }
            )
    return found


class Storm:
    """Publishes requests until it is told to stop."""

    def __init__(self, system: System, target: str) -> None:
        self.requests: list[Request] = []
        self._system = system
        self._target = target
        self._stop = threading.Event()

    def _run(self) -> None:
        number = 0
        publisher = self._system.publisher()
        while not self._stop.is_set():
            some = []
            for _ in range(20):
                number += 1
                headers: Any = [(SHIFT, b"%d" % SHIFT_S)] if number % 2 else []
                due_s = due_in(1 + number % 9)
                some.append(Request(self._target, due_s, f"key-{number}", b"x", headers, number % PARTITIONS))
            self.requests += publisher.send(some)
            self._stop.wait(0.1)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def expected(self, raised: dict[int, int]) -> dict[str, int]:
        """Source -> due second, by the level at each offset."""
        due = {}
        for request in self.requests:
            _, partition, offset = request.source.rsplit("/", 2)
            at_next_level = int(offset) >= raised.get(int(partition), 2**63)
            due[request.source] = request.due_s + (shift_of(request.headers) if at_next_level else 0)
        return due


def replace(worker: Worker, version: str) -> None:
    """Stop a worker and start it as another version, with the same id and disk."""
    worker.stop()
    worker.app = version
    worker.start().ready()


def assert_fired_as_expected(storm: Storm, system: System, target: str) -> None:
    raised = raised_from(system)
    expected = storm.expected(raised)
    last_s = max(expected.values())
    reader = system.reader(target)
    records: list[Record] = reader.take(len(expected), DEADLINE_S + max(0.0, last_s - time.time()))
    system.wait_past(last_s)
    records += reader.rest()
    fired = [record.timer_id for record in records]
    assert len(fired) == len(set(fired)), "a timer fired twice"
    assert {record.timer_id: record.due_s for record in records} == expected


def test_workers_are_upgraded_one_by_one_raised_and_an_older_one_refuses(system: System) -> None:
    target = system.target()
    storm = Storm(system, target)
    first, second = system.worker().start(), system.worker().start()
    first.ready()
    second.ready()
    with storm.running():
        replace(first, NEXT)
        found = shown(system)
        assert found["highest"] == found["allowed"] == levels.SUPPORTED, "only a new app is raised by itself"
        assert sorted(found["workers"].values()) == [levels.SUPPORTED, LEVEL]
        said = command(system, "levels", "--raise", str(LEVEL), code=1)
        assert f"do not support level {LEVEL}: {second.worker_id} ({levels.SUPPORTED})" in said
        replace(second, NEXT)
        replace(first, THIS)  # the way back, before the raise
        replace(first, NEXT)
        assert raised_from(system) == {}
        command(system, "levels", "--raise", str(LEVEL))
        wait_until(lambda: shown(system)["lowest"] == LEVEL, "all partitions are raised")
        assert "there is no way back" in command(system, "levels", "--raise", str(LEVEL - 1), code=1)

        second.kill()
        shutil.rmtree(second.data_dir)  # a new owner reads each offset at its level
        second.app = THIS
        second.start()  # with the same id, so that it gets its partitions again
        second.wait_for(REFUSED)
        wait_equal(lambda: health(first.port, "ready")[1]["partitions"], 2 * PARTITIONS)
        wait_until(lambda: re.search(REFUSED, str(health(second.port, "ready")[1]["reasons"])), "it is not ready")
        second.kill()
        second.app = NEXT
        second.start().ready()
    assert_fired_as_expected(storm, system, target)
    assert set(raised_from(system)) == set(range(PARTITIONS))
