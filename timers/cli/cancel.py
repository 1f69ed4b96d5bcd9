"""``timers cancel``: cancels a timer with an id."""

from __future__ import annotations

import click

from timers.cli.output import Output, output_option
from timers.cli.reach import load_settings
from timers.wire.query import format_due
from timers.wire.verdict import VerdictMessage

_PUBLISH_TIMEOUT_S = 10.0

EXIT_CODES = {"cancelled": 0, "already-fired": 3, "unknown": 4}


@click.command()
@click.argument("id")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(0.1), default=30.0, show_default=True, help="Seconds to wait."
)
@output_option()
def cancel(id: str, timeout_s: float, output: Output) -> int:
    """Cancel the timer with this ID, and wait for the verdict.

    Exit codes: 0 cancelled, 3 already fired, 4 there is no timer with this id, 1 no verdict came.
    """
    settings = load_settings()

    from timers.client import TimersClient  # not at the top: `--help` needs no librdkafka

    with TimersClient(settings.brokers, timeout_s=_PUBLISH_TIMEOUT_S) as client:
        result = client.cancel(id, timeout_s=timeout_s)
    output.show({"id": result.id, "verdict": result.verdict, "due": result.due_s}, _sentence(result))
    return EXIT_CODES[result.verdict]


def _sentence(result: VerdictMessage) -> str:
    if result.due_s is None:
        return f"{result.id}: there is no timer of this id (never set, cancelled before, or fired long ago)"
    when = f"due {format_due(result.due_s)} ({result.due_s})"
    return f"{result.id}: {'cancelled' if result.verdict == 'cancelled' else 'has fired already'}, {when}"
