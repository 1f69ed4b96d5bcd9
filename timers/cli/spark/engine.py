"""``timers spark engine``: fire timers on Spark instead of with workers."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import click
from confluent_kafka import KafkaException

from timers.cli.spark.options import LaunchOf, launch_options, told_to_stop
from timers.config.project import project_dir
from timers.config.settings import Settings
from timers.errors import SettingsError, TimersError
from timers.request_formats import enabled_formats

if TYPE_CHECKING:
    from timers.core.progress import Progress
    from timers.kafka.topics import Cluster

PROGRESS_TIMEOUT_S = 60.0
PROGRESS_AGAIN_S = 1.0

DEFAULT_BUCKETS = os.cpu_count() or 2


@click.command()
@click.option(
    "--checkpoint",
    metavar="URL",
    help="Where state and progress are kept: a directory that every executor reaches (hdfs://, s3a://, a shared disk). "
    "It is the engine's only memory; never delete it while timers wait.  [default: .timers/spark/engine-APP_ID]",
)
@click.option(
    "--buckets",
    type=click.IntRange(1, 4096),
    help="Parts that the state is kept in, for good: as many tasks work on it at once.  [default: the cores of this "
    "machine; later, those of the checkpoint]",
)
@click.option(
    "--max-requests",
    type=click.IntRange(1, 10**8),
    default=120_000,
    show_default=True,
    help="Most requests read in one micro-batch: bounds its memory and how long what is due waits for it.",
)
@launch_options
def engine(
    checkpoint: str | None,
    buckets: int | None,
    max_requests: int,
    launch_of: LaunchOf,
) -> None:
    """Fire timers on Spark, instead of with workers.

    Reads the topic of requests and the ticks, keeps what waits in Spark's state, and sends what is due. Callbacks are
    those of a worker, byte for byte; after a failure some may come twice, with the same timer-id. Runs until Ctrl-C or
    SIGTERM, which end it between two micro-batches; started again, it goes on where it was.

    It takes over from workers of the same TIMERS_APP_ID: what they have fired is not fired again. Never run it beside
    them, and do not go back to them: both would fire the same timers.
    """
    from timers.kafka import topics
    from timers.spark.engine.oscillator import Oscillator
    from timers.spark.engine.query import Plan, session_settings
    from timers.spark.jobs import engine as job
    from timers.spark.session import session

    settings = Settings.load()
    _refuse(settings)
    cluster = topics.ensure(settings)
    place = checkpoint or str((project_dir() / "spark" / f"engine-{settings.app_id}").resolve())
    launch = launch_of("engine", session_settings(buckets or DEFAULT_BUCKETS))
    with told_to_stop() as stop, Oscillator(settings, time.time), session(launch) as spark:
        count = job.buckets_for(spark, place, buckets, DEFAULT_BUCKETS)
        plan = Plan(place, count, max_requests, _workers_progress(settings, cluster))
        click.echo(
            f"firing timers of {settings.request_topic} in {plan.buckets} buckets; checkpoint: {plan.checkpoint}"
        )
        job.run(spark, settings, plan, click.echo, stop)
        click.echo("stopped between two micro-batches")


def _workers_progress(settings: Settings, cluster: Cluster) -> dict[str, Progress]:
    """How far workers of this app came, by ``<topic>/<partition>``; empty where none ever ran."""
    from timers.kafka.progress_log import ProgressLog
    from timers.wire import progress

    topic = settings.request_topic
    log = ProgressLog(settings, cluster)
    give_up = time.monotonic() + PROGRESS_TIMEOUT_S
    try:
        while True:
            try:
                found = log.read((topic, partition) for partition in range(cluster.partitions[topic]))
                break
            except KafkaException as error:  # such as a partition whose leader moves
                if time.monotonic() > give_up:
                    reason = error.args[0].str()
                    raise TimersError(
                        f"how far workers came cannot be read from {settings.progress_topic!r}: {reason}"
                    ) from None
                time.sleep(PROGRESS_AGAIN_S)
    finally:
        log.close()
    decoded = {f"{topic}/{partition}": progress.decode(record) for (_, partition), record in found.items()}
    return {place: made for place, (made, topic_id) in decoded.items() if topic_id == cluster.topic_ids[topic]}


def _refuse(settings: Settings) -> None:
    """What only workers do."""
    if settings.hot_horizon_s:
        raise SettingsError(
            f"TIMERS_HOT_HORIZON_S={settings.hot_horizon_s}: the engine on Spark keeps all timers in its state, "
            "however far ahead they are due; unset it"
        )
    others = enabled_formats(settings).keys() - {settings.request_topic, settings.retry_topic}
    if others:
        raise SettingsError(
            f"timers on {', '.join(sorted(others))} need a worker: the engine on Spark reads TIMERS_REQUEST_TOPIC="
            f"{settings.request_topic!r} only; unset the settings that name the others"
        )
