"""``timers spark history``: what became of each timer, as tables."""

from __future__ import annotations

from typing import Any

import click

from timers.cli.output import Output, metrics_options, output_option, say
from timers.cli.reach import check_brokers
from timers.cli.spark import launch, launch_options, monitored, stop_event
from timers.process.config.settings import Settings
from timers.process.counted import counted


@click.command()
@click.option(
    "--table",
    required=True,
    metavar="URI",
    help="Directory of the tables, which all executors can read and write.",
)
@click.option("--once", is_flag=True, help="Read what is there, then end.")
@click.option(
    "--every",
    "every_s",
    type=click.IntRange(1, 86_400),
    default=10,
    show_default=True,
    help="Seconds between two rounds.",
)
@click.option("--keys", is_flag=True, help="Keep the keys of requests and callbacks, too.")
@click.option("--erase-id", metavar="ID", help="Only remove this id of timers from the tables.")
@click.option("--erase-key", metavar="KEY", help="Only remove this key from the tables.")
@click.option(
    "--accept-gaps",
    is_flag=True,
    help="Only accept the gaps that are known so far: later audits of a day name them, and are no longer undecided "
    "because of them. A job may run at the same time.",
)
@output_option()
@metrics_options
@launch_options
def history(
    table: str,
    once: bool,
    every_s: int,
    keys: bool,
    erase_id: str | None,
    erase_key: str | None,
    accept_gaps: bool,
    output: Output,
    **options: Any,
) -> None:
    """Keep what became of each timer in Delta tables, longer than the topics do.

    Reads requests, callbacks, dead letters and verdicts, without their values. TABLE/timers has one row for each timer
    that is over; TABLE/events has one for each record, and where the job has read to. Each is there once, even if
    processes are killed. Runs until Ctrl-C or SIGTERM.

    \b
      timers spark history --table s3a://bucket/history
      timers spark history --table history --once
      timers spark history --table history --erase-id order-17
      timers spark history --table history --accept-gaps
    """
    settings = Settings.load()
    # Python gets the values of whole batches of records: by default 10,000, which may be large.
    launched = launch(options, "history", {"spark.sql.execution.arrow.maxRecordsPerBatch": "2000"})
    check_brokers(settings)

    from timers.spark.jobs import history as job
    from timers.spark.session import session
    from timers.spark.storage import check_shared

    monitoring = monitored(options, "history", every_s, once=once)
    with stop_event() as stop, monitoring as monitor, session(launched) as spark:
        check_shared(spark, "--table", table)
        if erase_id is not None or erase_key is not None:
            key = None if erase_key is None else erase_key.encode()
            count = job.erase(spark, settings, job.Params(table), erase_id, key)
            text = f"{count:,} rows had it; files that still do are deleted by VACUUM, after seven days"
            output.show({"erased": count}, text)
            return
        if accept_gaps:
            accepted = list(job.accept_gaps(spark, settings, job.Params(table)))
            output.show({"accepted": accepted}, *accepted, f"{counted(len(accepted), 'gap')} accepted")
            return
        total = job.run(spark, settings, job.Params(table, keys), say, None if once else every_s, stop, monitor)
    fields = {"records": total.records, "timers": total.timers}
    output.show(fields, f"history: {total.records:,} records read, {total.timers:,} timers added or changed")
