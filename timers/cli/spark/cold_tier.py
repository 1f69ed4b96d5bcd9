"""``timers spark hold`` and ``promote``: timers that are due far ahead go into a table, and come back in time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from timers.cli.output import Output, output_option, say
from timers.cli.reach import check_brokers
from timers.cli.spark.options import MakeLaunch, Monitored, launch_options, metrics_options, stop_event
from timers.client.times import parse_duration
from timers.config.settings import Settings
from timers.kafka import connection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from timers.spark.cold import ColdTables

_LOCAL_TABLES = ".timers/cold"
"""What the commands call the default directory of the cold tier's tables."""


def tables_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option ``--tables``, the directory of the cold tier's tables."""
    return click.option(
        "--tables",
        metavar="URI",
        help="Directory of the cold tier's tables, which all executors can read and write.  "
        f"[default: {_LOCAL_TABLES}]",
    )(command)


def cold_tables(spark: SparkSession, given: str | None) -> ColdTables:
    """The tables of the cold tier.

    Args:
        given: value of ``--tables``.

    Raises:
        SettingsError: executors on other machines do not reach them.
    """
    from timers.spark.cold import ColdTables, default_root
    from timers.spark.storage import check_shared

    check_shared(spark, "--tables", given or _LOCAL_TABLES, always_local=given is None)
    return ColdTables(given or default_root())


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
def hold(
    tables: str | None,
    once: bool,
    every_s: int,
    output: Output,
    make_launch: MakeLaunch,
    monitored: Monitored,
) -> None:
    """Move timers that are due beyond TIMERS_HOT_HORIZON_S from the cold topic into a table.

    Each is moved exactly once, even if processes are killed. Runs until Ctrl-C or SIGTERM. `timers spark promote`
    writes the timers back before they are due.

    \b
      timers spark hold
      timers spark hold --once --tables s3a://bucket/cold
    """
    settings = Settings.load()
    launch = make_launch("hold")
    check_brokers(settings)

    from timers.spark.jobs import hold as job
    from timers.spark.session import session

    with (
        stop_event() as stop,
        monitored("hold", every_s) as monitor,
        session(launch) as spark,
        monitor.watching(spark),
    ):
        arguments = job.Hold(settings, cold_tables(spark, tables), None if once else every_s)
        total = job.run(spark, arguments, say, stop)
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
    help="Also write back timers that were held long after they were due: if tables were lost, they may fire twice.",
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
    make_launch: MakeLaunch,
    monitored: Monitored,
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
    launch = make_launch("promote")
    check_brokers(settings)
    lead_s = int(parse_duration(lead))

    from timers.spark.jobs import promote as job
    from timers.spark.session import session

    with stop_event() as stop, monitored("promote", every_s) as monitor, session(launch) as spark:
        arguments = job.Promote(cold_tables(spark, tables), lead_s, rate, overdue=overdue)
        logs = job.Logs(spark, settings, connection.librdkafka(settings))
        print_line = say
        total = job.run(
            spark, arguments, logs, lambda: int(time.time()), print_line, None if once else every_s, stop, monitor.ended
        )
    output.show({"written_back": total}, f"promote: {total:,} written back")
