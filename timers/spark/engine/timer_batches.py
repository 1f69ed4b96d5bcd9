"""Timer batches: many timers as one value of bytes. Spark's cost of one value is higher than the cost of one timer.

::

    timer batch   msgpack array of items
    item          [due_s, timers, payload]      due_s -1: fires whatever the current second is
    payload       bytes that a bucket does not read:
                  of timers          [place, size, requests]     place: <topic>/<partition>
                                     requests: msgpack of [[offset, key, value, headers], ...]; size 0: not compressed;
                                     otherwise LZ4 of that msgpack, which has ``size`` bytes
                  of dead letters    [[key, value, headers], ...]

A timer waits as the original request. When it fires, the function that accepted it decodes it again. So a request that
cannot be sent then becomes a dead letter byte for byte. Requests of one second are much alike: LZ4 (from pyarrow, 0.1
us a timer) reduces them to a quarter of their size or less, and the cost of Spark's state follows its size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import msgpack
import pyarrow as pa

from timers.wire.dead_letter import DeadLetter
from timers.wire.headers import Header

AT_ONCE = -1
"""Due second of dead letters, which do not wait."""

COMPRESS_BYTES = 512
"""Requests of fewer bytes are not compressed: it saves too little."""

_CODEC = "lz4_raw"


class Request(NamedTuple):
    """One record of a request topic."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]


Item: TypeAlias = tuple[int, int, bytes]
"""(due second, number of timers, payload)"""


def pack(items: Iterable[Item]) -> bytes:
    """One timer batch. Inverse: :func:`unpack`."""
    return bytes(msgpack.packb(list(items)))


def unpack(timer_batch: bytes) -> list[Item]:
    items: list[Item] = msgpack.unpackb(timer_batch, use_list=False)
    return items


def timers(due_s: int, place: str, requests: Sequence[Request]) -> Item:
    """The item of requests that share a partition and a due second. :func:`requests_of` reads its payload."""
    data = msgpack.packb(requests)
    if len(data) < COMPRESS_BYTES:
        return due_s, len(requests), msgpack.packb((place, 0, data))
    return due_s, len(requests), msgpack.packb((place, len(data), pa.compress(data, codec=_CODEC, asbytes=True)))


def requests_of(payload: bytes) -> tuple[str, list[Request]]:
    """The place and the requests of a payload of timers."""
    place, size, data = msgpack.unpackb(payload)
    if size:
        data = pa.decompress(data, decompressed_size=size, codec=_CODEC, asbytes=True)
    return place, list(map(Request._make, msgpack.unpackb(data, use_list=False)))


def letters(dead_letters: Sequence[DeadLetter]) -> Item:
    """The item of dead letters. :func:`letters_of` reads its payload."""
    return AT_ONCE, 0, msgpack.packb(dead_letters)


def letters_of(payload: bytes) -> list[DeadLetter]:
    return list(map(DeadLetter._make, msgpack.unpackb(payload, use_list=False)))
