"""Counts of several partitions: they go on where the answer before has ended, also if each answer has one read only."""

import asyncio
from collections import Counter
from time import monotonic
from typing import Any

import pytest

from tests.harness.constants import Constants
from timers.core.keys import OrderKey
from timers.core.listing import NoAnswer
from timers.core.timer import TopicPartition
from timers.machines.queries import answers
from timers.machines.queries.answers import IN_A_WORKER, Pace, Queries
from timers.machines.queries.reading import Turns
from timers.wire import query as wire
from timers.wire.query import Query

PARTITIONS = [("a", 0), ("a", 1), ("a", 10), ("b", 2)]


class SimSource:
    """Partitions with ten timers each, one in a read; one partition does not answer."""

    def __init__(self) -> None:
        self.partitions = PARTITIONS
        self.missing: dict[TopicPartition, str] = {}

    async def count(self, query: Query, tp: TopicPartition, after: OrderKey) -> Any:
        if tp == ("a", 1):
            raise NoAnswer("it is busy")
        second = max(after[0] + 1, query.from_s)
        return Counter({(second, "t"): 1}), (second, 7) if second < 10 else None


class SimQueries(Queries):
    """Reads the source above."""

    def __init__(self, pace: Pace = IN_A_WORKER) -> None:
        self._turns = Turns(lambda: None)
        self._pace = pace

    def _partitions(self) -> set[TopicPartition]:
        return {*PARTITIONS, ("c", 0)}

    async def _sources(self, wanted: set[TopicPartition], forwarded: bool) -> Any:
        source = SimSource()
        source.partitions = [tp for tp in PARTITIONS if tp in wanted]
        return [source], {("c", 0): "no worker owns it"} if ("c", 0) in wanted else {}


@pytest.mark.parametrize("seconds", [-1.0, 1000.0])
@pytest.mark.parametrize("most", [1, 3, 2000])
async def test_all_partitions_are_counted_once(seconds: float, most: int, constants: Constants) -> None:
    constants(answers, MAX_READING_S=seconds, QUICK_S=seconds, MAX_COUNTS=most)
    query, total, asked = Query(from_s=3, by_s=1), Counter[tuple[int, str]](), 0
    missing: dict[TopicPartition, str] = {}
    while True:
        answer = await SimQueries().count(
            wire.parse_count_query(wire.parameters_of(query)), monotonic(), forwarded=False
        )
        total += Counter({(each["from"], each["topic"]): each["timers"] for each in answer.timers})
        missing |= answer.missing
        asked += 1
        if answer.through is None:
            break
        assert query.after < answer.through or answer.through[1:3] > query.after[1:3]
        query = query._replace(after=answer.through)
    assert total == Counter({(second, "t"): 3 for second in range(3, 11)})
    assert missing == {("a", 1): "it is busy", ("c", 0): "no worker owns it"}
    assert asked == 1 if (seconds, most) == (1000.0, 2000) else asked > 3


async def test_a_first_page_that_waited_long_ends_after_one_read() -> None:
    """The time that its question waits for a slot counts, so that many readers wait about as long as one."""
    query = Query(from_s=3, by_s=1)
    answer = await SimQueries().count(query, monotonic() - answers.QUICK_S, forwarded=False)
    assert answer.timers and answer.through is not None
    further = await SimQueries().count(query._replace(after=answer.through), monotonic() - 1000, forwarded=False)
    assert further.through is None


async def test_one_partition_is_counted_alone() -> None:
    query = Query("t", 5, 9, by_s=1, partition=("b", 2))
    assert wire.parse_count_query(wire.parameters_of(query)) == query
    answer = await SimQueries().count(query, monotonic(), forwarded=True)
    assert (sum(each["timers"] for each in answer.timers), set(answer.answered)) == (6, {("b", 2)})


async def test_reads_that_begin_together_are_all_used_although_the_time_is_over() -> None:
    """Where a read takes longer than a first page may, an answer would have one partition."""
    query = Query(from_s=10, by_s=1)
    answer = await SimQueries(Pace(at_once=True)).count(query, monotonic() - 1000, forwarded=False)
    assert sum(each["timers"] for each in answer.timers) == 3 and answer.through is None


async def test_an_error_leaves_no_read_running(monkeypatch: pytest.MonkeyPatch) -> None:
    running: set[TopicPartition] = set()

    async def count(source: SimSource, query: Query, tp: TopicPartition, after: OrderKey) -> Any:
        running.add(tp)
        try:
            await asyncio.sleep(0 if tp == PARTITIONS[0] else 3600)
        finally:
            running.discard(tp)
        raise ValueError(f"{len(running)} others have begun")

    monkeypatch.setattr(SimSource, "count", count)
    with pytest.raises(ValueError, match=r"^3 others have begun"):
        await SimQueries(Pace(at_once=True)).count(Query(by_s=1), monotonic(), forwarded=False)
    assert not running
