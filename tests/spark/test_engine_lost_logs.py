"""The engine on Spark, whose broker starts again without the end of a log, which then grows past its former end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.chaos.logs import broker_disk
from tests.harness.letters import await_letters
from tests.harness.records import Request
from tests.harness.spark_job import SparkEngine
from tests.harness.spark_query import SparkQuery
from tests.harness.system import PARTITIONS, System, soon
from tests.harness.waiting import due_in
from timers.broker import EmbeddedBroker
from timers.core.progress import Progress
from timers.errors import LogMismatch
from timers.kafka import topics
from timers.kafka.progress_log import ProgressLog, progress_partition
from timers.spark.engine import start
from timers.wire import progress as progress_record

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

OLD, CUT, NEW = 60, 30, 90
PATIENCE_S = 200.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path / "broker", 0) as broker:
        yield broker


@pytest.fixture
def system(broker: EmbeddedBroker, tmp_path: Path) -> Iterator[System]:
    system = System(broker.start(), tmp_path)
    system.create_own_topics()
    yield system
    system.close()


def cut(broker: EmbeddedBroker, topic: str, partition: int, offset: int) -> None:
    """Let the broker start again without the end of a log."""
    broker.stop()
    assert broker_disk.cut(broker_disk.partition_directory(broker, topic, partition), offset)
    broker_disk.forget_clean_stop(broker)
    broker.start()


def waiting(system: System, target: str) -> list[Request]:
    """Send timers that are due later, each in a batch of its own."""
    due_s = due_in(900)
    return [system.send(Request(target, due_s, f"old-{number}", partition=0))[0] for number in range(OLD)]


def all_are_accepted(system: System) -> None:
    """Wait for two timers behind all others of partition 0: the micro-batch before the last one has ended."""
    for _ in range(2):
        fence = system.send(Request(system.target(), due_in(1), partition=0))[0]
        system.reader(fence.target).take(1, PATIENCE_S)


def test_what_only_a_store_holds_becomes_dead_letters(
    spark: SparkSession, broker: EmbeddedBroker, system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is cut while the engine is stopped, and grows past its former end before anyone looks."""
    monkeypatch.setattr(start, "SETTLING_S", 0.0)
    old = waiting(system, system.target())
    with SparkQuery(spark, system, tmp_path / "engine"):
        all_are_accepted(system)
    cut(broker, system.request_topic, 0, CUT)
    new = system.send(*soon(system.target(), NEW, partition=0))

    cluster = topics.ensure(system.settings)
    with pytest.raises(LogMismatch, match=rf"/0 was read up to offset {OLD + 2}, and has lost .* from offset {CUT} on"):
        start.check(spark, system.settings, cluster, str(tmp_path / "engine"), 2, 2)
    unaccepted, system.settings = system.settings, replace(system.settings, accept_loss=f"{system.request_topic}/0")
    with SparkQuery(spark, system, tmp_path / "engine"):
        fired = system.reader(new[0].target).take(NEW, PATIENCE_S)
        letters = await_letters(system, {request.source for request in old[CUT:]})
    assert {record.timer_id for record in fired} == {f"{request.source}~1" for request in new}
    assert letters.keys() == {request.source for request in old[CUT:]}
    assert {letter.text("timer-error") for letter in letters.values()} == {"lost-from-log"}
    system.settings = unaccepted
    with SparkQuery(spark, system, tmp_path / "engine"):
        all_are_accepted(system)
    assert system.reader(old[0].target).rest() == [], "they are not due"
    lineage = progress_of(system).lineage
    assert lineage.batch is not None and lineage.epochs[-1][1] == CUT


def progress_of(system: System) -> Progress:
    tp = system.request_topic, 0
    log = ProgressLog(system.settings, topics.ensure(system.settings))
    found, _ = progress_record.decode(log.read([tp], after_fence=False)[tp])
    log.close()
    return found


def test_a_running_engine_ends_before_it_reads_another_log(
    broker: EmbeddedBroker, system: System, tmp_path: Path
) -> None:
    engine = SparkEngine(tmp_path / "engine", system.environment)
    system.workers.append(engine)
    old = waiting(system, system.target())
    engine.start().ready()
    all_are_accepted(system)
    cut(broker, system.request_topic, 0, CUT)
    new = system.send(*soon(system.target(), NEW, partition=0))
    assert engine.exit_code(PATIENCE_S) == 1
    name = f"{system.request_topic}/0"
    last = engine.log.splitlines()[-1]
    assert f"{name} was read up to offset {OLD + 2}, and has lost its records from offset {CUT} on" in last
    reader = system.reader(new[0].target)
    assert reader.rest() == []
    engine.start(TIMERS_ACCEPT_LOSS=name)
    assert {record.timer_id for record in reader.take(NEW, PATIENCE_S)} == {f"{each.source}~1" for each in new}
    await_letters(system, {request.source for request in old[CUT:]})


def test_progress_that_lost_its_end_stops_the_engine(
    spark: SparkSession, broker: EmbeddedBroker, system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group has a copy. Without it, all that has fired since would fire again."""
    monkeypatch.setattr(start, "SETTLING_S", 0.0)
    with SparkQuery(spark, system, tmp_path / "engine"):
        for _ in range(4):  # a transaction has a copy if the last one is older than 5 s
            all_are_accepted(system)
    cluster = topics.ensure(system.settings)
    partition = progress_partition((system.request_topic, 0), cluster, system.settings)
    cut(broker, system.settings.progress_topic, partition, 2)
    with pytest.raises(LogMismatch, match="lost records, or an older record was written there"):
        start.check(spark, system.settings, topics.ensure(system.settings), str(tmp_path / "new"), 2, 2)


def test_progress_cut_under_a_running_engine_is_written_again(
    broker: EmbeddedBroker, system: System, tmp_path: Path
) -> None:
    """The engine knows what it has committed: its next transaction says so again, and nothing fires twice."""
    engine = SparkEngine(tmp_path / "engine", system.environment)
    system.workers.append(engine)
    engine.start().ready()
    fired = system.send(*soon(system.target(), OLD, partition=0))
    earlier = system.reader(fired[0].target)
    earlier.take(OLD, PATIENCE_S)
    all_are_accepted(system)
    before = progress_of(system)
    partition = progress_partition((system.request_topic, 0), topics.ensure(system.settings), system.settings)
    cut(broker, system.settings.progress_topic, partition, 2)
    new = system.send(*soon(system.target(), NEW, partition=0))
    reader = system.reader(new[0].target)
    assert {record.timer_id for record in reader.take(NEW, PATIENCE_S)} == {each.source for each in new}
    all_are_accepted(system)
    assert progress_of(system).next_offset > before.next_offset

    engine.kill()
    # Of a machine that has fired nothing since, the progress is not written again: the engine stops, and says so.
    retry = ",".join(f"{system.settings.retry_topic}/{number}" for number in range(PARTITIONS))
    engine.start(TIMERS_ACCEPT_LOSS=retry).ready()
    all_are_accepted(system)
    assert (earlier.rest(), reader.rest()) == ([], [])
