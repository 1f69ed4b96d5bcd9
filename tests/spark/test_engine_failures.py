"""The engine on Spark killed in a storm, all of it or a part; workers beside it; its checkpoint lost: each timer fires
exactly once, and none early."""

import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.records import Record
from tests.harness.spark_cluster import SparkCluster
from tests.harness.spark_job import SparkEngine
from tests.harness.system import System, assert_once, timers
from tests.harness.waiting import due_in

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1200)]

TIMERS = 12_000
SECONDS = 20
PATIENCE_S = 300.0


@pytest.fixture
def system(broker_address: str, tmp_path: Path) -> Iterator[System]:
    system = System(broker_address, tmp_path)
    yield system
    system.close()


def storm(system: System, *strikes: Callable[[], None]) -> None:
    """Send timers that are due over 20 s, with faults in between, and check that each fires once and none early."""
    target = system.target(partitions=4)
    sent = system.send(*timers(target, TIMERS, first_s=due_in(8), seconds=SECONDS, value=b"x" * 100))
    reader = system.reader(target)
    records: list[Record] = []
    for strike in strikes:
        records += reader.take(TIMERS // (len(strikes) + 2), PATIENCE_S)
        strike()
    records += reader.take(TIMERS - len(records), PATIENCE_S)
    system.wait_past(due_in(1))
    records += reader.rest()
    assert_once(records, {request.source: request for request in sent})


def test_a_kill_and_a_lost_checkpoint_in_a_storm(system: System, tmp_path: Path) -> None:
    engine = SparkEngine(tmp_path / "engine", system.environment)
    system.workers.append(engine)
    engine.start().ready()

    def kill() -> None:
        engine.kill()
        engine.start().ready()

    def lose_the_checkpoint() -> None:
        engine.kill()
        shutil.rmtree(engine.checkpoint)
        engine.start().ready()

    storm(system, kill, lose_the_checkpoint)
    refused_start_ends_no_other(system, engine, tmp_path)
    engine.send(signal.SIGINT)
    assert engine.exit_code() == 0
    assert (
        engine.log.splitlines()[-1] == "stopped"
        and "is interrupted" not in engine.log
        and "Traceback" not in engine.log
    )


def refused_start_ends_no_other(system: System, engine: SparkEngine, tmp_path: Path) -> None:
    foreign = SparkEngine(tmp_path / "foreign", system.environment)
    (foreign.checkpoint / "offsets").mkdir(parents=True)
    system.workers.append(foreign)
    foreign.start()
    assert foreign.exit_code(PATIENCE_S) == 2
    assert "has a checkpoint of another query" in foreign.log
    assert [path.name for path in foreign.checkpoint.iterdir()] == ["offsets"]
    target = system.target()
    (sent,) = system.send(*timers(target, 1, first_s=due_in(2), seconds=1))
    (fired,) = system.reader(target).take(1, PATIENCE_S)
    assert fired.timer_id == sent.source and engine.running


def test_workers_and_the_engine_take_over_in_a_storm(system: System, tmp_path: Path) -> None:
    worker = system.worker().start().ready()
    engine = SparkEngine(tmp_path / "engine", system.environment)
    system.workers.append(engine)

    def to_spark() -> None:
        worker.kill()
        engine.start().ready()

    def to_workers() -> None:
        engine.kill()
        worker.start().ready()

    storm(system, to_spark, to_workers, to_spark)
    assert "have left their group (1 left)" in engine.log


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
