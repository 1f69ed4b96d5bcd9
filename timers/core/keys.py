"""The order key (due second, source offset): the order in which the timers of a partition fire.

Offsets are unique in a partition, and so are keys. So one key tells how far a drain has come, also inside a second.

On disk a key has 16 bytes: both numbers as 8 bytes, big-endian. So the order of bytes is the order of keys, and a range
of keys is a range of time. ::

    0        8        16
    | due_s  | offset |
"""

import struct
from typing import TypeAlias

OrderKey: TypeAlias = tuple[int, int]

MAX_OFFSET = 2**64 - 1
"""Above every offset: the key (second, MAX_OFFSET) is above all keys of that second."""

NOTHING_FIRED: OrderKey = (-1, MAX_OFFSET)
"""Below every key: no timer has fired. It has no encoding."""

_KEY = struct.Struct(">QQ")


pack = _KEY.pack
"""Returns the 16 bytes of the key (due second, offset); for hot loops."""


def encode(key: OrderKey) -> bytes:
    """Returns the 16 bytes of a key. Inverse: :func:`decode`."""
    return pack(*key)


def decode(data: bytes) -> OrderKey:
    """Returns the key of 16 bytes from :func:`encode`."""
    due_s, offset = _KEY.unpack(data)
    return due_s, offset
