"""``timers targets``: pauses and resumes the timers of a callback topic."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from timers.cli.lazy import NamedGroup
from timers.cli.output import Output, output_option, say
from timers.cli.reach import load_settings
from timers.client.times import parse_duration
from timers.core.fired import Command
from timers.core.levels import HOLDS_LEVEL
from timers.core.printable import utc_text
from timers.errors import InvalidTimerError, QueryError, TimersError
from timers.process.config.settings import Settings
from timers.process.counted import counted, duration
from timers.process.http.asking import ask
from timers.wire.query import COUNT_PATH, COUNTING_TIMEOUT_S, HeldCounter

if TYPE_CHECKING:
    from timers.offline.targets import Given

WAIT_S = 60.0
"""How long ``--wait`` waits."""

POLL_S = 0.2
SAID_S = 2.0


class _Duration(click.ParamType):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_duration(value)
        except InvalidTimerError as error:
            raise click.BadParameter(str(error), ctx, param) from None


_DURATION = _Duration()

_wait_option = click.option("--wait", is_flag=True, help="Wait until each partition has taken the command.")


@click.group(cls=NamedGroup)
def targets() -> None:
    """Pause and resume the timers of a callback topic.

    While a topic is paused, its timers that come due are held: they stay where they are, and nothing is lost. Timers of
    other topics fire as before. New timers for the topic are accepted, and can be cancelled. After the resume the held
    timers are sent, at once or evenly over some time.

    \b
    The receiver of the topic `orders` is down:
      timers targets pause orders --why 'provider down'
      timers targets list
    It is up again, and must not get all at once:
      timers targets resume orders --over 10m

    docs/incidents.md says more.
    """


@targets.command()
@click.argument("topic")
@click.option(
    "--for", "for_s", type=_DURATION, metavar="DURATION", help="End by itself after this time: 90s, 15m, 1h, 1h30m."
)
@click.option(
    "--over",
    "over_s",
    type=_DURATION,
    metavar="DURATION",
    help="With --for: then send the held timers evenly over this time. [10m]",
)
@click.option("--why", default="", metavar="TEXT", help="Reason, which the list shows.")
@_wait_option
@output_option()
def pause(topic: str, for_s: int | None, over_s: int | None, why: str, wait: bool, output: Output) -> None:
    """Hold the timers of TOPIC that come due, from now on.

    The command returns when the brokers have it; the workers take it within two seconds. Used again, it changes the
    pause: a --for or --why that you leave out is removed, and the command prints the former values. When a pause with
    --for ends, the held timers are sent evenly over ten minutes, or over the time of --over.

    \b
      timers targets pause orders
      timers targets pause orders --for 1h --why 'mail provider down' --wait
    """
    settings = load_settings()
    from timers.offline import targets as given

    make = given.pausing(settings, topic, given.Request(_user(settings), why), for_s=for_s, over_s=over_s)
    made = given.give(settings, make)
    command = made.target.command
    end = f"until `timers targets resume {topic}`"
    if command.until_s:
        end = f"until {utc_text(command.until_s)}; then the held timers are sent {_how(command.over_s)}"
    _done(settings, made, f"{topic} is paused {end} (command {command.number})", wait, output)


@targets.command()
@click.argument("topic")
@click.option(
    "--over",
    "over_s",
    type=_DURATION,
    default="0s",
    metavar="DURATION",
    help="Send the held timers evenly over this time, such as 10m. Without it: at once.",
)
@_wait_option
@output_option()
def resume(topic: str, over_s: int, wait: bool, output: Output) -> None:
    """Send the timers of TOPIC that are held, and let the others fire as they come due.

    Timers that come due from now on fire at their second, also while the held ones are being sent: they overtake these.
    TIMERS_CATCH_UP_PER_S does not limit what is sent; --over does.

    \b
      timers targets resume orders
      timers targets resume orders --over 10m
    """
    settings = load_settings()
    from timers.offline import targets as given

    make = given.resuming(settings, topic, given.Request(_user(settings)), over_s=over_s)
    made = given.give(settings, make)
    number = made.target.command.number
    _done(settings, made, f"{topic} goes on; the held timers are sent {_how(over_s)} (command {number})", wait, output)


def _how(over_s: int) -> str:
    return f"over {duration(over_s)}" if over_s else "at once"


def _user(settings: Settings) -> str:
    """Who gives a command: the login at the brokers, or the user of this machine."""
    import getpass

    if settings.sasl_username:
        return settings.sasl_username
    with suppress(OSError, KeyError):
        return getpass.getuser()
    return ""


def _done(settings: Settings, made: Given, line: str, wait: bool, output: Output) -> None:
    output.show(made.shown, line)
    if made.before:
        say(made.before)
    if wait:
        _wait_for(settings, made.target.command)


def _wait_for(settings: Settings, command: Command) -> None:
    from timers.offline.targets import look

    until = time.monotonic() + WAIT_S
    said_at = time.monotonic()
    while True:
        found = look(settings)
        waits, of = found.waits_for(command), counted(len(found.progress), "partition")
        if not waits:
            break
        if time.monotonic() > until:
            raise TimersError(
                f"within {WAIT_S:.0f} s, {len(waits)} of {of} have not taken command {command.number}, such as "
                f"{waits[0]}: `timers status` shows whether its worker runs; the command holds, and is taken then"
            )
        if time.monotonic() > said_at + SAID_S:
            said_at = time.monotonic()
            say(f"{len(waits)} of {of} have not taken it yet ...")
        time.sleep(POLL_S)
    say(f"each of {of} has taken command {command.number}")


NAMED = 3
"""So many partitions are named in a sentence."""

_COLUMNS = ("TOPIC", "STATE", "HELD", "SINCE", "UNTIL", "BY", "WHY")


@targets.command("list")
@output_option()
def list_targets(output: Output) -> None:
    """Show which callback topics are paused, or still have held timers, and which command each partition has taken.

    STATE is `paused`, `going-on` (held timers are being sent), or `noisy`: the topic has so many due timers that those
    of others would wait for them, so they are sent when no others are due. HELD is the number of timers that are due
    by the clock of this computer, and have not fired; `timers_held` of the workers also counts versions of timers with
    an id that were replaced or cancelled. UNTIL is the end of a pause, or the
    second at which the release of the held timers ends. BY gave the newest command, and WHY is the reason of the pause.
    """
    settings = load_settings()
    from timers.kafka import topic_admin
    from timers.offline.targets import look

    found = look(settings)
    cluster_id = topic_admin.cluster_id(settings) if found.names else ""
    until = time.monotonic() + COUNTING_TIMEOUT_S
    rows = [_row(found.shown(name) | _held(settings, cluster_id, name, until)) for name in found.names]
    widths = [max((len(cells[at]) for _, cells in rows), default=0) for at in range(len(_COLUMNS))]
    output.table(_COLUMNS, (*map(max, widths[:-1], map(len, _COLUMNS[:-1])), 0), rows)
    if not rows:
        say("no callback topic is paused, and no timer is held")
    taken = Counter(progress.taken for progress in found.progress.values())
    for number, count in sorted(taken.items()) if len(taken) > 1 else ():
        say(f"command {number} is the newest that {counted(count, 'partition')} took")
    for fields, _ in rows:
        if waits := fields["waits_for"]:
            named = f"{', '.join(waits[:NAMED])}{', ...' if len(waits) > NAMED else ''}"
            of = counted(len(waits), "partition")
            say(f"{fields['topic']}: command {fields['number']} is not taken yet by {of}: {named}")
    for name, why in sorted(found.targets.unreadable.items()):
        say(f"the record of {name} cannot be read: {why}; give it again: timers targets pause {name}, or resume")
    if found.below:
        say(f"below feature level {HOLDS_LEVEL}, so they take no commands: {', '.join(found.below)} (timers levels)")


def _held(settings: Settings, cluster_id: str, name: str, until: float) -> dict[str, Any]:
    """How many timers of a topic are due and have not fired, as the workers count them."""
    count, why = HeldCounter(name, int(time.time())), f"it was not counted within {COUNTING_TIMEOUT_S:.0f} s"
    try:
        while count.goes_on and time.monotonic() < until:
            count.add(ask(settings, COUNT_PATH, count.asked, cluster_id))
    except QueryError as error:
        count, why = HeldCounter(name, 0), str(error)
    return count.shown | ({"why_unknown": why} if count.shown["held"] is None else {})


def _row(fields: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    held = "not known" if fields["held"] is None else f"{fields['held']:,}{'+' if fields['held_at_least'] else ''}"
    since, until = (
        utc_text(second) if second else ""
        for second in (fields["since_s"], fields["until_s"] or fields["released_by_s"])
    )
    return fields, (fields["topic"], fields["state"], held, since, until, fields["by"], fields["why"])
