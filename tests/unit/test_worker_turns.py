"""Questions wait for the part of each second in which few timers fire; first pages only for their share of the time."""

import asyncio
from collections.abc import Callable

import pytest

from tests.harness.constants import Constants
from timers.machines.queries.reading import BURST_S, BUSY_SHARE, END, IDLE_SHARE, SLICE_S, START, Turns
from timers.process.http.slots import Slots

NOW_S = 1_800_000_000


@pytest.mark.parametrize(
    ("now_s", "wait_s"),
    [
        (NOW_S, START),
        (NOW_S + START / 2, START / 2),
        (NOW_S + START, 0),
        (NOW_S + END - 0.01, 0),
        (NOW_S + END + 0.01, 0.99 - END + START),
        (NOW_S + 0.99, 0.01 + START),
        (None, 0),
    ],
)
def test_the_idle_window_comes_once_a_second(now_s: float | None, wait_s: float) -> None:
    turns = Turns(lambda: now_s)
    assert turns.wait_s(quick=False) == pytest.approx(wait_s, abs=1e-6)
    assert turns.wait_s(quick=True) == 0, "a first page does not wait for it"


async def test_the_wait_ends_when_the_window_begins() -> None:
    now = iter([NOW_S + START - 0.02, NOW_S + START])
    await Turns(lambda: next(now)).wait(quick=False)
    assert next(now, None) is None


async def test_a_short_slice_lets_the_next_reader_begin_at_once(constants: Constants) -> None:
    """The share is so small that only the time that is given back can end the wait."""
    constants("timers.machines.queries.reading", IDLE_SHARE=1e-6)
    turns = Turns(lambda: NOW_S + START, lambda: 0.0)
    begun = 0
    while turns.wait_s(quick=True) == 0:
        await turns.wait(quick=True)
        begun += 1
    assert begun == BURST_S / SLICE_S
    waiting = asyncio.create_task(turns.wait(quick=True))
    await asyncio.sleep(0)
    assert not waiting.done()
    turns.correct(0.0001)
    async with asyncio.timeout(10):
        await waiting


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("slice_s", [0.0005, 0.002, 0.5])
def test_reading_takes_its_share_of_the_time(quick: bool, slice_s: float) -> None:
    """Over ten seconds, with a reader that is always ready."""
    clock = 0.0
    turns = Turns(lambda: NOW_S + clock, lambda: clock)
    busy_s = idle_s = longest_wait_s = 0.0
    while clock < 10:
        wait_s = turns.wait_s(quick=quick)
        longest_wait_s = max(longest_wait_s, wait_s)
        if wait_s:
            clock += wait_s
            continue
        if START <= clock % 1 < END:
            idle_s += slice_s
        else:
            busy_s += slice_s
        turns.spend(slice_s)
        clock += slice_s
    window_s = 10 * (END - START)
    if slice_s < BURST_S:
        assert idle_s <= window_s * IDLE_SHARE + 11 * BURST_S
        assert busy_s <= ((10 - window_s) * BUSY_SHARE + 11 * BURST_S if quick else 11 * slice_s)
        assert idle_s > window_s * IDLE_SHARE / 2
    if quick:
        assert longest_wait_s <= 1.02 * BURST_S / BUSY_SHARE, "a first page waits for a limited time"


async def test_questions_that_wait_do_not_all_begin_together() -> None:
    """What a question will read counts from its beginning, and is corrected at its end."""
    turns = Turns(lambda: NOW_S, lambda: 0.0)
    waits = [asyncio.create_task(turns.wait(quick=True)) for _ in range(64)]
    await asyncio.sleep(0)
    begun = sum(wait.done() for wait in waits)
    assert begun == BURST_S / SLICE_S
    turns.correct(0.0)
    assert turns.wait_s(quick=True) == 0
    for wait in waits:
        wait.cancel()


async def test_a_queue_has_a_limited_length() -> None:
    refusal: Callable[[], Exception] = lambda: LookupError("too many")  # noqa: E731
    slots = Slots(2, 60, refusal, most_waiting=3)
    began: list[int] = []
    ends = asyncio.Event()

    async def run(number: int) -> None:
        async with slots:
            began.append(number)
            await ends.wait()

    tasks = [asyncio.create_task(run(number)) for number in range(7)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert began == [0, 1]
    assert [task.done() for task in tasks] == [False] * 5 + [True] * 2
    for task in tasks[5:]:
        with pytest.raises(LookupError):
            await task
    tasks[3].cancel()
    ends.set()
    await asyncio.wait(tasks)
    assert began == [0, 1, 2, 4]


async def test_a_wait_for_a_slot_has_an_end() -> None:
    slots = Slots(2, 0.01, lambda: LookupError("too long"))
    with pytest.raises(LookupError):
        async with slots, slots, slots:
            pass
