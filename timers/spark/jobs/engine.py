"""``timers spark engine``: the timer service as a streaming query, from its start to its stop."""

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
from timers.errors import SettingsError, SparkError
from timers.spark.engine import query
from timers.spark.engine.query import Plan
from timers.spark.engine.report import Reporter

POLL_S = 0.2

QUIET_S = 30.0
"""So long without the end of a micro-batch is worth a line: ticks come every second."""

STOP_S = 60.0
"""How long a stop waits for the micro-batch that runs. One that is cut off is done again: its timers fire twice."""


def buckets_for(spark: SparkSession, checkpoint: str, asked: int | None, default: int) -> int:
    """How many buckets to run with.

    Args:
        spark: the session.
        checkpoint: where the state is, or will be.
        asked: how many are asked for; None: those of the checkpoint, or ``default``.
        default: for a new checkpoint.

    Raises:
        SettingsError: the checkpoint has another number of buckets.
    """
    begun = query.buckets_of(spark, checkpoint)
    if begun is not None and asked not in (None, begun):
        raise SettingsError(
            f"--buckets {asked}: the checkpoint {checkpoint} was begun with {begun}, and keeps them (leave the "
            "option away, or begin another checkpoint)"
        )
    return begun or asked or default


def run(spark: SparkSession, settings: Settings, plan: Plan, say: Callable[[str], None], stop: threading.Event) -> None:
    """Run the engine until ``stop`` is set or the query fails.

    Raises:
        PySparkException: the query failed.
    """
    spark.conf.set("spark.sql.shuffle.partitions", str(plan.buckets))
    lines = _Lines(Reporter(plan.buckets, settings.request_topic), say)
    spark.streams.addListener(lines)
    try:
        running = query.start(spark, settings, plan)
        while running.isActive and not stop.wait(POLL_S):
            if lines.quiet_s() > QUIET_S:
                lines.begin()
                say(_why_quiet(running))
        if running.isActive:
            _stop_between(running, lines)
    finally:
        spark.streams.removeListener(lines)
    failure = running.exception()
    if failure is not None and not stop.is_set():
        raise failure
    if not stop.is_set():
        raise SparkError("the query ended and does not say why")


class _AsText(JStreamingQueryListener):
    """Takes Spark's news as the text that it is; PySpark makes objects of it, in a hundred calls into the JVM."""

    def onQueryProgress(self, jevent: Any) -> None:
        """A micro-batch has ended."""
        news = {"progress": json.loads(jevent.progress().json())}
        self.pylistener.onQueryProgress(QueryProgressEvent.fromJson(news))


class _Lines(StreamingQueryListener):
    """Says a line at the end of each micro-batch.

    Told by Spark, not asked for: what ``recentProgress`` gives costs hundreds of calls into the JVM, each time.
    """

    def __init__(self, reporter: Reporter, say: Callable[[str], None]) -> None:
        super().__init__()
        self._reporter = reporter
        self._say = say
        self._as_java: Any = None
        self.ended = 0
        """Micro-batches."""
        self.begin()

    @property
    def _jlistener(self) -> Any:  # asked for when calls from Java are possible
        if self._as_java is None:
            jvm: Any = SparkContext._jvm
            self._as_java = jvm.PythonStreamingQueryListenerWrapper(_AsText(self))
        return self._as_java

    def begin(self) -> None:
        """Something was said."""
        self._since = monotonic()

    def quiet_s(self) -> float:
        """How long nothing was said."""
        return monotonic() - self._since

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing to say."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """A micro-batch has ended."""
        self.ended += 1
        self.begin()
        line = self._reporter.line(json.loads(event.progress.json))
        if line is not None:
            self._say(line)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing was read."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Whoever waits for that is told otherwise."""


def _why_quiet(running: StreamingQuery) -> str:
    if running.status["isTriggerActive"]:
        return f"a micro-batch has not ended for {QUIET_S:.0f} s"
    return f"nothing was read for {QUIET_S:.0f} s, so nothing fires: do the brokers answer, does anybody tick?"


def _stop_between(running: StreamingQuery, lines: _Lines) -> None:
    """Stop after a micro-batch, not within one.

    A query that is behind has no pause to be seen between two. What we hear of the end of one comes when the next is
    planned, long before that sends anything.
    """
    give_up, ended = monotonic() + STOP_S, lines.ended
    while running.status["isTriggerActive"] and lines.ended == ended and monotonic() < give_up:
        threading.Event().wait(0.002)
    running.stop()
