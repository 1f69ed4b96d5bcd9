"""``timers spark engine``: starts, watches and stops the streaming query of the engine."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from time import monotonic
from typing import NamedTuple

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryProgressEvent
from pyspark.sql.streaming.query import StreamingQuery

from timers.config.settings import Settings
from timers.core.reopening import AFTER_UNFORESEEN, Reopening
from timers.errors import CheckpointMismatch, Fenced, SparkError
from timers.spark.engine import checkpoints, query, start
from timers.spark.engine.query import Plan
from timers.spark.engine.report import Reporter
from timers.spark.engine.retries import Retries
from timers.spark.monitoring import Listener
from timers.spark.session import sentence_of

POLL_S = 0.2

QUIET_S = 30.0
"""After this time without the end of a micro-batch, the job prints a line: ticks come every second."""

_OURS = re.compile(r"^timers\.errors\.(\w+): (.*)$", re.MULTILINE)
"""The last line of a traceback of an error of this package."""

_DATA_LOSS = re.compile("KAFKA_DATA_LOSS|failOnDataLoss")
"""Words of Spark if offsets of the checkpoint are missing in a topic: the start with a new checkpoint says why."""

_JAVA = re.compile(r"^: (?:[\w$]+\.)*([\w$]+: .*)$", re.MULTILINE)
"""The line in which py4j shows the reason of a failed call. Failures pass through the function of ``foreachBatch``."""

_NOT_LOADED = "CANNOT_LOAD_STATE_STORE"
"""Word of Spark if a file of the checkpoint is damaged or missing, or its storage does not answer."""

LOADS = 5
"""So often in a row the state cannot be loaded before its checkpoint is deleted: its storage may come back."""

STOP_S = 60.0
"""How long a stop waits for the running micro-batch. The next start repeats an interrupted one."""


def run(
    spark: SparkSession,
    settings: Settings,
    make_plan: Callable[[], Plan],
    retries: Retries,
    say: Callable[[str], None],
    stop: threading.Event,
) -> None:
    """Run the engine until ``stop`` is set. If the query fails, start it again, unless this cannot help.

    Args:
        make_plan: called at the start, and after a checkpoint was deleted.

    Raises:
        TimersError: the engine must not run.
    """
    plan = make_plan()
    reporter = Reporter(plan.buckets, settings.request_topic)
    lines = _LineListener(reporter, say)
    reopening, loads = Reopening(), 0
    spark.streams.addListener(lines)
    try:
        while not stop.is_set():
            running = query.start(spark, settings, plan, retries.targets, reporter.note)
            _watch(running, retries, lines, say, stop)
            failure = running.exception()
            if retries.failure is not None:
                raise retries.failure
            if stop.is_set():
                return
            why = _restartable(failure)
            start.check_no_workers(settings)
            pause_s = reopening.pause_s("query", AFTER_UNFORESEEN, monotonic())
            say(f"the query ended and starts again{f' in {pause_s:.0f} s' if pause_s else ''}: {why.sentence}")
            loads = loads + 1 if why.is_not_loaded else 0
            if why.needs_log or loads == LOADS:
                loads = 0
                checkpoints.delete(spark, plan.checkpoint)
                plan = make_plan()
            stop.wait(pause_s)
    finally:
        spark.streams.removeListener(lines)


def _watch(
    running: StreamingQuery, retries: Retries, lines: _LineListener, say: Callable[[str], None], stop: threading.Event
) -> None:
    """Wait for the end of a query, and end it when the engine stops."""
    while running.isActive and retries.failure is None and not stop.wait(POLL_S):
        if lines.quiet_s() > QUIET_S:
            lines.begin()
            say(_delay_line(running))
    if running.isActive:
        _stop_between_micro_batches(running, lines)


class _Failure(NamedTuple):
    """Why a query ended that starts again."""

    sentence: str
    needs_log: bool = False
    """Whether its checkpoint cannot be used any more."""
    is_not_loaded: bool = False
    """Whether its checkpoint could not be read."""


def _restartable(failure: StreamingQueryException | None) -> _Failure:
    """Why a query ended, if another start may help.

    Raises:
        TimersError: it cannot.
    """
    if failure is None:
        return _Failure("without a reason")
    ours = _OURS.search(str(failure))
    if ours is not None and ours[1] not in (Fenced.__name__, CheckpointMismatch.__name__):
        raise SparkError(ours[2])
    if ours is not None:
        return _Failure(ours[2], ours[1] == CheckpointMismatch.__name__)
    text = str(failure)
    reason = _JAVA.search(text)
    sentence = sentence_of(failure) if reason is None else reason[1]
    return _Failure(sentence, _DATA_LOSS.search(text) is not None, _NOT_LOADED in text)


class _LineListener(Listener):
    """Prints a line at the end of each micro-batch."""

    def __init__(self, reporter: Reporter, say: Callable[[str], None]) -> None:
        super().__init__()
        self._reporter = reporter
        self._say = say
        self.ended = 0
        """Number of micro-batches that have ended."""
        self.begin()

    def begin(self) -> None:
        """Restart the measurement of :meth:`quiet_s`."""
        self._since = monotonic()

    def quiet_s(self) -> float:
        """Seconds since the last line."""
        return monotonic() - self._since

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self.ended += 1
        self.begin()
        line = self._reporter.line(json.loads(event.progress.json))
        if line is not None:
            self._say(line)


def _delay_line(running: StreamingQuery) -> str:
    if running.status["isTriggerActive"]:
        return f"a micro-batch has not ended for {QUIET_S:.0f} s"
    return f"no records were read for {QUIET_S:.0f} s, so no timer fires: do the brokers answer, and are ticks written?"


def _stop_between_micro_batches(running: StreamingQuery, lines: _LineListener) -> None:
    """Stop the query between two micro-batches.

    A query that is behind has no pause between them. Spark reports the end of a micro-batch while it plans the next
    one, long before that one sends messages."""
    give_up, ended = monotonic() + STOP_S, lines.ended
    while running.status["isTriggerActive"] and lines.ended == ended and monotonic() < give_up:
        threading.Event().wait(0.002)
    running.stop()
