"""Timers with ids on the engine on Spark: set, replaced, cancelled, with conditions; the engine and workers in turn."""

import shutil
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.harness.ids import Ids
from tests.harness.spark_query import COMMITTED, Crash, SparkQuery
from tests.harness.waiting import due_in, wait_until
from timers.core.counters import WAITED, lag_of
from timers.core.operation import ABSENT, CANCELLED, EXISTS, REPLACED
from timers.wire import future
from timers.wire.formats import future_by_id

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PATIENCE_S = 200.0
COUNT = 90


@pytest.mark.long
def test_verdicts_and_firings_agree(spark: SparkSession, broker_address: str, tmp_path: Path) -> None:
    """A task fails after its commit, the checkpoint and then the disk are lost, and a worker takes over."""
    ids = Ids(broker_address, tmp_path)
    engine, data = tmp_path / "engine", tmp_path / "data"
    due_s = due_in(100_000)
    for number in range(COUNT):
        ids.set(f"id-{number}", due_s, "first")
    ids.flush()
    with SparkQuery(spark, ids.system, engine, crash=Crash(COMMITTED, tmp_path / "crash")) as query:
        query.wait_for_failure()
    shutil.rmtree(engine)
    with SparkQuery(spark, ids.system, engine) as query:
        query.ready()
        due_s = due_in(5)
        for number in range(0, COUNT, 3):
            ids.cancel(f"id-{number}")
            ids.set(f"id-{number + 1}", due_s, "second")
            request = future.encode(ids.target, "key", b"third")
            condition = future_by_id.encode_condition(ABSENT)
            ids.send(b"id-%d" % (number + 2), request, [*future_by_id.encode_headers(due_s), *condition])
        ids.flush()
        third = COUNT // 3
        told = Counter(each.verdict for each in ids.told(COUNT, PATIENCE_S))
        assert told == {CANCELLED: third, REPLACED: third, EXISTS: third}
        settings = ids.system.settings
        assert query.sources == [  # ticks first [I17]
            f"KafkaV2[Subscribe[{settings.oscillator_topic}]]",
            f"KafkaV2[Subscribe[{settings.request_topic}, {settings.id_topic}]]",
        ]
        fired = ids.fired.take(third, PATIENCE_S)
        assert {(each.key, each.value) for each in fired} == {
            (b"key-id-%d" % number, b"second") for number in range(1, COUNT, 3)
        }
        wait_until(lambda: query.counts.numbers().get("fired") == third, "the driver has counted them")
        assert lag_of(query.counts.numbers(), WAITED).sum > 0
        # What was cancelled or replaced is stored until its former second, as in a worker.
        assert sum(pending for pending, _ in query.counts.waiting.values()) == COUNT
    shutil.rmtree(data)
    shutil.rmtree(engine)
    with SparkQuery(spark, ids.system, engine, buckets=3) as query:
        query.ready()
        for number in range(2, COUNT, 6):
            ids.set(f"id-{number}", due_in(2), "fourth")
        ids.flush()
        left = len(range(2, COUNT, 6))
        assert {each.value for each in ids.fired.take(left, PATIENCE_S)} == {b"fourth"}
    ids.system.worker().start().ready()
    for number in range(5, COUNT, 6):
        ids.set(f"id-{number}", due_in(2), "fifth")
    ids.flush()
    assert {each.value for each in ids.fired.take(len(range(5, COUNT, 6)))} == {b"fifth"}
    assert ids.fired.rest() == []
    ids.system.close()
