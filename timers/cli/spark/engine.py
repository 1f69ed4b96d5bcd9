"""``timers spark engine``: fire timers on Spark instead of with workers."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import click
from confluent_kafka import KafkaException

from timers.cli.reach import check_brokers
from timers.cli.spark.options import MakeLaunch, launch_options, stop_event
from timers.clock import Clock
from timers.config.project import project_dir
from timers.config.settings import Settings
from timers.errors import SettingsError, TimersError
from timers.request_formats import enabled_formats

if TYPE_CHECKING:
    from timers.core.progress import Progress
    from timers.kafka.topics import Cluster

PROGRESS_TIMEOUT_S = 60.0
PROGRESS_RETRY_S = 1.0

DEFAULT_BUCKETS = os.cpu_count() or 2


@click.command()
@click.option(
    "--checkpoint",
    metavar="URL",
    help="Directory of the state and progress, on storage that all executors reach (hdfs://, s3a://, a shared disk). "
    "It is the only copy of the state: do not delete it while timers wait.  [default: .timers/spark/engine-APP_ID]",
)
@click.option(
    "--buckets",
    type=click.IntRange(1, 4096),
    help="Number of parts of the state, which is also the number of parallel tasks. It cannot be changed later.  "
    "[default: that of the checkpoint; for a new one, the cores of this machine]",
)
@click.option(
    "--max-requests",
    type=click.IntRange(1, 10**8),
    default=120_000,
    show_default=True,
    help="Largest number of requests that one micro-batch reads. Limits its memory and its duration.",
)
@launch_options
def engine(
    checkpoint: str | None,
    buckets: int | None,
    max_requests: int,
    make_launch: MakeLaunch,
) -> None:
    """Fire timers on Spark instead of with workers.

    Reads requests and ticks, keeps waiting timers in Spark's state, and sends the timers that are due. Callbacks are
    equal to those of a worker, byte for byte. After a failure some may come twice, with the same timer-id. Runs until
    Ctrl-C or SIGTERM, which stop it between two micro-batches. A new start continues where it stopped.

    It takes over from workers of the same TIMERS_APP_ID and does not fire again what they have fired. Never run it
    together with workers, and never start workers after it: both would fire the same timers.
    """
    from timers.kafka import topics
    from timers.spark.engine.oscillator import Oscillator
    from timers.spark.engine.query import Plan, session_settings
    from timers.spark.jobs import engine as job
    from timers.spark.session import session

    settings = Settings.load()
    _check_supported(settings)
    check_brokers(settings)
    cluster = topics.ensure(settings)
    checkpoint_dir = checkpoint or str((project_dir() / "spark" / f"engine-{settings.app_id}").resolve())
    launch = make_launch("engine", session_settings(buckets or DEFAULT_BUCKETS))
    with stop_event() as stop, Oscillator(settings, Clock()), session(launch) as spark:
        count = job.buckets_for(spark, checkpoint_dir, buckets, DEFAULT_BUCKETS)
        plan = Plan(checkpoint_dir, count, max_requests, _workers_progress(settings, cluster))
        click.echo(
            f"firing timers of {settings.request_topic} in {plan.buckets} buckets; checkpoint: {plan.checkpoint}",
            err=True,
        )
        job.run(spark, settings, plan, lambda line: click.echo(line, err=True), stop)
        click.echo("stopped between two micro-batches", err=True)


def _workers_progress(settings: Settings, cluster: Cluster) -> dict[str, Progress]:
    """Progress of the workers of this app, by ``<topic>/<partition>``; empty if none ever ran."""
    from timers.kafka.progress_log import ProgressLog
    from timers.wire import progress
    from timers.wire.topics import partition_name

    topic = settings.request_topic
    log = ProgressLog(settings, cluster)
    deadline = time.monotonic() + PROGRESS_TIMEOUT_S
    try:
        while True:
            try:
                found = log.read((topic, partition) for partition in range(cluster.partitions[topic]))
                break
            except KafkaException as error:  # such as a partition that changes its leader
                if time.monotonic() > deadline:
                    reason = error.args[0].str()
                    raise TimersError(
                        f"the progress of workers cannot be read from {settings.progress_topic!r}: {reason}"
                    ) from None
                time.sleep(PROGRESS_RETRY_S)
    finally:
        log.close()
    records = {partition_name(topic, partition): progress.decode(record) for (_, partition), record in found.items()}
    return {name: decoded for name, (decoded, topic_id) in records.items() if topic_id == cluster.topic_ids[topic]}


def _check_supported(settings: Settings) -> None:
    if settings.hot_horizon_s:
        raise SettingsError(
            f"TIMERS_HOT_HORIZON_S={settings.hot_horizon_s}: the engine on Spark has no cold tier and keeps all timers "
            "in its state; unset it"
        )
    others = enabled_formats(settings).keys() - {settings.request_topic, settings.retry_topic}
    if others:
        raise SettingsError(
            f"timers on {', '.join(sorted(others))} need a worker: the engine on Spark reads TIMERS_REQUEST_TOPIC="
            f"{settings.request_topic!r} only; unset the settings that name the others"
        )
