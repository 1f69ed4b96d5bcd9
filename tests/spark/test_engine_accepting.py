"""The first step of the engine: what a task does with Arrow batches of requests, without Kafka and without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from timers.core.levels import FIRST
from timers.core.progress import MAX_REQUEST_BYTES, History, Progress, SettingChange
from timers.core.reading import ReadSettings
from timers.spark.columns import RECORD
from timers.spark.engine import accepting
from timers.spark.engine.accepting import Accepting
from timers.spark.engine.timer_batches import Arrivals
from timers.store.layout import GROUP_ROWS
from timers.wire import future

pytestmark = pytest.mark.spark

BUCKETS = (3, 8)
MAX_BYTES = 1000
VALUE = future.encode("t", "k", b"v")


def record(
    offset: int, key: bytes | None, value: bytes | None, headers: Any = None, partition: int = 1
) -> dict[str, Any]:
    pairs = None if headers is None else [{"key": name, "value": data} for name, data in headers]
    return {"topic": "r", "partition": partition, "offset": offset, "key": key, "value": value, "headers": pairs}


def accept(records: Sequence[dict[str, Any]], **progress: Progress) -> list[tuple[int, Arrivals]]:
    schema = to_arrow_schema(RECORD)
    batch = pa.RecordBatch.from_pylist(list(records), schema=schema).select(accepting.COLUMNS)
    by_partition = {int(name[1:]): each for name, each in progress.items()}
    (out,) = Accepting(BUCKETS, MAX_BYTES, by_partition, Progress())([batch])
    return [(row["bucket"], Arrivals.unpack(row["arrivals"])) for row in out.to_pylist()]


def test_all_requests_of_a_partition_go_to_one_bucket() -> None:
    records = [record(offset, b"100", VALUE, partition=partition) for partition in (1, 2, 3) for offset in (5, 6)]
    found = accept(records)
    assert [(bucket, each.partition, each.first_offset) for bucket, each in found] == [(8, 1, 5), (3, 2, 5), (8, 3, 5)]
    assert all(group.partition == each.partition for _, each in found for group in each.groups)


def test_timers_are_grouped_by_their_second() -> None:
    headers = [("a", None), ("timer-id", b"x"), ("a", b"\xff")]
    records = [record(7, b"0100", VALUE, headers), record(8, b"99", VALUE), record(9, b"100", VALUE)]
    ((_, found),) = accept(records)
    rows = {group.due_s: list(group.rows) for group in found.groups}
    assert rows == {
        100: [(7, "t", "k", b"v", (("a", None), ("a", b"\xff")), None), (9, "t", "k", b"v", None, None)],
        99: [(8, "t", "k", b"v", None, None)],
    }


def test_a_busy_second_is_several_groups() -> None:
    """A transaction may exceed its limit by one group."""
    ((_, found),) = accept([record(offset, b"100", VALUE) for offset in range(2 * GROUP_ROWS + 1)])
    assert [(group.first_offset, group.timers) for group in found.groups] == [
        (0, GROUP_ROWS),
        (GROUP_ROWS, GROUP_ROWS),
        (2 * GROUP_ROWS, 1),
    ]


def test_requests_that_cannot_be_read_are_rejected() -> None:
    large = future.encode("t", "", bytes(MAX_BYTES))
    ((_, found),) = accept([record(7, None, VALUE, [("a", None)]), record(8, b"5", large)])
    assert not found.groups
    assert [(each.offset, each.code, each.key) for each in found.rejected] == [
        (7, "key-missing", None),
        (8, "value-too-large", b"5"),
    ]


def test_the_limit_of_a_value_is_that_of_its_offset() -> None:
    """A worker accepted values of any size up to offset 10 [I4]."""
    history = History([SettingChange(MAX_REQUEST_BYTES, 0, 10**6), SettingChange(MAX_REQUEST_BYTES, 10, MAX_BYTES)])
    large = future.encode("t", "", bytes(MAX_BYTES))
    records = [record(offset, b"5", large) for offset in (8, 9, 10, 11)]
    (_, before), (_, after) = accept(records, p1=Progress(10, settings=history))
    assert [row[0] for group in before.groups for row in group.rows] == [8, 9]
    assert [each.offset for each in after.rejected] == [10, 11]
    assert [each[:4] for each in (before, after)] == [
        (1, 8, 10, ReadSettings(10**6, FIRST, rejects_overdue=False)),
        (1, 10, 12, ReadSettings(MAX_BYTES, FIRST, rejects_overdue=False)),
    ]
