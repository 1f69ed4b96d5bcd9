"""``timers queue purge``: marks all messages of a queue as done."""

from __future__ import annotations

import sys

import click

from timers.cli.output import Output, confirm, output_option, say
from timers.cli.queue.options import queue_options
from timers.cli.reach import load_settings
from timers.counted import counted


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
