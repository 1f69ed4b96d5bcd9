"""The engine on Spark writes snapshots, trims the log below them, and restores them; so does a worker after it."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.harness.spark_query import SparkQuery
from tests.harness.system import System, assert_once, timers
from tests.harness.waiting import due_in, wait_until
from tests.harness.worker import READY
from timers.cli.broker.embedded import free_port
from timers.core.progress import NamedSnapshot
from timers.core.timer import TopicPartition
from timers.kafka import progress_log, topics
from timers.kafka.progress_log import allow_in_new_app
from timers.process.http.asking import ask
from timers.wire.query import SNAPSHOT_PATH

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(600)]

PATIENCE_S = 200.0
FIRED, PENDING = 3_000, 300
PARTITIONS = 2
RECORDS = 500
"""A snapshot is due after so many records of a partition."""


def named(system: System) -> dict[TopicPartition, NamedSnapshot | None]:
    """The newest snapshots of the partitions that have one."""
    found = progress_log.read_all(system.settings, topics.ensure(system.settings))
    return {tp: each.snapshot for tp, each in found.items() if each.snapshot is not None}


def test_a_trimmed_log_is_served_by_the_engine_and_by_a_worker_after_it(
    spark: SparkSession, broker_address: str, tmp_path: Path
) -> None:
    """The checkpoint and all disks are lost, after what had fired was deleted."""
    system = System(
        broker_address,
        tmp_path,
        TIMERS_PARTITIONS=str(PARTITIONS),
        TIMERS_SNAPSHOT_RECORDS=str(RECORDS),
        TIMERS_LOG_KEEP_S="1",
        TIMERS_WEB_PORT=str(free_port()),
    )
    system.create_own_topics()
    allow_in_new_app(system.settings, len(system.cluster.starts(system.settings.progress_topic)))  # as the command does
    target = system.target(partitions=2)
    reader = system.reader(target)
    engine, data = tmp_path / "engine", tmp_path / "data"
    with SparkQuery(spark, system, engine) as query:
        query.ready()
        system.send(*timers(system.target(), PENDING, due_in(86_400), 3))
        sent = system.send(*timers(target, FIRED, due_in(3), 10))
        fired = reader.take(FIRED, PATIENCE_S)
        # A request's key is its due second, so one partition may have three times as many as the other.
        ends = system.cluster.ends(system.request_topic)

        def both_begin_late() -> bool:
            starts = system.cluster.starts(system.request_topic)
            return all(start > max(0, ends[partition] - RECORDS) for partition, start in starts.items())

        wait_until(both_begin_late, "both logs begin near their ends", PATIENCE_S)
        before = named(system)
        assert ask(system.settings, SNAPSHOT_PATH, {}, None)["missing"] == []
        wait_until(lambda: all(named(system)[tp] != before[tp] for tp in before), "those asked for", PATIENCE_S)
    shutil.rmtree(engine)
    shutil.rmtree(data)
    with SparkQuery(spark, system, engine) as query:
        query.ready()
        sent = [*sent, *system.send(*timers(target, 100, due_in(2), 2))]
        fired += reader.take(100, PATIENCE_S)
    worker = system.worker().start()
    assert int(worker.wait_for(READY)[2]) == PENDING
    assert worker.log.count("restored ") == PARTITIONS
    system.wait_past(due_in(1))
    fired += reader.rest()
    assert_once(fired, {request.source: request for request in sent})
    system.close()
