"""``timers spark pending`` shows what is pending of an app whose workers run."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.harness.records import Request
from tests.harness.system import System
from tests.harness.waiting import due_in, wait_until
from timers.client import TimersClient
from timers.kafka import topics
from timers.spark.jobs import pending as job

pytestmark = pytest.mark.spark


@pytest.fixture
def system(broker_address: str, tmp_path: Path) -> Iterator[System]:
    names = {"TIMERS_ID_TOPIC": "pending-by-id", "TIMERS_VERDICT_TOPIC": "pending-verdict"}
    system = System(broker_address, tmp_path, **names)
    yield system
    system.close()


def test_each_pending_timer_is_a_row_and_the_forecast_counts_them(
    spark: SparkSession, system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system.use(monkeypatch)
    system.worker().start().ready()
    target, other = system.target(), system.target()
    hour_s = due_in(7200) // 3600 * 3600
    plain = system.send(*(Request(target, hour_s + n, f"key-{n}") for n in range(5)), Request(other, hour_s + 3600))
    with TimersClient() as client:
        client.schedule(target, "order", b"value", at=hour_s + 3600, id="order-17")
        wait_until(lambda: sum(count for *_, count in forecast(spark, system, None)) == 7, "all are accepted", 120)
    table = (tmp_path / "pending").as_uri()
    assert sorted(forecast(spark, system, table)) == sorted(
        [(hour_s, target, 5), (hour_s + 3600, target, 1), (hour_s + 3600, other, 1)]
    )
    rows = {row.source: row for row in spark.read.format("delta").load(table).collect()}
    assert {(row.due_s, bytes(row.key)) for row in rows.values() if row.id is None and row.topic == target} == {
        (hour_s + n, b"key-%d" % n) for n in range(5)
    }
    assert {each.source for each in plain} < rows.keys()
    ((found, with_id),) = [(row.id, row) for row in rows.values() if row.id is not None]
    assert (found, with_id.topic, with_id.key, with_id.attempts) == ("order-17", target, b"order", 0)
    assert with_id.due.timestamp() == with_id.due_s and with_id.hour.timestamp() == hour_s + 3600


def forecast(spark: SparkSession, system: System, table: str | None) -> list[tuple[int, str, int]]:
    return job.run(spark, system.settings, topics.ensure(system.settings), table)
