"""A callback topic is paused while the engine on Spark fires: it gets nothing, and afterwards each timer once."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.harness.spark_query import COMMITTED, Crash, SparkQuery
from tests.harness.system import System, soon
from tests.harness.waiting import wait_until
from timers.cli.main import main
from timers.kafka import topics
from timers.kafka.progress_log import allow_in_new_app

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PATIENCE_S = 200.0


def test_a_pause_and_a_slow_release_across_a_failed_task_and_a_takeover(
    spark: SparkSession, broker_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = System(broker_address, tmp_path)
    system.use(monkeypatch)

    cluster = topics.ensure(system.settings)
    allow_in_new_app(system.settings, cluster.partitions[system.settings.progress_topic])

    def command(*words: str) -> None:
        assert main(["targets", *words]) == 0

    engine, paused, other = tmp_path / "engine", system.target(), system.target()
    with SparkQuery(spark, system, engine) as query:
        query.ready()
        command("pause", paused, "--wait")
        held, sent = system.send(*soon(paused, 60)), system.send(*soon(other, 60))
        system.fired(sent, PATIENCE_S)
        assert system.reader(paused).rest() == []
    with SparkQuery(spark, system, engine, crash=Crash(COMMITTED, tmp_path / "crash")) as query:
        command("resume", paused, "--over", "5m")
        query.wait_for_failure()
    shutil.rmtree(engine)
    with SparkQuery(spark, system, engine) as query:
        query.ready()
        wait_until(lambda: system.end(paused, committed=True) > 0, "the release goes on", PATIENCE_S)
        command("pause", paused, "--wait")
        before = system.reader(paused).rest()
        assert 0 < len(before) < len(held)
        late = system.send(*soon(paused, 10))
    system.worker().start().ready()
    assert system.reader(paused).rest() == before
    command("resume", paused, "--wait")
    system.fired([*held, *late], PATIENCE_S)
    system.close()
