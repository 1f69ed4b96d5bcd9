"""What the engine checks and reads before its query starts."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import closing
from time import monotonic, sleep
from typing import NamedTuple

from confluent_kafka import KafkaException
from pyspark.sql import SparkSession

from timers.config.settings import Settings
from timers.core.progress import SEAL, Progress
from timers.errors import LogMismatch, SettingsError, TimersError
from timers.kafka.aiokafka_internals import group_access
from timers.kafka.clients import librdkafka, max_message_bytes
from timers.kafka.progress_log import ProgressLog, progress_partition
from timers.kafka.topics import Cluster
from timers.kafka.transactions import Record, TransactionalWriter
from timers.request_formats import enabled_formats
from timers.spark.engine import checkpoints, rescuing
from timers.spark.engine.outboxes import Outboxes
from timers.spark.engine.query import Plan
from timers.wire import progress as progress_record
from timers.wire import topics

TIMEOUT_S = 60.0
POLL_S = 1.0

SETTLING_S = 10.0
"""Progress and log are compared again for this time. If a task of the last query failed, others may still run and
commit: so the offsets of a transaction may be read, and its progress not yet."""


def check_supported(settings: Settings) -> None:
    """Check that no timers of the app need a worker.

    Raises:
        SettingsError: some do.
    """
    if settings.hot_horizon_s:
        raise SettingsError(
            f"TIMERS_HOT_HORIZON_S={settings.hot_horizon_s}: the engine on Spark has no cold tier and keeps all timers "
            "in its state; unset it"
        )
    if settings.id_topic:
        raise SettingsError(
            f"TIMERS_ID_TOPIC={settings.id_topic!r}: timers with an id need workers, the engine on Spark does not read "
            "them; if the app has none, set TIMERS_ID_TOPIC= (empty)"
        )
    others = enabled_formats(settings).keys() - {settings.request_topic, settings.retry_topic}
    if others:
        raise SettingsError(
            f"timers on {', '.join(sorted(others))} need a worker: the engine on Spark reads TIMERS_REQUEST_TOPIC="
            f"{settings.request_topic!r} only; unset the settings that name the others"
        )


def check_no_workers(settings: Settings) -> None:
    """Check that workers have not taken over. If no broker answers, this is not known.

    Raises:
        TimersError: they have.
    """
    try:
        members = group_access.count_members(settings)
    except TimersError:
        return
    if members:
        raise TimersError(f"workers of TIMERS_APP_ID={settings.app_id!r} have taken over ({members})")


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
    if left and not should_stop():
        raise TimersError(
            f"workers of TIMERS_APP_ID={app!r} run ({left}): stop them first, because workers and the engine take the "
            "partitions from each other"
        )


def plan(
    spark: SparkSession,
    settings: Settings,
    cluster: Cluster,
    run: int,
    directory: str,
    buckets: int | None,
    default_buckets: int,
    max_requests: int,
    *,
    anew: bool = False,
) -> Plan:
    """The parameters of the query.

    Args:
        run: number of this run of the engine (:func:`announce`).
        directory: of the checkpoints.
        buckets: number that the user chose; None: that of the checkpoint, or ``default_buckets``.
        max_requests: largest number of requests of a micro-batch.
        anew: the existing checkpoint cannot be used, and the log is read from its start.

    Raises:
        LogMismatch: the log lacks records. No checkpoint was deleted.
        TimersError: the engine must not start.
    """
    found = check(spark, settings, cluster, directory, buckets, default_buckets, anew=anew)
    if any(each.rescues for each in found.progress.values()) and _rescue(
        spark, settings, found, found.plan(max_requests, cluster, run)
    ):
        found = check(spark, settings, cluster, directory, buckets, default_buckets, anew=True)
    for each in found.checkpoint.replaced:
        checkpoints.delete(spark, each)
    checkpoints.forget_planned(spark, found.checkpoint.path)
    return found.plan(max_requests, cluster, run)


def _rescue(spark: SparkSession, settings: Settings, found: Found, plan: Plan) -> bool:
    """Write the dead letters of what only checkpoints hold. Returns whether one of them was written before a cut."""
    with closing(Outboxes(plan.places(settings))) as outboxes:
        are_old = [
            rescuing.rescue(spark, each, plan.progress, outboxes, plan.limits(settings))
            for each in dict.fromkeys((found.checkpoint.path, *found.checkpoint.replaced))
            if checkpoints.has_ended(spark, each)
        ]
    return any(are_old)


class Found(NamedTuple):
    """What a query starts from."""

    checkpoint: checkpoints.Checkpoint
    starts: dict[int, int]
    """The first offset of each partition of the request topic."""
    progress: dict[int, Progress]
    """Of each partition of the request topic."""
    first_level: int
    """The feature level of machines without progress."""

    def plan(self, max_requests: int, cluster: Cluster, run: int) -> Plan:
        """Returns the plan of a query that starts from it."""
        path, buckets, *_ = self.checkpoint
        return Plan(path, buckets, max_requests, cluster, self.starts, self.progress, run, self.first_level)


def check(
    spark: SparkSession,
    settings: Settings,
    cluster: Cluster,
    directory: str,
    buckets: int | None,
    default_buckets: int,
    *,
    anew: bool = False,
) -> Found:
    """Check that the engine can start. It only claims the directory: an engine that runs goes on.

    That engine goes on committing until :func:`announce` fences it, so :func:`plan` reads all this again.

    Args:
        As those of :func:`plan`.

    Raises:
        LogMismatch: the log lacks records.
        TimersError: the engine must not start.
    """
    checkpoints.claim(spark, directory, settings.app_id, cluster.cluster_id)
    checkpoint = checkpoints.choose_checkpoint(spark, directory, buckets, default_buckets, anew=anew)
    try:
        starts, progress, first_level = _progress(settings, cluster, is_new=checkpoint.is_new)
    except LogMismatch as error:
        if not checkpoint.replaced:
            raise
        kept = ", ".join(checkpoint.replaced)
        raise LogMismatch(f"{error}. Their timers may be in {kept}, which was not deleted") from error
    for partition, committed in progress.items():
        if starts[partition] > 0 and committed.snapshot is not None:
            raise TimersError(
                f"{topics.partition_name(settings.request_topic, partition)} begins at offset {starts[partition]}: its "
                "older requests are deleted, and what is pending of them is in snapshots, which the engine on Spark "
                "does not read. Run workers for this app; nothing was changed"
            )
        if committed.setting_at(SEAL, committed.next_offset, 0):
            raise SettingsError(
                f"timers of {topics.partition_name(settings.request_topic, partition)} went to the cold tier, and only "
                "workers take them back"
            )
    return Found(checkpoint, starts, progress, first_level)


def announce(settings: Settings, cluster: Cluster) -> int:
    """Write that a run of the engine begins, and return its number. An earlier run that still works ends then."""
    run = secrets.randbits(63)
    name = topics.engine_id(settings.app_id)
    tp = progress_record.decode_key(progress_record.ENGINE_KEY)
    partition = progress_partition(tp, cluster, settings)
    value = progress_record.encode_engine_run(run)
    try:
        writer = TransactionalWriter(librdkafka(settings), name, max_message_bytes(settings))
        with writer.transaction() as send:
            send([Record(settings.progress_topic, partition, progress_record.ENGINE_KEY, value, [])])
    except KafkaException as error:
        raise TimersError(f"{settings.progress_topic!r} cannot be written: {error.args[0].str()}") from None
    return run


def _progress(settings: Settings, cluster: Cluster, *, is_new: bool) -> tuple[dict[int, int], dict[int, Progress], int]:
    """The first offset of each partition of the request topic, its progress, checked with its log, and the feature
    level of new machines.

    Args:
        is_new: whether the log is read from its start.
    """
    log = ProgressLog(settings, cluster)
    deadline = monotonic() + TIMEOUT_S
    settled_at = monotonic() + SETTLING_S
    try:
        while True:
            try:
                return _checked(log, settings.request_topic, cluster, is_new=is_new)
            except LogMismatch:
                if monotonic() > settled_at:
                    raise
                sleep(POLL_S)
            except KafkaException as error:  # such as a partition that changes its leader
                if monotonic() > deadline:
                    reason = error.args[0].str()
                    raise TimersError(
                        f"the progress of {settings.request_topic!r} cannot be read from {settings.progress_topic!r}: "
                        f"{reason}"
                    ) from None
                sleep(POLL_S)
    finally:
        log.close()


def _checked(
    log: ProgressLog, topic: str, cluster: Cluster, *, is_new: bool
) -> tuple[dict[int, int], dict[int, Progress], int]:
    first_level = log.level_of_new_machines()
    tps = [(topic, partition) for partition in range(cluster.partitions[topic])]
    records = log.read(tps, after_fence=False)
    starts: dict[int, int] = {}
    progress: dict[int, Progress] = {}
    checked = log.check_logs({tp: log.check(tp, records.get(tp)) for tp in tps})
    for tp, found in checked.items():
        _, partition = tp
        progress[partition] = Progress.first(first_level) if found == Progress() else found
        starts[partition], _ = log.ends(*tp)
        if is_new and starts[partition] > 0:
            log.check_start(tp, starts[partition], 0, found)
    return starts, progress, first_level
