"""The first step of the engine: what a task does with Arrow batches of requests, without Kafka and without Spark."""

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from timers.spark.columns import RECORD_SCHEMA
from timers.spark.engine.bucket import Arrivals, packing
from timers.wire.formats import RequestRecord

pytestmark = pytest.mark.spark

BUCKETS = (3, 8)


def test_all_records_of_a_partition_go_to_one_bucket_as_they_are() -> None:
    """Also those of other topics with this number."""
    headers: list[tuple[str, bytes | None]] = [("a", None), ("timer-id", b"x"), ("a", b"\xff")]
    rows: list[dict[str, Any]] = [
        {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "key": None,
            "value": b"\xff",
            "headers": None if offset == 5 else [{"key": name, "value": data} for name, data in headers],
            "timestamp_ms": 1000 + offset,
            "timestamp_type": 1,
        }
        for topic, partition in (("r", 1), ("r", 2), ("ids", 1))
        for offset in (5, 6)
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=to_arrow_schema(RECORD_SCHEMA))
    (out,) = packing(BUCKETS)([batch])
    found = {(row["bucket"], Arrivals.unpack(row["arrivals"]).tp) for row in out.to_pylist()}
    assert found == {(8, ("r", 1)), (3, ("r", 2)), (8, ("ids", 1))}
    for row in out.to_pylist():
        assert Arrivals.unpack(row["arrivals"]).records == [
            RequestRecord(5, None, b"\xff", [], 1005, 1),
            RequestRecord(6, None, b"\xff", headers, 1006, 1),
        ]
