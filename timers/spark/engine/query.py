"""The engine as one streaming query: it reads topics and runs the buckets, which send messages themselves."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic, sleep
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from timers.core.lineage import Lineage, Parted
from timers.core.ports import Lost
from timers.core.progress import Cuts, Progress
from timers.core.timer import TopicPartition
from timers.errors import CheckpointMismatch
from timers.kafka.log_lineage import WAIT_S, LogLineages
from timers.kafka.request_formats import enabled_formats
from timers.kafka.topic_offsets import Offsets
from timers.kafka.topics import Cluster
from timers.process.config.settings import Settings
from timers.spark import jvm, kafka
from timers.spark.engine import bucket
from timers.spark.engine.bucket import TOLD, Said, TimerProcessor, Told
from timers.spark.engine.machines import Openings, Places, Read
from timers.spark.engine.questions import Questions
from timers.wire.formats import LOG_APPEND_TIME
from timers.wire.topics import partition_name

CHECK_S = 10.0
"""Seconds after which a micro-batch waits also for the leaders of partitions from which it reads nothing new."""

ANSWER_S = 20.0
"""How long a micro-batch waits for the answers of all leaders."""

POLL_S = 0.2


class ReadLogs:
    """The logs of the request topics, up to what the run of the engine has read of them.

    Args:
        lineages: asks the leaders.
        submit: runs a coroutine on the event loop of ``lineages``.
    """

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
                asked = self._submit(coroutine).result(2 * WAIT_S)
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
        it may have, the logs go on. Without those whose leaders do not answer. Blocks.

        Args:
            ends: where the micro-batch ends.
            with_ids: topics.
            most: largest number of requests of a micro-batch.
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
            found = self._submit(self._lineages.stable_ends(tps)).result(2 * WAIT_S)
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

_BUCKETS = "spark.sql.shuffle.partitions"


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
        settings: of the app.
        cluster: its topics.
        run: number of this run of the engine.
        wake: lets a micro-batch begin soon.

    Attributes:
        openings: opens the machines of the driver, and knows about callback topics.
        read_logs: which logs the query reads.
        questions: of queries, for the machines on the executors.
    """

    def __init__(self, settings: Settings, cluster: Cluster, run: int, wake: Callable[[], None]) -> None:
        self.openings = Openings(Places(settings, cluster, run))
        submit = self.openings.parts.producers.submit
        self.read_logs = ReadLogs(self.openings.lineages, submit, settings.schedule_topics)
        self.questions = Questions(wake)


def session_settings(buckets: int) -> dict[str, str]:
    state = "spark.sql.streaming.stateStore"
    return {
        _BUCKETS: str(buckets),
        f"{state}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        # Each micro-batch writes its changes to the checkpoint, not the whole state.
        f"{state}.rocksdb.changelogCheckpointing.enabled": "true",
        f"{state}.rocksdb.trackTotalNumberOfRows": "false",
        # For a checkpoint on a local disk: no checksum file beside each file. Hadoop starts a process to set the
        # permissions of each new file, which costs more than writing its content.
        "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
        # Number of micro-batches kept for recovery; each has a few files.
        "spark.sql.streaming.minBatchesToRetain": "10",
        # The engine plans a first micro-batch again that has not ended. By default Spark 4.1 refuses this if there are
        # files of its state. Spark writes them again.
        "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
        # Of two attempts of one task, the later one fences the other.
        "spark.speculation": "false",
        # Spark ignores it for streams, and logs a warning at each start if it is on.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        # No limit: with one, Spark 4.0 sums the bytes of the whole batch for each row, 24 of the 29 µs of a request.
        "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
        "spark.python.daemon.module": "timers.spark.daemon",
        # Without Java's second compiler: it took a third of the CPU of the first minutes and made requests no faster.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        # A busy machine may need longer than the default of 15 s to start a Python process.
        "spark.python.authenticate.socketTimeout": "60s",
    }


def bucket_keys(spark: SparkSession, count: int) -> list[int]:
    """One key for each partition of the state. Spark assigns keys by hash, so keys 0, 1, 2 could share a partition."""
    place = F.pmod(F.hash("key"), F.lit(count))
    found = (
        spark.range(64 * count)
        .select(F.col("id").cast("int").alias("key"))
        .groupBy(place.alias("place"))
        .agg(F.min("key").alias("key"))
        .collect()
    )
    assert len(found) == count, f"{count - len(found)} partitions of the state have no key"
    return sorted(int(row["key"]) for row in found)


def ticks_of(oscillator: DataFrame, buckets: Sequence[int]) -> DataFrame:
    """Each tick (:data:`timers.spark.columns.RECORD`) as one row for each bucket.

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
        told = Told(read, circuits, driver.questions.told())
        frame.sparkSession.sparkContext.setLocalProperty(TOLD, told.encode())
        said: list[Said] = [pickle.loads(row["said"]) for row in frame.collect()]
        for each in said:
            targets.merge(each.failing.opened)
            targets.note_worked(each.failing.worked)
            driver.questions.note(each.total.answers)
        done(number, said)

    spark.conf.set(_BUCKETS, str(plan.buckets))
    driver.read_logs.begin(plan.progress)
    writer = processed(spark, settings, plan, partitions).writeStream.foreachBatch(run)
    running.set_result(writer.option("checkpointLocation", plan.checkpoint).queryName(NAME).start())
    return running.result()
