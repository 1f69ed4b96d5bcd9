"""``timers spark hold``: move timers that are due far ahead into a table."""

from __future__ import annotations

import click

from timers.cli.output import Output, output_option, say
from timers.cli.reach import check_brokers
from timers.cli.spark.options import (
    MakeLaunch,
    Monitored,
    cold_tables,
    launch_options,
    metrics_options,
    stop_event,
    tables_option,
)
from timers.config.settings import Settings


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
