"""``timers schedule``: one timer from the shell, or many from a file."""

from __future__ import annotations

import itertools
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Never, TypeVar

import click

from timers.cli.output import Output, argument_bytes, argument_id, output_option, say
from timers.cli.reach import load_settings
from timers.client.times import from_now, parse_due, parse_duration
from timers.config.settings import Settings
from timers.core.operation import CHANGED, EXISTS, REFUSED
from timers.counted import counted
from timers.errors import InvalidTimerError, TimersError
from timers.wire.printable import quoted
from timers.wire.query import format_due
from timers.wire.verdict import VerdictMessage

if TYPE_CHECKING:
    from timers.client import PartlyPublishedError, TimerId, TimerRequest

_TIMEOUT_S = 10.0

_T = TypeVar("_T")

REFUSED_CODE = 5
"""Exit code if a condition was not true, so that nothing was changed."""

EXIT_CODES = {"cancelled": 0, "already-fired": 3, "unknown": 4, **dict.fromkeys(REFUSED, REFUSED_CODE)}


if_source_option = click.option(
    "--if-source", metavar="SOURCE", help="Only if the latest version has this source, which `timers get` shows."
)
"""Adds the option to a command."""


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


_MAX_BAD_LINES = 20


@click.command()
@click.option("--in", "duration", metavar="DURATION", help="How long from now: 90s, 15m, 2h, 3d, 1w, 1h30m.")
@click.option(
    "--at", metavar="TIME", help="When: 2030-01-31T12:00:00Z, '2030-01-31T12:00:00 Europe/Berlin', or epoch seconds."
)
@click.option("--topic", "-t", help="Topic that the callback goes to.")
@click.option("--key", "-k", help="Record key of the callback; without it the callback has no key.")
@click.option("--value", "-v", metavar="TEXT", help="Record value of the callback.")
@click.option(
    "--file", "-f", "path", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Value from a file."
)
@click.option("--header", "-H", "headers", metavar="NAME=VALUE", multiple=True, help="Record header; may be repeated.")
@click.option("--id", "id", metavar="ID", help="Id of the timer. It replaces a timer of this id, and can be cancelled.")
@click.option("--if-absent", is_flag=True, help="Only if no timer has or had this id; waits for the verdict.")
@if_source_option
@click.option("--create-topic", is_flag=True, help="Create TOPIC first, if it does not exist.")
@click.option(
    "--from-file",
    "lines",
    type=click.File("rb"),
    help="Many timers: JSON objects, one a line, or CSV; - for standard input.",
)
@output_option()
@click.argument("source", metavar="[-]", required=False, type=click.Choice(["-"]))
def schedule(
    duration: str | None,
    at: str | None,
    topic: str | None,
    key: str | None,
    value: str | None,
    path: Path | None,
    headers: tuple[str, ...],
    id: str | None,
    if_absent: bool,
    if_source: str | None,
    create_topic: bool,
    lines: BinaryIO | None,
    output: Output,
    source: str | None,
) -> int:
    """Schedule one timer, or many: a callback is sent to TOPIC at the due second.

    The value is --value TEXT, --file PATH, or - for standard input. The last line printed is the timer id. With --id
    the request goes to TIMERS_ID_TOPIC (docs/timers-with-an-id.md), and `timers cancel ID` cancels the timer. With
    --if-absent or --if-source the command waits for the verdict; exit code 5: nothing was changed.

    Each line of --from-file is a JSON object with topic (or --topic for all), value, and delay ("15m" or seconds) or
    at. It may have key, id, token and headers. Or the file is CSV, and its first line names these fields. All lines are
    checked first. If one is wrong, nothing is sent, and the command says which lines are wrong and why. It prints the
    timer ids in the order of the lines.

    \b
      timers schedule --in 15m --topic orders --key o-17 --value expired
      timers schedule --at 2030-01-31T12:00:00Z --topic orders --key o-17 - < order.json
      echo '{"topic": "orders", "value": "expired", "delay": "15m"}' | timers schedule --from-file -
    """
    one_timer = (duration, at, key, value, path, id, if_source, source)
    if lines is not None:
        if any(given is not None for given in one_timer) or headers or if_absent:
            raise click.UsageError("--from-file goes with --topic, --create-topic and -o only: its lines hold the rest")
        _schedule_lines(load_settings(), lines, topic, create_topic, output)
        return 0
    if topic is None:
        raise click.UsageError("Missing option '--topic' / '-t'.")
    if (duration is None) == (at is None):
        raise click.UsageError("give one of --in DURATION and --at TIME")
    if sum(given is not None for given in (value, path, source)) != 1:
        raise click.UsageError("give one of --value TEXT, --file PATH and - (standard input)")
    if (if_absent or if_source) and (id is None or (if_absent and if_source)):
        raise click.UsageError("--if-absent and --if-source need --id, and exclude each other")
    pairs = [header(text) for text in headers]
    id = None if id is None else argument_id(id)
    due_s = due_second(duration, at)  # computed once: the line printed shows the due second that is sent
    body = _body(value, path)
    record_key = None if key is None else argument_bytes(key)

    settings = load_settings()
    if create_topic:
        _create_topics(settings, [topic])
    fields_of_timer = {"key": record_key, "value": body, "at": datetime.fromtimestamp(due_s, UTC), "headers": pairs}
    told = _send(settings, topic, id, fields_of_timer, if_absent=if_absent, if_source=if_source)
    if told.verdict in REFUSED:
        refused = VerdictMessage(told, told.verdict, told.due_s, told.version)
        output.show(fields(refused), sentence(refused))
        return REFUSED_CODE
    more = {} if told.verdict is None else {"verdict": told.verdict, "version": told.version}
    show_due(output, told, due_s, "it fires at once", **more)
    _warn_of_missing_topics(settings, [topic])
    return 0


def due_second(duration: str | None, at: str | None) -> int:
    """The due second of ``--in`` or ``--at``, one of which is given."""
    if duration is not None:
        return -(-time.time_ns() // 10**9) + parse_duration(duration)
    if re.fullmatch(r"[0-9]{1,9}", at or ""):
        raise click.UsageError(f"--at {at} is an epoch second before the year 2002: did you mean --in {at}s?")
    return parse_due(at or "", say)


def show_due(output: Output, timer_id: str, due_s: int, if_past: str, **more: object) -> None:
    """Show the id of a timer and when it is due."""
    left_s, due_at = due_s - time.time(), format_due(due_s)
    when = from_now(left_s) if left_s > 0 else f"in the past: {if_past}"
    output.show({"id": timer_id, "due": due_s, "due_at": due_at, **more}, f"due {due_at} ({due_s}, {when})", timer_id)


def _body(value: str | None, path: Path | None) -> bytes:
    if value is not None:
        return argument_bytes(value)
    return sys.stdin.buffer.read() if path is None else path.read_bytes()


def _send(
    settings: Settings, topic: str, id: str | None, timer: dict[str, Any], *, if_absent: bool, if_source: str | None
) -> TimerId:
    """Send one timer. Returns its id, with the verdict on its condition."""
    from timers.client import TimerId, TimersClient  # not at the top: `--help` needs no librdkafka

    with TimersClient(settings.brokers, timeout_s=_TIMEOUT_S) as client:
        if if_source and id is not None:
            return TimerId.told(client.update(id, topic, **timer, if_source=if_source))
        return client.schedule(topic, **timer, id=id, if_absent=if_absent)


def header(text: str) -> tuple[str, bytes]:
    """Name and value of ``NAME=VALUE``."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise click.UsageError(f"--header {quoted(text)} is not NAME=VALUE")
    return name, argument_bytes(value)


def _create_topics(settings: Settings, topics: Iterable[str]) -> None:
    from timers.kafka import topic_admin

    for topic in topics:
        topic_admin.create_if_missing(settings, topic, partitions=settings.partitions)


def _warn_of_missing_topics(settings: Settings, topics: Iterable[str]) -> None:
    """The timers are set, and their ids are printed: so an answer that does not come is no failure of the command."""
    from timers.kafka import topic_admin

    try:
        missing = () if settings.create_target_topics else topic_admin.missing(settings, topics)
    except TimersError as error:
        say(f"not checked whether the callback topics exist: {error}")
        return
    for topic in missing:
        say(
            f"topic {topic!r} does not exist: unless it does when the timer is due, the callback becomes a dead letter "
            f"in {settings.dead_letter_topic!r} (--create-topic creates it)"
        )


# --- many timers ------------------------------------------------------------------------------------------------------


def _schedule_lines(settings: Settings, lines: BinaryIO, topic: str | None, create_topic: bool, output: Output) -> None:
    """Check all lines, then send their timers, then print the ids."""
    from timers.client import PartlyPublishedError, TimersClient
    from timers.client.timer_lines import timers_in

    # A copy, because the lines are read twice: the source may be a pipe, or a file that another program changes.
    with tempfile.TemporaryFile() as copy:
        topics = _check(settings, lines, topic, copy)
        if create_topic:
            _create_topics(settings, topics)
        copy.seek(0)
        now_ns = time.time_ns()
        numbers: list[int] = []
        dues: list[int] = []

        def requests() -> Iterator[TimerRequest]:
            for number, request in _progress(timers_in(copy, topic, now_ns, lambda _: None), "sending"):
                if isinstance(request, InvalidTimerError):  # it was checked, but a rule of a zone may have changed
                    raise request
                numbers.append(number)
                dues.append(int(request.at))  # type: ignore[arg-type]  # the reader gives an epoch second
                yield request

        with TimersClient(settings.brokers, timeout_s=_TIMEOUT_S) as client:
            failure = None
            try:
                ids: list[str] | list[str | None] = client.schedule_many(requests())
            except PartlyPublishedError as error:
                failure, ids = error, error.ids
            except KeyboardInterrupt:
                say(f"interrupted: the first {counted(len(numbers), 'timer')} may be scheduled")
                raise
    for number, due_s, timer_id in zip(numbers, dues, ids, strict=True):
        if timer_id is not None:
            output.show({"line": number, "id": timer_id, "due": due_s, "due_at": format_due(due_s)}, timer_id)
    _warn_of_missing_topics(settings, topics)
    if failure is not None:
        _fail(failure, [number for number, timer_id in zip(numbers, ids, strict=True) if timer_id is None])
    say(f"{counted(len(numbers), 'timer')} scheduled")


def _check(settings: Settings, lines: BinaryIO, topic: str | None, copy: IO[bytes]) -> list[str]:
    """Check and copy all lines; return the callback topics.

    Raises:
        InvalidTimerError: at least one line is wrong; the reasons are on stderr.
    """
    from timers.client.config import id_topic_of
    from timers.client.request import Encoder
    from timers.client.timer_lines import timers_in

    encode = Encoder(settings.max_request_bytes)
    now_ns = time.time_ns()
    topics: dict[str, None] = {}
    total = bad = 0

    def copied() -> Iterator[bytes]:
        for line in lines:
            copy.write(line)
            yield line

    for number, request in _progress(timers_in(copied(), topic, now_ns, _say_of_lines()), "checking"):
        total += 1
        try:
            if isinstance(request, InvalidTimerError):
                raise request
            encode(request)
        except InvalidTimerError as error:
            bad += 1
            if bad <= _MAX_BAD_LINES:
                say(f"line {number}: {error}")
            continue
        topics[request.topic] = None
        if request.id is not None:
            id_topic_of(settings)
    if bad:
        more = f", the first {_MAX_BAD_LINES} are shown" if bad > _MAX_BAD_LINES else ""
        raise InvalidTimerError(
            f"{bad:,} of {total:,} lines are no timers{more}; nothing was sent: correct these lines and run it again"
        )
    return list(topics)


def _say_of_lines() -> Callable[[str], None]:
    """A function that says the first sentences about local times: a file may have many in one night."""
    count = itertools.count(1)

    def say_one(note: str) -> None:
        number = next(count)
        if number <= _MAX_BAD_LINES:
            say(note)
        elif number == _MAX_BAD_LINES + 1:
            say("further local times that are missing or come twice are not shown")

    return say_one


def _progress(timers: Iterator[_T], what: str) -> Iterable[_T]:
    """The timers, with a bar on stderr if that is a terminal."""
    from tqdm import tqdm

    bar: Iterable[_T] = tqdm(timers, desc=what, unit=" timers", disable=None, leave=False)
    return bar


def _fail(error: PartlyPublishedError, numbers: list[int]) -> Never:
    from timers.client import PublishError

    shown = ", ".join(map(str, numbers[:_MAX_BAD_LINES]))
    more = f" and {len(numbers) - _MAX_BAD_LINES:,} more" if len(numbers) > _MAX_BAD_LINES else ""
    raise PublishError(f"{error}. The brokers confirmed all timers but those of lines {shown}{more}") from error
