"""``timers spark engine``: starts, watches and stops the streaming query of the engine."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from timers.config.settings import Settings
from timers.errors import SparkError
from timers.spark.engine import query
from timers.spark.engine.query import Plan
from timers.spark.engine.report import Reporter
from timers.spark.engine.retries import Retries

POLL_S = 0.2

QUIET_S = 30.0
"""After this time without the end of a micro-batch, the job prints a line: ticks come every second."""

STOP_S = 60.0
"""How long a stop waits for the running micro-batch. The next start repeats an interrupted one."""


def run(
    spark: SparkSession,
    settings: Settings,
    plan: Plan,
    retries: Retries,
    say: Callable[[str], None],
    stop: threading.Event,
) -> None:
    """Run the engine until ``stop`` is set, the query fails, or a machine of the retry topic must not run."""
    reporter = Reporter(plan.buckets, settings.request_topic)
    lines = _LineListener(reporter, say)
    spark.streams.addListener(lines)
    try:
        running = query.start(spark, settings, plan, reporter.note)
        while running.isActive and retries.failure is None and not stop.wait(POLL_S):
            if lines.quiet_s() > QUIET_S:
                lines.begin()
                say(_delay_line(running))
        if running.isActive:
            _stop_between_micro_batches(running, lines)
    finally:
        spark.streams.removeListener(lines)
    if retries.failure is not None:
        raise retries.failure
    failure = running.exception()
    if failure is not None and not stop.is_set():
        raise failure
    if not stop.is_set():
        raise SparkError("the query ended without a reason")


class _JsonListener(JStreamingQueryListener):
    """Passes progress reports on as JSON. PySpark's own wrapper needs a hundred calls into the JVM for each report."""

    def onQueryProgress(self, jevent: Any) -> None:
        report = {"progress": json.loads(jevent.progress().json())}
        self.pylistener.onQueryProgress(QueryProgressEvent.fromJson(report))


class _LineListener(StreamingQueryListener):
    """Prints a line at the end of each micro-batch.

    It is a listener, because each use of ``recentProgress`` costs hundreds of calls into the JVM.
    """

    def __init__(self, reporter: Reporter, say: Callable[[str], None]) -> None:
        super().__init__()
        self._reporter = reporter
        self._say = say
        self._as_java: Any = None
        self.ended = 0
        """Number of micro-batches that have ended."""
        self.begin()

    @property
    def _jlistener(self) -> Any:  # Spark reads it once Java can call Python
        if self._as_java is None:
            jvm: Any = SparkContext._jvm
            self._as_java = jvm.PythonStreamingQueryListenerWrapper(_JsonListener(self))
        return self._as_java

    def begin(self) -> None:
        """Restart the measurement of :meth:`quiet_s`."""
        self._since = monotonic()

    def quiet_s(self) -> float:
        """Seconds since the last line."""
        return monotonic() - self._since

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self.ended += 1
        self.begin()
        line = self._reporter.line(json.loads(event.progress.json))
        if line is not None:
            self._say(line)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: no records were read."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Do nothing: :func:`run` sees the end of the query."""


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
