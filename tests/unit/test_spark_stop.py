"""The engine on Spark stops between two micro-batches, also if they follow each other without a pause."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from timers.spark.jobs import engine


class Query:
    """A query that is always in a micro-batch. At each call of ``status`` ``batches`` more of them have ended."""

    def __init__(self, lines: Any, batches: int) -> None:
        self._lines = lines
        self._batches = batches
        self.looks = 0
        self.stopped = threading.Event()

    @property
    def status(self) -> dict[str, bool]:
        self.looks += 1
        self._lines.ended += self._batches
        return {"isTriggerActive": True}

    def stop(self) -> None:
        self.stopped.set()


def test_stop_waits_for_the_end_of_a_micro_batch() -> None:
    lines: Any = engine._LineListener(None, print)  # type: ignore[arg-type]
    query: Any = Query(lines, batches=1)
    engine._stop_between_micro_batches(query, lines)
    assert query.stopped.is_set() and query.looks == 1


def test_stop_interrupts_a_micro_batch_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "STOP_S", 0.01)
    lines: Any = engine._LineListener(None, print)  # type: ignore[arg-type]
    query: Any = Query(lines, batches=0)
    engine._stop_between_micro_batches(query, lines)
    assert query.stopped.is_set() and query.looks > 1
