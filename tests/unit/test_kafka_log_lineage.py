"""What the leaders are asked about a log, in how many round trips, and what their answers mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from aiokafka.errors import KafkaError, NotLeaderForPartitionError, OffsetOutOfRangeError

from tests.harness.one_leader import OneLeader, header
from tests.harness.round_trips import RoundTrips
from timers.core.lineage import Answer, Batch, EpochEnd, Lineage, Parted, Unknown
from timers.kafka.aiokafka_internals.leader_client import RawFetch
from timers.kafka.log_lineage import LogLineages

TP = ("timer-request", 0)
OTHER = ("timer-request", 1)

LAST = Batch(90, 99, 1_000, 5)
OURS = Lineage(((3, 0),), LAST, 100)
OF_STORE = Lineage(((3, 0),), Batch(40, 49, 900, 4), 50)


class SimLeader(OneLeader):
    """A leader of all partitions, whose answers to all that was asked come together, one round trip later.

    Attributes:
        batches: partition and base offset -> the batch there, or why it is not shown; the others are deleted.
        end: where epoch 3 ends.
        round_trips: of its answers.
    """

    def __init__(self) -> None:
        self.batches: dict[tuple[tuple[str, int], int], Batch | KafkaError] = {
            (tp, each.base_offset): each
            for tp in (TP, OTHER)
            for each in (OURS.batch, OF_STORE.batch)
            if each is not None
        }
        self.end = 100
        self.round_trips = RoundTrips()

    async def epoch_ends(self, leader: int, epochs: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], EpochEnd]:
        await self.round_trips.wait()
        return {tp: EpochEnd(epoch, self.end) for tp, epoch in epochs.items()}

    async def fetch(self, leader: int, tp: tuple[str, int], offset: int, max_bytes: int) -> RawFetch:
        await self.round_trips.wait()
        found = self.batches.get((tp, offset), OffsetOutOfRangeError())
        if isinstance(found, KafkaError):
            raise found
        return RawFetch(0, self.end, header(found, 3).ljust(max_bytes, b"\0"))

    async def offset_at(self, leader: int, tp: tuple[str, int], timestamp_ms: int) -> int | None:
        await self.round_trips.wait()
        return None


@pytest.fixture
def leader() -> SimLeader:
    return SimLeader()


@pytest.fixture
def lineages(leader: SimLeader) -> LogLineages:
    client: Any = leader
    return LogLineages(client)


async def answers(lineages: LogLineages, *lineage: Lineage, compacted: tuple[str, ...] = ()) -> list[Answer]:
    return (await lineages.parted({TP: lineage}, compacted))[TP]


async def test_an_opening_waits_for_one_round_trip(lineages: LogLineages, leader: SimLeader) -> None:
    """Epochs and batches, of progress and of store, are asked for at once."""
    assert await answers(lineages, OURS, OF_STORE) == [None, None]
    assert leader.round_trips.count == 1


@pytest.mark.parametrize(
    ("found", "answer"),
    [
        (LAST, None),
        (None, None),  # deleted by retention
        (LAST._replace(crc=6), Parted(0)),
    ],
)
async def test_the_last_batch_says_whether_the_log_is_the_same(
    lineages: LogLineages, leader: SimLeader, found: Batch | None, answer: Answer
) -> None:
    leader.batches[TP, 90] = OffsetOutOfRangeError() if found is None else found
    assert await answers(lineages, OURS, OF_STORE) == [answer, None]


@pytest.mark.parametrize(
    ("found", "answer"),
    [(LAST._replace(crc=6), None), (LAST._replace(last_offset=98), Unknown()), (None, None)],
)
async def test_in_a_compacted_topic_a_batch_may_be_rewritten(
    lineages: LogLineages, leader: SimLeader, found: Batch | None, answer: Answer
) -> None:
    leader.batches[TP, 90] = OffsetOutOfRangeError() if found is None else found
    assert await answers(lineages, OURS, compacted=(TP[0],)) == [answer]


async def test_a_log_that_ends_early_has_parted(lineages: LogLineages, leader: SimLeader) -> None:
    leader.end = 60
    del leader.batches[TP, 90]
    assert await answers(lineages, OURS, OF_STORE) == [Parted(60), None]


async def test_a_partition_whose_batch_is_not_shown_hides_no_answer_of_another_one(
    lineages: LogLineages, leader: SimLeader
) -> None:
    leader.batches[TP, 90] = NotLeaderForPartitionError()
    assert await lineages.parted({TP: [OURS, OF_STORE], OTHER: [OURS]}) == {OTHER: [None]}


async def test_over_the_same_connection_a_batch_is_compared_once(lineages: LogLineages, leader: SimLeader) -> None:
    await answers(lineages, OURS)
    leader.batches[TP, 90] = LAST._replace(crc=6)
    assert await lineages.parted({TP: [OURS]}, again=True) == {TP: [None]}
    leader.end = 60
    assert await lineages.parted({TP: [OURS]}, again=True) == {TP: [Parted(60)]}, "its epochs are, each time"
    leader.end = 100
    assert await lineages.parted({TP: [OURS]}) == {TP: [Parted(0)]}
