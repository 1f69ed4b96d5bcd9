"""The engine on Spark, whose broker starts again without the end of a log, which then grows past its former end."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.chaos.logs.broker_disk import restart_without_end
from tests.harness.letters import await_letters
from tests.harness.records import Request
from tests.harness.spark_job import SparkEngine
from tests.harness.spark_query import SparkQuery
from tests.harness.system import PARTITIONS, System, soon
from tests.harness.waiting import due_in
from timers.cli.broker import EmbeddedBroker
from timers.core.progress import Progress
from timers.errors import LogMismatch
from timers.kafka import topics
from timers.kafka.progress_log import ProgressLog
from timers.kafka.progress_rules import progress_partition
from timers.spark.engine import start
from timers.wire import progress as progress_record

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

OLD, CUT, NEW = 60, 30, 90
PATIENCE_S = 200.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("lost") / "broker", 0) as broker:
        yield broker


@pytest.fixture
def system(broker: EmbeddedBroker, tmp_path: Path) -> Iterator[System]:
    system = System(broker.start(), tmp_path)
    system.create_own_topics()
    yield system
    system.close()


def waiting(system: System, target: str) -> list[Request]:
    """Send timers that are due later, each in a batch of its own."""
    due_s = due_in(900)
    return [system.send(Request(target, due_s, f"old-{number}", partition=0))[0] for number in range(OLD)]


def all_are_accepted(system: System) -> None:
    """Wait for two timers behind all others of partition 0: the micro-batch before the last one has ended."""
    for _ in range(2):
        fence = system.send(Request(system.target(), due_in(1), partition=0))[0]
        system.reader(fence.target).take(1, PATIENCE_S)


@pytest.mark.long
def test_an_engine_reads_no_other_log_until_the_loss_is_accepted(
    spark: SparkSession, broker: EmbeddedBroker, system: System, tmp_path: Path
) -> None:
    """The log is cut under a running engine, and grows past its former end before the engine looks. When the loss is
    accepted, what only a store holds becomes dead letters."""
    old = waiting(system, system.target())
    with SparkQuery(spark, system, tmp_path / "engine") as engine:
        all_are_accepted(system)
        restart_without_end(broker, system.request_topic, 0, CUT)
        new = system.send(*soon(system.target(), NEW, partition=0))
        engine.wait_for_failure()
    reader = system.reader(new[0].target)
    assert reader.rest() == []

    cluster = topics.ensure(system.settings)
    with pytest.raises(LogMismatch, match=rf"/0 was read up to offset {OLD + 2}, and has lost .* from offset {CUT} on"):
        start.Start(spark, system.settings, str(tmp_path / "engine"), 2, 2, 1000).check(cluster)
    with accepted(system, f"{system.request_topic}/0"), SparkQuery(spark, system, tmp_path / "engine"):
        fired = reader.take(NEW, PATIENCE_S)
        letters = await_letters(system, {request.source for request in old[CUT:]})
    assert {record.timer_id for record in fired} == {f"{request.source}~1" for request in new}
    assert letters.keys() == {request.source for request in old[CUT:]}
    assert {letter.text("timer-error") for letter in letters.values()} == {"lost-from-log"}
    with SparkQuery(spark, system, tmp_path / "engine"):
        all_are_accepted(system)
    assert system.reader(old[0].target).rest() == [], "they are not due"
    lineage = progress_of(system).lineage
    assert lineage.batch is not None and lineage.epochs[-1][1] == CUT


@pytest.mark.long
def test_the_last_line_of_an_engine_whose_log_is_cut_says_what_is_lost(
    broker: EmbeddedBroker, system: System, tmp_path: Path
) -> None:
    """The log is cut and grows again under the command, which ends: its operator must learn why."""
    waiting(system, system.target())
    engine = SparkEngine(tmp_path / "engine", system.environment)
    system.workers.append(engine)
    engine.start().ready()
    all_are_accepted(system)
    restart_without_end(broker, system.request_topic, 0, CUT)
    new = system.send(*soon(system.target(), NEW, partition=0))
    assert engine.exit_code(PATIENCE_S) == 1, engine.tail()
    last = engine.log.rstrip().splitlines()[-1]
    place = rf"{system.request_topic}/0 was read up to offset {OLD + 2}, and has lost its records from offset {CUT} on"
    assert re.search(place, last), engine.tail()
    assert system.reader(new[0].target).rest() == []


@contextmanager
def accepted(system: System, loss: str) -> Iterator[None]:
    """Let the operator accept a loss."""
    unaccepted, system.settings = system.settings, replace(system.settings, accept_loss=loss)
    yield
    system.settings = unaccepted


def progress_of(system: System) -> Progress:
    tp = system.request_topic, 0
    log = ProgressLog(system.settings, topics.ensure(system.settings))
    found, _ = progress_record.decode(log.read([tp], after_fence=False)[tp])
    log.close()
    return found


@pytest.mark.long
def test_progress_that_lost_its_end_stops_the_engine(
    spark: SparkSession, broker: EmbeddedBroker, system: System, tmp_path: Path
) -> None:
    """The group has a copy. Without it, all that has fired since would fire again."""
    with SparkQuery(spark, system, tmp_path / "engine"):
        for _ in range(4):  # a transaction has a copy if the last one is older than 5 s
            all_are_accepted(system)
    cluster = topics.ensure(system.settings)
    partition = progress_partition((system.request_topic, 0), cluster, system.settings)
    restart_without_end(broker, system.settings.progress_topic, partition, 2)
    with pytest.raises(LogMismatch, match="lost records, or an older record was written there"):
        start.Start(spark, system.settings, str(tmp_path / "new"), 2, 2, 1000).check(topics.ensure(system.settings))


@pytest.mark.long
def test_progress_cut_under_a_running_engine_is_written_again(
    spark: SparkSession, broker: EmbeddedBroker, system: System, tmp_path: Path
) -> None:
    """The engine knows what it has committed: its next transaction says so again, and nothing fires twice."""
    with SparkQuery(spark, system, tmp_path / "engine"):
        fired = system.send(*soon(system.target(), OLD, partition=0))
        earlier = system.reader(fired[0].target)
        earlier.take(OLD, PATIENCE_S)
        all_are_accepted(system)
        before = progress_of(system)
        partition = progress_partition((system.request_topic, 0), topics.ensure(system.settings), system.settings)
        restart_without_end(broker, system.settings.progress_topic, partition, 2)
        new = system.send(*soon(system.target(), NEW, partition=0))
        reader = system.reader(new[0].target)
        assert {record.timer_id for record in reader.take(NEW, PATIENCE_S)} == {each.source for each in new}
        all_are_accepted(system)
        assert progress_of(system).next_offset > before.next_offset

    # Of a machine that has fired nothing since, the progress is not written again: the engine stops, and says so.
    retry = ",".join(f"{system.settings.retry_topic}/{number}" for number in range(PARTITIONS))
    with accepted(system, retry), SparkQuery(spark, system, tmp_path / "engine"):
        all_are_accepted(system)
    assert (earlier.rest(), reader.rest()) == ([], [])
