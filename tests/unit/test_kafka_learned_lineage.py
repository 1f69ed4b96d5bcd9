"""What a reader that sees no record batches learns of its log."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

import pytest
from aiokafka.errors import NotLeaderForPartitionError, OffsetOutOfRangeError

from tests.harness.one_leader import OneLeader, header
from timers.core.lineage import Batch, EpochEnd, Lineage
from timers.core.timer import TopicPartition
from timers.kafka.aiokafka_internals.leader_client import RawFetch
from timers.kafka.log_lineage import LogLineages

TP = ("requests", 0)
START, END = 5, 40
EPOCHS = ((2, 5), (3, 20), (7, 30))
"""(epoch, first offset) as the broker has them. Batches have 5 records each."""


class SimLeader(OneLeader):
    """The leader of a partition whose records below 5 were deleted."""

    def __init__(self, *, leads: bool = True) -> None:
        self._leads = leads

    async def connect(self, topics: Collection[str]) -> None:
        assert topics == {TP[0]}

    async def epoch_ends(self, leader: int, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochEnd]:
        asked = epochs[TP]
        later = [first for epoch, first in EPOCHS if epoch > asked]
        older = [epoch for epoch, _ in EPOCHS if epoch <= asked]
        if not later and asked != EPOCHS[-1][0]:
            return {TP: EpochEnd(-1, -1)}
        return {TP: EpochEnd(older[-1] if older else asked, later[0] if later else END)}

    async def fetch(self, leader: int, tp: TopicPartition, offset: int, max_bytes: int) -> RawFetch:
        if not self._leads:
            raise NotLeaderForPartitionError
        if not START <= offset <= END:
            raise OffsetOutOfRangeError
        base = offset // 5 * 5
        epoch = max(epoch for epoch, first in EPOCHS if first <= base)
        data = header(batch(base), epoch).ljust(max_bytes, b"\0") if base < END else b""
        return RawFetch(START, END, data)


def extended(lineage: Lineage, position: int, leader: SimLeader) -> Lineage | None:
    client: Any = leader
    return asyncio.run(LogLineages(client).extended({TP: (lineage, position)})).get(TP)


def batch(base: int) -> Batch:
    return Batch(base, base + 4, base, base)


@pytest.mark.parametrize(
    ("position", "lineage"),
    [
        (40, Lineage(EPOCHS, batch(35), 40)),
        (38, Lineage(EPOCHS, batch(30), 35)),  # inside of a batch
        (33, Lineage(EPOCHS[:2], batch(25), 30)),
        (20, Lineage(EPOCHS[:1], batch(15), 20)),
        (7, Lineage()),  # its only batch is not whole, and the one before is deleted
        (5, Lineage()),
        (50, Lineage()),  # the log ends before it
    ],
)
def test_all_of_a_log_is_learned_from_its_last_whole_batch(position: int, lineage: Lineage) -> None:
    assert extended(Lineage(), position, SimLeader()) == lineage


def test_a_known_lineage_keeps_its_epochs() -> None:
    known = Lineage(((1, 0), (3, 21)), batch(20), 25)  # as a worker has read it
    assert extended(known, 40, SimLeader()) == Lineage(((1, 0), (3, 21), (7, 30)), batch(35), 40)
    assert extended(known, 30, SimLeader()) == Lineage(((1, 0), (3, 21)), batch(25), 30)
    assert extended(known, 27, SimLeader()) == known


def test_a_leader_that_has_moved_gives_no_lineage() -> None:
    assert extended(Lineage(), 40, SimLeader(leads=False)) is None
