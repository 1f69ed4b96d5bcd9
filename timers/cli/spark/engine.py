"""``timers spark engine``: fire timers on Spark instead of with workers."""

from __future__ import annotations

import os
from contextlib import ExitStack

import click

from timers.cli.output import say
from timers.cli.reach import check_brokers
from timers.cli.spark.options import MakeLaunch, Monitored, launch_options, metrics_options, stop_event
from timers.clock import Clock
from timers.config.project import project_dir
from timers.config.settings import Settings

DEFAULT_BUCKETS = os.cpu_count() or 2


@click.command()
@click.option(
    "--checkpoint",
    metavar="URL",
    help="Directory of the state and progress, on storage that all executors reach (hdfs://, s3a://, a shared disk). "
    "If it is lost, the engine reads the request topic again.  [default: .timers/spark/engine-APP_ID]",
)
@click.option(
    "--buckets",
    type=click.IntRange(1, 4096),
    help="Number of parts of the state, which is also the number of parallel tasks, up to the number of partitions of "
    "the request topic. With another number the engine reads this topic again.  [default: that of the checkpoint; for "
    "a new one, the cores of this machine]",
)
@click.option(
    "--max-requests",
    type=click.IntRange(1, 10**8),
    default=120_000,
    show_default=True,
    help="Largest number of requests that one micro-batch reads. Limits its memory and its duration.",
)
@metrics_options
@launch_options
def engine(
    checkpoint: str | None,
    buckets: int | None,
    max_requests: int,
    make_launch: MakeLaunch,
    monitored: Monitored,
) -> None:
    """Fire timers on Spark instead of with workers.

    Reads requests and ticks, keeps waiting timers in stores on the disks of the executors, and sends the timers that
    are due, in the same Kafka transactions as a worker: each callback comes exactly once for read_committed receivers.
    Runs until Ctrl-C or SIGTERM, which stop it between two micro-batches, and interrupt one that takes longer than a
    minute. A new start continues where it stopped.

    It takes over from workers of the same TIMERS_APP_ID, and workers take over from it: stop one before you start the
    other.
    """
    from timers.kafka import topics
    from timers.kafka.aiokafka_internals.group_presence import Presence
    from timers.kafka.allowed_level import allow_in_new_app
    from timers.spark.engine import start
    from timers.spark.engine.oscillator import Oscillator
    from timers.spark.engine.query import Plan, request_topics, session_settings
    from timers.spark.engine.retries import Retries
    from timers.spark.jobs import engine as job
    from timers.spark.monitoring import EngineCounts
    from timers.spark.session import session
    from timers.wire.topics import engine_id

    settings = Settings.load()
    check_brokers(settings)
    cluster = topics.ensure(settings)
    checkpoint_dir = checkpoint or str((project_dir() / "spark" / f"engine-{settings.app_id}").resolve())

    def unseen(error: BaseException) -> None:
        say(f"workers that start beside this engine do not see it: it may not join the group {group!r} ({error!r})")

    group = engine_id(settings.app_id)
    with stop_event() as stop, Presence(settings, group, unseen), ExitStack() as stack:
        start.wait_for_workers(settings, say, stop.is_set)
        if not stop.is_set():
            allow_in_new_app(settings, cluster.partitions[settings.progress_topic])
            launch = make_launch("engine", session_settings(buckets or DEFAULT_BUCKETS))
            monitor = stack.enter_context(monitored("engine", 1))
            oscillator = stack.enter_context(Oscillator(settings, Clock()))
            spark = stack.enter_context(session(launch))
            stack.enter_context(monitor.watching(spark))
            start.check(spark, settings, cluster, checkpoint_dir, buckets, DEFAULT_BUCKETS)
        if stop.is_set():
            say("stopped")
            return
        start.check_no_workers(settings)  # Spark's start has taken a while
        # From here on an engine that runs is fenced: a refused start, or Ctrl-C while Spark starts, must not end it.
        retries = stack.enter_context(Retries(settings, cluster, lambda: oscillator.tick))
        run = start.announce(settings, cluster)

        def make_plan(anew: bool) -> Plan:
            directory, cluster = checkpoint_dir, topics.ensure(settings)
            plan = start.plan(
                spark, settings, cluster, run, directory, buckets, DEFAULT_BUCKETS, max_requests, anew=anew
            )
            names = ", ".join(request_topics(settings))
            say(f"firing timers of {names} in {plan.buckets} buckets; checkpoint: {plan.checkpoint}")
            return plan

        def ticked(tick_ms: int) -> None:
            monitor.ticked(tick_ms)
            oscillator.follow(tick_ms)

        monitor.engine = EngineCounts(retries.opener.counters, retries.opener.open_circuits)
        monitor.needs_ticks()
        job.run(spark, settings, make_plan, retries, say, stop, ticked, monitor.engine.add)
        say("stopped")
