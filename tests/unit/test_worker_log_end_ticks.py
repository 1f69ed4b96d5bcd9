"""A leader that does not answer delays only the machines whose logs it leads."""

import asyncio
from collections.abc import Collection
from typing import Any

import pytest

from tests.harness.constants import Constants
from timers.core.timer import Tick, TopicPartition
from timers.worker.machines import log_end_ticks
from timers.worker.machines.log_end_ticks import LogEndTicks

LED_BY_1, LED_BY_2, LEADERLESS = ("ids", 0), ("ids", 1), ("ids", 2)
LEADERS: dict[TopicPartition, int | None] = {LED_BY_1: 1, LED_BY_2: 2, LEADERLESS: None}


class SimOffsets:
    """Leaders that answer 7, except those in ``silent``."""

    def __init__(self) -> None:
        self.answering = {leader: asyncio.Event() for leader in (1, 2)}
        self.asked: list[int] = []

    async def by_leader(self, tps: Collection[TopicPartition]) -> dict[int | None, list[TopicPartition]]:
        return {leader: [tp for tp in tps if LEADERS[tp] == leader] for leader in {LEADERS[tp] for tp in tps}}

    async def last_stable_offsets(self, leader: int, tps: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        self.asked.append(leader)
        await self.answering[leader].wait()
        return dict.fromkeys(tps, 7)

    async def close(self) -> None: ...


class SimRunner:
    """Keeps the ticks that it gets."""

    def __init__(self) -> None:
        self.ticks: asyncio.Queue[tuple[Tick, int | None]] = asyncio.Queue()

    def tick(self, tick: Tick, end: int | None) -> None:
        self.ticks.put_nowait((tick, end))


async def answer_all(leader: int, tps: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    return dict.fromkeys(tps, 7)


async def test_each_tick_follows_the_answer_of_a_leader(monkeypatch: pytest.MonkeyPatch, constants: Constants) -> None:
    offsets: Any = SimOffsets()
    runners: Any = {tp: SimRunner() for tp in LEADERS}
    ticks = LogEndTicks(offsets, lambda: runners)
    offsets.answering[1].set()
    async with asyncio.timeout(30):
        for second in (1, 2):
            ticks.tick(Tick(second * 1000))
            assert await runners[LED_BY_1].ticks.get() == (Tick(second * 1000), 7)
            assert await runners[LEADERLESS].ticks.get() == (Tick(second * 1000), None)
        assert runners[LED_BY_2].ticks.empty()
        assert ticks.waiting == {}, "not yet"
        constants(log_end_ticks, UNKNOWN_S=-1.0)
        assert {tp: waiting.reason for tp, waiting in ticks.waiting.items()} == dict.fromkeys(
            (LED_BY_2, LEADERLESS), "brokers"
        )
        monkeypatch.setitem(LEADERS, LEADERLESS, 1)
        offsets.last_stable_offsets = answer_all
        ticks.tick(Tick(3000))
        assert await runners[LEADERLESS].ticks.get() == (Tick(3000), 7)
        assert set(ticks.waiting) == {LED_BY_2}, "the other one has a leader again"
        del offsets.last_stable_offsets
        assert offsets.asked.count(2) == 1, "one request to a leader at a time"
        offsets.answering[2].set()
        assert await runners[LED_BY_2].ticks.get() == (Tick(1000), 7)
        assert await runners[LED_BY_2].ticks.get() == (Tick(3000), 7), "the newest tick follows at once"
    await ticks.close()


async def test_machines_beside_a_slow_leader_get_ticks(monkeypatch: pytest.MonkeyPatch, constants: Constants) -> None:
    """Each answer takes longer than a second, so requests to that leader follow each other without a pause."""
    offsets: Any = SimOffsets()
    monkeypatch.setitem(LEADERS, LED_BY_1, 2)
    runners: Any = {LED_BY_2: SimRunner()}
    asked: asyncio.Queue[list[TopicPartition]] = asyncio.Queue()
    answer = asyncio.Semaphore(0)

    async def ask_slowly(leader: int, tps: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        asked.put_nowait(list(tps))
        await answer.acquire()
        return dict.fromkeys(tps, 7)

    offsets.last_stable_offsets = ask_slowly
    ticks = LogEndTicks(offsets, lambda: runners)
    async with asyncio.timeout(30):
        ticks.tick(Tick(1000))
        assert await asked.get() == [LED_BY_2]
        runners[LED_BY_1] = SimRunner()
        for second in (2, 3):
            ticks.tick(Tick(second * 1000))
            await asyncio.sleep(0.01)  # the leaders are asked for
            constants(log_end_ticks, UNKNOWN_S=-1.0)
            assert LED_BY_1 in ticks.waiting
            answer.release()
            assert set(await asked.get()) == {LED_BY_1, LED_BY_2}
        answer.release()
        assert (await runners[LED_BY_1].ticks.get())[1] == 7
    await ticks.close()


async def test_an_error_of_one_leader_delays_no_tick() -> None:
    offsets: Any = SimOffsets()
    runners: Any = {tp: SimRunner() for tp in LEADERS}

    async def fail(leader: int, tps: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        if leader == 2:
            raise ValueError("an answer that cannot be read")
        return dict.fromkeys(tps, 7)

    offsets.last_stable_offsets = fail
    ticks = LogEndTicks(offsets, lambda: runners)
    async with asyncio.timeout(30):
        ticks.tick(Tick(1000))
        assert (await runners[LED_BY_1].ticks.get())[1] == 7
        assert (await runners[LED_BY_2].ticks.get())[1] is None
    await ticks.close()


async def test_an_end_is_asked_again_for_one_machine() -> None:
    offsets: Any = SimOffsets()
    runners: Any = {tp: SimRunner() for tp in (LED_BY_1, LED_BY_2)}
    ticks = LogEndTicks(offsets, lambda: runners)
    for event in offsets.answering.values():
        event.set()
    async with asyncio.timeout(30):
        ticks.tick(Tick(1000))
        for runner in runners.values():
            await runner.ticks.get()
        before = len(offsets.asked)
        ticks.ask_again(LED_BY_1)
        ticks.ask_again(LED_BY_1)
        assert await runners[LED_BY_1].ticks.get() == (Tick(1000), 7)
        assert offsets.asked[before:] == [1], "its leader, once"
        assert runners[LED_BY_2].ticks.empty()
        ticks.ask_again(LED_BY_1)
        assert await runners[LED_BY_1].ticks.get() == (Tick(1000), 7)
    await ticks.close()


async def test_an_end_is_asked_again_less_and_less_often_for_the_same_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator may write no marker for minutes."""
    offsets: Any = SimOffsets()
    offsets.last_stable_offsets = answer_all
    runners: Any = {LED_BY_1: SimRunner()}
    ticks = LogEndTicks(offsets, lambda: runners)
    pauses_s: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses_s.append(seconds)

    async with asyncio.timeout(30):
        for second in (1, 2):
            ticks.tick(Tick(second * 1000))
            await runners[LED_BY_1].ticks.get()
            monkeypatch.setattr(asyncio, "sleep", sleep)
            for _ in range(8 if second == 1 else 1):
                ticks.ask_again(LED_BY_1)
                await runners[LED_BY_1].ticks.get()
                await asyncio.gather(*ticks._tasks.values())
    assert pauses_s == [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5, 0.01]
    await ticks.close()


@pytest.mark.parametrize("again", [False, True])
async def test_a_runner_that_opened_after_the_ask_gets_no_end(again: bool) -> None:
    """It does not know which transactions of the former one held back the end."""
    offsets: Any = SimOffsets()
    runners: Any = {LED_BY_1: SimRunner()}
    ticks = LogEndTicks(offsets, lambda: runners)
    async with asyncio.timeout(30):
        if again:
            offsets.answering[1].set()
        ticks.tick(Tick(1000))
        if again:
            await runners[LED_BY_1].ticks.get()
            offsets.answering[1].clear()
            ticks.ask_again(LED_BY_1)
        while len(offsets.asked) <= again:
            await asyncio.sleep(0)
        runners[LED_BY_1] = SimRunner()
        offsets.answering[1].set()
        await asyncio.gather(*ticks._tasks.values())
    assert runners[LED_BY_1].ticks.empty()
    await ticks.close()
