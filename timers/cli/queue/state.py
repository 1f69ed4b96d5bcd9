"""``timers queue list``, ``stat`` and ``purge``: all queues, the state of one, and its messages marked as done."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from timers.cli.output import Output, confirm, output_option, say
from timers.cli.queue import queue_options
from timers.cli.reach import load_settings
from timers.counted import counted
from timers.errors import QueueError

if TYPE_CHECKING:
    from timers.queue.inspection import QueueStats

_LIST_COLUMNS = ("NAME", "TOPIC", "DEPTH", "OLDEST", "PROCESSES")
_LIST_WIDTHS = (32, 32, 12, 12, 0)


@click.command("list")
@output_option()
def list_queues(output: Output) -> None:
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
        for name in tqdm(names, desc="reading queues", delay=2, leave=False, disable=None):
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

    output.table(_LIST_COLUMNS, _LIST_WIDTHS, rows())
    for error in failures.values():
        say(str(error))
    say(counted(len(names), "queue"))


_STAT_COLUMNS = ("TOPIC", "PARTITION", "DEPTH", "COMMITTED", "END", "LEDGER BYTES")
_STAT_WIDTHS = (40, 9, 12, 12, 12, 0)


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
        output.table(
            _STAT_COLUMNS, _STAT_WIDTHS, (({}, ["-" if cell is None else str(cell) for cell in row]) for row in cells)
        )


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


@click.command()
@queue_options
@click.option("--yes", "-y", is_flag=True, help="Do not ask. Without a terminal it is required.")
@output_option()
def purge(name: str, topic: str | None, yes: bool, output: Output) -> None:
    """Mark all messages of the queue NAME as done, so that no process gets them. This cannot be undone.

    The topic keeps its records, and other queues and groups on it get them. Messages that a timer brings later, such as
    retries, still come. Stop the processes of the queue first: while one runs, the command fails.
    """
    if not (yes or sys.stdin.isatty()):
        raise click.UsageError("without a terminal this command cannot ask: add --yes")
    settings = load_settings()

    from timers.queue.inspection import Inspection  # not at the top: `--help` needs no librdkafka

    inspection = Inspection(settings)
    topic = topic or inspection.topic_of(name)
    depth = inspection.stats(name, topic, with_delayed=False).depth
    messages = f"{counted(depth, 'message')} of {name!r}"
    if not yes and not confirm(f"Mark {messages} as done?"):
        say("nothing was changed")
        raise click.exceptions.Exit(1)
    inspection.purge(name, topic)
    output.show({"name": name, "topic": topic, "purged": depth}, f"done: {messages}")
