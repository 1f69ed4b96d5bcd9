"""The engine as one streaming query: it reads topics and runs the buckets, which send messages themselves.

Its driver compares the logs that it reads [I28]. Tasks read through Spark, which shows no record batches. So before
each micro-batch the driver asks the leaders where it ends, and the tasks commit the answer with the progress.
:func:`run` starts, watches and stops the query.
"""

from __future__ import annotations

import pickle
import re
import threading
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum, auto
from functools import partial, reduce
from time import monotonic, sleep
from typing import Any

from confluent_kafka import TopicPartition as KafkaTopicPartition
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from timers.core.backoff import AFTER_UNFORESEEN, Reopening
from timers.core.counters import added, dead_lettered_of
from timers.core.lineage import Lineage, Parted
from timers.core.ports import DeliveryFailed, Lost, TooMuch, Unanswered
from timers.core.progress import Cuts, Progress
from timers.core.timer import TopicPartition
from timers.errors import CheckpointMismatch, Fenced, NameTakenError, SparkError, StoreError, StoreInUse, TimersError
from timers.kafka import group_access
from timers.kafka.clients import librdkafka, reader
from timers.kafka.connection import CALL_TIMEOUT_S
from timers.kafka.log_lineage import LINEAGE_WAIT_S, LogLineages
from timers.kafka.request_formats import enabled_formats
from timers.kafka.topic_offsets import Offsets
from timers.kafka.topics import Cluster
from timers.process.config.settings import Settings
from timers.process.counted import per_second
from timers.spark import jvm, kafka
from timers.spark.engine import bucket
from timers.spark.engine.bucket import TOLD_PROPERTY, Said, TimerProcessor, Told
from timers.spark.engine.machines import Openings, Places, Read
from timers.spark.engine.questions import Questions
from timers.spark.jvm import listening
from timers.spark.session import sentence_of
from timers.spark.totals import Total
from timers.wire.formats import LOG_APPEND_TIME
from timers.wire.topics import partition_name

CHECK_S = 10.0
"""Seconds after which a micro-batch waits also for the leaders of partitions from which it reads nothing new."""

ANSWER_S = 20.0
"""How long a micro-batch waits for the answers of all leaders."""

POLL_S = 0.2


class ReadLogs:
    """The logs of the request topics, up to what the run of the engine has read of them. ``submit`` runs a coroutine on
    the event loop of ``lineages``, which asks the leaders."""

    def __init__(
        self,
        lineages: LogLineages,
        submit: Callable[[Coroutine[Any, Any, Any]], Future[Any]],
        compacted: Collection[str] = (),
    ) -> None:
        self._compacted = compacted
        self._lineages = lineages
        self._submit = submit
        self._read: dict[TopicPartition, Lineage] = {}
        self._cuts: dict[TopicPartition, Cuts] = {}
        self._compare_at_s = 0.0
        self._ends: dict[TopicPartition, int] = {}
        """Where the last micro-batch ended."""

    def begin(self, progress: Mapping[TopicPartition, Progress]) -> None:
        """Begin a query. The logs were compared with this progress. What was read, and not accepted, stays known,
        unless a loss was accepted."""
        self._ends = {}
        for tp, each in progress.items():
            if self._cuts.get(tp) != each.cuts or self._known(tp).end < each.lineage.end:
                self._cuts[tp], self._read[tp] = each.cuts, each.lineage

    def through(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, Lineage]:
        """Returns the lineages of the offsets at which a micro-batch ends. Blocks.

        Raises:
            CheckpointMismatch: a log is not the one that was read.
            Lost: a leader does not answer.
        """
        # A log may have grown to its former end again: then it shows nothing new, and is another one.
        asked = awaited = set(ends)
        if monotonic() < self._compare_at_s:
            awaited = {tp for tp, end in ends.items() if end != self._known(tp).end}
        else:
            self._compare_at_s = monotonic() + CHECK_S
        give_up_s = monotonic() + ANSWER_S
        while asked:
            coroutine = self._ask({tp: ends[tp] for tp in asked})
            with suppress(TimeoutError):
                asked = self._submit(coroutine).result(2 * LINEAGE_WAIT_S)
            asked = asked & awaited
            if asked and monotonic() > give_up_s:
                raise Lost(f"the leader of {partition_name(*min(asked))} does not tell its leader epochs")
            if asked:
                sleep(POLL_S)
        return {tp: self._known(tp) for tp in ends}

    def log_ends(
        self, ends: Mapping[TopicPartition, int], with_ids: Collection[str], most: int
    ) -> dict[TopicPartition, int]:
        """Returns the ends of the logs with ids, asked after the newest tick of a micro-batch was written [I17].

        Spark has asked for them after that, so they are where the micro-batch ends. But if it has as many requests as
        it may have (``most``), the logs go on. Without those whose leaders do not answer. Blocks.
        """
        before, self._ends = self._ends, dict(ends)
        mine = {tp: end for tp, end in ends.items() if tp[0] in with_ids}
        planned = sum(end - before.get(tp, 0) for tp, end in ends.items())
        if not mine or (before.keys() == ends.keys() and planned <= most // 2):
            return mine
        return self.ends_of(mine)

    def ends_of(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns where logs end for committed readers, without those whose leaders do not answer. Blocks."""
        found: dict[TopicPartition, int] = {}
        with suppress(TimeoutError):
            found = self._submit(self._lineages.stable_ends(tps)).result(2 * LINEAGE_WAIT_S)
        return found

    def _known(self, tp: TopicPartition) -> Lineage:
        return self._read.get(tp, Lineage())

    async def _ask(self, ends: Mapping[TopicPartition, int]) -> set[TopicPartition]:
        """Learn and compare. Returns the partitions whose leaders did not answer."""
        known = {tp: self._known(tp) for tp in ends}
        read = await self._lineages.extended({tp: (known[tp], end) for tp, end in ends.items()})
        # After that: if another log came meanwhile, this comparison or the next one finds it.
        compared = {tp: [each] for tp, each in known.items() if each.end}
        answers = await self._lineages.parted(compared, self._compacted, again=True)
        unanswered = set()
        for tp, lineage in known.items():
            if isinstance(answers.get(tp, [None])[0], Parted):
                del self._read[tp]
                raise CheckpointMismatch(f"the log of {partition_name(*tp)} is not the one that was read")
            if tp in read and (tp in answers or not lineage.end):
                self._read[tp] = read[tp]
            else:
                unanswered.add(tp)
        return unanswered


NAME = "timers-engine"

TRIAL_S = 15.0
"""So much longer the tasks send nothing to a failing target. The driver tries it first with a timer of the retry topic,
and an attempt without an answer takes up to 12 s."""

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"


@dataclass(frozen=True)
class Plan:
    """Parameters of a query."""

    checkpoint: str
    """Directory on storage that all executors share."""
    buckets: int
    """Number of parts of the state, which is also the number of parallel tasks. A checkpoint keeps its number."""
    max_requests: int
    """Largest number of requests that one micro-batch reads."""
    cluster: Cluster
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Partition -> first offset that a query with a new checkpoint reads. Its machine reads the log below it by itself,
    if it needs this."""
    progress: Mapping[TopicPartition, Progress] = field(default_factory=dict)
    """Progress of each partition: the committed one, or that of a new machine."""
    run: int = 0
    """Number of this run of the engine."""
    is_new: bool = True
    """Whether the checkpoint is new. If not, its query began at other starts."""


class Driver:
    """What the driver of an engine has beside its query.

    Args:
        wake: lets a micro-batch begin soon.
    """

    def __init__(self, settings: Settings, cluster: Cluster, run: int, wake: Callable[[], None]) -> None:
        self.openings = Openings(Places(settings, cluster, run))
        """Opens the machines of the driver, and knows about callback topics."""
        submit = self.openings.parts.producers.submit
        self.read_logs = ReadLogs(self.openings.lineages, submit, settings.schedule_topics)
        self.questions = Questions(wake)
        self.failure: TimersError | None = None
        """Why the machines of the driver must not run, if there is a reason."""


def bucket_keys(spark: SparkSession, count: int) -> list[int]:
    """One key for each partition of the state. Spark assigns keys by hash, so keys 0, 1, 2 could share a partition."""
    place = F.pmod(F.hash("key"), F.lit(count))
    keys = spark.range(64 * count).select(F.col("id").cast("int").alias("key"))
    found = keys.groupBy(place.alias("place")).agg(F.min("key").alias("key")).collect()
    assert len(found) == count, f"{count - len(found)} partitions of the state have no key"
    return sorted(int(row["key"]) for row in found)


def ticks_of(oscillator: DataFrame, buckets: Sequence[int]) -> DataFrame:
    """Each tick (:data:`timers.spark.columns.RECORD_SCHEMA`) as one row for each bucket.

    Only records with a time from the broker are ticks [I10].
    """
    return oscillator.where(F.col("timestamp_type") == LOG_APPEND_TIME).select(
        F.explode(F.array(*map(F.lit, buckets))).alias("bucket"),
        F.col("partition").alias("tick_partition"),
        F.col("offset").alias("tick_offset"),
        F.col("timestamp_ms").alias("tick_ms"),
    )


def processed(spark: SparkSession, settings: Settings, plan: Plan, partitions: Callable[..., Openings]) -> DataFrame:
    """What the buckets do with the topics that the engine reads: ``bucket.OUTPUT``."""
    keys = bucket_keys(spark, plan.buckets)
    starts: Offsets = {}
    for (topic, partition), start in plan.starts.items():
        starts.setdefault(topic, {})[partition] = start
    requests = kafka.stream(
        spark,
        settings,
        request_topics(settings),
        startingOffsets=kafka.as_json(starts),
        maxOffsetsPerTrigger=str(plan.max_requests),
        # If retention deleted unread requests, their timers are lost, so the query fails.
        failOnDataLoss="true",
    )
    # Old ticks have no effect, so a new query starts at the newest one, and ticks deleted by retention do not matter.
    ticks = kafka.stream(spark, settings, [settings.oscillator_topic], startingOffsets="latest", failOnDataLoss="false")
    # Spark asks the sources for their ends in this order: the end of the requests is asked for after that of the ticks,
    # so a timer with an id need not wait for another micro-batch [I17]. As many tasks as buckets: each task costs a
    # start in Python, even if it reads little.
    arrivals = requests.coalesce(plan.buckets).mapInArrow(bucket.packing(keys), bucket.SCHEMA)
    arriving = ticks_of(ticks, keys).unionByName(arrivals, allowMissingColumns=True)
    fired_s = max((each.fired_s for each in plan.progress.values() if each.fired_s is not None), default=None)
    cuts = {tp: each.cuts for tp, each in plan.progress.items() if each.cuts}
    places = Places(settings, plan.cluster, plan.run)
    began = plan.starts if plan.is_new else {}
    run = TimerProcessor(settings, keys, partial(partitions, places), began, cuts, fired_s)
    buckets = arriving.groupBy("bucket")
    return buckets.transformWithStateInPandas(run, bucket.OUTPUT, outputMode="append", timeMode="none")


def request_topics(settings: Settings) -> list[str]:
    """The topics that the query reads: those of all formats. The driver reads the retry topic."""
    return [topic for topic in enabled_formats(settings) if topic != settings.retry_topic]


def start(
    spark: SparkSession,
    settings: Settings,
    plan: Plan,
    driver: Driver,
    done: Callable[[int, Sequence[Said]], None],
    partitions: Callable[..., Openings] = Openings.of,
) -> StreamingQuery:
    """Start the query.

    Args:
        driver: what it knows of callback topics goes to the tasks, which report what they learn of them.
        done: gets the number of a micro-batch, and what its buckets say.
        partitions: as :meth:`Openings.of`. Tests replace it.
    """
    formats, topics = enabled_formats(settings), request_topics(settings)
    with_ids = [topic for topic in topics if formats[topic].has_ids]
    targets, running = driver.openings.parts.targets, Future[StreamingQuery]()

    def run(frame: DataFrame, number: int) -> None:
        ends = {
            (topic, int(partition)): end
            for of_topics in jvm.planned_offsets(running.result(), number)
            for topic in topics
            for partition, end in of_topics.get(topic, {}).items()
        }
        lineages = driver.read_logs.through(ends)
        log_ends = driver.read_logs.log_ends(ends, with_ids, plan.max_requests)
        read = {tp: Read(end, log_ends.get(tp), lineages[tp]) for tp, end in ends.items()}
        circuits = [each._replace(new_from_s=each.new_from_s + TRIAL_S) for each in targets.circuit_breaker.circuits()]
        told = Told(read, circuits, driver.questions.told(), driver.openings.commands)
        frame.sparkSession.sparkContext.setLocalProperty(TOLD_PROPERTY, told.encode())
        said: list[Said] = [pickle.loads(row["said"]) for row in frame.collect()]
        for each in said:
            targets.merge(each.failing.opened)
            targets.note_worked(each.failing.worked)
            driver.questions.note(each.total.answers)
        done(number, said)

    spark.conf.set(SHUFFLE_PARTITIONS, str(plan.buckets))
    driver.read_logs.begin(plan.progress)
    writer = processed(spark, settings, plan, partitions).writeStream.foreachBatch(run)
    running.set_result(writer.option("checkpointLocation", plan.checkpoint).queryName(NAME).start())
    return running.result()


# ---- from its start to its end ---------------------------------------------------------------------------------------


def check_no_workers(settings: Settings) -> None:
    """Check that workers have not taken over. If no broker answers, this is not known.

    Raises:
        TimersError: they have.
    """
    try:
        group = group_access.describe_patiently(settings)
    except TimersError:
        return
    if any(each.is_ours for each in group.members):
        raise TimersError(f"workers of TIMERS_APP_ID={settings.app_id!r} have taken over ({len(group.members)})")


class Reporter:
    """Prints a line at the end of each micro-batch, from Spark's progress and what the buckets did.

    Args:
        buckets: number of buckets. Only a micro-batch with a tick reports all of them.

    Attributes:
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


QUIET_S = 30.0
"""After this time without the end of a micro-batch, the job prints a line: ticks come every second."""

_OURS = re.compile(r"^timers\.(?:errors|core\.ports)\.(\w+): (.*)$", re.MULTILINE)
"""The last line of a traceback of an error of this package. The last one counts: those before it were being handled."""

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
    driver: Driver,
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
    reporter = Reporter(planning.plan.buckets, request_topics(settings), say)
    reopening = Reopening()
    others = threading.Event()

    def look() -> None:
        """Look for workers. They would take the partitions from the engine in each micro-batch."""
        if others.is_set():
            others.clear()
            check_no_workers(settings)

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
            running = start(spark, settings, planning.plan, driver, done)
            _watch(running, driver, reporter, stop, look)
            failure = running.exception()
            if driver.failure is not None:
                raise driver.failure
            if stop.is_set():
                return
            sentence, cause = _restartable(failure)
            check_no_workers(settings)
            pause_s = reopening.pause_s("query", AFTER_UNFORESEEN, monotonic())
            say(f"the query ended and starts again{f' in {pause_s:.0f} s' if pause_s else ''}: {sentence}")
            planning.after(cause, has_worked=reporter.ended > ended, sentence=sentence)
            stop.wait(pause_s)


def _watch(
    running: StreamingQuery, driver: Driver, reporter: Reporter, stop: threading.Event, look: Callable[[], None]
) -> None:
    """Wait for the end of a query, and end it when the engine stops."""
    said_at = monotonic()
    try:
        while running.isActive and driver.failure is None and not stop.wait(POLL_S):
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
    **dict.fromkeys((each.__name__ for each in (Lost, TooMuch, DeliveryFailed, Unanswered)), _Cause.OTHER),
    Fenced.__name__: _Cause.OTHER,
    StoreInUse.__name__: _Cause.OTHER,  # another attempt has the store: it is fenced, and does not know it yet
    StoreError.__name__: _Cause.OTHER,  # such as a full disk: no timer is lost, and an operator may mend it
    CheckpointMismatch.__name__: _Cause.MISMATCH,
}
"""The errors of this package after which another start may help."""


class _Planning:
    """Makes the plans of an engine, and has that for the next query."""

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
                ends = consumer.get_watermark_offsets(KafkaTopicPartition(*tp), timeout=CALL_TIMEOUT_S)
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
    if ours := _OURS.findall(text):
        name, sentence = ours[-1]
        if name == NameTakenError.__name__:
            raise NameTakenError(sentence)
        if name not in _OWN_CAUSES:
            raise SparkError(sentence)
        return sentence, _OWN_CAUSES[name]
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
