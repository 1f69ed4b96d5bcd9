"""``timers queue dead``: the dead letters of one queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from timers.cli.dead_letters import moment, show_letters
from timers.cli.output import Output, output_option
from timers.cli.queue.options import queue_options
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
    since = click.option(
        "--since",
        "since_s",
        type=moment,
        metavar="WHEN",
        help="Written at this time or later: 2h (two hours ago), or 2030-01-31T12:00:00Z.",
    )
    until = click.option("--until", "until_s", type=moment, metavar="WHEN", help="Written before this time.")
    return code(since(until(command)))


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
