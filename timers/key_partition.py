"""Computes the partition of one key as Java's producer does. It needs no numpy, which the light installation lacks."""

from __future__ import annotations

import ctypes

from confluent_kafka import cimpl

# Part of librdkafka's C interface. PyDLL keeps the interpreter lock: to get it back after each key could take 5 ms.
librdkafka_partition = ctypes.PyDLL(cimpl.__file__).rd_kafka_msg_partitioner_murmur2
librdkafka_partition.restype = ctypes.c_int32
librdkafka_partition.argtypes = [
    ctypes.c_void_p,  # topic: not used
    ctypes.c_char_p,
    ctypes.c_size_t,
    ctypes.c_int32,
    ctypes.c_void_p,  # not used
    ctypes.c_void_p,  # not used
]


def partition_of(key: bytes, count: int) -> int:
    """Return the partition of a key on a topic of ``count`` partitions: ``toPositive(murmur2(key)) % count``."""
    partition: int = librdkafka_partition(None, key, len(key), count, None, None)
    return partition
