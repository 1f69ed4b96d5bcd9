"""The engine on Spark stops between two micro-batches, and starts a query again that failed, if this may help."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra 'spark'")

from pyspark.errors import StreamingQueryException

from timers.config.settings import Settings
from timers.core.circuit_breaker import OpenCircuit
from timers.core.reopening import ReopenBackoff
from timers.errors import SparkError
from timers.spark.engine import checkpoints, query
from timers.spark.engine import start as beginning
from timers.spark.engine.processor import Told
from timers.spark.engine.query import Plan
from timers.spark.jobs import engine

CLUSTER: Any = SimpleNamespace(partitions={}, topic_ids={})


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
        (
            f"{FAILED}: {TRACEBACK}\npy4j.protocol.Py4JJavaError: An error occurred while calling o3.collectToPython.\n"
            ": org.apache.spark.SparkException: Job aborted: the executor was lost\n\tat a.b: c",
            "SparkException: Job aborted: the executor was lost",
            False,
        ),
    ],
)
def test_most_failures_are_no_reason_to_end(message: str, sentence: str, needs_log: bool) -> None:
    assert engine._restartable(StreamingQueryException(message)) == (sentence, needs_log, False)


def test_an_engine_that_must_not_run_ends() -> None:
    message = f"{FAILED}: {TRACEBACK}\ntimers.errors.LogMismatch: the log is shorter\n\tat a.b"
    with pytest.raises(SparkError, match=r"^the log is shorter$"):
        engine._restartable(StreamingQueryException(message))
    assert engine._restartable(None).sentence == "without a reason"


class Ended:
    """A query that has failed."""

    isActive = False

    def __init__(self, message: str) -> None:
        self._message = message

    def exception(self) -> StreamingQueryException:
        return StreamingQueryException(self._message)


def test_a_checkpoint_is_deleted_if_it_cannot_be_loaded_five_times_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    damaged, lost = f"{FAILED}: [CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] x", f"{FAILED}: the executor was lost"
    messages = [*[damaged] * 4, lost, *[damaged] * 5, lost]
    started: list[Plan] = []
    deleted: list[tuple[str, int]] = []

    def start(spark: Any, settings: Settings, plan: Plan, *_: object) -> Ended:
        started.append(plan)
        if len(started) == len(messages):
            stop.set()
        return Ended(messages[len(started) - 1])

    monkeypatch.setattr(query, "start", start)
    monkeypatch.setattr(beginning, "check_no_workers", lambda _: None)
    monkeypatch.setattr(checkpoints, "delete", lambda _, path: deleted.append((path, len(started))))
    monkeypatch.setattr(engine, "AFTER_UNFORESEEN", ReopenBackoff(0.0, 0.0, 0.0))
    plans = (Plan(path, 2, 1000, CLUSTER) for path in ("first", "second"))
    lines: list[str] = []
    spark: Any = SimpleNamespace(streams=SimpleNamespace(addListener=id, removeListener=id))
    retries: Any = SimpleNamespace(failure=None, targets=None)
    engine.run(spark, Settings(), lambda: next(plans), retries, lines.append, stop)
    assert deleted == [("first", 10)]
    assert [plan.checkpoint for plan in started] == [*["first"] * 10, "second"]
    assert len(lines) == 10 and all(line.startswith("the query ended and starts again: ") for line in lines)


def test_the_tasks_get_what_the_driver_tells_them() -> None:
    told = Told({0: 7, 12: 9}, [OpenCircuit("t", "target-failing", "why", 2, 3.5, -1.0, 4.0)])
    assert Told.decode(told.encode()) == told
