"""``timers spark promote``: write cold timers back before they are due."""

from __future__ import annotations

import time

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
from timers.client.times import parse_duration
from timers.config.settings import Settings
from timers.kafka import connection


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
