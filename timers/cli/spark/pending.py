"""``timers spark pending``: what is pending of an app, as a table and as a forecast by hour."""

from __future__ import annotations

import click

from timers.cli.output import Output, output_option, say
from timers.cli.progress import existing, explained
from timers.cli.reach import check_brokers
from timers.cli.spark.options import MakeLaunch, launch_options
from timers.config.settings import Settings
from timers.counted import counted
from timers.wire.query import format_due


@click.command()
@click.option("--table", metavar="URI", help="Write a row for each timer to the Delta table in this directory.")
@output_option()
@launch_options
def pending(table: str | None, output: Output, make_launch: MakeLaunch) -> None:
    """Show how many timers are due in each hour, and write what is pending to a table.

    It reads the newest snapshots and the logs after them, so it does not matter whether workers or the engine on Spark
    fire the timers, and neither notices it. The table is replaced when all is read. A row has topic, due, hour, due_s,
    id, key, attempts and source. Timers in the cold tier are not read: `timers spark hold` has a table of them.

    \b
      timers spark pending
      timers spark pending --table s3a://bucket/pending --master spark://host:7077
    """
    settings = Settings.load()
    launch = make_launch("pending")
    check_brokers(settings)
    failed = f"what is pending of {settings.app_id!r} cannot be read"
    with explained(settings, failed, "the group's members") as reports:
        cluster = existing(settings, reports)

    from timers.pending.exporting import exported_topics
    from timers.request_formats import enabled_formats
    from timers.spark.jobs import pending as job
    from timers.spark.session import session
    from timers.spark.storage import check_shared

    with session(launch) as spark:
        if table is not None:
            check_shared(spark, "--table", table)
        hours = job.run(spark, settings, cluster, table)
    rows = (
        ({"hour": hour, "topic": topic, "timers": count}, (format_due(hour), topic, f"{count:,}"))
        for hour, topic, count in hours
    )
    output.table(("HOUR", "TOPIC", "TIMERS"), (20, 40, 0), rows)
    say(f"{counted(sum(count for *_, count in hours), 'timer')} pending{f', in {table}' if table else ''}")
    left = enabled_formats(settings).keys() - exported_topics(settings)
    if left:
        say(f"timers of {', '.join(sorted(left))} are not read: these topics belong to their users")
