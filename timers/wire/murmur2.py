"""The partitions of many keys at once, with numpy; :mod:`timers.wire.partitioner` says when it is faster."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from timers.key_partition import librdkafka_partition

_SEED = 0x9747B28C
_MULTIPLIER = np.uint32(0x5BD1E995)

_FEW_KEYS = 20
"""For this number of keys of one length, plus one for each byte of the length, librdkafka is faster than numpy."""

_LONG_KEY_BYTES = 512
"""For longer keys, librdkafka is always faster."""


def partitions_of(keys: Sequence[bytes], count: int) -> list[int]:
    """Return the partition of each key on a topic of ``count`` partitions: ``toPositive(murmur2(key)) % count``."""
    lengths = set(map(len, keys))
    if len(lengths) == 1:
        partitions = np.asarray(_of_one_length(keys, count))
    else:
        length_of = np.fromiter(map(len, keys), dtype=np.int64, count=len(keys))
        partitions = np.empty(len(keys), dtype=np.uint32)
        for length in lengths:
            indexes = np.nonzero(length_of == length)[0]
            partitions[indexes] = _of_one_length([keys[i] for i in indexes.tolist()], count)
    listed: list[int] = partitions.tolist()
    return listed


def _of_one_length(keys: Sequence[bytes], count: int) -> Sequence[int] | NDArray[np.uint32]:
    length = len(keys[0])
    if len(keys) <= _FEW_KEYS + length or length > _LONG_KEY_BYTES:
        return [librdkafka_partition(None, key, length, count, None, None) for key in keys]
    hashes = _murmur2(b"".join(keys), len(keys), length)
    partitions: NDArray[np.uint32] = (hashes & np.uint32(0x7FFFFFFF)) % np.uint32(count)
    return partitions


def _murmur2(joined: bytes, count: int, length: int) -> NDArray[np.uint32]:
    """Return murmur2 of ``count`` concatenated keys of ``length`` bytes each. It wraps at 32 bits, like Java's int."""
    data = np.frombuffer(joined, dtype=np.uint8).reshape(count, length)
    whole_words = length // 4
    words = np.ascontiguousarray(data[:, : whole_words * 4]).view("<u4").reshape(count, whole_words).astype(np.uint32)
    hashes = np.full(count, _SEED ^ length, dtype=np.uint32)
    for column in range(whole_words):
        mixed = words[:, column] * _MULTIPLIER
        mixed ^= mixed >> np.uint32(24)
        hashes = (hashes * _MULTIPLIER) ^ (mixed * _MULTIPLIER)
    rest_bytes = length - whole_words * 4
    if rest_bytes:
        for index in range(rest_bytes - 1, -1, -1):
            hashes ^= data[:, whole_words * 4 + index].astype(np.uint32) << np.uint32(8 * index)
        hashes *= _MULTIPLIER
    hashes ^= hashes >> np.uint32(13)
    hashes *= _MULTIPLIER
    return hashes ^ (hashes >> np.uint32(15))
