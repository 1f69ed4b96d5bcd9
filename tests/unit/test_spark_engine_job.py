"""The engine on Spark stops between two micro-batches, and starts a query again that failed, if this may help."""

from __future__ import annotations

import threading
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra 'spark'")

from pyspark.errors import StreamingQueryException

from timers.core.circuit_breaker import OpenCircuit
from timers.errors import SparkError
from timers.spark.engine.processor import Told
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


FAILED = "[STREAM_FAILED] Query [id = 7] terminated with exception: Job aborted"
TRACEBACK = "pyspark.errors.PythonException: Traceback (most recent call last):\n  File x\n    raise"


@pytest.mark.parametrize(
    ("message", "sentence", "needs_log"),
    [
        (
            f"{FAILED}: {TRACEBACK}\ntimers.errors.Fenced: app-t-0 was taken over\n\n\tat a.b",
            "app-t-0 was taken over",
            False,
        ),
        (f"{FAILED}: {TRACEBACK}\ntimers.errors.CheckpointMismatch: it is old\n\tat a.b", "it is old", True),
        (f"{FAILED}: [KAFKA_DATA_LOSS.X] Some data", f"{FAILED}: [KAFKA_DATA_LOSS.X] Some data", True),
        (f"{FAILED}: the executor was lost", f"{FAILED}: the executor was lost", False),
    ],
)
def test_most_failures_are_no_reason_to_end(message: str, sentence: str, needs_log: bool) -> None:
    assert engine._restartable(StreamingQueryException(message)) == (sentence, needs_log)


def test_an_engine_that_must_not_run_ends() -> None:
    message = f"{FAILED}: {TRACEBACK}\ntimers.errors.LogMismatch: the log is shorter\n\tat a.b"
    with pytest.raises(SparkError, match=r"^the log is shorter$"):
        engine._restartable(StreamingQueryException(message))
    assert engine._restartable(None).sentence == "without a reason"


def test_the_tasks_get_what_the_driver_tells_them() -> None:
    told = Told({0: 7, 12: 9}, [OpenCircuit("t", "target-failing", "why", 2, 3.5, -1.0, 4.0)])
    assert Told.decode(told.encode()) == told
