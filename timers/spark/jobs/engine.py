"""``timers spark engine``: starts, watches and stops the streaming query of the engine."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from enum import Enum, auto
from functools import reduce
from time import monotonic
from typing import Any

from confluent_kafka import TopicPartition as KafkaTopicPartition
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from timers.core.counters import added, dead_lettered_of
from timers.core.pauses import AFTER_UNFORESEEN, Reopening
from timers.core.ports import Lost
from timers.core.timer import TopicPartition
from timers.errors import CheckpointMismatch, Fenced, NameTakenError, SparkError, StoreError, StoreInUse
from timers.kafka.clients import librdkafka, reader
from timers.kafka.connection import TIMEOUT_S
from timers.process.config.settings import Settings
from timers.process.counted import per_second
from timers.spark.engine import query, start
from timers.spark.engine.bucket import Said
from timers.spark.engine.query import Plan
from timers.spark.engine.retries import Retries
from timers.spark.jvm import listening
from timers.spark.session import sentence_of
from timers.spark.totals import Total


class Reporter:
    """Prints a line at the end of each micro-batch, from Spark's progress and what the buckets did.

    Args:
        buckets: number of buckets. Only a micro-batch with a tick reports all of them.
        topics: that the requests are read from.
        say: prints a line.

    Attributes:
        ended: number of micro-batches that have ended.
        ended_at: when the last one has ended, by the monotonic clock.
    """

    def __init__(self, buckets: int, topics: Iterable[str], say: Callable[[str], None]) -> None:
        self.say = say
        self.ended, self.ended_at = 0, monotonic()
        self._buckets = buckets
        self._source = f"[{', '.join(topics)}]"
        self._pending: dict[int, int] = {}
        self._done: tuple[int, Sequence[Said]] = (-1, ())

    def note(self, number: int, done: Sequence[Said]) -> None:
        """Note what the buckets did in a micro-batch. It ends after that."""
        self._done = number, done
        self._pending.update({each.bucket: sum(some for some, _ in each.total.waiting.values()) for each in done})

    def end(self, progress: Mapping[str, Any]) -> None:
        """A micro-batch has ended, of which this is Spark's report, decoded from JSON."""
        self.ended, self.ended_at = self.ended + 1, monotonic()
        if (line := self.line(progress)) is not None:
            self.say(line)

    def line(self, progress: Mapping[str, Any]) -> str | None:
        """The line for one micro-batch; None if it read nothing.

        The lag is the time from the append of the newest tick to the end of the micro-batch, by the driver's clock.
        """
        number, done = self._done
        if number != progress["batchId"] or not done:
            return None
        took_ms = int(progress["durationMs"]["triggerExecution"])
        requests = sum(
            int(source["numInputRows"]) for source in progress["sources"] if self._source in source["description"]
        )
        numbers: Mapping[str, float] = reduce(added, (each.total.numbers for each in done))
        fired, retried = (int(numbers.get(name, 0)) for name in ("fired", "retried"))
        dead_lettered = sum(dead_lettered_of(numbers).values())
        held = next((f"; {each.held}" for each in done if each.held), "")
        ticks_ms = [each.tick_ms for each in done if each.tick_ms is not None]
        words = [
            f"micro-batch {number}: {requests:,} requests in ({per_second(requests * 1000 / max(1, took_ms))})",
            f"{fired:,} fired",
            f"{sum(self._pending.values()):,} pending" if len(self._pending) == self._buckets else "",
            f"{dead_lettered:,} dead-lettered" if dead_lettered else "",
            f"{retried:,} to be retried" if retried else "",
            "" if all(each.total.is_complete for each in done) else "more are due",
            f"took {took_ms / 1000:.1f} s",
            self._lag(progress["timestamp"], took_ms, min(ticks_ms, default=None)),
        ]
        return ", ".join(word for word in words if word) + held

    @staticmethod
    def _lag(began_at: str, took_ms: int, tick_ms: int | None) -> str:
        if tick_ms is None:
            return "no tick yet"
        end_ms = datetime.fromisoformat(began_at).timestamp() * 1000 + took_ms
        return f"lag {max(0.0, (end_ms - tick_ms) / 1000):.1f} s"


POLL_S = 0.2

QUIET_S = 30.0
"""After this time without the end of a micro-batch, the job prints a line: ticks come every second."""

_OURS = re.compile(r"^timers\.(?:errors|core\.ports)\.(\w+): (.*)$", re.MULTILINE)
"""The last line of a traceback of an error of this package."""

_DATA_LOSS = re.compile("KAFKA_DATA_LOSS|Some data may have been lost")
"""Words of Spark if offsets of the checkpoint are missing in a topic: the start with a new checkpoint says why."""

_UNREADABLE = re.compile(r"Received exception when fetching the next record from ([\w.-]+)-([0-9]+)\.")
"""Words of Kafka's consumer for Java if a record batch cannot be read. No other text says where it is."""

_CLAIMS_TOO_MUCH = re.compile(r"OutOfMemoryError\b.*(?:\n\s+at .*){0,9}\n\s+at org\.apache\.kafka\.common\.record\.")
"""An error of Java where its consumer parses a record that claims to be larger than the memory."""

_JAVA = re.compile(r"^: (?:[\w$]+\.)*([\w$]+: .*)$", re.MULTILINE)
"""The line in which py4j shows the reason of a failed call. Failures pass through the function of ``foreachBatch``."""

_NOT_LOADED = "CANNOT_LOAD_STATE_STORE"
"""Word of Spark if a file of the checkpoint is damaged or missing, or its storage does not answer."""

UNLOADED_S = 120.0
"""So long the state cannot be loaded before the log is read again instead: its storage may come back."""

_TOO_LARGE = re.compile(
    "OversizedAllocationException|OutOfMemory|MemoryError|ArrowCapacityError|ChunkedArray|"
    "Python worker exited unexpectedly"
)
"""Words of Java, Arrow, Python and Spark if a micro-batch is too large for the memory, or for one Arrow batch."""

LEAST_REQUESTS = 1000
"""A micro-batch may have so many requests at least, if they cannot have more than ``LEAST_BYTES``."""

LEAST_BYTES = 2**30

STOP_S = 60.0
"""How long a stop waits for the running micro-batch. The next start repeats an interrupted one."""


def run(
    spark: SparkSession,
    settings: Settings,
    make_plan: Callable[[bool], Plan],
    retries: Retries,
    say: Callable[[str], None],
    stop: threading.Event,
    ticked: Callable[[int], None],
    counted: Callable[[Total], None],
) -> None:
    """Run the engine until ``stop`` is set. If the query fails, start it again, unless this cannot help.

    Args:
        make_plan: called at the start, and if the plan does not fit any more; its argument is whether the checkpoint
            cannot be used.
        ticked: gets the newest tick, in epoch ms, of each micro-batch.
        counted: gets what each bucket has done in a micro-batch.

    Raises:
        TimersError: the engine must not run.
    """
    planning = _Planning(settings, make_plan, say)
    reporter = Reporter(planning.plan.buckets, query.request_topics(settings), say)
    reopening = Reopening()
    others = threading.Event()

    def look() -> None:
        """Look for workers. They would take the partitions from the engine in each micro-batch."""
        if others.is_set():
            others.clear()
            start.check_no_workers(settings)

    def done(number: int, said: Sequence[Said]) -> None:
        reporter.note(number, said)
        for tick_ms in {each.tick_ms for each in said if each.tick_ms is not None}:
            ticked(tick_ms)
        for each in said:
            counted(each.total)
        if any(each.had_others for each in said):
            others.set()

    with listening(spark, reporter.end):
        while not stop.is_set():
            ended = reporter.ended
            running = query.start(spark, settings, planning.plan, retries.driver, done)
            _watch(running, retries, reporter, stop, look)
            failure = running.exception()
            if retries.failure is not None:
                raise retries.failure
            if stop.is_set():
                return
            sentence, cause = _restartable(failure)
            start.check_no_workers(settings)
            pause_s = reopening.pause_s("query", AFTER_UNFORESEEN, monotonic())
            say(f"the query ended and starts again{f' in {pause_s:.0f} s' if pause_s else ''}: {sentence}")
            planning.after(cause, has_worked=reporter.ended > ended, sentence=sentence)
            stop.wait(pause_s)


def _watch(
    running: StreamingQuery, retries: Retries, reporter: Reporter, stop: threading.Event, look: Callable[[], None]
) -> None:
    """Wait for the end of a query, and end it when the engine stops."""
    said_at = monotonic()
    try:
        while running.isActive and retries.failure is None and not stop.wait(POLL_S):
            look()
            if monotonic() > max(reporter.ended_at, said_at) + QUIET_S:
                said_at = monotonic()
                reporter.say(_delay_line(running))
    finally:
        if running.isActive:
            _stop_between_micro_batches(running, reporter)


class _Cause(Enum):
    """What a failure of a query says about its plan."""

    OTHER = auto()
    """Nothing."""
    MISMATCH = auto()
    """Its checkpoint cannot be used any more."""
    NOT_LOADED = auto()
    """Its checkpoint could not be read."""
    TOO_LARGE = auto()
    """A micro-batch may be too large."""
    UNREADABLE = auto()
    """Spark cannot read a record batch: the machine of its partition reads it by itself."""


_OWN_CAUSES = {
    Lost.__name__: _Cause.OTHER,
    Fenced.__name__: _Cause.OTHER,
    StoreInUse.__name__: _Cause.OTHER,  # of an attempt that is fenced, and does not know it yet
    StoreError.__name__: _Cause.OTHER,  # such as a full disk: no timer is lost, and an operator may mend it
    CheckpointMismatch.__name__: _Cause.MISMATCH,
}
"""The errors of this package after which another start may help."""


class _Planning:
    """Makes the plans of an engine.

    Attributes:
        plan: for the next query.
    """

    def __init__(self, settings: Settings, make_plan: Callable[[bool], Plan], say: Callable[[str], None]) -> None:
        self._settings = settings
        self._make_plan = make_plan
        self._say = say
        self.plan = make_plan(False)
        self._least_requests = max(1, min(LEAST_REQUESTS, LEAST_BYTES // settings.max_request_bytes))
        self._max_requests = self.plan.max_requests
        self._too_large = 0
        """Number of queries in a row that ended so without the end of a micro-batch."""
        self._unloaded_since: float | None = None

    def after(self, cause: _Cause, *, has_worked: bool, sentence: str = "") -> None:
        """Plan the next query.

        Args:
            cause: of the end of the last one.
            sentence: says it; names the partition that cannot be read.
            has_worked: whether micro-batches of the last query have ended.

        Raises:
            TimersError: the engine must not start again.
        """
        now_s = monotonic()
        since = None if has_worked else self._unloaded_since
        self._unloaded_since = (since or now_s) if cause is _Cause.NOT_LOADED else None
        is_lost = self._unloaded_since is not None and now_s - self._unloaded_since >= UNLOADED_S
        found = _UNREADABLE.search(sentence)
        # Which record claims too much is not known then, or whether the memory is too small for all of them.
        is_large = cause is _Cause.TOO_LARGE or (cause is _Cause.UNREADABLE and found is None)
        self._too_large = self._too_large + 1 if is_large and not has_worked else 0
        is_smaller = self._too_large > 1 and self._max_requests > self._least_requests
        if is_smaller:
            self._max_requests = max(self._least_requests, self._max_requests // 4)
            self._say(f"from now on, a micro-batch has at most {self._max_requests} requests: it needs less memory")
        if cause in (_Cause.MISMATCH, _Cause.UNREADABLE) or is_lost:
            self._unloaded_since = None
            self._plan_again(anew=True)
            if cause is _Cause.UNREADABLE:
                self._read_behind(self.plan.starts if found is None else [(found[1], int(found[2]))])
        elif is_smaller:
            self._plan_again(anew=False)

    def _read_behind(self, tps: Iterable[TopicPartition]) -> None:
        """Let Spark read partitions from their present ends on. Their machines read what is before: as a worker does,
        they say what cannot be read, or pass over it."""
        starts = dict(self.plan.starts)
        with closing(reader(librdkafka(self._settings))) as consumer:
            for tp in tps:
                ends = consumer.get_watermark_offsets(KafkaTopicPartition(*tp), timeout=TIMEOUT_S)
                if ends is not None:
                    starts[tp] = ends[1]
        self.plan = replace(self.plan, starts=starts)

    def _plan_again(self, *, anew: bool) -> None:
        self.plan = replace(self._make_plan(anew), max_requests=self._max_requests)


def _restartable(failure: StreamingQueryException | None) -> tuple[str, _Cause]:
    """Why a query ended, in a sentence, and its cause, if another start may help.

    Raises:
        TimersError: it cannot.
    """
    if failure is None:
        return "without a reason", _Cause.OTHER
    text = str(failure)
    ours = _OURS.search(text)
    if ours is not None:
        if ours[1] == NameTakenError.__name__:
            raise NameTakenError(ours[2])
        if ours[1] not in _OWN_CAUSES:
            raise SparkError(ours[2])
        return ours[2], _OWN_CAUSES[ours[1]]
    reason = _JAVA.search(text)
    sentence = sentence_of(failure) if reason is None else reason[1]
    if found := _UNREADABLE.search(text):
        return found[0], _Cause.UNREADABLE
    if _CLAIMS_TOO_MUCH.search(text):
        return "a record claims more memory than Java has: the machines read the logs themselves", _Cause.UNREADABLE
    if _DATA_LOSS.search(text):
        return sentence, _Cause.MISMATCH
    if _NOT_LOADED in text:
        return sentence, _Cause.NOT_LOADED
    return sentence, _Cause.TOO_LARGE if _TOO_LARGE.search(text) else _Cause.OTHER


def _delay_line(running: StreamingQuery) -> str:
    if running.status["isTriggerActive"]:
        return f"a micro-batch has not ended for {QUIET_S:.0f} s"
    return (
        f"no records were read for {QUIET_S:.0f} s, so no timer fires: do the brokers answer, are ticks written, and "
        "has the cluster free executors?"
    )


def _stop_between_micro_batches(running: StreamingQuery, reporter: Reporter) -> None:
    """Stop the query between two micro-batches.

    A query that is behind has no pause between them. Spark reports the end of a micro-batch while it plans the next
    one, long before that one sends messages."""
    give_up, ended = monotonic() + STOP_S, reporter.ended
    while running.status["isTriggerActive"] and reporter.ended == ended:
        if monotonic() > give_up:
            reporter.say(
                f"the micro-batch did not end within {STOP_S:.0f} s and is interrupted: the next start repeats it"
            )
            break
        threading.Event().wait(0.002)
    running.stop()
