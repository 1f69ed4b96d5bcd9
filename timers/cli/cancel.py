"""``timers cancel``: cancels a timer with an id."""

from __future__ import annotations

from typing import Any

import click

from timers.cli.output import Output, argument_id, output_option
from timers.cli.reach import load_settings
from timers.core.operation import CHANGED, EXISTS, REFUSED
from timers.wire.query import format_due
from timers.wire.verdict import VerdictMessage

_PUBLISH_TIMEOUT_S = 10.0

REFUSED_CODE = 5
"""Exit code if a condition was not true, so that nothing was changed."""

EXIT_CODES = {"cancelled": 0, "already-fired": 3, "unknown": 4, **dict.fromkeys(REFUSED, REFUSED_CODE)}


if_source_option = click.option(
    "--if-source", metavar="SOURCE", help="Only if the latest version has this source, which `timers get` shows."
)
"""Adds the option to a command."""


@click.command()
@click.argument("id")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(0.1), default=30.0, show_default=True, help="Seconds to wait."
)
@if_source_option
@output_option()
def cancel(id: str, timeout_s: float, if_source: str | None, output: Output) -> int:
    """Cancel the timer with this ID, and wait for the verdict.

    Exit codes: 0 cancelled, 3 already fired, 4 there is no timer with this id, 5 --if-source: it is another version, or
    too late, 1 no verdict came.
    """
    settings = load_settings()

    from timers.client import TimersClient  # not at the top: `--help` needs no librdkafka

    with TimersClient(settings.brokers, timeout_s=_PUBLISH_TIMEOUT_S) as client:
        result = client.cancel(argument_id(id), if_source=if_source, timeout_s=timeout_s)
    output.show(fields(result), sentence(result))
    return EXIT_CODES[result.verdict]


def fields(result: VerdictMessage) -> dict[str, Any]:
    """The fields of a verdict, as JSON shows it; ``version`` only if it is known."""
    shown = {"id": result.id, "verdict": result.verdict, "due": result.due_s}
    return shown if result.version is None else {**shown, "version": result.version}


def sentence(result: VerdictMessage) -> str:
    """What a verdict on a cancel says, or a verdict that refuses a request."""
    if result.verdict in REFUSED:
        why = {
            EXISTS: "there is or was a timer with this id",
            CHANGED: "another version is the latest" if result.version else "there is no timer with this id",
        }.get(result.verdict, "the timer has fired, or is about to")
        latest = f" (the latest version: {result.version})" if result.version else ""
        return f"{result.id}: nothing was changed: {why}{latest}"
    if result.due_s is None:
        return f"{result.id}: there is no timer of this id (never set, cancelled before, or fired long ago)"
    when = f"due {format_due(result.due_s)} ({result.due_s})"
    return f"{result.id}: {'cancelled' if result.verdict == 'cancelled' else 'has fired already'}, {when}"
