"""Whether all timers fire, as the console judges it: they do, some do not, or it is not known."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.harness.console_pages import ANSWERS, LOST
from timers.console.figures import DO_NOT_FIRE, FIRE, NOT_KNOWN, judged
from timers.console.problems import Problem
from timers.console.web.board import Board

OTHER: dict[str, Any] = {**ANSWERS, "id": "w2", "firing": ["t/1"]}
BEFORE: dict[str, Any] = {"id": "w2", "ready": True, "tick_age_s": 0.1, "firing": ["t/1"], "assigned": {"t": [1]}}
"""A worker of the version before: it does not say how many partitions there are."""


@pytest.mark.parametrize(
    ("workers", "timers", "words"),
    [
        ([ANSWERS, OTHER], FIRE, ""),
        ([ANSWERS, BEFORE], FIRE, ""),
        ([ANSWERS, OTHER, {**LOST, "id": "w3", "assigned": {}}], FIRE, ""),
        ([], DO_NOT_FIRE, "no worker runs"),
        ([ANSWERS, LOST], NOT_KNOWN, "w2, which has t/1, does not answer"),
        ([LOST], NOT_KNOWN, "does not answer"),
        ([{**LOST, "assigned": {}}], NOT_KNOWN, "does not answer"),
        ([ANSWERS], NOT_KNOWN, "no worker says that it fires t/1"),
        ([ANSWERS, {**OTHER, "tick_age_s": 2.1}], NOT_KNOWN, "t/1"),
        ([{**ANSWERS, "tick_age_s": 5.0}, {**OTHER, "tick_age_s": 5.0}], NOT_KNOWN, "no tick for 5.0 s"),
        ([ANSWERS, {**OTHER, "red": {"t/1": "its log has no leader"}}], DO_NOT_FIRE, "t/1"),
        ([ANSWERS, {**OTHER, "stopped": {"t/1": "lost"}}], DO_NOT_FIRE, "t/1"),
        ([ANSWERS, {**OTHER, "red": {"t/1": "a weak topic"}, "lossy": ["t/1"]}], FIRE, ""),
        ([ANSWERS, {**OTHER, "firing": [], "ready": False, "reasons": ["1 of 1 recovers"]}], DO_NOT_FIRE, "1 recovers"),
    ],
)
def test_all_timers_fire_only_if_each_partition_has_a_worker_that_says_so(
    workers: list[dict[str, Any]], timers: str, words: str
) -> None:
    found = judged(workers)
    assert found.timers == timers and words in found.why


class Workers:
    """Answers the board; the clock is moved by hand."""

    def __init__(self) -> None:
        self.now_s, self.fails, self.hangs = 1000.0, False, False

    async def ask(self) -> Any:
        if self.hangs:
            await asyncio.Event().wait()
        if self.fails:
            raise Problem("brokers-unreachable", "no broker answers")
        return {"workers": [ANSWERS, OTHER]}


async def test_what_the_workers_said_is_known_for_two_seconds() -> None:
    workers, board = Workers(), Board()

    async def look() -> Any:
        return await board.look(workers.ask, lambda: workers.now_s, 0.01)

    first = await look()
    assert first.is_known and first.fired_at_s == first.known_at_s == 1000.0
    workers.now_s, workers.fails = 1005.0, True
    failed = await look()
    assert not failed.is_known and failed.workers == first.workers, "the last figures are kept"
    assert (failed.at_s, failed.known_at_s) == (1000.0, 1000.0)
    workers.fails, workers.hangs = False, True
    assert not (await look()).is_known
    workers.now_s = 1008.0
    assert not (await look()).is_known
    board = Board()
    workers.hangs = False
    await look()
    workers.hangs, workers.now_s = True, 1009.5
    assert (await look()).is_known, "the answer is a second and a half old, and the next one is on its way"
    workers.now_s = 1020.0
    assert not (await look()).is_known and (await look()).known_at_s == 1008.0


async def test_figures_of_an_hour_ago_are_not_shown_as_those_of_now() -> None:
    """No page was open meanwhile, so no question was asked."""
    workers, board = Workers(), Board()
    assert (await board.look(workers.ask, lambda: workers.now_s, 0.01)).is_known  # type: ignore[union-attr]
    workers.now_s, workers.hangs = 4600.0, True
    assert await board.look(workers.ask, lambda: workers.now_s, 0.01) is None, "as at the first look"
