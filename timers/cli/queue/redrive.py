"""``timers queue redrive``: dead letters of a queue back on it."""

from __future__ import annotations

import sys
from typing import Any

import click

from timers.cli.dead_letters import Words, check_selection, full_names, publish_again
from timers.cli.output import Output, output_option
from timers.cli.queue.dead import letters_of, selecting
from timers.cli.queue.options import queue_options
from timers.cli.reach import load_settings

MESSAGES = Words("message", "to put back", "Put {} back?", "put back")


@click.command()
@queue_options
@click.argument("positions", metavar="[POSITION]...", nargs=-1)
@selecting
@click.option("--all", "everything", is_flag=True, help="All dead letters of the queue.")
@click.option("--dry-run", is_flag=True, help="Print what would be done, and do nothing.")
@click.option("--force", is_flag=True, help="Also those that were put back before.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask. Without a terminal it is required.")
@output_option()
def redrive(
    name: str,
    topic: str | None,
    positions: tuple[str, ...],
    everything: bool,
    dry_run: bool,
    force: bool,
    yes: bool,
    output: Output,
    **selection: Any,
) -> None:
    """Put messages that the queue NAME gave up back on it. Their attempts are counted from 1 again.

    Choose them by POSITION, as `timers queue dead` shows it (2/17), by options, or with --all. No other queue on the
    topic gets them. Timers bring them, so a worker must run. Each is put back once: a second call leaves it out.

    \b
      timers queue redrive jobs 2/17
      timers queue redrive jobs --code attempts-exhausted --since 1h --yes
    """
    check_selection(positions, selection, everything, "POSITION..., or options such as --code and --since")
    on_terminal = sys.stdin.isatty()
    if not (yes or dry_run or on_terminal):
        raise click.UsageError(
            "without a terminal this command cannot ask: add --yes, or --dry-run to see what it would do"
        )
    settings = load_settings()
    names = frozenset(full_names(positions, settings.dead_letter_topic))
    letter_filter = letters_of(settings, name, topic, **selection, names=names)
    publish_again(settings, letter_filter, output, MESSAGES, dry_run=dry_run, force=force, ask=not yes)
