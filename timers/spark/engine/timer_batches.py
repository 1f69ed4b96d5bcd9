"""Timer batches: many timers as one value of bytes. Spark's cost of one value is higher than the cost of one timer.

::

    timer batch   msgpack array of groups
    group         [due_s, partition, first offset, timers, size, rows]    timers of one partition and due second
                  rows: of :mod:`timers.store.layout`, in ascending offset. size 0: not compressed; otherwise LZ4 of
                  rows, which have ``size`` bytes
    arrivals      msgpack of [partition, first offset, end, settings, groups, rejections]

Rows of one second are much alike: LZ4 (from pyarrow, 0.1 µs a timer) reduces them to a quarter of their size or less,
and the cost of Spark's state follows its size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgpack
import pyarrow as pa

from timers.core.reading import ReadSettings
from timers.core.timer import Rejected, Row, RowsByDue
from timers.store import layout

COMPRESS_BYTES = 512
"""Rows of fewer bytes are not compressed: it saves too little."""

_CODEC = "lz4_raw"

_pack_rows = layout.packer()


class Group(NamedTuple):
    """Timers of one request partition and due second."""

    due_s: int
    partition: int
    first_offset: int
    timers: int
    size: int
    data: bytes

    @classmethod
    def of(cls, due_s: int, partition: int, rows: Sequence[Row]) -> Group:
        """Return the group of ``rows``, which are in ascending offset. Only one thread may call it."""
        data = _pack_rows(rows)
        size = len(data) if len(data) >= COMPRESS_BYTES else 0
        packed = pa.compress(data, codec=_CODEC, asbytes=True) if size else data
        return cls(due_s, partition, rows[0][0], len(rows), size, packed)

    @property
    def rows(self) -> list[Row]:
        data = self.data
        if self.size:
            data = pa.decompress(data, decompressed_size=self.size, codec=_CODEC, asbytes=True)
        return layout.unpack(data)


def groups(partition: int, rows: RowsByDue) -> list[Group]:
    """The groups of timers of one partition."""
    return [Group.of(due_s, partition, part) for due_s, each in rows.items() for part in layout.parts(each)]


def pack(timers: Iterable[Group]) -> bytes:
    """One timer batch. Inverse: :func:`unpack`."""
    return bytes(msgpack.packb(list(timers)))


def unpack(timer_batch: bytes) -> list[Group]:
    return [Group(*group) for group in msgpack.unpackb(timer_batch, use_list=False)]


class Arrivals(NamedTuple):
    """Requests that one task has read from one partition."""

    partition: int
    first_offset: int
    end: int
    """Offset after that of the last request."""
    settings: ReadSettings
    """The settings with which they were decoded."""
    groups: Sequence[Group]
    rejected: Sequence[Rejected]

    def pack(self) -> bytes:
        """Inverse: :meth:`unpack`."""
        return bytes(msgpack.packb(self))

    @classmethod
    def unpack(cls, data: bytes) -> Arrivals:
        partition, first_offset, end, settings, timers, rejected = msgpack.unpackb(data, use_list=False)
        groups = [Group(*group) for group in timers]
        return cls(
            partition, first_offset, end, ReadSettings(*settings), groups, [Rejected(*each) for each in rejected]
        )
