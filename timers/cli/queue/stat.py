"""``timers queue stat``: the state of one queue."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from timers.cli.output import Output, output_option
from timers.cli.queue.options import queue_options
from timers.cli.reach import load_settings
from timers.counted import counted

if TYPE_CHECKING:
    from timers.queue.inspection import QueueStats

_COLUMNS = ("TOPIC", "PARTITION", "DEPTH", "COMMITTED", "END", "LEDGER BYTES")
_WIDTHS = (40, 9, 12, 12, 12, 0)


@click.command()
@queue_options
@click.option("--partitions", "by_partition", is_flag=True, help="Also each partition that has messages.")
@output_option()
def stat(name: str, topic: str | None, by_partition: bool, output: Output) -> None:
    """Show how many messages of the queue NAME wait, and how old the oldest one is.

    The command joins no group, so it does not disturb the queue. It knows what the processes have committed, which is
    0.1 s old while they run. It asks the worker at TIMERS_WORKER_URL for delayed messages.

    \b
      timers queue stat jobs
      timers queue stat jobs -o json | jq .depth
    """
    settings = load_settings()

    from timers.queue.inspection import Inspection  # not at the top: `--help` needs no librdkafka

    stats = Inspection(settings).stats(name, topic)
    if output.as_json:
        output.show(asdict(stats))
        return
    output.show({}, *_lines(stats, settings.query_url))
    if by_partition:
        rows = [each for each in stats.partitions if each.depth]
        cells = [(each.topic, each.partition, each.depth, each.committed, each.end, each.ledger_bytes) for each in rows]
        output.table(_COLUMNS, _WIDTHS, (({}, ["-" if cell is None else str(cell) for cell in row]) for row in cells))


def _lines(stats: QueueStats, worker_url: str) -> list[str]:
    if stats.delayed is None:
        delayed = f"unknown: no worker of this app and cluster answers at {worker_url} (TIMERS_WORKER_URL)"
    else:
        delayed = f"{stats.delayed:,}{' or more' if stats.delayed_at_least else ''} timers, of retries and of delays"
    returned = sum(each.depth for each in stats.partitions if each.topic != stats.topic)
    age = "no message waits" if stats.oldest_age_s is None else f"came {stats.oldest_age_s:,.0f} s ago"
    rows = [
        ("queue", stats.name),
        ("topic", f"{stats.topic}, {sum(each.topic == stats.topic for each in stats.partitions)} partitions"),
        ("depth", f"{counted(stats.depth, 'message')} not done, {returned:,} of them from a retry"),
        ("delayed", delayed),
        ("oldest", age),
        ("processes", f"{stats.processes:,}"),
        *(("not read", f"{partition}: its leader does not answer") for partition in stats.unread),
    ]
    return [f"{label:<11}{text}" for label, text in rows]
