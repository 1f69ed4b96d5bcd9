"""``timers queue dead`` and ``redrive``: the dead letters of one queue, and these back on it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from timers.cli.dead_letters import Words, check_selection, full_names, publish_again, show_letters, written_options
from timers.cli.output import Output, output_option
from timers.cli.queue import queue_options
from timers.cli.reach import load_settings
from timers.config.settings import Settings
from timers.wire import topics
from timers.wire.dead_letter import QUEUE_CODES
from timers.wire.printable import one_line

if TYPE_CHECKING:
    from timers.dead_letters.letters import Letter, LetterFilter
    from timers.wire.dead_letter import Mark

_Command = TypeVar("_Command", bound=Callable[..., Any])
_COLUMNS = ("WRITTEN", "CODE", "POSITION", "MESSAGE", "KEY", "REDRIVEN", "REASON")
_WIDTHS = (20, 18, 10, 24, 16, 8, 0)


def selecting(command: _Command) -> _Command:
    """Add the options that select dead letters of a queue."""
    code = click.option(
        "--code", "-c", "codes", type=click.Choice(QUEUE_CODES), multiple=True, help="With this code; may be repeated."
    )
    return code(written_options(command))


def letters_of(settings: Settings, name: str, topic: str | None, **selection: Any) -> LetterFilter:
    """Return the filter for the dead letters of a queue."""
    from timers.dead_letters.letters import LetterFilter, QueueTopics
    from timers.queue.inspection import Inspection

    topic = topic or Inspection(settings).topic_of(name)
    return LetterFilter(**selection, queue=QueueTopics(topic, topics.queue_returns(topics.queue_group(name))))


@click.command()
@queue_options
@selecting
@click.option("--limit", "-n", type=click.IntRange(0), default=100, show_default=True, help="Only the newest; 0: all.")
@output_option()
def dead(name: str, topic: str | None, limit: int, output: Output, **selection: Any) -> None:
    """List the messages that the queue NAME gave up, the newest last, with the reason.

    Codes: rejected (the handler called reject, or the brokers refused an output), attempts-exhausted, crashed (the
    process ended twice while it worked on this message alone), unsigned (it came back, and the queue has not sent it
    back). If the code is another one, a worker could not send the
    message back to the queue. The messages are in the topic of dead letters; `timers dead-letters show POSITION` shows
    one whole.

    \b
      timers queue dead jobs --since 1h
      timers queue dead jobs -n 0 -o json | jq -r .message | sort | uniq -c
    """
    settings = load_settings()
    show_letters(settings, letters_of(settings, name, topic, **selection), limit, output, (_COLUMNS, _WIDTHS, _cells))


def _cells(letter: Letter, mark: Mark | None) -> tuple[str, ...]:
    return (
        letter.written_at,
        letter.decoded.code,
        f"{letter.partition}/{letter.offset}",
        letter.decoded.source,
        one_line(letter.summary.key or b"-"),
        "yes" if mark else "no",
        letter.decoded.message,
    )


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
