"""Reads topics as DataFrames and has the options of Spark's Kafka source and sink.

All reads are ``read_committed``: an aborted request must never count."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from types import MappingProxyType

from pyspark.sql import DataFrame, SparkSession

from timers.core.timer import TopicPartition
from timers.kafka import connection
from timers.kafka.topic_offsets import Offsets
from timers.process.config.settings import Settings
from timers.spark.columns import RECORD, records

_SOURCE = "kafka"


def client_options(settings: Settings) -> dict[str, str]:
    """Options to connect, for the Kafka source and sink of Spark. They contain secrets: never log them."""
    return {f"kafka.{name}": value for name, value in connection.java(settings).items()}


def stream(spark: SparkSession, settings: Settings, topics: Iterable[str], **options: str) -> DataFrame:
    """The records of whole topics as a stream, in the shape of :data:`timers.spark.columns.RECORD`."""
    chosen = {**_reader_options(settings), "subscribe": ",".join(topics), **options}
    return records(spark.readStream.format(_SOURCE).options(**chosen).load())


def _reader_options(settings: Settings) -> dict[str, str]:
    return {
        **client_options(settings),
        "kafka.isolation.level": "read_committed",
        "includeHeaders": "true",
        # Spark asks for the end of a topic after each fetch. The broker answers after the next fetch, which the client
        # has already sent and which waits at the end of a topic: 500 ms by default. Spark reads only existing records.
        "kafka.fetch.max.wait.ms": "1",
    }


def read(
    spark: SparkSession,
    settings: Settings,
    starting: Offsets,
    ending: Offsets,
    min_partitions: int | None = None,
    passed_over: Mapping[TopicPartition, Sequence[tuple[int, int]]] = MappingProxyType({}),
) -> DataFrame:
    """The records of a range of offsets, in the shape of :data:`timers.spark.columns.RECORD`.

    Args:
        starting: first offset, inclusive, of each partition to read.
        ending: end, exclusive, of the same partitions.
        min_partitions: smallest number of tasks, for machines with more cores than partitions.
        passed_over: ranges of offsets that cannot be read, by partition.
    """
    lows = {(tp, low) for tp, ranges in passed_over.items() for low, _ in ranges}
    frames = []
    for first, end in _around(starting, ending, passed_over):
        ends_there = any(((topic, p), at) in lows for topic, of in end.items() for p, at in of.items())
        frames.append(_read(spark, settings, first, end, min_partitions, _ONE_BY_ONE if ends_there else {}))
    # Spark's source does not accept an empty list of partitions.
    return reduce(DataFrame.unionByName, frames) if frames else spark.createDataFrame([], RECORD)


def _around(
    starting: Offsets, ending: Offsets, passed_over: Mapping[TopicPartition, Sequence[tuple[int, int]]]
) -> list[tuple[Offsets, Offsets]]:
    """The ranges to read, without those that are passed over. Spark reads one range of each partition at a time."""
    parts: list[tuple[Offsets, Offsets]] = []
    for topic, partitions in starting.items():
        for partition, start in partitions.items():
            end, left = ending[topic][partition], []
            for low, high in (*sorted(passed_over.get((topic, partition), ())), (end, end)):
                if start < min(low, end):
                    left.append((start, min(low, end)))
                start = max(start, high)
            for number, bounds in enumerate(left or [(end, end)]):
                if number == len(parts):
                    parts.append(({}, {}))
                for offsets, offset in zip(parts[number], bounds, strict=True):
                    offsets.setdefault(topic, {})[partition] = offset
    return parts


_ONE_BY_ONE = {"kafka.max.poll.records": "1"}
"""For a range that ends at one that cannot be read: by default Java's consumer parses 500 records at a time, so those
after the range too, and fails before Spark has the last records of the range."""


def _read(
    spark: SparkSession,
    settings: Settings,
    starting: Offsets,
    ending: Offsets,
    min_partitions: int | None,
    more: Mapping[str, str],
) -> DataFrame:
    options = {
        **_reader_options(settings),
        **more,
        "assign": json.dumps({topic: sorted(partitions) for topic, partitions in starting.items()}),
        "startingOffsets": as_json(starting),
        "endingOffsets": as_json(ending),
    }
    if min_partitions is not None:
        options["minPartitions"] = str(min_partitions)
    return records(spark.read.format(_SOURCE).options(**options).load())


def as_json(offsets: Offsets) -> str:
    """Offsets as JSON, as Spark's options expect them. Inverse: :func:`from_json`."""
    return json.dumps({topic: {str(p): offset for p, offset in sorted(of.items())} for topic, of in offsets.items()})


def from_json(text: str) -> Offsets:
    """Offsets that :func:`as_json` wrote."""
    return {topic: {int(p): offset for p, offset in of.items()} for topic, of in json.loads(text).items()}
