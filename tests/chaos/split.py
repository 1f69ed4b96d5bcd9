"""Transactions that brokers have committed in one partition and aborted in another, from the files of the brokers.

No worker can cause that: a coordinator decides for all partitions. The fault with which it was seen is in
docs/kafka-versions.md#faults-of-brokers-in-transactions.
"""

import struct
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from aiokafka.errors import CorruptRecordException
from aiokafka.record.memory_records import MemoryRecords

_MARKER = struct.Struct(">hh")
"""Key of a marker: its version, and 1 for a commit."""


class Ended(NamedTuple):
    """What one transaction has written to one partition, from its first batch to its marker; epoch milliseconds."""

    producer: int
    partition: str
    begun_ms: int
    ended_ms: int
    committed: bool


def ends_in(data: bytes, partition: str) -> Iterable[Ended]:
    """The transactions that have records and their end in these bytes of a segment."""
    records, begun = MemoryRecords(data), dict[int, int]()
    try:
        while records.has_next():
            batch: Any = records.next_batch()
            if not batch.is_control_batch:
                if batch.is_transactional:
                    begun.setdefault(batch.producer_id, batch.max_timestamp)
            elif (begun_ms := begun.pop(batch.producer_id, None)) is not None:
                committed = all(_MARKER.unpack_from(marker.key)[1] == 1 for marker in batch)
                yield Ended(batch.producer_id, partition, begun_ms, batch.max_timestamp, committed)
    except CorruptRecordException:
        return  # the newest batch is being written


def split_transactions(found: Iterable[Ended]) -> Iterable[str]:
    """A sentence about each producer with a transaction that has two ends. Its transactions follow each other: what
    begins in a partition before the end in another one is the same transaction."""
    of_producer = defaultdict[int, list[Ended]](list)
    for ended in found:
        of_producer[ended.producer].append(ended)
    for producer, each in of_producer.items():
        aborted = [ended for ended in each if not ended.committed]
        pairs = [
            (one.partition, other.partition)
            for one in each
            for other in aborted
            if one.committed and one.begun_ms < other.ended_ms and other.begun_ms < one.ended_ms
        ]
        if pairs:
            here, there = (", ".join(sorted(set(names))) for names in zip(*pairs, strict=True))
            yield f"the brokers' fault: a transaction of producer {producer} is committed in {here}, aborted in {there}"


def of_brokers(directory: Path) -> list[str]:
    """What :func:`split_transactions` says about the logs of all brokers below a directory."""
    files = sorted(directory.glob("**/data/*-[0-9]*/*.log"))
    return [*split_transactions(ended for file in files for ended in ends_in(file.read_bytes(), file.parent.name))]
