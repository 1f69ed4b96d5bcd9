"""The jobs ``engine``, ``hold``, ``promote``, ``pending`` and ``jars``."""

from __future__ import annotations

import os
import shutil
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from timers.cli.output import Output, metrics_options, output_option, say
from timers.cli.reach import check_brokers
from timers.cli.spark import launch, launch_options, monitored, stop_event, written
from timers.client.times import parse_duration
from timers.core.printable import utc_text
from timers.offline.app_state import explained
from timers.process.clock import Clock
from timers.process.config.project import project_dir
from timers.process.config.settings import Settings
from timers.process.counted import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from timers.spark.cold import ColdTables

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
def engine(checkpoint: str | None, buckets: int | None, max_requests: int, **options: Any) -> None:
    """Fire timers on Spark instead of with workers.

    Reads requests and ticks, keeps waiting timers in stores on the disks of the executors, and sends the timers that
    are due, in the same Kafka transactions as a worker: each callback comes exactly once for read_committed receivers.
    Runs until Ctrl-C or SIGTERM, which stop it between two micro-batches, and interrupt one that takes longer than a
    minute. A new start continues where it stopped.

    It takes over from workers of the same TIMERS_APP_ID, and workers take over from it: stop one before you start the
    other.
    """
    from timers.kafka import topics
    from timers.kafka.progress_log import allow_in_new_app
    from timers.spark.engine import query, start
    from timers.spark.engine.commands import Commands
    from timers.spark.engine.oscillator import Oscillator
    from timers.spark.engine.query import Driver, Plan, request_topics
    from timers.spark.engine.query_port import answering
    from timers.spark.engine.retries import Retries
    from timers.spark.monitoring import EngineCounts
    from timers.spark.session import session

    settings = Settings.load()
    check_brokers(settings)
    cluster = topics.ensure(settings)
    checkpoint_dir = checkpoint or str((project_dir() / "spark" / f"engine-{settings.app_id}").resolve())

    with stop_event() as stop, start.in_group(settings, cluster, say) as taken, ExitStack() as stack:
        start.wait_for_workers(settings, say, stop.is_set)
        if not stop.is_set():
            allow_in_new_app(settings, cluster.partitions[settings.progress_topic])
            launched = launch(options, "engine", start.session_settings(buckets or DEFAULT_BUCKETS))
            monitor = stack.enter_context(monitored(options, "engine", 1))
            monitor.taken = taken
            oscillator = stack.enter_context(Oscillator(settings, Clock()))
            spark = stack.enter_context(session(launched))
            stack.enter_context(monitor.watching(spark))
            starting = start.Start(spark, settings, checkpoint_dir, buckets, DEFAULT_BUCKETS, max_requests)
            starting.check(cluster)
        if stop.is_set():
            say("stopped")
            return
        query.check_no_workers(settings)  # asked again: a worker may have begun while Spark started
        # From here on an engine that runs is fenced: a refused start, or Ctrl-C while Spark starts, must not end it.
        run = start.announce(settings, cluster)
        driver = Driver(settings, cluster, run, oscillator.wake)
        retries = stack.enter_context(Retries(settings, cluster, driver, oscillator))
        stack.enter_context(Commands(settings, driver.openings))

        def make_plan(anew: bool) -> Plan:
            plan = starting.plan(topics.ensure(settings), run, anew=anew)
            names = ", ".join(request_topics(settings))
            say(f"firing timers of {names} in {plan.buckets} buckets; checkpoint: {plan.checkpoint}")
            return plan

        def ticked(tick_ms: int) -> None:
            monitor.ticked(tick_ms)
            oscillator.follow(tick_ms)

        openings = driver.openings
        monitor.engine = EngineCounts(openings.counters, openings.open_circuits, lambda: retries.waiting)
        stack.enter_context(answering(settings, cluster, driver, monitor, say))
        monitor.needs_ticks()
        query.run(spark, settings, make_plan, driver, say, stop, ticked, monitor.engine.add)
        say("stopped")


_LOCAL_TABLES = ".timers/cold"
"""What the commands call the default directory of the cold tier's tables."""


tables_option = click.option(
    "--tables",
    metavar="URI",
    help=f"Directory of the cold tier's tables, which all executors can read and write.  [default: {_LOCAL_TABLES}]",
)
"""Adds the option to a command."""


def cold_tables(spark: SparkSession, given: str | None) -> ColdTables:
    """The tables of the cold tier in the directory of ``--tables``, which executors must reach."""
    from timers.spark.cold import ColdTables
    from timers.spark.storage import check_shared

    check_shared(spark, "--tables", given or _LOCAL_TABLES, always_local=given is None)
    return ColdTables(given or (project_dir() / "cold").resolve().as_uri())


@click.command()
@tables_option
@click.option("--once", is_flag=True, help="Move the existing requests, then end.")
@click.option(
    "--every",
    "every_s",
    type=click.IntRange(1, 3600),
    default=10,
    show_default=True,
    help="Seconds between two micro-batches.",
)
@output_option()
@metrics_options
@launch_options
def hold(tables: str | None, once: bool, every_s: int, output: Output, **options: Any) -> None:
    """Move timers that are due beyond TIMERS_HOT_HORIZON_S from the cold topic into a table.

    Each is moved exactly once, even if processes are killed. Runs until Ctrl-C or SIGTERM. `timers spark promote`
    writes the timers back before they are due.

    \b
      timers spark hold
      timers spark hold --once --tables s3a://bucket/cold
    """
    settings = Settings.load()
    launched = launch(options, "hold")
    check_brokers(settings)

    from timers.spark.jobs import hold as job
    from timers.spark.session import session

    with (
        stop_event() as stop,
        monitored(options, "hold", every_s, once=once) as monitor,
        session(launched) as spark,
        monitor.watching(spark),
    ):
        total = job.run(spark, settings, cold_tables(spark, tables), say, None if once else every_s, stop)
    output.show({"held": total}, f"hold: {total:,} held")


@click.command()
@tables_option
@click.option("--once", is_flag=True, help="Write back the timers that are near now, maintain the tables, then end.")
@click.option(
    "--every", "every_s", type=click.IntRange(1, 3600), default=60, show_default=True, help="Seconds between two runs."
)
@click.option("--lead", default="1h", show_default=True, help="How long before its due second a timer is written back.")
@click.option(
    "--rate",
    type=click.IntRange(1, 1_000_000),
    default=5000,
    show_default=True,
    help="Largest number of timers a second.",
)
@click.option(
    "--overdue",
    is_flag=True,
    help="Also write back timers that may have been before: they were held long after they were due, or logs do not "
    "have any more what an earlier run wrote. If they were, they fire twice. Ends the search for these copies.",
)
@output_option()
@metrics_options
@launch_options
def promote(
    tables: str | None,
    once: bool,
    every_s: int,
    lead: str,
    rate: int,
    overdue: bool,
    output: Output,
    **options: Any,
) -> None:
    """Write cold timers from the table back to their topics and partitions before they are due.

    Runs until Ctrl-C or SIGTERM. Only one can run: a second one ends the first. Every six hours it merges small files
    and deletes days whose timers are all written back. Keep it running as long as timers are cold: a timer that is not
    written back does not fire.

    \b
      timers spark promote
      timers spark promote --once --lead 2h --tables s3a://bucket/cold
    """
    settings = Settings.load()
    launched = launch(options, "promote", {"spark.scheduler.mode": "FAIR"})
    check_brokers(settings)
    lead_s = int(parse_duration(lead))

    from timers.spark.jobs import promote as job
    from timers.spark.session import session

    monitoring = monitored(options, "promote", every_s, once=once)
    with stop_event() as stop, monitoring as monitor, session(launched) as spark:
        arguments = job.Promote(cold_tables(spark, tables), lead_s, rate, overdue=overdue)
        logs, pause_s = job.Logs(spark, settings), None if once else every_s
        monitor.upkept()
        watched = monitor.ended, monitor.upkept, monitor.at_work()
        total = job.run(spark, arguments, logs, lambda: int(time.time()), say, pause_s, stop, *watched)
    output.show({"written_back": total}, f"promote: {total:,} written back")


@click.command()
@click.option("--table", metavar="URI", help="Write a row for each timer to the Delta table in this directory.")
@output_option()
@launch_options
def pending(table: str | None, output: Output, **options: Any) -> None:
    """Show how many timers are due in each hour, and write what is pending to a table.

    It reads the newest snapshots and the logs after them, so it does not matter whether workers or the engine on Spark
    fire the timers, and neither notices it. The table is replaced when all is read. A row has topic, due, due_s, id,
    key, attempts, source, as_of and hour. Timers in the cold tier are not read: `timers spark hold` has a table of
    them.

    \b
      timers spark pending
      timers spark pending --table s3a://bucket/pending --master spark://host:7077
    """
    settings = Settings.load()
    launched = launch(options, "pending")
    check_brokers(settings)
    failed = f"what is pending of {settings.app_id!r} cannot be read"
    with explained(settings, failed) as reports:
        from timers.kafka.topics import existing

        cluster = existing(settings, reports)

    from timers.kafka.request_formats import enabled_formats
    from timers.offline.pending import exported_topics
    from timers.spark.jobs import pending as job
    from timers.spark.session import session
    from timers.spark.storage import check_shared

    with session(launched) as spark:
        if table is not None:
            check_shared(spark, "--table", table)
        hours = job.run(spark, settings, cluster, table)
    rows = (
        ({"hour": hour, "topic": topic, "timers": count}, (utc_text(hour), topic, f"{count:,}"))
        for hour, topic, count in hours
    )
    output.table(("HOUR", "TOPIC", "TIMERS"), (20, 40, 0), rows)
    say(f"{counted(sum(count for *_, count in hours), 'timer')} pending{f', in {table}' if table else ''}")
    left = enabled_formats(settings).keys() - exported_topics(settings)
    if left:
        say(f"timers of {', '.join(sorted(left))} are not read: these topics belong to their users")


@click.command()
@click.option(
    "--into",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIRECTORY",
    help="Copy the jars to this directory, such as the directory jars of Spark in an image.",
)
@click.option("--submit", is_flag=True, help="Print arguments for spark-submit: the jars, and the file that it starts.")
@output_option()
def jars(into: Path | None, submit: bool, output: Output) -> None:
    """Download the jars that the jobs need besides Spark's own, and print their paths.

    They are the Kafka connector and Delta for the installed version of pyspark, with exact versions and checked hashes.
    `timers spark JOB` needs no such preparation; spark-submit and images do.

    \b
      spark-submit --master spark://host:7077 $(timers spark jars --submit) audit
      timers spark jars --into /opt/spark/jars
    """
    from timers.spark import __main__ as script
    from timers.spark.jars import jar_set

    paths = jar_set().ensure(sys.stderr)
    if into is not None:
        with written("--into", into):
            into.mkdir(parents=True, exist_ok=True)
            paths = [Path(shutil.copy(path, into)) for path in paths]
    listed = ",".join(map(str, paths))
    fields = {"jars": list(map(str, paths)), "script": script.__file__}
    output.show(fields, f"--jars {listed} {script.__file__}" if submit else listed)
