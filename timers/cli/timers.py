"""``timers schedule``, ``get``, ``list`` and ``cancel``: one timer, many from a file, or all that a selection names."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import click

from timers.cli.output import Output, argument_bytes, argument_id, output_option, say
from timers.cli.reach import WorkerToAsk, load_settings, traced, worker_option
from timers.cli.repeats import repeat_options, rule_of, say_zone_data
from timers.client.request import id_key
from timers.client.times import from_now, parse_ahead, parse_due, parse_duration
from timers.core.fired import PAUSE
from timers.core.grouping import groups
from timers.core.operation import CANCELLED, CHANGED, EXISTS, REFUSED, TOO_LATE
from timers.core.printable import one_line, quoted, utc_text
from timers.errors import InvalidTimerError, PartlyPublishedError, PublishError, QueryError, TimersError
from timers.process.config.settings import Settings
from timers.process.counted import counted
from timers.process.http.asking import missing
from timers.wire import query as wire
from timers.wire import topics
from timers.wire.query import Query, Timer, callback_key_bytes
from timers.wire.verdict import VerdictMessage

if TYPE_CHECKING:
    from timers.client import TimerId, TimerRequest

TIMEOUT_S = 10.0

_T = TypeVar("_T")

REFUSED_CODE = 5
"""Exit code if a condition was not true, so that nothing was changed."""

EXIT_CODES = {"cancelled": 0, "already-fired": 3, "unknown": 4, **dict.fromkeys(REFUSED, REFUSED_CODE)}


if_source_option = click.option(
    "--if-source", metavar="SOURCE", help="Only if the latest version has this source, which `timers get` shows."
)
"""Adds the option to a command."""


def held_by(held: Mapping[str, Any]) -> str:
    """What holds a timer, as workers and verdicts say it."""
    by = f"pause {held['number']}" if held["reason"] == PAUSE else "many due timers of its topic"
    return f"held by {by} since {utc_text(held['since'])}"


def sentence(result: VerdictMessage) -> str:
    """What a verdict on a cancel says, or a verdict that refuses a request."""
    if result.verdict in REFUSED:
        why = {
            EXISTS: "there is or was a timer with this id",
            CHANGED: "another version is the latest" if result.version else "there is no timer with this id",
        }.get(result.verdict, "the timer has fired, or is about to")
        if result.verdict == TOO_LATE and result.held:
            why = f"its second is over, and the timer is {held_by(result.held)}: a change without a condition counts"
        latest = f" (the latest version: {result.version})" if result.version else ""
        return f"{result.id}: nothing was changed: {why}{latest}"
    if result.due_s is None:
        return f"{result.id}: there is no timer of this id (never set, cancelled before, or fired long ago)"
    when = f"due {utc_text(result.due_s)} ({result.due_s})"
    when += f", was {held_by(result.held)}" if result.held else ""
    return f"{result.id}: {'cancelled' if result.verdict == 'cancelled' else 'has fired already'}, {when}"


_MAX_BAD_LINES = 20


@click.command()
@click.option("--in", "duration", metavar="DURATION", help="How long from now: 90s, 15m, 2h, 3d, 1w, 1h30m, PT15M.")
@click.option(
    "--at", metavar="TIME", help="When: 2030-01-31T12:00:00Z, '2030-01-31T12:00:00 Europe/Berlin', or epoch seconds."
)
@click.option("--cron", metavar="LINE", help="Repeat: minute, hour, day of month, month, day of week: '0 9 * * 1-5'.")
@repeat_options
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
@traced
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
    **rule: Any,
) -> int:
    """Schedule one timer, or many: a callback is sent to TOPIC at the due second.

    The value is --value TEXT, --file PATH, or - for standard input. The last line printed is the timer id. With --id
    the request goes to TIMERS_ID_TOPIC (docs/timers-with-an-id.md), and `timers cancel ID` cancels the timer. With
    --if-absent or --if-source the command waits for the verdict; exit code 5: nothing was changed.

    With --cron and --zone, or with --every, the timer repeats (docs/repeating.md); it needs an --id. `timers next`
    shows when a rule fires.

    Each line of --from-file is a JSON object with topic (or --topic for all), value, and delay ("15m" or seconds), at
    or repeat. It may have key, id, token and headers. Or the file is CSV, and its first line names these fields. All
    lines are checked first. If one is wrong, nothing is sent, and the command says which lines are wrong and why. It
    prints the timer ids in the order of the lines.

    \b
      timers schedule --in 15m --topic orders --key o-17 --value expired
      timers schedule --at 2030-01-31T12:00:00Z --topic orders --key o-17 - < order.json
      timers schedule --id report --cron '0 9 * * 1-5' --zone Europe/Paris --topic reports --value daily
      echo '{"topic": "orders", "value": "expired", "delay": "15m"}' | timers schedule --from-file -
    """
    one_timer = (duration, at, key, value, path, id, if_source, source)
    if lines is not None:
        if any(given is not None for given in one_timer) or headers or if_absent or any(rule.values()):
            raise click.UsageError("--from-file goes with --topic, --create-topic and -o only: its lines hold the rest")
        _schedule_lines(load_settings(), lines, topic, create_topic, output)
        return 0
    if topic is None:
        raise click.UsageError("Missing option '--topic' / '-t'.")
    if (duration is not None) + (at is not None) + any(rule.values()) != 1:
        raise click.UsageError("give one of --in DURATION, --at TIME, --cron LINE --zone ZONE, and --every DURATION")
    if sum(given is not None for given in (value, path, source)) != 1:
        raise click.UsageError("give one of --value TEXT, --file PATH and - (standard input)")
    if (if_absent or if_source) and (id is None or (if_absent and if_source)):
        raise click.UsageError("--if-absent and --if-source need --id, and exclude each other")
    pairs = [header(text) for text in headers]
    id = None if id is None else argument_id(id)
    due_s, when = _when(duration, at, rule, id)
    if value is not None:
        body = argument_bytes(value)
    else:
        body = sys.stdin.buffer.read() if path is None else path.read_bytes()
    record_key = None if key is None else argument_bytes(key)

    settings = load_settings()
    if create_topic:
        _create_topics(settings, [topic])
    fields_of_timer = {"key": record_key, "value": body, "headers": pairs, **when}
    told = _send(settings, topic, id, fields_of_timer, if_absent=if_absent, if_source=if_source)
    if told.verdict in REFUSED:
        refused = VerdictMessage(told, told.verdict, told.due_s, told.version)
        output.show(refused.fields(), sentence(refused))
        return REFUSED_CODE
    more = {} if told.verdict is None else {"verdict": told.verdict, "version": told.version}
    show_due(output, told, due_s, "it fires at once", **more)
    warn_of_missing_topics(settings, [topic])
    if rule["zone"]:
        say_zone_data(settings)
    return 0


def _when(duration: str | None, at: str | None, rule: Mapping[str, Any], id: str | None) -> tuple[int, dict[str, Any]]:
    """The first due second of a timer, and the argument of the client for it.

    The second is computed once, so that the line that is printed shows the one that is sent.
    """
    repeat = rule_of(rule)
    if repeat is None:
        due_s = due_second(duration, at)
        return due_s, {"at": datetime.fromtimestamp(due_s, UTC)}
    if id is None:
        raise click.UsageError("a timer that repeats needs --id, by which it is changed and cancelled")
    now_s = int(time.time())
    repeat.check(now_s)
    first_s = repeat.first_due(now_s, id_key(id))
    assert first_s is not None  # it was checked
    return first_s, {"repeat": repeat}


def due_second(duration: str | None, at: str | None) -> int:
    """The due second of ``--in`` or ``--at``, one of which is given."""
    if duration is not None:
        return -(-time.time_ns() // 10**9) + parse_duration(duration)
    if re.fullmatch(r"[0-9]{1,9}", at or ""):
        raise click.UsageError(f"--at {at} is an epoch second before the year 2002: did you mean --in {at}s?")
    return parse_due(at or "", say)


_FAR_S = 100 * 365 * 86_400
"""A time that is farther away may be a slip of the unit: the command says its year."""


def show_due(output: Output, timer_id: str, due_s: int, if_past: str, **more: object) -> None:
    left_s, due_at = due_s - time.time(), utc_text(due_s)
    when = from_now(left_s) if left_s > 0 else f"in the past: {if_past}"
    if left_s > _FAR_S:
        say(f"this timer is due in the year {due_at.partition('-')[0]}: is the unit of its time right?")
    output.show({"id": timer_id, "due": due_s, "due_at": due_at, **more}, f"due {due_at} ({due_s}, {when})", timer_id)


def _send(
    settings: Settings, topic: str, id: str | None, timer: dict[str, Any], *, if_absent: bool, if_source: str | None
) -> TimerId:
    """Send one timer. Returns its id, with the verdict on its condition."""
    from timers.client import TimerId, TimersClient  # not at the top: `--help` needs no librdkafka

    with TimersClient(settings.brokers, timeout_s=TIMEOUT_S) as client:
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
        settings.check_creation(topic)
        topic_admin.create_if_missing(settings, topic, partitions=settings.partitions)


def warn_of_missing_topics(settings: Settings, topics: Iterable[str]) -> None:
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
    """Read and check all lines, then send their timers, then print the ids. All timers are in memory at once."""
    from timers.client import TimersClient

    timers = _read_timers(settings, lines, topic)
    topics = list(dict.fromkeys(request.topic for _, request in timers))
    if create_topic:
        _create_topics(settings, topics)
    sent, failure = 0, ""

    def requests() -> Iterator[TimerRequest]:
        nonlocal sent
        for _, request in _progress(timers, "sending"):
            sent += 1
            yield request

    begun_s = int(time.time())  # what is sent is checked once more, so each rule has an occurrence after this
    with TimersClient(settings.brokers, timeout_s=TIMEOUT_S) as client:
        try:
            ids: Sequence[str | None] = client.schedule_many(requests())
        except (PartlyPublishedError, InvalidTimerError) as error:
            ids = [*error.ids, *[None] * (len(timers) - len(error.ids))]
            failure = str(error)
            if isinstance(error, InvalidTimerError):  # since the check a rule has ended
                failure = f"line {timers[len(error.ids)][0]}: {error.__cause__}"
        except KeyboardInterrupt:
            say(f"interrupted: the first {counted(sent, 'timer')} may be scheduled")
            raise
    for (number, request), timer_id in zip(timers, ids, strict=True):
        if timer_id is not None:
            due_s = request.first_due(begun_s)
            output.show({"line": number, "id": timer_id, "due": due_s, "due_at": utc_text(due_s)}, timer_id)
    warn_of_missing_topics(settings, topics)
    if failure:
        numbers = [str(number) for (number, _), timer_id in zip(timers, ids, strict=True) if timer_id is None]
        shown, left = ", ".join(numbers[:_MAX_BAD_LINES]), len(numbers) - _MAX_BAD_LINES
        more = f" and {left:,} more" if left > 0 else ""
        raise PublishError(f"{failure}. The brokers confirmed all timers but those of lines {shown}{more}")
    say(f"{counted(len(timers), 'timer')} scheduled")


def _read_timers(settings: Settings, lines: BinaryIO, topic: str | None) -> list[tuple[int, TimerRequest]]:
    """The timers of all lines, with the numbers of their lines.

    Raises:
        InvalidTimerError: at least one line is wrong; the reasons are on stderr.
    """
    from timers.client.config import id_topic_of
    from timers.client.request import Encoder
    from timers.client.timer_lines import timers_in

    encode = Encoder(settings.max_request_bytes, settings.own_topics)
    timers: list[tuple[int, TimerRequest]] = []
    notes: list[str] = []
    of_id: dict[str, int] = {}
    bad = 0
    for number, request in _progress(timers_in(lines, topic, time.time_ns(), notes.append), "checking"):
        try:
            if isinstance(request, InvalidTimerError):
                raise request
            encode(request)
        except InvalidTimerError as error:
            bad += 1
            if bad <= _MAX_BAD_LINES:
                say(f"line {number}: {error}")
            continue
        timers.append((number, request))
        if request.id is not None:
            id_topic_of(settings)
            earlier = of_id.setdefault(request.id, number)
            if earlier != number:
                notes.append(f"line {number} replaces line {earlier}, which has the same id {quoted(request.id):.100}")
                of_id[request.id] = number
    for note in notes[:_MAX_BAD_LINES]:  # a file may have many local times of one night
        say(note)
    if len(notes) > _MAX_BAD_LINES:
        say("further ids and local times that come twice, and local times that are missing, are not shown")
    if bad:
        more = f", the first {_MAX_BAD_LINES} are shown" if bad > _MAX_BAD_LINES else ""
        total = f"{bad + len(timers):,}"
        raise InvalidTimerError(
            f"{bad:,} of {total} lines are no timers{more}; nothing was sent: correct these lines and run it again"
        )
    return timers


def _progress(timers: Iterable[_T], what: str) -> Iterable[_T]:
    """The timers, with a bar on stderr if that is a terminal."""
    from tqdm import tqdm

    bar: Iterable[_T] = tqdm(timers, desc=what, unit=" timers", disable=None, leave=False)
    return bar


@click.command()
@click.argument("id")
@click.option("--value", "with_value", is_flag=True, help="With -o json: also the callback's value, in base64.")
@worker_option
@output_option()
def get(id: str, with_value: bool, worker: str | None, output: Output) -> int:
    """Show the timer that has this ID: whether it waits or has fired, when it is due, and where it goes.

    ID is one that its sender gave it (TIMERS_ID_TOPIC), or <topic>/<partition>/<offset> as `timers schedule` prints it.
    Asks the worker at TIMERS_WORKER_URL, which asks the other workers. That worker must use the brokers at
    TIMERS_BROKERS.

    Exit codes: 0 found, 4 there is no timer of this id, 1 a worker does not answer.

    \b
      timers get order-17
      timers get timer-request/2/4711 -o json
    """
    if with_value and not output.as_json:
        raise click.UsageError("--value goes with -o json")
    if not id:
        raise click.UsageError("ID is empty")
    answer = WorkerToAsk(worker).ask(wire.FIND_PATH, {"id": argument_id(id), "value": str(int(with_value))})
    for timer in answer["timers"]:
        output.show(timer, _sentence(timer))
    if not answer["timers"]:
        say(f"{id}: there is no timer of this id (never set, cancelled, or fired long ago)")
        return EXIT_CODES["unknown"]
    return 0


def _sentence(timer: Timer) -> str:
    parts = [timer["state"]]
    if "due" in timer:
        parts.append(f"due {timer['due_at']} ({timer['due']}, {from_now(timer['due'] - time.time())})")
    if "repeat" in timer:
        parts.append(f"repeats ({timer['repeat']})")
    if "next" in timer:
        parts.append(f"next occurrence {timer['next_at']}: until then it is asked again when it is due")
    if "held" in timer:
        parts.append(held_by(timer["held"]))
    if "topic" in timer:
        parts.append(f"topic {timer['topic']}")
        if key := callback_key_bytes(timer):
            parts.append(f"key {one_line(key)}")
        parts.append(f"{timer['value_bytes']:,} bytes")
    if "error" in timer:
        parts.append(timer["error"])
    parts.append(f"request {timer['source']}")
    return f"{timer['id']}: {', '.join(parts)}"


COLUMNS = ("DUE", "TOPIC", "KEY", "ID", "BYTES")
WIDTHS = (20, 24, 24, 28, 0)


def selection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select timers; :func:`selected` reads them."""
    options = (
        click.option("--topic", "-t", metavar="TOPIC", help="Only timers whose callbacks go to this topic."),
        click.option("--prefix", metavar="TEXT", help="Only timers whose id begins with this text."),
        click.option("--contains", metavar="TEXT", help="Only timers with this text in their id or key."),
        click.option("--key", metavar="KEY", help="Only timers whose callbacks have this key."),
        click.option(
            "--from",
            "from_text",
            metavar="WHEN",
            help="Due at this time or later: 2h (in two hours), -1h (an hour ago), or 2030-01-31T12:00:00Z.",
        ),
        click.option("--to", "to_text", metavar="WHEN", help="Due before this time."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def selected(selection: Mapping[str, str | None], *, with_values: bool = False) -> Query:
    """The query for the timers that the options of :func:`selection_options` name."""
    now_s, given = time.time(), {name: text for name, text in selection.items() if text is not None}
    return Query(
        topic=given.get("topic"),
        from_s=parse_ahead(given["from_text"], now_s) if "from_text" in given else 0,
        to_s=parse_ahead(given["to_text"], now_s) if "to_text" in given else None,
        with_values=with_values,
        prefix=argument_id(given.get("prefix", "")),
        contains=argument_id(given.get("contains", "")),
        key=argument_id(given["key"]) if "key" in given else None,
    )


@click.command("list")
@selection_options
@click.option("--limit", "-n", type=click.IntRange(0), default=100, show_default=True, help="Only the first; 0: all.")
@click.option("--values", "with_values", is_flag=True, help="With -o json: also the callbacks' values, in base64.")
@worker_option
@output_option()
def list_timers(limit: int, with_values: bool, worker: str | None, output: Output, **selection: str | None) -> None:
    """List the pending timers of all workers, the next to fire first.

    Asks the worker at TIMERS_WORKER_URL, which asks the other workers. That worker must use the brokers at
    TIMERS_BROKERS. If a worker does not answer, the timers of the others are listed, a sentence says which partitions
    are missing, and the exit code is 1.

    \b
      timers list --topic order-timeouts --to 1h
      timers list --prefix customer-17/
      timers list -n 0 -o json | jq -r .topic | sort | uniq -c
    """
    if with_values and not output.as_json:
        raise click.UsageError("--values goes with -o json")
    pages = Pages(selected(selection, with_values=with_values), WorkerToAsk(worker), limit)
    output.table(COLUMNS, WIDTHS, ((timer, cells(timer)) for timer in pages))
    more = ", and there are more (--limit 0 lists all)" if pages.more else ""
    say(f"{counted(pages.count, 'timer')}{more}")
    pages.check()


class Pages:
    """Asks for the timers page by page, and yields them."""

    def __init__(self, query: Query, worker: WorkerToAsk, limit: int) -> None:
        self._query = query
        self._worker = worker
        self._limit = limit
        self.count = 0
        self.more = False
        self._missing: dict[str, str] = {}

    def check(self) -> None:
        """Raise QueryError if partitions were missing in at least one page."""
        if self._missing:
            named = [{"partition": name, "reason": why} for name, why in self._missing.items()]
            raise QueryError(f"this is not all: no worker answers for {missing({'missing': named})}")

    def __iter__(self) -> Iterator[Timer]:
        query = self._query
        while True:
            left = self._limit - self.count if self._limit else wire.MAX_LIMIT
            query = query._replace(limit=min(left, wire.MAX_LIMIT))
            answer = self._worker.ask(wire.LIST_PATH, wire.parameters_of(query))
            self._missing.update({each["partition"]: each["reason"] for each in answer["missing"]})
            for timer in answer["timers"]:
                self.count += 1
                yield timer
            if answer["next"] is None:
                return
            if self.count == self._limit:
                self.more = True
                return
            query = query._replace(after=wire.parse_cursor(answer["next"]))


def cells(timer: Timer) -> tuple[str, ...]:
    """The cells of a timer under :data:`COLUMNS`."""
    attempt = f" (try {timer['retry']['attempt'] + 1})" if "retry" in timer else ""
    held = " (repeats)" if "repeat" in timer else ""
    held += " (held)" if "held" in timer else ""
    return (
        timer["due_at"],
        timer["topic"],
        one_line(callback_key_bytes(timer)),
        timer["id"] + attempt + held,
        f"{timer['value_bytes']:,}",
    )


_UNDECIDED = "undecided"

NEXT_OCCURRENCE_S = 0.5
"""After this time the next occurrence of a timer that has just fired is read; with the engine on Spark, after the next
micro-batch."""

CANCELS_IN_FLIGHT = 500
"""Cancels that are written before their verdicts are awaited."""

_MAX_CANCELLED_REMEMBERED = 100_000
"""The newest cancels are remembered, in about 10 MB: a worker's list may still have a timer that was cancelled some
tens of seconds ago."""


@click.command()
@click.argument("id", required=False)
@selection_options
@click.option("--dry-run", is_flag=True, help="With a selection: only list the timers that would be cancelled.")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(0.1), default=30.0, show_default=True, help="Seconds to wait."
)
@if_source_option
@worker_option
@output_option()
def cancel(
    id: str | None,
    dry_run: bool,
    timeout_s: float,
    if_source: str | None,
    worker: str | None,
    output: Output,
    **selection: str | None,
) -> int:
    """Cancel the timer with this ID, and wait for the verdict. Or cancel all pending timers of a selection.

    A selection is one or more of --prefix, --contains, --topic, --key, --from and --to, as of `timers list`. Timers
    without an id cannot be cancelled: they are counted and left out. A timer that was changed after it was listed is
    not cancelled, unless a pause of its topic holds it: until it is released, a cancel counts in any case.

    Exit codes: 0 cancelled, 3 already fired, 4 there is no timer with this id, 5 nothing was changed: it is another
    version, or too late, 1 no verdict came, or a worker does not answer. With a selection: 0 all timers
    with an id are cancelled, 4 the selection has none, otherwise the highest code of its timers.

    \b
      timers cancel order-17
      timers cancel --prefix customer-17/ --dry-run
    """
    is_selection = any(text is not None for text in selection.values())
    if is_selection == (id is not None):
        parts = "--prefix, --contains, --topic, --key, --from and --to"
        raise click.UsageError(f"say which: either ID, or at least one of {parts}")
    for name in ("prefix", "contains"):
        if selection[name] == "":
            raise click.UsageError(f"--{name} is empty: it would select every timer")
    if id is None:
        if if_source is not None:
            raise click.UsageError("--if-source goes with ID")
        pages = Pages(selected(selection), WorkerToAsk(worker), 0)
        return _cancel_all(load_settings(), pages, timeout_s, output, only_look=dry_run)
    if dry_run or worker is not None:
        raise click.UsageError("--dry-run and --worker go with a selection, such as --prefix")
    settings = load_settings()

    from timers.client import TimersClient  # not at the top: `--help` needs no librdkafka

    with TimersClient(settings.brokers, timeout_s=TIMEOUT_S) as client:
        result = client.cancel(argument_id(id), if_source=if_source, timeout_s=timeout_s)
    output.show(result.fields(), sentence(result))
    return EXIT_CODES[result.verdict]


def _cancel_all(settings: Settings, pages: Pages, timeout_s: float, output: Output, *, only_look: bool) -> int:
    verdicts, left_out = Counter[str](), Counter[str]()
    if only_look:
        timers = _cancellable(settings, pages, left_out)
        output.table(COLUMNS, WIDTHS, ((timer, cells(timer)) for timer in timers))
        said = f"{counted(pages.count - left_out.total(), 'timer')} would be cancelled"
    else:
        held, asked = 0, _Asked()
        for group in _listed_twice(settings, pages, left_out, asked):
            held += sum("held" in timer for timer in group)
            for timer, result in zip(group, asyncio.run(_verdicts(settings, group, timeout_s)), strict=True):
                asked.add(timer["id"], is_cancelled=isinstance(result, VerdictMessage) and result.verdict == CANCELLED)
                if isinstance(result, VerdictMessage):
                    verdicts[result.verdict] += 1
                    output.show(result.fields(), sentence(result))
                else:
                    verdicts[_UNDECIDED] += 1
                    say(str(result))
        said = ", ".join(f"{number:,} {verdict}" for verdict, number in verdicts.items()) or "no timer to cancel"
        said += f" ({held:,} held: cancelled also if changed since they were listed)" if held else ""
    say("".join([said, *(f"; {number:,} left out: {why}" for why, number in left_out.items())]))
    pages.check()
    if verdicts[_UNDECIDED]:
        raise TimersError(f"{counted(verdicts[_UNDECIDED], 'cancel')} without a verdict: run the command again")
    if not (verdicts or (only_look and pages.count > left_out.total())):
        return EXIT_CODES["unknown"]
    return max(map(EXIT_CODES.__getitem__, verdicts), default=0)


class _Asked:
    """Which timers a command has asked to cancel. Of those that were cancelled it keeps the newest
    :data:`_MAX_CANCELLED_REMEMBERED`: the others are no longer listed, and a list may have any number."""

    def __init__(self) -> None:
        self._others: set[str] = set()
        self._cancelled = OrderedDict[str, None]()

    def add(self, id: str, *, is_cancelled: bool) -> None:
        if not is_cancelled:
            self._others.add(id)
            return
        self._cancelled[id] = None
        if len(self._cancelled) > _MAX_CANCELLED_REMEMBERED:
            self._cancelled.popitem(last=False)

    def __contains__(self, id: object) -> bool:
        return id in self._others or id in self._cancelled


def _listed_twice(
    settings: Settings, pages: Pages, left_out: Counter[str], asked: Container[str]
) -> Iterator[list[Timer]]:
    """The timers of a list that can be cancelled, in groups, and then those that it has a moment later: it has no timer
    that repeats and fires just now, because its next occurrence is not read yet."""
    for counted_here in (left_out, Counter[str]()):
        listed = _cancellable(settings, pages, counted_here)
        yield from groups(
            (timer for timer in listed if timer["id"] not in asked),
            lambda timer: 1,
            CANCELS_IN_FLIGHT,
            CANCELS_IN_FLIGHT,
        )
        if counted_here is left_out:
            time.sleep(NEXT_OCCURRENCE_S)


def _cancellable(settings: Settings, timers: Iterable[Timer], left_out: Counter[str]) -> Iterator[Timer]:
    """The timers with an id that wait for their first attempt. The others are counted, by what they are."""
    for timer in timers:
        place = topics.parse_source(timer["source"])
        if place is None or place[0] != settings.id_topic:
            left_out["without an id"] += 1
        elif "retry" in timer:
            left_out["fired, and waiting for another attempt"] += 1
        else:
            yield timer


async def _verdicts(
    settings: Settings, timers: Sequence[Timer], timeout_s: float
) -> list[VerdictMessage | TimersError]:
    """The verdict on the cancel of each timer, or why there is none. Only the version that was listed is cancelled,
    unless it is held."""
    from timers.client import AsyncTimersClient

    async with AsyncTimersClient(settings.brokers, timeout_s=TIMEOUT_S) as client:

        async def one(timer: Timer) -> VerdictMessage | TimersError:
            try:
                return await client.cancel(timer["id"], if_source=wire.condition_of(timer), timeout_s=timeout_s)
            except TimersError as error:
                return error

        return list(await asyncio.gather(*map(one, timers)))
