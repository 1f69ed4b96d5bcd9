"""Whether all timers fire, as the console judges it: they do, some do not, or it is not known."""

import asyncio
from typing import Any

import pytest

from tests.harness.console_pages import ANSWERS, LOST
from timers.console.figures import DO_NOT_FIRE, FIRE, NOT_KNOWN, judged
from timers.console.problems import Problem
from timers.console.web.board import FIGURES_CURRENT_S, KEPT_S, Board, findings, lag_s

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
        (
            [ANSWERS, {**OTHER, "red": {"t/1": "the zone of 3 timers"}, "zoneless": ["t/1"]}],
            DO_NOT_FIRE,
            "t/1: the zone of 3 timers",
        ),
        (
            [ANSWERS, {**OTHER, "red": {"t/1": "the zone of 3 timers", "t/2": "no leader"}, "zoneless": ["t/1"]}],
            DO_NOT_FIRE,
            "the timers of t/2 wait",
        ),
        ([ANSWERS, {**OTHER, "firing": [], "ready": False, "reasons": ["1 of 1 recovers"]}], DO_NOT_FIRE, "1 recovers"),
    ],
)
def test_all_fire_only_if_each_partition_has_a_worker(workers: list[dict[str, Any]], timers: str, words: str) -> None:
    found = judged(workers)
    assert found.timers == timers and words in found.why


class Workers:
    """Answers the board; the clock is moved by hand."""

    def __init__(self) -> None:
        self.now_s, self.fails, self.hangs = 1000.0, False, False
        self.answers: list[dict[str, Any]] = [ANSWERS, OTHER]
        self.taken = ""
        self.past: list[dict[str, Any]] = []
        self.since: list[int] = []

    async def ask(self, name: str, **parameters: Any) -> Any:
        if name == "figures":
            self.since.append(parameters["since"])
            return {"workers": self.past, "missing": []}
        if self.hangs:
            await asyncio.Event().wait()
        if self.fails:
            raise Problem("brokers-unreachable", "no broker answers")
        return {"workers": self.answers, "taken": self.taken}


async def test_what_the_workers_said_is_known_for_two_seconds() -> None:
    workers, board = Workers(), Board()

    async def look() -> Any:
        return await board.look(workers.ask, lambda: workers.now_s, 0.01)

    first = await look()
    assert first.is_known and first.last_known_s == first.known_at_s == 1000.0
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


async def test_a_program_that_keeps_the_workers_out_is_named_and_no_worker_is_said_to_be_missing() -> None:
    workers, board = Workers(), Board()
    workers.answers, workers.taken = [], "another program is in the group 'timers': client 'report' at 10.1.2.3"
    figures = await board.look(workers.ask, lambda: workers.now_s, 0.01)
    assert figures is not None and not figures.is_known and figures.state == (NOT_KNOWN, workers.taken)
    (finding,) = findings(figures)
    assert "client 'report'" in finding.why and "Start one" not in finding.way_out


async def test_figures_of_an_hour_ago_are_not_shown_as_those_of_now() -> None:
    """No page was open meanwhile, so no question was asked."""
    workers, board = Workers(), Board()
    assert (await board.look(workers.ask, lambda: workers.now_s, 0.01)).is_known  # type: ignore[union-attr]
    workers.now_s, workers.hangs = 4600.0, True
    assert await board.look(workers.ask, lambda: workers.now_s, 0.01) is None, "as at the first look"


async def test_a_first_paint_does_not_wait_for_newer_figures() -> None:
    workers, board = Workers(), Board()

    async def look(good_s: float) -> Any:
        return await board.look(workers.ask, lambda: workers.now_s, 1.0, good_s)

    await look(FIGURES_CURRENT_S)
    workers.now_s, workers.answers = 1002.0, [ANSWERS]
    assert (await look(FIGURES_CURRENT_S)).at_s == 1000.0, "they are read meanwhile"
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
    assert (await look(FIGURES_CURRENT_S)).at_s == 1002.0
    workers.now_s = 1006.0
    assert (await look(FIGURES_CURRENT_S)).at_s == 1006.0, "older ones are not those of now"
    workers.now_s, workers.fails = 1010.0, True
    assert not (await look(FIGURES_CURRENT_S)).is_known
    workers.now_s, workers.fails = 1011.5, False
    assert (await look(FIGURES_CURRENT_S)).problem is None, "a problem is not shown again"


async def test_a_worker_that_does_not_answer_keeps_what_it_said_last() -> None:
    workers, board = Workers(), Board()

    async def look() -> Any:
        workers.now_s += 2
        found = await board.look(workers.ask, lambda: workers.now_s, 1.0)
        assert found is not None
        return found

    seen = {**OTHER, "pending": 5, "dead_lettered": 2}
    workers.answers = [{**ANSWERS, "pending": 3, "dead_lettered": 0}, seen]
    assert (await look()).pending == 8
    workers.answers = [{**ANSWERS, "pending": 4, "dead_lettered": 0}, {**LOST, "why": "it has not answered for 1.5 s"}]
    silent = await look()
    assert (silent.pending, silent.dead_lettered, silent.is_known) == (9, 2, False)
    assert (silent.workers[1]["seen_at_s"], silent.workers[1]["ready"]) == (1002.0, None)
    assert [(each.level, each.where) for each in findings(silent)] == [("unknown", "w2")], "and no broker is blamed"
    workers.answers = [ANSWERS]
    gone = await look()
    assert [(each["id"], each["pending"]) for each in gone.lost] == [("w2", 5)]
    workers.now_s += KEPT_S
    assert (await look()).lost == []


def past(id: str, *at: int, fired: int = 50) -> dict[str, Any]:
    """What the route of past figures says of a worker: steps of 5 s."""
    counts = {"fired": fired, "lag/waited/0": fired // 2, "lag/waited/1": fired // 2, "dead-lettered/topic-unknown": 1}
    points = [{"at": each, "s": 5, "counts": counts, "pending": 1, "overdue_s": 0, "memory_bytes": 0} for each in at]
    return {"id": id, "bounds_s": [0.01, 0.02], "points": points}


async def test_the_figures_of_the_last_half_hour_are_those_that_the_workers_kept() -> None:
    workers, board = Workers(), Board()

    async def look() -> None:
        workers.now_s += 10
        await board.look(workers.ask, lambda: workers.now_s, 1.0)
        while board._past is not None and not board._past.done():
            await asyncio.sleep(0)

    workers.now_s = 10_000.0
    workers.past = [past("w1", *range(8_300, 10_001, 5)), past("w2", *range(8_302, 10_003, 5), fired=100)]
    await look()
    assert workers.since == [8_210], "all of it, at the first look"
    line = board.line()
    assert [each.per_s for each in line[1:-1]] == [30.0] * (len(line) - 2) and len(line) > 110
    recent = board.recent()
    assert recent is not None and (recent.seconds, recent.per_s) == (60, 30.0)
    assert lag_s(recent.ways, 0.5) == 0.01
    assert board.new_letters() == 2 * 341
    await look()
    assert workers.since[-1] == 10_000, "then what is new"
    workers.past = [past("w1", 10_005), past("w3", 10_010)]
    await look()
    await look()
    assert workers.since[-1] == int(workers.now_s) - 1800, "what the new worker counted before is asked for"
    assert max(each.at_s for each in board.line()) >= 10_010 and len(board.line()) > 110, "the lost one's stay"


async def test_after_a_restart_of_a_worker_no_time_counts_twice() -> None:
    workers, board = Workers(), Board()
    workers.now_s = 10_000.0
    workers.past = [past("w1", *range(9_905, 9_966, 5))]

    async def look() -> None:
        workers.now_s += 10
        await board.look(workers.ask, lambda: workers.now_s, 1.0)
        while board._past is not None and not board._past.done():
            await asyncio.sleep(0)

    await look()
    before = sum(step.fired for _, step in board._all())
    minute = past("w1", 9_965, 99_999, fired=600)  # the last point is of a clock that was ahead
    minute["points"][0]["s"] = 60
    workers.past = [minute]
    await look()
    assert sum(step.fired for _, step in board._all()) == before == 13 * 50
