"""``timers dead-letters``, and ``timers queue dead`` and ``redrive``: lists, shows and publishes again what failed."""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from timers.cli.lazy import NamedGroup
from timers.cli.output import Output, confirm, output_option, require_terminal, say
from timers.cli.queue import queue_options
from timers.cli.reach import load_settings
from timers.client.times import parse_moment
from timers.core.printable import one_line, quoted
from timers.errors import TimersError
from timers.process.config.settings import Settings
from timers.process.counted import counted
from timers.wire import topics
from timers.wire.dead_letter import CODES, QUEUE_CODES, RECEIVER_CODES

if TYPE_CHECKING:
    from timers.offline.dead_letters.letters import Letter, LetterFilter, LetterLog
    from timers.wire.dead_letter import Mark

_Command = TypeVar("_Command", bound=Callable[..., Any])
_NAME = "PARTITION/OFFSET or TOPIC/PARTITION/OFFSET"
_WITHOUT_A_TERMINAL = "add --yes, or --dry-run to see what it would do"


@click.group(cls=NamedGroup)
def dead_letters() -> None:
    """Requests that could not be read or sent: list them, show one, retry them.

    A dead letter has the request as it was sent, a code and an error message. `docs/bad-input.md` says what each code
    means and what to do.
    """


def moment(text: str) -> int:
    """The type of an option that is a time, or a duration before now; see :func:`parse_moment`."""
    return parse_moment(text, time.time())


def written_options(command: _Command) -> _Command:
    """Add the options that select dead letters by the time at which they were written."""
    since = click.option(
        "--since",
        "since_s",
        type=moment,
        metavar="WHEN",
        help="Written at this time or later: 2h (two hours ago), or 2030-01-31T12:00:00Z.",
    )
    until = click.option("--until", "until_s", type=moment, metavar="WHEN", help="Written before this time.")
    return since(until(command))


def _filter_options(command: _Command) -> _Command:
    """Add the options that select dead letters: the attributes of ``LetterFilter`` except ``names``."""
    code = click.option(
        "--code",
        "-c",
        "codes",
        type=click.Choice([*CODES, *sorted(RECEIVER_CODES)]),
        multiple=True,
        metavar="CODE",
        help="With this code; may be repeated.",
    )
    topic = click.option("--topic", "-t", metavar="TOPIC", help="With callbacks to this topic.")
    return code(topic(_contains(written_options(command))))


_contains = click.option(
    "--contains", default="", metavar="TEXT", help="With this text in the key, in the id, or in the reason."
)


def full_names(names: Iterable[str], dead_letter_topic: str) -> set[str]:
    """The names as sources or positions with their topic. A name may be a position without its topic."""
    from timers.offline.dead_letters.letters import full_name

    found = {name: full_name(name, dead_letter_topic) for name in names}
    for name, full in found.items():
        if full is None:
            raise click.UsageError(f"{quoted(name)} is neither a position nor a source of a dead letter: {_NAME}")
    return set(filter(None, found.values()))


# --- list -------------------------------------------------------------------------------------------------------------


@dead_letters.command(name="list")
@_filter_options
@click.option("--limit", "-n", type=click.IntRange(0), default=100, show_default=True, help="Only the newest; 0: all.")
@output_option()
def list_(limit: int, output: Output, **selection: Any) -> None:
    """List dead letters, the newest last.

    \b
      timers dead-letters list --code topic-unknown --since 2h
      timers dead-letters list -n 0 -o json | jq -r .topic | sort | uniq -c
    """
    from timers.offline.dead_letters.letters import LetterFilter

    show_letters(load_settings(), LetterFilter(**selection), limit, output)


def show_letters(
    settings: Settings,
    letter_filter: LetterFilter,
    limit: int,
    output: Output,
    done: str = "published again",
    table: tuple[Sequence[str], Sequence[int], Callable[[Letter, Mark | None], Sequence[str]]] | None = None,
) -> None:
    """Print the newest dead letters of a filter, how many there are of each code, and how many are ``done`` already.

    Args:
        limit: number of letters to print; 0: all.
        table: columns, their widths, and a function that returns the cells of a letter.
    """
    # Not at the top: `--help` needs no librdkafka.
    from timers.offline.dead_letters.letters import LETTER_COLUMNS, LETTER_WIDTHS, Letter, LetterLog, Marks

    columns, widths, cells = table or (LETTER_COLUMNS, LETTER_WIDTHS, Letter.cells)
    with LetterLog(settings) as log:
        spans = log.spans(letter_filter)
        marks = log.read_marks(Marks(spans=spans))
        counts, again = Counter[str](), Counter[bool]()

        def marked() -> Iterator[tuple[Letter, Mark | None]]:
            for letter in log.read(letter_filter, spans):
                mark = marks.of(letter)
                counts[letter.decoded.code] += 1
                again[mark is not None] += 1
                yield letter, mark

        shown = sorted(heapq.nlargest(limit, marked(), key=_order), key=_order) if limit else marked()
        output.table(columns, widths, ((letter.fields(mark), cells(letter, mark)) for letter, mark in shown))
    _say_missing(log)
    _say_foreign(log)
    total = counts.total()
    by_code = ", ".join(f"{count:,} {code}" for code, count in counts.most_common())
    only = f", the newest {limit:,} shown (--limit 0 shows all)" if limit and total > limit else ""
    repeated = f"; {again[True]:,} of them {done} already" if again[True] else ""
    say(f"{counted(total, 'dead letter')}{f': {by_code}' if total else ''}{only}{repeated}")


def _say_missing(log: LetterLog) -> None:
    for partition, why in log.missing.items():
        say(f"{partition} was not read: {why}")


def _say_foreign(log: LetterLog) -> None:
    if log.foreign:
        say(f"records of {log.topic} that are no dead letters, and were left out: {log.foreign:,}")


def _order(marked: tuple[Letter, Mark | None]) -> tuple[int, int, int]:
    return marked[0].timestamp_ms, marked[0].partition, marked[0].offset


# --- show -------------------------------------------------------------------------------------------------------------


@dead_letters.command(short_help="Show one with its error message, headers and bytes.")
@click.argument("name", metavar="NAME")
@output_option()
def show(name: str, output: Output) -> None:
    """Show one dead letter with its error message, its headers and the request's bytes.

    NAME is its position, as `list` shows it (2/17), or the source of its request (timer-request/0/4711). Bytes that are
    not text are shown in hexadecimal, in JSON as base64.
    """
    from timers.offline.dead_letters.letters import LetterFilter, LetterLog, Marks
    from timers.offline.dead_letters.retrying import not_found_error

    settings = load_settings()
    names = full_names([name], settings.dead_letter_topic)
    with LetterLog(settings) as log:
        letter_filter = LetterFilter(names=names)
        spans = log.spans(letter_filter)
        marks = log.read_marks(Marks(spans=spans))
        found = False
        for letter in log.read(letter_filter, spans):
            found = True
            mark = marks.of(letter)
            output.show(letter.fields(mark, with_request=True), *letter.text(mark))
        _say_missing(log)
    if not found:
        raise not_found_error(names, settings)


# --- retry ------------------------------------------------------------------------------------------------------------


@dead_letters.command(short_help="Publish their requests again.")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@_filter_options
@click.option("--all", "everything", is_flag=True, help="All dead letters.")
@click.option("--dry-run", is_flag=True, help="Print what would be done, and do nothing.")
@click.option("--force", is_flag=True, help="Also those retried before, and those that would be rejected again.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask. Without a terminal it is required.")
@output_option()
def retry(
    names: tuple[str, ...],
    everything: bool,
    dry_run: bool,
    force: bool,
    yes: bool,
    output: Output,
    **selection: Any,
) -> None:
    """Publish the requests of dead letters again, as they were sent, to the partitions that they came from.

    Choose them by NAME (as in `show`), by options, or with --all. A timer whose due second is over fires at once. The
    same transaction marks each request, so that no other call publishes it again. The command skips, with a reason,
    requests that would be rejected again, and truncated dead letters (too large for this topic) without their request.

    \b
      timers dead-letters retry 2/17
      timers dead-letters retry --code topic-unknown --topic orders --since 2h --dry-run
    """
    from timers.offline.dead_letters.letters import LetterFilter

    check_selection(names, selection, everything, "NAME..., or options such as --code and --topic")
    settings = load_settings()
    letter_filter = LetterFilter(**selection, names=full_names(names, settings.dead_letter_topic))
    if not (yes or dry_run):
        require_terminal(_WITHOUT_A_TERMINAL)
    publish_again(settings, letter_filter, output, dry_run=dry_run, force=force, ask=not yes)


def check_selection(names: Sequence[str], selection: Mapping[str, Any], everything: bool, ways: str) -> None:
    """Check that dead letters are chosen in one way: by names, by options, or all.

    Args:
        ways: the first two ways, for the message.
    """
    has_options = any(value not in (None, (), "") for value in selection.values())
    if [bool(names), has_options, everything].count(True) != 1:
        raise click.UsageError(f"say which, in one way: {ways}, or --all")


class Words(NamedTuple):
    """What a command calls what it does."""

    what: str
    to_do: str
    question: str
    done: str


REQUEST_WORDS = Words("request", "to publish again", "Publish {} again?", "published again")


def publish_again(
    settings: Settings,
    letter_filter: LetterFilter,
    output: Output,
    words: Words = REQUEST_WORDS,
    *,
    dry_run: bool,
    force: bool,
    ask: bool,
) -> None:
    """Publish the requests of the dead letters of a filter, and print each; Exit if the user was asked, and said no."""
    from timers.offline.dead_letters.letters import LetterLog, Marks
    from timers.offline.dead_letters.retrying import Retrier, Retry

    # First: this stops any other retry, so that all its marks are read below.
    retrier = None if dry_run else Retrier(settings)
    with LetterLog(settings) as log:
        spans = log.spans(letter_filter)
        _say_missing(log)
        marks = log.read_marks(Marks(spans=spans))
        if not marks.is_whole:
            why = "whose leader does not answer. It says which requests were published again before: try again later"
            raise TimersError(f"nothing was published: topic {settings.retried_topic!r} has a partition {why}")
        plan = Retry(settings, log, letter_filter, spans, marks, time.time(), force=force)
        preview = plan.preview()
        _say_foreign(log)
        # A message that is put back on its queue is always overdue.
        says_overdue = words is REQUEST_WORDS and preview.overdue
        overdue = f", {preview.overdue:,} of them overdue: they fire at once" if says_overdue else ""
        number = counted(preview.requests, words.what)
        say(f"{number} {words.to_do}{overdue}")
        for reason, count in preview.left_out.most_common():
            say(f"{count:,} left out: {reason}")
        if retrier is None or not preview.requests:
            return
        if ask and not confirm(words.question.format(number)):
            say(f"nothing was {words.done}")
            raise click.exceptions.Exit(1)
        published = 0
        try:
            for letter, source in plan.publish(retrier):
                published += 1
                code, former = letter.decoded.code, letter.decoded.source
                fields = {"position": letter.position, "code": code, "source": former, "retried_as": source}
                output.show(fields, f"{letter.position} {code} {former} -> {source}")
        finally:
            say(f"{counted(published, words.what)} {words.done}")


_COLUMNS = ("WRITTEN", "CODE", "POSITION", "MESSAGE", "KEY", "REDRIVEN", "REASON")
_WIDTHS = (20, 18, 10, 24, 16, 8, 0)


def selecting(command: _Command) -> _Command:
    """Add the options that select dead letters of a queue."""
    code = click.option(
        "--code", "-c", "codes", type=click.Choice(QUEUE_CODES), multiple=True, help="With this code; may be repeated."
    )
    return code(_contains(written_options(command)))


def letters_of(settings: Settings, name: str, topic: str | None, **selection: Any) -> LetterFilter:
    """Return the filter for the dead letters of a queue."""
    from timers.offline.dead_letters.letters import LetterFilter, QueueTopics
    from timers.queue.inspection import Inspection

    topic = topic or Inspection(settings).topic_of(name)
    return LetterFilter(**selection, queue=QueueTopics(topic, topics.queue_returns(topics.queue_group(name))))


@click.command()
@queue_options
@selecting
@click.option("--limit", "-n", type=click.IntRange(0), default=100, show_default=True, help="Only the newest; 0: all.")
@output_option()
def dead(name: str, topic: str | None, limit: int, output: Output, **selection: Any) -> None:
    """List the dead letters of the queue NAME, the newest last, with the reason.

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
    letter_filter = letters_of(settings, name, topic, **selection)
    show_letters(settings, letter_filter, limit, output, MESSAGE_WORDS.done, (_COLUMNS, _WIDTHS, _cells))


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


MESSAGE_WORDS = Words("message", "to put back", "Put {} back?", "put back")


@click.command()
@queue_options
@click.argument("positions", metavar="[POSITION]...", nargs=-1)
@selecting
@click.option("--all", "everything", is_flag=True, help="All dead letters of the queue, without crashed and unsigned.")
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
    """Put dead letters of the queue NAME back on the queue. Their attempts are counted from 1 again.

    Choose them by POSITION, as `timers queue dead` shows it (2/17), by options, or with --all. No other queue on the
    topic gets them. Timers bring them, so a worker must run. Each is put back once: a second call leaves it out. Those
    that may do harm again, crashed and unsigned, are put back only by --code or POSITION.

    \b
      timers queue redrive jobs 2/17
      timers queue redrive jobs --code attempts-exhausted --since 1h --yes
    """
    check_selection(positions, selection, everything, "POSITION..., or options such as --code and --since")
    if not (yes or dry_run):
        require_terminal(_WITHOUT_A_TERMINAL)
    settings = load_settings()
    names = frozenset(full_names(positions, settings.dead_letter_topic))
    letter_filter = letters_of(settings, name, topic, **selection, names=names)
    publish_again(settings, letter_filter, output, MESSAGE_WORDS, dry_run=dry_run, force=force, ask=not yes)
