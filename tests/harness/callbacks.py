"""Reads millions of committed callbacks of a finished run into columns."""

import asyncio

import numpy as np
from aiokafka import AIOKafkaConsumer
from aiokafka.structs import ConsumerRecord, TopicPartition

from tests.harness.cluster import Cluster
from tests.harness.judge import Callbacks, Fired, Ints, judge
from tests.harness.publication import ID, Publication, dues, filler, key

FETCH_RECORDS = 50_000


def read_callbacks(cluster: Cluster, publication: Publication, *, sources: bool = False) -> Callbacks:
    """Read the whole target topic, up to the first transaction that is still open.

    Args:
        sources: whether the ``timer-id`` of each record is read too.
    """
    return asyncio.run(_read(cluster, publication.target, filler(publication.payload_bytes), sources))


def check(cluster: Cluster, publication: Publication) -> Fired:
    """Read the whole target topic and compare it with what was published."""
    return judge(read_callbacks(cluster, publication), dues(publication))


class _Columns:
    """Collects batches of records into columns."""

    def __init__(self, fill: bytes, sources: bool) -> None:
        self._fill = fill
        self._sources = sources
        self._parts: list[list[Ints]] = [[np.empty(0, np.int64)] for _ in range(4)]
        self._altered = 0

    def add(self, batch: list[ConsumerRecord]) -> None:
        fill = self._fill
        whole = [record for record in batch if len(record.value or b"") == ID.size + len(fill)]
        raw = b"".join([record.value[: ID.size] for record in whole])
        numbers = np.frombuffer(raw, dtype=">u8").astype(np.int64)
        self._altered += len(batch) - len(whole)
        self._altered += sum(
            record.value[ID.size :] != fill or record.key != key(number)
            for record, number in zip(whole, numbers.tolist(), strict=True)
        )
        self._parts[0].append(numbers)
        self._parts[1].append(np.fromiter((record.timestamp for record in whole), np.int64, len(whole)))
        if self._sources:
            ids = [dict(record.headers)["timer-id"].rsplit(b"/", 2) for record in whole]
            self._parts[2].append(np.fromiter((int(parts[1]) for parts in ids), np.int64, len(ids)))
            self._parts[3].append(np.fromiter((int(parts[2]) for parts in ids), np.int64, len(ids)))

    def callbacks(self) -> Callbacks:
        numbers, append_ms, partitions, offsets = map(np.concatenate, self._parts)
        return Callbacks(numbers, append_ms, partitions, offsets, self._altered)


async def _read(cluster: Cluster, topic: str, fill: bytes, sources: bool) -> Callbacks:
    ends = cluster.ends(topic, committed=True)
    places = {TopicPartition(topic, partition): end for partition, end in ends.items() if end > 0}
    columns = _Columns(fill, sources)
    if not places:
        return columns.callbacks()
    consumer = AIOKafkaConsumer(
        bootstrap_servers=cluster.brokers,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        group_id=None,
        max_partition_fetch_bytes=8 << 20,
        fetch_max_bytes=32 << 20,
    )
    await consumer.start()
    try:
        consumer.assign(list(places))
        while places:
            for batch in (await consumer.getmany(timeout_ms=200, max_records=FETCH_RECORDS)).values():
                columns.add(batch)
            for place, end in list(places.items()):
                if await consumer.position(place) >= end:
                    del places[place]
    finally:
        await consumer.stop()
    return columns.callbacks()
