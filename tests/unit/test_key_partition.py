"""The partitions of keys are those of Java's producer, for keys of any length and in any number."""

import random

import pytest
from aiokafka.partitioner import murmur2

from timers.wire.key_partition import partition_of, partitions_for, partitions_of

PARTITIONS = 7


def expected(key: bytes) -> int:
    """The partition by aiokafka's hash, which is written in Python."""
    return int(murmur2(key) & 0x7FFFFFFF) % PARTITIONS


@pytest.mark.parametrize("count", [1, 20, 21, 60, 600])
@pytest.mark.parametrize("longest", [0, 3, 4, 9, 40, 513, 600])
def test_keys_of_one_length_and_of_many_lengths(count: int, longest: int) -> None:
    draw = random.Random(count * 1000 + longest)
    same = [draw.randbytes(longest) for _ in range(count)]
    mixed = [draw.randbytes(draw.randint(0, longest)) for _ in range(count)]
    assert partitions_of(same, PARTITIONS) == [expected(key) for key in same]
    assert partitions_of(mixed, PARTITIONS) == [expected(key) for key in mixed]
    assert [partition_of(key, PARTITIONS) for key in mixed] == [expected(key) for key in mixed]


def test_a_huge_key_among_small_ones() -> None:
    keys = [b"small", random.Random(1).randbytes(300_001), b"other"]
    assert partitions_of(keys, PARTITIONS) == [expected(key) for key in keys]


def test_a_callback_without_a_key_goes_where_its_offset_says() -> None:
    assert partitions_for([b"a", None, b"a"], [1, 12, 3], PARTITIONS) == [expected(b"a"), 5, expected(b"a")]
