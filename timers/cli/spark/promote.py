"""``timers spark promote``: bring back what comes near."""

from __future__ import annotations

import time
from functools import partial

import click

from timers.cli.spark.options import LaunchOf, launch_options, tables_option, told_to_stop
from timers.cli.times import parse_duration
from timers.config.settings import Settings
from timers.kafka import connection


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@tables_option
@click.option("--once", is_flag=True, help="Bring back what is near now, look after the tables, and end.")
@click.option("--every", "every_s", type=click.IntRange(1, 3600), default=60, show_default=True, help="Seconds.")
@click.option("--lead", default="1h", show_default=True, help="How far ahead of its due second a timer comes back.")
@click.option(
    "--rate", type=click.IntRange(1, 1_000_000), default=5000, show_default=True, help="Most timers a second."
)
@click.option(
    "--overdue",
    is_flag=True,
    help="Bring back also what was taken in long after it was due: after a loss of the tables, it may fire twice.",
)
@launch_options
def promote(
    tables: str | None,
    once: bool,
    every_s: int,
    lead: str,
    rate: int,
    overdue: bool,
    launch_of: LaunchOf,
) -> None:
    """Write timers that come near from the table back to their own topics and partitions.

    Runs until Ctrl-C or SIGTERM, one at a time: a second one ends the first. Now and then it makes few files of many
    and deletes what is over. Keep it running for as long as anything is cold: what is not brought back does not fire.

    \b
      timers spark promote
      timers spark promote --once --lead 2h --tables s3a://bucket/cold
    """
    settings = Settings.load()
    launch = launch_of("promote")
    lead_s = int(parse_duration(lead))

    from timers.spark.cold import ColdTables, default_root
    from timers.spark.jobs import promote as job
    from timers.spark.session import session

    what = job.Promote(ColdTables(tables or default_root()), lead_s, rate, overdue=overdue)
    with told_to_stop() as stop, session(launch) as spark:
        logs = job.Logs(spark, settings, connection.librdkafka(settings))
        say = partial(click.echo, err=True)
        total = job.run(spark, what, logs, Clock(), say, None if once else every_s, stop)
    click.echo(f"promote: {total:,} written back")


class Clock:
    """The machine's. It says only what is near."""

    def now_s(self) -> int:
        return int(time.time())
