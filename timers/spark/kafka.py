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
from timers.spark.columns import RECORD_SCHEMA, records

_FORMAT = "kafka"


def client_options(settings: Settings) -> dict[str, str]:
    """Options to connect, for the Kafka source and sink of Spark. They contain secrets: never log them."""
    return {f"kafka.{name}": value for name, value in connection.java(settings).items()}


def stream(spark: SparkSession, settings: Settings, topics: Iterable[str], **options: str) -> DataFrame:
    """The records of whole topics as a stream, in the shape of :data:`timers.spark.columns.RECORD_SCHEMA`."""
    chosen = {**_reader_options(settings), "subscribe": ",".join(topics), **options}
    return records(spark.readStream.format(_FORMAT).options(**chosen).load())


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
    """The records of a range of offsets, in the shape of :data:`timers.spark.columns.RECORD_SCHEMA`.

    Args:
        starting: first offset, inclusive, of each partition to read.
        ending: end, exclusive, of the same partitions.
        min_partitions: smallest number of tasks, for machines with more cores than partitions.
        passed_over: ranges of offsets that cannot be read, by partition.
    """
    last, others = _split(_around(starting, ending, passed_over), passed_over)
    frames = [_read(spark, settings, *part, min_partitions, {}) for part in others]
    frames += [_read(spark, settings, *part, min_partitions, _ONE_BY_ONE) for part in last]
    # Spark's source does not accept an empty list of partitions.
    return reduce(DataFrame.unionByName, frames) if frames else spark.createDataFrame([], RECORD_SCHEMA)


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


POLLED = 500
"""Records that Java's consumer parses at a time by default: at the end of a range also those that cannot be read."""

_ONE_BY_ONE = {"kafka.max.poll.records": "1"}
"""For the last records before a range that cannot be read: else the consumer may fail before Spark has them. Spark asks
brokers twice for each poll, so no other records are read so."""


def _split(
    parts: list[tuple[Offsets, Offsets]], passed_over: Mapping[TopicPartition, Sequence[tuple[int, int]]]
) -> tuple[list[tuple[Offsets, Offsets]], list[tuple[Offsets, Offsets]]]:
    """The last records before what is passed over, and all other parts."""
    lows = {(tp, low) for tp, ranges in passed_over.items() for low, _ in ranges}
    last: list[tuple[Offsets, Offsets]] = []
    for starts, ends in parts:
        found: tuple[Offsets, Offsets] = {}, {}
        for topic, of in ends.items():
            for partition, end in of.items():
                if ((topic, partition), end) in lows and (start := starts[topic][partition]) < end:
                    of[partition] = max(start, end - POLLED)
                    found[0].setdefault(topic, {})[partition] = of[partition]
                    found[1].setdefault(topic, {})[partition] = end
        if found[0]:
            last.append(found)
    return last, parts


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
    return records(spark.read.format(_FORMAT).options(**options).load())


def as_json(offsets: Offsets) -> str:
    """Offsets as JSON, as Spark's options expect them. Inverse: :func:`from_json`."""
    return json.dumps({topic: {str(p): offset for p, offset in sorted(of.items())} for topic, of in offsets.items()})


def from_json(text: str) -> Offsets:
    """Offsets that :func:`as_json` wrote."""
    return {topic: {int(p): offset for p, offset in of.items()} for topic, of in json.loads(text).items()}
