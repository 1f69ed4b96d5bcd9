"""The cold tier on a real broker: a worker with a horizon, `hold` and `promote`, and a promoter that is killed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.harness.patience import due_in, wait_until
from tests.harness.records import Request
from tests.harness.system import System
from tests.spark.sim_engine import Dying
from timers import connection
from timers.spark import cold
from timers.spark.cold import ColdTables
from timers.spark.jobs import hold, promote
from timers.spark.jobs.promote import Logs, Promote
from timers.spark.promoter import Copy, KafkaPort, copies_of
from timers.wire import headers as h

pytestmark = pytest.mark.spark

COUNT = 200


class Now:
    """The machine's clock."""

    def now_s(self) -> int:
        return int(time.time())

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@pytest.fixture
def system(broker_address: str, tmp_path: Path) -> Iterator[System]:
    """One with a horizon."""
    system = System(broker_address, tmp_path, TIMERS_HOT_HORIZON_S="5", TIMERS_COLD_TOPIC=f"cold-{tmp_path.name}")
    yield system
    system.close()


def test_cold_timers_fire_once_though_the_promoter_is_killed(
    spark: SparkSession, system: System, tmp_path: Path
) -> None:
    worker = system.worker().start().ready()
    target = system.target()
    headers: list[tuple[str, bytes | None]] = [("a", b"1"), ("a", None), ("timer-id", b"copied")]
    due_s = due_in(120)
    requests = [Request(target, due_s, f"key-{n}", b"value-%d" % n, headers) for n in range(COUNT)]
    hot = Request(target, due_in(2), "hot", b"hot")
    system.send(*requests, hot)
    said: list[str] = []
    tables = ColdTables(str(tmp_path / "cold"))
    wait_until(
        lambda: system.end(system.settings.cold_topic, committed=True) >= COUNT, "requests are on the cold topic"
    )
    assert hold.run(spark, hold.Hold(system.settings, tables), said.append) >= 1
    assert hold.run(spark, hold.Hold(system.settings, tables), said.append) == 0
    held = spark.read.format("delta").load(tables.held)
    assert sorted(row.source for row in held.collect()) == sorted(request.source for request in requests)

    config = connection.librdkafka(system.settings)
    job = Promote(tables, lead_s=3600, rate_per_s=100_000)
    with pytest.raises(Exception, match="killed after the commit"):
        promote.run(spark, job, Dying(spark, system.settings, config), Now(), said.append)
    assert cold.near(spark, tables, due_s, F.lit(True)).count() == COUNT, "nothing was noted"
    assert promote.run(spark, job, Logs(spark, system.settings, config), Now(), said.append) == COUNT // 2
    assert said[-3].startswith(f"promote: {COUNT // 2} had been written back")
    # Whoever repeats copies, from wherever: they change nothing.
    repeat_all(spark, tables, config, system)

    fired = system.fired([*requests, hot])
    for request in requests:
        record = fired[request.source]
        assert (record.key, record.value) == (request.key.encode(), request.value)
        assert [each for each in record.headers if not each[0].startswith(h.PREFIX)] == headers[:2]
    assert promote.run(spark, job, Logs(spark, system.settings, config), Now(), said.append) == 0
    assert system.dead_letters().rest() == []
    worker.stop()


def repeat_all(spark: SparkSession, tables: ColdTables, config: dict[str, Any], system: System) -> None:
    port = KafkaPort(config, f"{system.app_id}-again")
    for batch in spark.read.format("delta").load(tables.held).toArrow().to_batches():
        port.write(list(copies_of(batch)))


def test_a_second_promoter_ends_the_first(system: System) -> None:
    topic = system.target()
    config = connection.librdkafka(system.settings)
    first, copy = KafkaPort(config, system.app_id), Copy(topic, 0, b"k", b"v", [])
    first.write([copy])
    second = KafkaPort(config, system.app_id)
    with pytest.raises(KafkaException, match=r"FENCED|fenced|newer"):
        first.write([copy])
    second.write([copy])
    assert len(system.reader(topic).take(2)) == 2
