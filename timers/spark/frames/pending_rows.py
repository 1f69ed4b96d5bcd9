"""What is pending of an app, as rows, from snapshots and the logs after them.

A task reads some partitions, each with its newest committed progress, in stores of its own. So it does not matter which
engine fires the timers, and no engine notices it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

from timers.core.repeating import target_of
from timers.core.timer import TopicPartition, key_bytes, origin_of
from timers.kafka.topics import Cluster
from timers.machines.store.database import scratch_directory
from timers.offline.pending import PendingReader, exported_topics
from timers.process.clock import Clock
from timers.process.config.settings import Settings
from timers.spark.columns import record_batches, schema
from timers.wire.topics import source

PENDING_SCHEMA = schema(
    "topic string, due timestamp, due_s bigint, id string, key binary, attempts int, source string, as_of timestamp"
)
"""One timer: its callback topic, the second in which it fires, its id (null if the sender gave none), the key of its
callback, how often it has failed, and the record of its request. ``as_of``: when the newest commit of its partition was
read, which says that it is pending."""

PLACE_COLUMNS = ("topic", "partition")


def places(settings: Settings, cluster: Cluster) -> list[TopicPartition]:
    """The partitions whose timers are read."""
    return [
        (topic, number) for topic in exported_topics(settings) for number in range(cluster.partitions.get(topic, 0))
    ]


def reader(settings: Settings, cluster: Cluster) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for ``mapInArrow`` over places; it yields rows of :data:`PENDING_SCHEMA`."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from read_places(
                settings, cluster, zip(*(batch[each].to_pylist() for each in PLACE_COLUMNS), strict=True)
            )

    return read


def read_places(settings: Settings, cluster: Cluster, tps: Iterable[TopicPartition]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some partitions, in the shape of :data:`PENDING_SCHEMA`."""
    with scratch_directory() as directory, PendingReader(settings, cluster, directory, lambda: None) as stores:
        for tp in tps:
            yield from record_batches(_rows(settings, stores, tp), PENDING_SCHEMA, _key_bytes)


def _key_bytes(row: tuple[Any, ...]) -> int:
    return len(row[4] or b"")  # all else is short


def _rows(settings: Settings, stores: PendingReader, tp: TopicPartition) -> Iterator[tuple[Any, ...]]:
    as_of_us = int(Clock().now_s() * 1_000_000)
    progress = stores.progress([tp])[tp]
    for due_s, rows in stores.pending(tp, progress):
        for row in rows:
            topic, key = target_of(row), row[2]
            if topic == settings.canary_topic:
                continue
            origin = origin_of(row, due_s, source(*tp, row[0], progress.cuts))
            id = origin.timer_id if origin.has_id else None
            yield topic, due_s * 1_000_000, due_s, id, key_bytes(key), origin.attempt, origin.request, as_of_us
