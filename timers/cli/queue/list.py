"""``timers queue list``: all queues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from timers.cli.output import Output, output_option, say
from timers.cli.reach import load_settings
from timers.counted import counted
from timers.errors import QueueError

_COLUMNS = ("NAME", "TOPIC", "DEPTH", "OLDEST", "PROCESSES")
_WIDTHS = (32, 32, 12, 12, 0)


@click.command("list")
@output_option()
def list(output: Output) -> None:  # the command's name
    """List the queues: each consumer group `queue.NAME`, with the messages that are not done.

    \b
      timers queue list
      timers queue list -o json | jq 'select(.depth > 1000)'
    """
    settings = load_settings()

    from tqdm import tqdm

    from timers.queue.inspection import Inspection  # not at the top: `--help` needs no librdkafka

    inspection = Inspection(settings)
    names = inspection.names()
    failures: dict[str, QueueError] = {}

    def rows() -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
        for name in tqdm(names, desc="reading queues", delay=2, leave=False):
            try:
                stats = inspection.stats(name, with_delayed=False)
            except QueueError as error:
                failures[name] = error
                continue
            age_s = stats.oldest_age_s
            fields = {
                "name": name,
                "topic": stats.topic,
                "depth": stats.depth,
                "oldest_age_s": age_s,
                "processes": stats.processes,
            }
            age = "-" if age_s is None else f"{age_s:,.0f} s"
            yield fields, (name, stats.topic, f"{stats.depth:,}", age, str(stats.processes))

    output.table(_COLUMNS, _WIDTHS, rows())
    for error in failures.values():
        say(str(error))
    say(counted(len(names), "queue"))
