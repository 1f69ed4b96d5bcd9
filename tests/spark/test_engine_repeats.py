"""A timer that repeats fires on the engine on Spark, over micro-batches and a restart, and a worker goes on with it."""

import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.harness.ids import Ids
from tests.harness.records import Record
from tests.harness.spark_query import SparkQuery
from timers.kafka import topics
from timers.kafka.progress_log import allow_in_new_app
from timers.wire import headers as h

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PATIENCE_S = 120.0
TIMERS = 6
EVERY_S = 2


def test_each_occurrence_comes_once_over_micro_batches_a_restart_and_a_takeover(
    spark: SparkSession, broker_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = Ids(broker_address, tmp_path)
    system, engine = ids.system, tmp_path / "engine"
    system.use(monkeypatch)
    cluster = topics.ensure(system.settings)
    allow_in_new_app(system.settings, cluster.partitions[system.settings.progress_topic])
    begun_s = int(time.time())
    for number in range(TIMERS):
        rule = f"every={EVERY_S}; from={begun_s}; catch-up=all"
        ids.send(
            f"every-{number}".encode(), b"v", [(h.TIMER_TOPIC, ids.target.encode()), (h.TIMER_REPEAT, rule.encode())]
        )
    ids.flush()
    with SparkQuery(spark, system, engine) as query:
        query.ready()
        records = ids.fired.take(6 * TIMERS, PATIENCE_S)
    with SparkQuery(spark, system, engine) as query:
        query.ready()
        records += ids.fired.take(6 * TIMERS, PATIENCE_S)
    system.worker().start().ready()
    records += ids.fired.take(6 * TIMERS, PATIENCE_S)
    for number in range(TIMERS):
        ids.cancel(f"every-{number}")
    ids.flush()
    ids.wait_past(int(time.time()) + 2)
    records += ids.fired.rest()
    assert max(Counter(record.text(h.TIMER_SOURCE) for record in records).values()) == 1
    for number in range(TIMERS):
        seen = sorted(nominal_s(record) for record in records if record.timer_id == f"every-{number}")
        assert seen == [*range(seen[0], seen[-1] + 1, EVERY_S)], "catch-up=all: each occurrence once"
    system.close()


def nominal_s(record: Record) -> int:
    return int(record.text(h.TIMER_NOMINAL))
