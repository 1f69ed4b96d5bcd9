"""Reads what was fired, as a ``read_committed`` receiver, after the run, and compares it with what was published."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import numpy as np
from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition
from numpy.typing import NDArray

from bench.harness.cluster import Cluster
from bench.harness.publisher import ID, Publication, dues, filler

FETCH_RECORDS = 50_000

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Read:
    """All committed records of a target topic. The arrays are aligned: one entry a record."""

    numbers: Ints
    """Which timer, by the record's value."""
    append_ms: Ints
    """Broker's append time, epoch milliseconds."""
    source_partition: Ints
    """Where its request stood, by its ``timer-id``; empty unless asked for."""
    source_offset: Ints
    altered: int = 0
    """Records whose key or value is not what was asked for. Those that carry no number are not in the arrays."""

    @property
    def columns(self) -> tuple[Ints, Ints, Ints, Ints]:
        return self.numbers, self.append_ms, self.source_partition, self.source_offset


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
    lag_ms: Ints
    due_index: Ints
    """Seconds since the first due second."""


async def _read(cluster: Cluster, topic: str, fill: bytes, sources: bool) -> Read:
    ends = cluster.ends(topic, committed=True)
    places = {TopicPartition(topic, partition): end for partition, end in ends.items() if end > 0}
    columns: list[list[Ints]] = [[np.empty(0, np.int64)] for _ in range(4)]
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
                numbers = np.frombuffer(raw, dtype=">u8").astype(np.int64)
                altered += len(batch) - len(whole)
                altered += sum(
                    record.value[ID.size :] != fill or record.key != b"%012d" % number
                    for record, number in zip(whole, numbers.tolist(), strict=True)
                )
                columns[0].append(numbers)
                columns[1].append(np.fromiter((record.timestamp for record in whole), np.int64, len(whole)))
                if sources:
                    ids = [dict(record.headers)["timer-id"].rsplit(b"/", 2) for record in whole]
                    columns[2].append(np.fromiter((int(parts[1]) for parts in ids), np.int64, len(ids)))
                    columns[3].append(np.fromiter((int(parts[2]) for parts in ids), np.int64, len(ids)))
            for place, end in list(places.items()):
                if await consumer.position(place) >= end:
                    del places[place]
    finally:
        await consumer.stop()
    return Read(*map(np.concatenate, columns), altered)


def read(cluster: Cluster, publication: Publication, *, sources: bool = False) -> Read:
    """Read the whole target topic, up to the first transaction that is still open.

    Args:
        sources: also read each record's ``timer-id``.
    """
    return asyncio.run(_read(cluster, publication.target, filler(publication.payload_bytes), sources))


def judge(found: Read, due_s: Ints) -> Fired:
    """Compare what was read with what was asked for.

    Args:
        due_s: due second of each timer that was acknowledged.
    """
    timers = len(due_s)
    known = (found.numbers >= 0) & (found.numbers < timers)
    numbers, append_ms = found.numbers[known], found.append_ms[known]
    counts = np.bincount(numbers, minlength=timers)
    due_index = due_s[numbers] - due_s.min(initial=np.iinfo(np.int64).max)
    lag_ms = append_ms - due_s[numbers] * 1000
    return Fired(
        records=len(numbers),
        lost=int((counts == 0).sum()),
        duplicates=int((counts[counts > 1] - 1).sum()),
        early=int((lag_ms < 0).sum()),
        altered=found.altered + int((~known).sum()),
        first_ms=int(append_ms.min()) if len(append_ms) else 0,
        last_ms=int(append_ms.max()) if len(append_ms) else 0,
        lag_ms=lag_ms,
        due_index=due_index,
    )


def check(cluster: Cluster, publication: Publication) -> Fired:
    """Read the whole target topic and judge it."""
    return judge(read(cluster, publication), dues(publication))
