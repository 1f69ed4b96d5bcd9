"""Topics as DataFrames, always as a ``read_committed`` reader sees them: an aborted request must never count."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from pyspark.sql import DataFrame, SparkSession

from timers.config.settings import Settings
from timers.kafka import connection
from timers.spark.columns import records

Offsets: TypeAlias = Mapping[str, Mapping[int, int]]
"""Topic -> partition -> offset."""

_SOURCE = "kafka"


def client_options(settings: Settings) -> dict[str, str]:
    """What both the Kafka source and the Kafka sink of Spark need to connect. Holds secrets: not for logs."""
    return {f"kafka.{name}": value for name, value in connection.java(settings).items()}


def source_options(settings: Settings, topics: Iterable[str]) -> dict[str, str]:
    """Of a stream of whole topics from the Kafka source."""
    return {**_reader_options(settings), "subscribe": ",".join(topics)}


def _reader_options(settings: Settings) -> dict[str, str]:
    return {
        **client_options(settings),
        "kafka.isolation.level": "read_committed",
        "includeHeaders": "true",
        # What Spark reads is there. It asks where the topic ends after each fetch, and the answer comes behind that of
        # the next fetch, which the client has sent ahead: at the end of a topic that is half a second by default.
        "kafka.fetch.max.wait.ms": "1",
    }


def read(
    spark: SparkSession, settings: Settings, starting: Offsets, ending: Offsets, min_partitions: int | None = None
) -> DataFrame:
    """The records of some topics in a range of offsets, in the shape of :data:`timers.spark.columns.RECORD`.

    Args:
        spark: the session.
        settings: where the brokers are and who we are.
        starting: first offset, inclusive, of each partition to read.
        ending: end, exclusive, of the same partitions.
        min_partitions: at least so many tasks, where there are more cores than partitions.
    """
    options = {
        **_reader_options(settings),
        "assign": json.dumps({topic: sorted(partitions) for topic, partitions in starting.items()}),
        "startingOffsets": as_json(starting),
        "endingOffsets": as_json(ending),
    }
    if min_partitions is not None:
        options["minPartitions"] = str(min_partitions)
    return records(spark.read.format(_SOURCE).options(**options).load())


def as_json(offsets: Offsets) -> str:
    """Offsets as Spark's options want them."""
    return json.dumps({topic: {str(p): offset for p, offset in sorted(of.items())} for topic, of in offsets.items()})
