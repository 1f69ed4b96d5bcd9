"""What the leaders are asked about a log, in how many round trips, and what their answers mean."""

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

import pytest
from aiokafka.errors import KafkaError, NotLeaderForPartitionError, OffsetOutOfRangeError

from tests.harness.one_leader import OneLeader, header
from tests.harness.round_trips import RoundTrips
from timers.core.lineage import Answer, Batch, EpochEnd, Lineage, Parted, Unknown
from timers.core.timer import TopicPartition
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


async def test_a_partition_whose_batch_is_hidden_hides_no_other_one(lineages: LogLineages, leader: SimLeader) -> None:
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


# ---- what is learned of a log without reading it ---------------------------------------------------------------------


REQUESTS = ("requests", 0)
START, END = 5, 40
EPOCHS = ((2, 5), (3, 20), (7, 30))
"""(epoch, first offset) as the broker has them. Batches have 5 records each."""


class TrimmedLeader(OneLeader):
    """The leader of a partition whose records below 5 were deleted."""

    def __init__(self, *, leads: bool = True) -> None:
        self._leads = leads

    async def connect(self, topics: Collection[str]) -> None:
        assert topics == {REQUESTS[0]}

    async def epoch_ends(self, leader: int, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochEnd]:
        asked = epochs[REQUESTS]
        later = [first for epoch, first in EPOCHS if epoch > asked]
        older = [epoch for epoch, _ in EPOCHS if epoch <= asked]
        if not later and asked != EPOCHS[-1][0]:
            return {REQUESTS: EpochEnd(-1, -1)}
        return {REQUESTS: EpochEnd(older[-1] if older else asked, later[0] if later else END)}

    async def fetch(self, leader: int, tp: TopicPartition, offset: int, max_bytes: int) -> RawFetch:
        if not self._leads:
            raise NotLeaderForPartitionError
        if not START <= offset <= END:
            raise OffsetOutOfRangeError
        base = offset // 5 * 5
        epoch = max(epoch for epoch, first in EPOCHS if first <= base)
        data = header(batch(base), epoch).ljust(max_bytes, b"\0") if base < END else b""
        return RawFetch(START, END, data)


def extended(lineage: Lineage, position: int, leader: TrimmedLeader) -> Lineage | None:
    client: Any = leader
    return asyncio.run(LogLineages(client).extended({REQUESTS: (lineage, position)})).get(REQUESTS)


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
    assert extended(Lineage(), position, TrimmedLeader()) == lineage


def test_a_known_lineage_keeps_its_epochs() -> None:
    known = Lineage(((1, 0), (3, 21)), batch(20), 25)  # as a worker has read it
    assert extended(known, 40, TrimmedLeader()) == Lineage(((1, 0), (3, 21), (7, 30)), batch(35), 40)
    assert extended(known, 30, TrimmedLeader()) == Lineage(((1, 0), (3, 21)), batch(25), 30)
    assert extended(known, 27, TrimmedLeader()) == known


def test_a_leader_that_has_moved_gives_no_lineage() -> None:
    assert extended(Lineage(), 40, TrimmedLeader(leads=False)) is None
