"""The engine on Spark killed in a storm, all of it or a part: none is lost or early; what comes twice is the same."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.harness.records import Record, Request
from tests.harness.spark_cluster import SparkCluster
from tests.harness.spark_job import SparkEngine
from tests.harness.system import System, timers
from tests.harness.waiting import due_in, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1200)]

TIMERS = 12_000
SECONDS = 20
PATIENCE_S = 300.0


@pytest.fixture
def system(broker_address: str, tmp_path: Path) -> Iterator[System]:
    system = System(broker_address, tmp_path)
    yield system
    system.close()


def storm(system: System, strike: Callable[[], None]) -> dict[str, list[Record]]:
    """Timers due over 20 seconds; in the midst of it, ``strike``. All that has fired, by the timer's id.

    Asserts that each fired, that none was early, and that all copies of one are alike.
    """
    target = system.target(partitions=4)
    requests = system.send(*timers(target, TIMERS, first_s=due_in(8), seconds=SECONDS, value=b"x" * 100))
    reader = system.reader(target)
    records = reader.take(TIMERS // 4, PATIENCE_S)
    strike()
    fired: dict[str, list[Record]] = defaultdict(list)

    def all_out() -> bool:
        records.extend(reader.rest())
        return {request.source for request in requests} <= {record.timer_id for record in records}

    wait_until(all_out, "every timer has fired", PATIENCE_S)
    for _ in range(2):  # whatever else the same micro-batches send is out then
        system.wait_past(int(time.time()))
    records += reader.rest()
    for record in records:
        fired[record.timer_id].append(record)
    check(requests, fired)
    return fired


def check(requests: Sequence[Request], fired: dict[str, list[Record]]) -> None:
    by_source = {request.source: request for request in requests}
    assert fired.keys() == by_source.keys()
    for source, copies in fired.items():
        request = by_source[source]
        assert all(copy.lag_ms >= 0 and copy.due_s == request.due_s for copy in copies)
        assert {(copy.key, copy.value, tuple(copy.headers)) for copy in copies} == {
            (request.key.encode(), request.value, tuple(copies[0].headers))
        }


def test_a_takeover_from_a_worker_and_a_kill_in_a_storm(system: System, tmp_path: Path) -> None:
    # A worker has fired some of its timers, and some wait, when the engine takes its place.
    worker = system.worker().start().ready()
    target = system.target()
    soon = system.send(*timers(target, 40, first_s=due_in(2), seconds=1))
    system.fired(soon)
    waiting = system.send(*timers(target, 40, first_s=due_in(60), seconds=2))
    worker.stop()
    engine = SparkEngine(tmp_path / "engine", system.environment)
    system.workers.append(engine)
    engine.start().ready()
    reader = system.reader(target)
    counts = Counter(record.timer_id for record in reader.take(80, PATIENCE_S))
    assert counts == dict.fromkeys((request.source for request in [*soon, *waiting]), 1)

    def strike() -> None:
        engine.kill()
        engine.start().ready()

    storm(system, strike)
    engine.stop()
    assert "stopped between two micro-batches" in engine.log
    assert not reader.rest()  # none of what the worker or the engine had fired long before


def test_a_worker_of_the_cluster_is_killed_in_a_storm(system: System, tmp_path: Path) -> None:
    cluster = SparkCluster(tmp_path / "cluster", workers=2)
    try:
        engine = SparkEngine(
            tmp_path / "engine",
            system.environment,
            *("--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.executor.memory=1g"),
            *("--conf", "spark.ui.enabled=false"),
            master=cluster.url,
        )
        system.workers.append(engine)
        engine.start().ready()
        storm(system, lambda: cluster.kill_worker(1))
        engine.stop()
    finally:
        cluster.close()
