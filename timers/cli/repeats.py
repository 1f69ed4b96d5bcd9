"""The options of ``timers schedule`` for timers that repeat, and ``timers next``, which shows what a rule means."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from timers.cli.output import Output, argument_bytes, output_option, say
from timers.core.printable import utc_text
from timers.process.config.settings import Settings
from timers.process.http.asking import worker_zone_data
from timers.wire.zones import zone_data_version

_Command = TypeVar("_Command", bound=Callable[..., Any])

_ANSWER_S = 1.0
"""A worker that answers later is not compared."""

DEFAULT_COUNT = 10
MAX_COUNT = 1_000

_OPTIONS = (
    click.option("--zone", metavar="ZONE", help="Time zone of the cron line: Europe/Paris. It has no default."),
    click.option("--every", metavar="DURATION", help="Interval in place of a cron line: 15m, 1d, 90s."),
    click.option(
        "--from", "from_", metavar="TIME", help="No occurrence before this time; with --every it is the first one."
    ),
    click.option("--until", metavar="TIME", help="No occurrence after this time."),
    click.option(
        "--catch-up",
        type=click.Choice(["latest", "all", "none"]),
        help="What is sent of missed occurrences: the latest (by default), all or none.",
    ),
    click.option(
        "--spread",
        metavar="DURATION",
        help="Each timer is delayed by a part of this time, always the same part for one id.",
    ),
    click.option(
        "--except", "excepted", metavar="DATES", multiple=True, help="Local dates without one: 2026-12-24,2026-12-25."
    ),
)
_RULE = {"cron", "zone", "every", "from_", "until", "catch_up", "spread", "excepted"}


def repeat_options(command: _Command) -> _Command:
    """Add the options of a rule, but for the cron line."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def rule_of(given: Mapping[str, Any]) -> Any:
    """The :class:`timers.client.Repeat` that the options name; None if they name none.

    Raises:
        InvalidTimerError: they are no rule, or one that never comes again.
    """
    from timers.client.timer_lines import repeat_of  # not at the top: `--help` needs no protobuf

    parts = {name.rstrip("_"): part for name, part in given.items() if name in _RULE and part}
    if "excepted" in parts:
        parts["except"] = ",".join(parts.pop("excepted"))
    return repeat_of(parts, say) if parts else None


def say_zone_data(settings: Settings) -> None:
    """Say that the worker has other zone data than this machine, if it answers."""
    theirs, ours = worker_zone_data(settings, _ANSWER_S), zone_data_version()
    if theirs and theirs != ours:
        say(
            f"this machine has the zone data {ours}, and the worker at {settings.query_url} {theirs}, which counts: "
            "for a zone whose rules differ, it fires at other seconds. Upgrade the package tzdata of the older one"
        )


@click.command()
@click.argument("cron", metavar="[CRON]", required=False)
@repeat_options
@click.option("--id", metavar="ID", help="With --spread: show when the timer of this id is due.")
@click.option(
    "--count", type=click.IntRange(1, MAX_COUNT), default=DEFAULT_COUNT, show_default=True, help="How many to show."
)
@output_option()
def show_next(id: str | None, count: int, output: Output, **given: Any) -> int:
    """Show when a repeating timer would fire next: in its zone and in UTC, and what clock changes do to it.

    CRON has five fields: minute, hour, day of month, month, day of week. Names (MON, JAN), lists (1,15), ranges (9-17),
    steps (*/15), L (the last day), LW (the last working day), 5L (the last Friday) and MON#1 (the first Monday) are
    known. Nothing is set, and no broker is asked.

    \b
      timers next '0 9 * * 1-5' --zone Europe/Paris
      timers next '30 2 * * *' --zone America/New_York --from 2027-03-12T00:00:00Z
      timers next --every 15m --from 2027-01-01T00:00:00Z
    """
    from timers.client import repeat_words

    repeat = rule_of(given)
    if repeat is None:
        raise click.UsageError("give a rule: a cron line with --zone, such as '0 9 * * 1-5', or --every 15m")
    now_s = int(time.time())
    repeat.check(now_s)
    if repeat.every_s is not None and repeat.from_s is None:
        repeat = repeat.with_from(now_s)
        say("without --from the interval begins when the timer is set: here, now")
    found = repeat_words.upcoming(repeat, now_s, count, None if id is None else argument_bytes(id))
    if repeat.zone is not None:
        say(f"by the zone data {zone_data_version()} of this machine")
    has_share = bool(repeat.spread_s) and id is not None
    columns = [f"in {repeat.zone or 'UTC'}", *(["due in UTC"] if has_share else ["in UTC"]), "epoch second", "note"]
    rows = ((each.fields(), (each.shown, utc_text(each.due_s), str(each.due_s), each.note)) for each in found)
    output.table(columns, (32, 22, 13, 0), rows)
    if len(found) < count:
        say("that is all: then it has ended")
    if repeat.spread_s and id is None:
        say(f"each timer is late by its share of up to {repeat.spread_s} s: --id shows it")
    for sentence in repeat_words.sentences(repeat, max(now_s, repeat.from_s or 0)):
        say(sentence)
    return 0
