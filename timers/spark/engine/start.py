"""What the engine checks and reads before its query starts, and where the checkpoint of the query is.

A checkpoint is a cache of the request log: each number of buckets, and each format of the state, has a directory of its
own, and with another number of buckets the engine reads the log again.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from typing import NamedTuple

from confluent_kafka import KafkaException
from pyspark.sql import SparkSession

from timers.core.progress import Progress
from timers.core.timer import TopicPartition
from timers.errors import SettingsError, TimersError
from timers.kafka import aiokafka_clients, group_access
from timers.kafka.aiokafka_internals.group import strangers_in
from timers.kafka.aiokafka_internals.group_member import taking_part
from timers.kafka.clients import librdkafka, max_message_bytes
from timers.kafka.connection import while_moving
from timers.kafka.progress_log import ProgressLog
from timers.kafka.progress_rules import progress_partition
from timers.kafka.records import Record, TransactionalWriter
from timers.kafka.request_formats import enabled_formats
from timers.kafka.topics import Cluster
from timers.process.config.settings import Settings
from timers.spark.engine.bucket import STATE_FORMAT
from timers.spark.engine.query import SHUFFLE_PARTITIONS, Plan, request_topics
from timers.spark.jvm import on_storage
from timers.spark.storage import ENDED_DIRECTORY, PLANNED_DIRECTORY, check_shared, children, numbers
from timers.wire import progress as progress_record
from timers.wire import topics

TIMEOUT_S = 60.0


def session_settings(buckets: int) -> dict[str, str]:
    state = "spark.sql.streaming.stateStore"
    return {
        SHUFFLE_PARTITIONS: str(buckets),
        f"{state}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        # Each micro-batch writes its changes to the checkpoint, not the whole state.
        f"{state}.rocksdb.changelogCheckpointing.enabled": "true",
        f"{state}.rocksdb.trackTotalNumberOfRows": "false",
        # For a checkpoint on a local disk: no checksum file beside each file. Hadoop starts a process to set the
        # permissions of each new file, which costs more than writing its content.
        "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
        # Number of micro-batches kept for recovery; each has a few files.
        "spark.sql.streaming.minBatchesToRetain": "10",
        # After a crash in the first micro-batch, the engine deletes Spark's plan of it, but not the files of its state.
        # By default Spark 4.1 then refuses to start. Spark writes these files again.
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


def wait_for_workers(settings: Settings, say: Callable[[str], None], should_stop: Callable[[], bool]) -> None:
    """Wait until the group of the app's workers has no members.

    Raises:
        TimersError: it still has some when the sessions of ended workers are over.
    """
    app = settings.app_id
    left = group_access.wait_until_empty(
        settings,
        app,
        lambda members: say(f"waiting until the workers of {app!r} have left their group ({members} left)"),
        should_stop,
    )
    if left.is_taken and not should_stop():
        raise TimersError(strangers_in(app, left))
    if left.members and not should_stop():
        raise TimersError(
            f"workers of TIMERS_APP_ID={app!r} run ({len(left.members)}): stop them first, because workers and "
            "the engine take the partitions from each other"
        )


def in_group(
    settings: Settings, cluster: Cluster, say: Callable[[str], None]
) -> AbstractContextManager[Callable[[], str]]:
    """Be in the engine's group during the block: see :func:`taking_part`."""
    group = topics.engine_id(settings.app_id)

    def unseen(error: BaseException) -> None:
        say(f"workers that start beside this engine do not see it: it may not join the group {group!r} ({error!r})")

    how = aiokafka_clients.arguments(settings), group, settings.canonical_url, settings.session_timeout_s
    read = {topic: cluster.partitions.get(topic, 0) for topic in enabled_formats(settings)}
    return taking_part(*how, read, unseen)


@dataclass(frozen=True)
class Start:
    """The start of an engine.

    Attributes:
        buckets: number that the user chose; None: that of the checkpoint, or ``default_buckets``.
        max_requests: largest number of requests of a micro-batch.
    """

    spark: SparkSession
    settings: Settings
    directory: str
    buckets: int | None
    default_buckets: int
    max_requests: int

    def plan(self, cluster: Cluster, run: int, *, anew: bool = False) -> Plan:
        """The parameters of the query.

        Args:
            run: number of this run of the engine (:func:`announce`).
            anew: the existing checkpoint cannot be used, and the log is read from its start.

        Raises:
            LogMismatch: the log lacks records. No checkpoint was deleted.
            TimersError: the engine must not start.
        """
        (path, buckets, is_new, replaced), starts, progress = self.check(cluster, anew=anew)
        for each in replaced:
            delete(self.spark, each)
        forget_planned(self.spark, path)
        return Plan(path, buckets, self.max_requests, cluster, starts, progress, run, is_new)

    def check(
        self, cluster: Cluster, *, anew: bool = False
    ) -> tuple[Checkpoint, dict[TopicPartition, int], dict[TopicPartition, Progress]]:
        """Check that the engine can start. It only claims the directory: an engine that runs goes on.

        That engine goes on committing until :func:`announce` fences it, so :meth:`plan` reads all this again.

        Returns:
            The checkpoint of the query; the first offset to read of each partition, if it is new; and their progress.

        Raises:
            LogMismatch: the log lacks records.
            TimersError: the engine must not start.
        """
        claim(self.spark, self.directory, self.settings.app_id, cluster.cluster_id)
        starts, progress, has_new_cuts = _progress(self.settings, cluster)
        asked = self.spark, self.directory, self.buckets, self.default_buckets
        return choose_checkpoint(*asked, anew=anew or has_new_cuts), starts, progress


def announce(settings: Settings, cluster: Cluster) -> int:
    """Write that a run of the engine begins, and return its number. An earlier run that still works ends then."""
    run = secrets.randbits(63)
    name = topics.engine_id(settings.app_id)
    tp = progress_record.decode_key(progress_record.ENGINE_KEY)
    partition = progress_partition(tp, cluster, settings)
    value = progress_record.encode_number(progress_record.ENGINE_RUN, run)
    try:
        writer = TransactionalWriter(librdkafka(settings), name, max_message_bytes(settings))
        with writer.transaction() as send:
            send([Record(settings.progress_topic, partition, progress_record.ENGINE_KEY, value, [])])
    except KafkaException as error:
        raise TimersError(f"{settings.progress_topic!r} cannot be written: {error.args[0].str()}") from None
    return run


def _progress(
    settings: Settings, cluster: Cluster
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, Progress], bool]:
    """The first offset to read of each partition of the request topics, and its progress, checked with its log; and
    whether a log has lost its end and this start accepts it: what checkpoints know is of the log before."""
    try:
        with closing(ProgressLog(settings, cluster)) as log:
            return while_moving(lambda: _checked(log, request_topics(settings), cluster), TIMEOUT_S)
    except KafkaException as error:
        reason = error.args[0].str()
        raise TimersError(
            f"the progress of {settings.app_id!r} cannot be read from {settings.progress_topic!r}: {reason}"
        ) from None


def _checked(
    log: ProgressLog, topics: Iterable[str], cluster: Cluster
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, Progress], bool]:
    tps = [(topic, partition) for topic in topics for partition in range(cluster.partitions[topic])]
    found = {tp: log.read_one(tp, after_fence=False) for tp in tps}
    progress = log.check_logs({tp: each for tp, (_, each, _) in found.items()})
    # What a store lacks below that is read by its machine: without a snapshot, from the start of the log.
    starts = {tp: min(max(progress[tp].next_offset, low), high) for tp, (_, _, (low, high)) in found.items()}
    return starts, progress, any(each.cuts != found[tp][1].cuts for tp, each in progress.items())


_NAME = re.compile(r"state-([0-9]+)-([0-9]+)")
"""Format of the state, and number of buckets."""

_OWNER = "owner-"
"""Begins the name of the empty file that says whose directory it is: a file that is complete when it exists."""


class Checkpoint(NamedTuple):
    """The checkpoint of a query."""

    path: str
    buckets: int
    is_new: bool
    """Whether the query reads the log from its start."""
    replaced: tuple[str, ...] = ()
    """Directories that are of no use once the log has proved to have all that they have."""


def claim(spark: SparkSession, directory: str, app_id: str, cluster_id: str) -> None:
    """Write into a directory whose checkpoints it has, so that no other app uses it.

    A start after ``kill -9`` finds its own file. If two apps claim a directory at once, both may be refused.

    Raises:
        SettingsError: it cannot have checkpoints of this engine, another app has claimed it, or this app of another
            Kafka cluster.
    """
    check_shared(spark, "--checkpoint", directory)
    if children(spark, directory).keys() & {PLANNED_DIRECTORY, ENDED_DIRECTORY}:
        raise SettingsError(f"--checkpoint {directory!r} has a checkpoint of another query: use another directory")
    own = f"{_OWNER}{app_id}@{cluster_id}"

    def others() -> list[str]:
        return sorted({name for name in children(spark, directory) if name.startswith(_OWNER)} - {own})

    mine, files = on_storage(spark, f"{directory.rstrip('/')}/{own}")
    is_new = not others() and files.createNewFile(mine)
    if found := others():
        if is_new:
            files.delete(mine, False)
        app, _, cluster = found[0].removeprefix(_OWNER).rpartition("@")
        raise SettingsError(
            f"--checkpoint {directory!r} is of TIMERS_APP_ID={app!r} on the Kafka cluster {cluster!r}, and this is "
            f"{app_id!r} on {cluster_id!r}: use another directory, or if that engine will never run again, delete "
            f"{found[0]!r} there"
        )


def choose_checkpoint(
    spark: SparkSession, directory: str, asked: int | None, default: int, *, anew: bool = False
) -> Checkpoint:
    """Choose the checkpoint of a query.

    Args:
        directory: that the user chose; :func:`claim` has claimed it.
        asked: number of buckets that the user chose; None: that of the checkpoint, or ``default``.
        default: number for a new checkpoint.
        anew: the existing checkpoint cannot be used.
    """
    listed = children(spark, directory)
    names = sorted(listed, key=lambda name: -listed[name].getModificationTime())
    found = {name: tuple(map(int, parts.groups())) for name in names if (parts := _NAME.fullmatch(name))}
    same_format = [buckets for version, buckets in found.values() if version == STATE_FORMAT]
    buckets = asked or (same_format[0] if same_format else default)
    chosen = f"state-{STATE_FORMAT}-{buckets}"
    root = directory.rstrip("/")
    # Without a planned micro-batch it has nothing, whatever Spark has noted about the starts of topics.
    is_new = anew or chosen not in found or not numbers(spark, f"{root}/{chosen}/{PLANNED_DIRECTORY}")
    replaced = tuple(f"{root}/{name}" for name in sorted(found) if is_new or name != chosen)
    return Checkpoint(f"{root}/{chosen}", buckets, is_new, replaced)


def delete(spark: SparkSession, directory: str) -> None:
    """Delete a checkpoint."""
    path, files = on_storage(spark, directory)
    files.delete(path, True)


def forget_planned(spark: SparkSession, checkpoint: str) -> None:
    """Let the query plan the micro-batch again that has not ended: it may be too large.

    A repeated micro-batch need not be the same one: what has fired is in the progress.
    """
    ended = numbers(spark, f"{checkpoint}/{ENDED_DIRECTORY}")
    for number in numbers(spark, f"{checkpoint}/{PLANNED_DIRECTORY}"):
        if number > max(ended, default=-1):
            delete(spark, f"{checkpoint}/{PLANNED_DIRECTORY}/{number}")
