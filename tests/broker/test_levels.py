"""Feature levels: workers of this version and of the next one side by side, the raise, and the way back before it."""

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
from tests.harness.records import Publisher, Record, Request
from tests.harness.scrape import health, wait_equal
from tests.harness.system import PARTITIONS, System, soon
from tests.harness.waiting import DEADLINE_S, due_in, wait_until
from tests.harness.worker import Worker
from tests.simulation.kit.next_level import LEVEL, SHIFT, shift_of
from timers.core import levels
from timers.core.progress import FEATURE_LEVEL
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


class Raised:
    """Request partition -> the offset from which it is at the next level, for those that were raised."""

    def __init__(self, system: System) -> None:
        self._topic = system.request_topic
        self._reader = system.reader(system.settings.progress_topic, append_time=False)
        self._from: dict[int, int] = {}

    def look(self) -> dict[int, int]:
        for record in self._reader.rest():
            assert record.key is not None and record.value is not None
            topic, _, partition = record.key.decode().rpartition("/")
            if topic == self._topic:
                decoded, _ = progress.decode(record.value, supported=LEVEL)
                raises = [c.from_offset for c in decoded.settings if (c.name, c.value) == (FEATURE_LEVEL, LEVEL)]
                assert len(raises) == (decoded.level == LEVEL)
                self._from.update({int(partition): from_offset for from_offset in raises})
        return self._from


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


def assert_fired_as_expected(storm: Storm, raised: Raised, system: System, target: str) -> None:
    expected = storm.expected(raised.look())
    last_s = max(expected.values())
    reader = system.reader(target)
    records: list[Record] = reader.take(len(expected), DEADLINE_S + max(0.0, last_s - time.time()))
    system.wait_past(last_s)
    records += reader.rest()
    fired = [record.timer_id for record in records]
    assert len(fired) == len(set(fired)), "a timer fired twice"
    assert {record.timer_id: record.due_s for record in records} == expected


def reasons(worker: Worker) -> str:
    return str(health(worker.port, "ready")[1]["reasons"])


def test_a_worker_refuses_a_partition_of_a_higher_level_and_fires_the_others(system: System) -> None:
    worker = system.worker().start().ready()
    system.fired(system.send(*soon(system.target(), 20)))
    worker.stop()
    key = progress.encode_key(system.request_topic, 0)
    records = system.reader(system.settings.progress_topic, append_time=False).rest()
    newest = [record for record in records if record.key == key][-1]
    known, topic_id = progress.decode(newest.value or b"")
    machine = progress.machine_name(system.settings.app_id, system.request_topic, 0)
    raised = progress.encode(known.with_setting(FEATURE_LEVEL, LEVEL), topic_id, machine)
    Publisher(system.address, system.settings.progress_topic).send_raw(key, raised, [], newest.partition)

    worker.start()
    worker.wait_for(f"{system.request_topic}/0 {REFUSED}")
    wait_until(lambda: re.search(f"{system.request_topic}/0 {REFUSED}", reasons(worker)), "the health page says it")
    target = system.target()
    waiting = system.send(*soon(target, 5, partition=0))
    fired = system.send(*soon(target, 5, partition=1))
    early = system.reader(target).take(len(fired))
    assert {record.timer_id for record in early} == {request.source for request in fired}, "only that one waits"
    worker.stop()
    worker.app = NEXT
    worker.start().ready()
    assert len(system.fired([*waiting, *fired])) == 10


@pytest.mark.long
def test_workers_are_upgraded_one_by_one_raised_and_an_older_one_refuses(system: System) -> None:
    target = system.target()
    storm = Storm(system, target)
    first, second = system.worker().start(), system.worker().start()
    first.ready()
    second.ready()
    raised = Raised(system)
    with storm.running():
        replace(first, NEXT)
        found = shown(system)
        assert found["allowed"] == levels.RAISED_TO_LEVEL, "only a new app is raised by itself"
        # A partition is raised further than all others only after its log was compared, or by the next version.
        assert found["highest"] == levels.RAISED_TO_LEVEL
        assert sorted(found["workers"].values()) == [levels.SUPPORTED, LEVEL]
        said = command(system, "levels", "--raise", str(LEVEL), code=1)
        assert f"do not support level {LEVEL}: {second.worker_id} ({levels.SUPPORTED})" in said
        replace(second, NEXT)
        replace(first, THIS)  # the way back, before the raise
        replace(first, NEXT)
        assert raised.look() == {}
        command(system, "levels", "--raise", str(LEVEL))
        wait_until(lambda: raised.look().keys() == set(range(PARTITIONS)), "all partitions are raised")
        assert shown(system)["lowest"] == LEVEL
        assert "there is no way back" in command(system, "levels", "--raise", str(LEVEL - 1), code=1)

        second.kill()
        shutil.rmtree(second.data_dir)
        second.app = THIS
        second.start()  # with the same id, so that it gets its partitions again
        second.wait_for(REFUSED, 2 * DEADLINE_S)
        wait_equal(lambda: health(first.port, "ready")[1]["partitions"], 2 * PARTITIONS)
        wait_until(lambda: re.search(REFUSED, reasons(second)), "it is not ready")
        first.kill()
        shutil.rmtree(first.data_dir)  # the next owner reads each offset at its level
        first.start().ready()
    assert_fired_as_expected(storm, raised, system, target)
