"""``timers spark history`` against a real broker: each timer once, whatever happens between two rounds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.harness.records import Publisher, Request
from tests.harness.system import System, timers
from tests.harness.waiting import due_in
from timers.spark.audit import history
from timers.spark.audit.history import History
from timers.spark.jobs import history as job
from timers.wire.formats import future_by_id

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]


def add(spark: SparkSession, system: System, table: Path, **more: bool) -> job.Total:
    """Bring the history up to what the topics have."""
    return job.run(spark, system.settings, job.Params(str(table), **more), print)


def rows(spark: SparkSession, table: Path) -> DataFrame:
    return spark.read.format("delta").load(History(spark, str(table)).timers)


def test_what_became_of_each_timer_is_there_once(spark: SparkSession, broker_address: str, tmp_path: Path) -> None:
    """Fired, late, dead-lettered, replaced, cancelled in time and too late, pending: as a consumer counts them."""
    ids, verdicts = f"by-id-{tmp_path.name}", f"verdicts-{tmp_path.name}"
    system = System(broker_address, tmp_path, TIMERS_ID_TOPIC=ids, TIMERS_VERDICT_TOPIC=verdicts)
    system.worker().start().ready()
    target, table = system.target(partitions=2), tmp_path / "history"
    due_s = due_in(8)
    soon = timers(target, 60, due_s, 3, b"payload")
    overdue, far = timers(target, 20, due_s - 1000, 1), timers(target, 5, due_s + 86_400, 2)
    system.send(*soon, *overdue, *far, Request("no-such-topic", due_s))
    Publisher(system.address, system.request_topic).send_raw(b"not-a-second", b"", [], 0)
    by_id = Publisher(system.address, ids)

    def put(id: str, due: int) -> None:
        by_id.queue_raw(id.encode(), Request(target, due).wire_value, future_by_id.encode_headers(due), 0)

    for number in range(20):
        put(f"order-{number}", due_s + 1000 * (number < 10))
    by_id.flush()
    add(spark, system, table)
    for number in range(5):
        put(f"order-{number}", due_s)
        by_id.queue_raw(f"order-{number + 5}".encode(), None, [], 0)
    by_id.flush()
    reader = system.reader(target)
    seen = reader.take(60 + 20 + 15)
    by_id.send_raw(b"order-19", None, [], 0)  # too late
    put("order-18", due_s)  # again, for a second that is past
    by_id.flush()
    seen += reader.take(1)
    system.dead_letters().take(2)
    add(spark, system, table, keys=True)
    found = rows(spark, table).collect()
    assert Counter(row.outcome for row in found) == {
        "fired": 60 + 20 + 15 + 1,
        "dead-lettered": 2,
        "replaced": 5,
        "cancelled": 5,
    }
    assert len({row.request for row in found}) == len(found)
    fired = {(row.timer_id, row.due_s, row.fired.timestamp()) for row in found if row.outcome == "fired"}
    assert len(fired) == len(seen)
    for record in seen:
        headers = {name: value or b"" for name, value in record.headers}
        assert (record.timer_id, int(headers["timer-due"]), int(headers["timer-fired"]) / 1000) in fired
    assert Counter(row.way for row in found) == {"native": 60 + 20 + 1, "with-id": 20 + 5 + 1, "retried": 1}
    assert {row.code for row in found if row.outcome == "dead-lettered"} == {"topic-unknown", "key-not-a-number"}
    assert not [row.faults for row in found if row.faults]
    events = History(spark, str(table)).read(history.REQUEST, history.CALLBACK)
    assert not events.where("event = 'request' and callback_key is not null and timer_id like 'order-0'").collect()
    names = events.groupBy("event", "topic", "partition", "offset").count()
    assert names.where("count > 1").isEmpty(), "a record is there twice"

    again = add(spark, system, table)
    assert (again.timers, rows(spark, table).count()) == (0, len(found))
    system.close()
