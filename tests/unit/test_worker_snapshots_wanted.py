"""A worker that is asked for snapshots wants them of its machines, and says of which it takes none, and why."""

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from timers.core.progress import Progress
from timers.core.steps import State
from timers.core.timer import TopicPartition
from timers.kafka.request_formats import NATIVE
from timers.machines.queries.answers import LocalSource, Queries
from timers.machines.queries.reading import Place, Turns

TP = ("timer-request", 3)


class SimQueries(Queries):
    """Answers for one machine."""

    def __init__(self, next_offset: int, state: State, factor: float) -> None:
        self.wanted = set[TopicPartition]()
        self._want = self.wanted.add if factor else None
        self._machine: Any = SimpleNamespace(progress=Progress(next_offset), state=state)

    def ask(self, question: Callable[[Any], Any]) -> Future[Any]:
        answer: Future[Any] = Future()
        try:
            answer.set_result(question(self._machine))
        except Exception as error:
            answer.set_exception(error)
        return answer

    def _partitions(self) -> set[Any]:
        return {TP}

    async def _sources(self, wanted: set[Any], forwarded: bool) -> Any:
        given: Any = {"request_reader": None, "turns": Turns(lambda: None)}
        return [LocalSource(self, Place(*TP, moved=False), NATIVE, **given)], {}


@pytest.mark.parametrize(
    ("next_offset", "state", "factor", "why"),
    [
        (5, State.ACCEPTING, 2, ""),
        (0, State.ACCEPTING, 2, ""),
        (5, State.RECOVERING, 2, "its log is being read again"),
        (5, State.CLOCK_BEHIND, 2, "its broker's clock is behind"),
        (5, State.ACCEPTING, 0, "TIMERS_SNAPSHOT_FACTOR=0"),
    ],
    ids=["wanted", "empty", "recovering", "clock", "off"],
)
async def test_it_wants_a_snapshot_or_says_why_none(next_offset: int, state: State, factor: float, why: str) -> None:
    queries = SimQueries(next_offset, state, factor)
    answer = await queries.take(forwarded=True)
    assert list(answer.timers) == []
    assert why in answer.missing.get(TP, "")
    assert (TP in answer.missing) is bool(why)
    assert queries.wanted == ({TP} if next_offset and not why else set())
