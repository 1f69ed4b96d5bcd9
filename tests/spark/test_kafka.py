"""Topics of a real broker as DataFrames."""

import uuid
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from tests.harness.system import System
from timers.spark import kafka
from timers.spark.columns import RECORD_SCHEMA
from timers.wire.formats import LOG_APPEND_TIME

pytestmark = pytest.mark.spark


def test_a_range_of_offsets_as_a_committed_reader_sees_it(
    spark: SparkSession, broker_address: str, tmp_path: Path
) -> None:
    system = System(broker_address, tmp_path)
    topic = system.target(partitions=2)
    producer = Producer({"bootstrap.servers": broker_address, "transactional.id": f"spark-{uuid.uuid4()}"})
    producer.init_transactions()
    for value, commit in ((b"kept", True), (b"aborted", False), (b"also kept", True)):
        producer.begin_transaction()
        producer.produce(topic, value, b"key", partition=1, headers=[("a", b"1"), ("a", None)])
        if commit:
            producer.commit_transaction()
        else:
            producer.flush()
            producer.abort_transaction()
    frame = kafka.read(spark, system.settings, {topic: {0: 0, 1: 0}}, {topic: {0: 0, 1: 6}})
    assert frame.schema == RECORD_SCHEMA
    rows = sorted(frame.collect(), key=lambda row: row.offset)
    assert [(row.partition, row.offset, row.key, row.value) for row in rows] == [
        (1, 0, b"key", b"kept"),
        (1, 4, b"key", b"also kept"),  # 1, 3 and 5 are markers of transactions, 2 is aborted
    ]
    assert [(header.key, header.value) for header in rows[0].headers] == [("a", b"1"), ("a", None)]
    assert {row.timestamp_type for row in rows} == {LOG_APPEND_TIME}
    part = kafka.read(spark, system.settings, {topic: {1: 1}}, {topic: {1: 5}}, min_partitions=4)
    assert [row.offset for row in part.collect()] == [4]
    system.close()
