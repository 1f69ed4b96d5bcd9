"""Reads what was fired, as a ``read_committed`` receiver, after the run, and compares it with what was published."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import numpy as np
from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition

from bench.harness.cluster import Cluster
from bench.harness.publisher import ID, Publication, filler

FETCH_RECORDS = 50_000


@dataclass(frozen=True)
class Fired:
    """The verdict on one target topic. ``lag_ms`` and ``due_index`` are aligned: one entry for each fired record."""

    records: int
    lost: int
    duplicates: int
    early: int
    altered: int
    """Records whose key or value is not what was asked for."""
    first_ms: int
    last_ms: int
    """Broker's append time of the first and last fired record, epoch milliseconds."""
    lag_ms: np.ndarray
    due_index: np.ndarray
    """Seconds since the first due second."""


async def _read(cluster: Cluster, topic: str, fill: bytes) -> tuple[np.ndarray, np.ndarray, int]:
    """Ids and append times of all committed records, and how many of them are not as published."""
    ends = cluster.ends(topic, committed=True)
    places = {TopicPartition(topic, partition): end for partition, end in ends.items() if end > 0}
    ids: list[np.ndarray] = []
    times: list[np.ndarray] = []
    altered = 0
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
                whole = [record for record in batch if len(record.value or b"") == ID.size + len(fill)]
                raw = b"".join([record.value[: ID.size] for record in whole])
                ids.append(np.frombuffer(raw, dtype=">u8").astype(np.int64))
                times.append(np.fromiter((record.timestamp for record in whole), np.int64, len(whole)))
                altered += len(batch) - len(whole)
                altered += sum(
                    record.value[ID.size :] != fill or record.key != b"%012d" % number
                    for record, number in zip(whole, ids[-1].tolist(), strict=True)
                )
            for place, end in list(places.items()):
                if await consumer.position(place) >= end:
                    del places[place]
    finally:
        await consumer.stop()
    empty = np.empty(0, np.int64)
    return np.concatenate(ids or [empty]), np.concatenate(times or [empty]), altered


def check(cluster: Cluster, publication: Publication) -> Fired:
    """Read the whole target topic and judge it."""
    fill = filler(publication.payload_bytes)
    ids, times, altered = asyncio.run(_read(cluster, publication.target, fill))
    known = (ids >= 0) & (ids < publication.timers)
    altered += int((~known).sum())
    ids, times = ids[known], times[known]
    counts = np.bincount(ids, minlength=publication.timers) if len(ids) else np.zeros(publication.timers, np.int64)
    due_index = ids % publication.spread_s
    lag_ms = times - (publication.first_due_s + due_index) * 1000
    return Fired(
        records=len(ids),
        lost=int((counts == 0).sum()),
        duplicates=int((counts[counts > 1] - 1).sum()),
        early=int((lag_ms < 0).sum()),
        altered=altered,
        first_ms=int(times.min()) if len(times) else 0,
        last_ms=int(times.max()) if len(times) else 0,
        lag_ms=lag_ms,
        due_index=due_index,
    )
