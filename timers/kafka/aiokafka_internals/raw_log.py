"""Reads records of a log uncommitted, and finds out from its markers which of them are committed.

A reader of committed records gets nothing behind the first open transaction of any producer. But a producer whose
transactions are all decided has markers behind its records, and no other producer's transaction changes this.

This module relies on:

=========================================================  ===========================================================
``MemoryRecords(data)``: ``has_next``, ``next_batch``      splits the bytes of a fetch into whole batches
``batch.is_control_batch``, ``producer_id``,               the header of a batch
``is_transactional``, ``next_offset``, ``validate_crc``
key of the record in a control batch                       version and kind of the marker, two bytes each; kind 1 is a
                                                           commit, 0 an abort (Kafka's ``EndTransactionMarker``)
=========================================================  ===========================================================
"""

from __future__ import annotations

from collections.abc import Collection
from struct import Struct
from typing import Any

from aiokafka.errors import CorruptRecordException
from aiokafka.record.memory_records import MemoryRecords

_MARKER = Struct(">hh")
_COMMIT = 1


class NewestCommitted:
    """The newest committed value of some keys of one partition.

    Args:
        keys: the others are passed over.
        position: offset of the first record that counts.

    Attributes:
        position: offset after the last batch that was added.
        values: key -> its newest committed value, without keys that have none.
    """

    def __init__(self, keys: Collection[bytes], position: int) -> None:
        self.position = position
        self.values: dict[bytes, bytes] = {}
        self._keys = keys
        self._open: dict[int, dict[bytes, bytes]] = {}
        """Id of a producer -> what its open transaction has written."""

    @property
    def undecided(self) -> set[bytes]:
        """The keys that open transactions have written."""
        return {key for written in self._open.values() for key in written}

    def add(self, data: bytes) -> None:
        """Add the bytes of a fetch: whole batches in the order of the log, and perhaps a part of one after them.

        Raises:
            CorruptRecordException: a batch is damaged.
        """
        records = MemoryRecords(data)
        while records.has_next():
            batch: Any = records.next_batch()
            if not batch.validate_crc():
                raise CorruptRecordException("a batch of the progress topic has a wrong checksum")
            if batch.next_offset <= self.position:
                continue  # a fetch may begin before its offset
            self.position = batch.next_offset
            if batch.is_control_batch:
                written = self._open.pop(batch.producer_id, {})
                if any(_MARKER.unpack_from(marker.key or bytes(4))[1] == _COMMIT for marker in batch):
                    self.values.update(written)
                continue
            found = {record.key: record.value for record in batch if record.key in self._keys and record.value}
            if not batch.is_transactional:
                self.values.update(found)
            elif found:
                self._open.setdefault(batch.producer_id, {}).update(found)
