"""Two partitioners on one topic are noticed; one other partitioner everywhere is right."""

import random
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import pytest

from timers.process.partition_metrics import PartitionMetrics
from timers.wire.key_partition import partition_of
from timers.worker.machines.id_places import SAMPLE, are_mixed, note, warnings


def warned(partitions: int, share_of_others: float, count: int = 2_000, seed: int = 1) -> list[str]:
    """What is said after ``count`` ids, of which a share is placed by CRC-32 as librdkafka does by default."""
    chance = random.Random(seed)
    measured = [PartitionMetrics() for _ in range(partitions)]
    for index in range(count):
        key = b"order-%d" % index
        is_other = chance.random() < share_of_others
        place = crc32(key) % partitions if is_other else partition_of(key, partitions)
        note(measured[place], [SimpleNamespace(key=key)], place, partitions)
    return warnings("ids", measured, partitions)


@pytest.mark.parametrize("partitions", [1, 2, 3, 4, 6, 12, 64])
@pytest.mark.parametrize("seed", range(5))
def test_one_partitioner_is_right_whichever_it_is(partitions: int, seed: int) -> None:
    assert warned(partitions, 0, seed=seed) == []
    assert warned(partitions, 1, seed=seed) == []


@pytest.mark.parametrize("partitions", [2, 3, 4, 6, 12, 64])
@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.8])
def test_two_partitioners_are_named(partitions: int, share: float) -> None:
    (sentence,) = warned(partitions, share)
    assert sentence.startswith("the senders of 'ids' use two partitioners: of 2,000 requests")


def test_few_ids_say_nothing() -> None:
    assert not are_mixed(18, 1, 4)
    assert are_mixed(18, 2, 4)


def test_a_fetch_costs_little_and_records_without_a_key_are_passed_over() -> None:
    metrics = PartitionMetrics()
    records: list[Any] = [SimpleNamespace(key=None), *(SimpleNamespace(key=b"a") for _ in range(10 * SAMPLE))]
    note(metrics, records, partition_of(b"a", 4), 4)
    assert (metrics.ids_in_place, metrics.ids_elsewhere) == (SAMPLE - 1, 0)
