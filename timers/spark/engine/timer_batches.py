"""Timer batches: many timers as one value of bytes, since whatever Spark does for a value costs more than a timer does.

::

    timer batch   msgpack array of items
    item     [due_s, timers, unit]         what a bucket looks at; due_s -1: goes out whatever the time is
    unit     bytes, opaque to the bucket:
             of timers           [place, size, requests]      place: <topic>/<partition>
                                 requests: msgpack of [[offset, key, value, headers], ...], and LZ4 of that if it is of
                                 ``size`` bytes; 0: not compressed
             of dead letters     [[key, value, headers], ...]

A timer waits as the request that it came as: what is sent is read from it when it fires, by the function that judged it
when it came, and a request that cannot be sent then goes to the dead letters byte for byte. Requests of one second are
much alike: as LZ4 (from pyarrow, 0.1 us a timer) they take a quarter of the room or less, and what Spark's state costs
goes by room.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import msgpack
import pyarrow as pa

from timers.wire.dead_letter import DeadLetter
from timers.wire.headers import Header

AT_ONCE = -1
"""Due second of what does not wait for any."""


COMPRESS_BYTES = 512
"""Less is not worth it."""

_CODEC = "lz4_raw"


class Request(NamedTuple):
    """One record of a request topic."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]


Item: TypeAlias = tuple[int, int, bytes]
"""(due second, number of timers, unit)"""


def pack(items: Iterable[Item]) -> bytes:
    """One timer batch. Inverse: :func:`unpack`."""
    return bytes(msgpack.packb(list(items)))


def unpack(timer_batch: bytes) -> list[Item]:
    """Items of a timer batch."""
    items: list[Item] = msgpack.unpackb(timer_batch, use_list=False)
    return items


def timers(due_s: int, place: str, requests: Sequence[Request]) -> Item:
    """Requests of one partition that share a due second. Inverse of its unit: :func:`requests_of`."""
    data = msgpack.packb(requests)
    if len(data) < COMPRESS_BYTES:
        return due_s, len(requests), msgpack.packb((place, 0, data))
    return due_s, len(requests), msgpack.packb((place, len(data), pa.compress(data, codec=_CODEC, asbytes=True)))


def requests_of(unit: bytes) -> tuple[str, list[Request]]:
    """Place and requests of a unit of timers."""
    place, size, data = msgpack.unpackb(unit)
    if size:
        data = pa.decompress(data, decompressed_size=size, codec=_CODEC, asbytes=True)
    return place, list(map(Request._make, msgpack.unpackb(data, use_list=False)))


def letters(dead_letters: Sequence[DeadLetter]) -> Item:
    """Dead letters. Inverse of its unit: :func:`letters_of`."""
    return AT_ONCE, 0, msgpack.packb(dead_letters)


def letters_of(unit: bytes) -> list[DeadLetter]:
    """Dead letters of a unit."""
    return list(map(DeadLetter._make, msgpack.unpackb(unit, use_list=False)))
