"""``timers cancel``: take a timer with an id back."""

from __future__ import annotations

import time

import click

from timers.errors import TimersError
from timers.settings import Settings
from timers.wire import headers as h
from timers.wire import verdict
from timers.wire.query import format_due
from timers.wire.verdict import Told

_PUBLISH_TIMEOUT_S = 10.0

EXIT_CODES = {"cancelled": 0, "already-fired": 3, "unknown": 4}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("id")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(0.1), default=30.0, show_default=True, help="Seconds to wait."
)
@click.option("--output", "-o", type=click.Choice(["text", "json"]), default="text", help="json: the verdict as it is.")
def cancel(id: str, timeout_s: float, output: str) -> int:
    """Cancel the timer that has this ID, and wait for what came of it.

    Exit codes: 0 cancelled, 3 it had fired already, 4 there is no timer of this id, 1 nobody said.
    """
    settings = Settings.load()

    from timers.cli.by_id import ById  # not at the top: `--help` needs no librdkafka
    from timers.cli.tail import Tail

    with ById(settings, _PUBLISH_TIMEOUT_S) as door, Tail(settings, settings.verdict_topic) as tail:
        if not tail.opened():
            raise TimersError(
                f"topic {settings.verdict_topic!r} does not exist: start a worker with TIMERS_ID_TOPIC; it makes it"
            )
        source = door.cancel(id).encode()
        give_up = time.monotonic() + timeout_s
        for arrival in tail:
            if arrival is not None and arrival.header(h.TIMER_SOURCE) == source:
                told = verdict.decode(arrival.value or b"")
                click.echo((arrival.value or b"").decode() if output == "json" else _sentence(told))
                return EXIT_CODES[told.verdict]
            if time.monotonic() > give_up:
                break
    raise TimersError(
        f"nobody said within {timeout_s:g} s what came of it: does a worker run with "
        f"TIMERS_ID_TOPIC={settings.id_topic}? The cancel is in that topic, and counts as soon as one reads it"
    )


def _sentence(told: Told) -> str:
    if told.due_s is None:
        return f"{told.id}: there is no timer of this id (never set, cancelled before, or fired long ago)"
    when = f"due {format_due(told.due_s)} ({told.due_s})"
    return f"{told.id}: cancelled, {when}" if told.verdict == "cancelled" else f"{told.id}: has fired already, {when}"
