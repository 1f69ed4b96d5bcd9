"""The order key: which of two timers comes first.

An order key is (due second, source offset). Offsets are unique within a partition, so keys are too, and the order is
total: a drain that stops anywhere can say with one key how far it came.

On disk a key is 16 bytes: both numbers as 8 bytes, big-endian, because then byte order is number order, and a range
of keys is a range of time. ::

    0        8        16
    | due_s  | offset |
"""

import struct
from typing import TypeAlias

OrderKey: TypeAlias = tuple[int, int]

MAX_OFFSET = 2**64 - 1
"""Stands after every offset of a second: (s, MAX_OFFSET) means all of second ``s``."""

NEVER: OrderKey = (-1, MAX_OFFSET)
"""Below every key: nothing has fired yet. Has no bytes form."""

_KEY = struct.Struct(">QQ")


def encode(key: OrderKey) -> bytes:
    """16 bytes whose order is the key's order. Inverse: :func:`decode`."""
    return _KEY.pack(*key)


def decode(data: bytes) -> OrderKey:
    """The key behind 16 bytes of :func:`encode`."""
    due_s, offset = _KEY.unpack(data)
    return due_s, offset
