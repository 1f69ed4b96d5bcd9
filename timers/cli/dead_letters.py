"""``timers dead-letters``: what could not be read or sent, and another try for it."""

from __future__ import annotations

import heapq
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from timers.cli.tables import print_table
from timers.config.settings import Settings
from timers.errors import TimersError
from timers.wire import topics
from timers.wire.dead_letter import CODES, RETRIES_EXHAUSTED

if TYPE_CHECKING:
    from timers.dead_letters.letter_log import LetterLog, Span
    from timers.dead_letters.letters import Letter, LetterFilter
    from timers.dead_letters.retrier import Retrier

_CHUNK = 500
_CHUNK_BYTES = 4 * 1024 * 1024
"""Of one transaction."""

_NAME = "PARTITION/OFFSET or TOPIC/PARTITION/OFFSET"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def dead_letters() -> None:
    """Requests that could not be read or sent: list them, look at one, try them again.

    A dead letter holds the request as it was sent, a code and a sentence. `docs/bad-input.md` says what each code means
    and what to do.
    """


def _selecting(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that say which ones; they become one argument ``letter_filter``."""
    for option in reversed(
        [
            click.option(
                "--code",
                "-c",
                "codes",
                type=click.Choice([*CODES, RETRIES_EXHAUSTED]),
                multiple=True,
                metavar="CODE",
                help="With this code; may be repeated.",
            ),
            click.option("--topic", "-t", metavar="TOPIC", help="Whose callbacks should have gone to this topic."),
            click.option("--since", metavar="WHEN", help="Written since: 2h ago, or 2030-01-31T12:00:00Z."),
            click.option("--until", metavar="WHEN", help="Written before."),
            click.option("--partition", "-p", type=click.IntRange(0), help="Partition of the dead letter topic."),
            click.option("--from-offset", type=click.IntRange(0), help="First offset in that partition."),
            click.option("--to-offset", type=click.IntRange(0), help="Offset in that partition to end before."),
        ]
    ):
        command = option(command)
    return command


def _letter_filter(
    codes: tuple[str, ...],
    topic: str | None,
    since: str | None,
    until: str | None,
    partition: int | None,
    from_offset: int | None,
    to_offset: int | None,
    names: Iterable[str] = (),
) -> LetterFilter:
    from timers.cli.times import parse_moment
    from timers.dead_letters.letters import LetterFilter

    if partition is None and (from_offset is not None or to_offset is not None):
        raise click.UsageError("--from-offset and --to-offset need --partition: each partition counts its own")
    now_s = time.time()
    return LetterFilter(
        frozenset(codes),
        topic,
        None if since is None else parse_moment(since, now_s),
        None if until is None else parse_moment(until, now_s),
        partition,
        from_offset,
        to_offset,
        frozenset(names),
    )


def _named(names: Iterable[str], dead_letter_topic: str) -> set[str]:
    """Sources and positions in full; a position may come without its topic."""
    full = set()
    for name in names:
        text = name if name.count("/") > 1 else f"{dead_letter_topic}/{name}"
        where = topics.parse_source(text)
        if where is None:
            raise click.UsageError(f"{name!r} is neither a position nor a source of a dead letter: {_NAME}")
        full.add(topics.source(*where))
    return full


# --- list -------------------------------------------------------------------------------------------------------------


@dead_letters.command(name="list")
@_selecting
@click.option("--limit", "-n", type=click.IntRange(0), default=100, show_default=True, help="Only the newest; 0: all.")
@click.option("--output", "-o", type=click.Choice(["table", "json"]), default="table", help="json: one object a line.")
def list_(limit: int, output: str, **selection: Any) -> None:
    """List dead letters, the newest last.

    \b
      timers dead-letters list --code topic-unknown --since 2h
      timers dead-letters list -n 0 -o json | jq -r .topic | sort | uniq -c
    """
    letter_filter = _letter_filter(**selection)
    settings = Settings.load()

    from timers.dead_letters.letter_log import LetterLog  # not at the top: `--help` needs no librdkafka
    from timers.dead_letters.letters import COLUMNS, WIDTHS

    with LetterLog(settings) as log:
        spans = log.spans(letter_filter)
        marks = log.marks()
        counts: Counter[str] = Counter()
        letters = _counted(log.read(letter_filter, spans), counts)
        shown = _newest(letters, limit) if limit else letters
        if output == "json":
            for letter in shown:
                click.echo(letter.json(marks.get(letter.mark_key)))
        else:
            print_table(COLUMNS, WIDTHS, (letter.cells(marks.get(letter.mark_key)) for letter in shown))
    total = counts.total()
    by_code = ", ".join(f"{count:,} {code}" for code, count in counts.most_common())
    only = f", the newest {limit:,} shown (--limit 0 shows all)" if limit and total > limit else ""
    click.echo(f"{total:,} dead letters{f': {by_code}' if total else ''}{only}", err=True)


def _counted(letters: Iterable[Letter], counts: Counter[str]) -> Iterator[Letter]:
    for letter in letters:
        counts[letter.opened.code] += 1
        yield letter


def _newest(letters: Iterable[Letter], limit: int) -> list[Letter]:
    return sorted(heapq.nlargest(limit, letters, key=_age), key=_age)


def _age(letter: Letter) -> tuple[int, int, int]:
    return letter.timestamp_ms, letter.partition, letter.offset


# --- show -------------------------------------------------------------------------------------------------------------


@dead_letters.command(short_help="Show one whole: sentence, headers and bytes.")
@click.argument("name", metavar="NAME")
@click.option("--hex", "as_hex", is_flag=True, help="All bytes as hexadecimal, also where they are text.")
@click.option("--output", "-o", type=click.Choice(["text", "json"]), default="text", help="json: one object a line.")
def show(name: str, as_hex: bool, output: str) -> None:
    """Show one dead letter whole: sentence, headers and the request's bytes.

    NAME is its position, as `list` shows it (2/17), or the source of its request (timer-request/0/4711). Bytes that are
    no text come as hexadecimal, and in JSON as base64.
    """
    from timers.dead_letters.letter_log import LetterLog
    from timers.dead_letters.letters import LetterFilter

    settings = Settings.load()
    names = _named([name], settings.dead_letter_topic)
    with LetterLog(settings) as log:
        letter_filter = LetterFilter(names=names)
        spans = log.spans(letter_filter)
        marks = log.marks()
        found = False
        for letter in log.read(letter_filter, spans):
            found = True
            mark = marks.get(letter.mark_key)
            if output == "json":
                click.echo(letter.json(mark, whole=True))
            else:
                for line in letter.text(mark, as_hex=as_hex):
                    click.echo(line)
    if not found:
        raise TimersError(_not_there(names, settings))


def _not_there(names: Iterable[str], settings: Settings) -> str:
    listed = ", ".join(sorted(names))
    return f"{listed}: no such dead letter in {settings.dead_letter_topic!r} (retention may have taken it)"


# --- retry ------------------------------------------------------------------------------------------------------------


@dead_letters.command(short_help="Publish their requests again.")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@_selecting
@click.option("--all", "everything", is_flag=True, help="Every dead letter there is.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@click.option("--force", is_flag=True, help="Also what was retried before, and what is bound to be rejected again.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask, which is done on a terminal only.")
@click.pass_context
def retry(
    ctx: click.Context,
    /,
    names: tuple[str, ...],
    everything: bool,
    dry_run: bool,
    force: bool,
    yes: bool,
    **selection: Any,
) -> None:
    """Publish the requests of dead letters again, as they were sent, to the partitions that they came from.

    Say which: by NAME (as in `show`), by options, or --all. One whose due second is over fires at once. Each is
    noted in the same transaction, so that no second call publishes it again. Left out, with a reason, are those
    that are bound to be rejected again, and truncated dead letters (too large for this topic) whose request is gone.

    \b
      timers dead-letters retry 2/17
      timers dead-letters retry --code topic-unknown --topic orders
    """
    given = any(value is not None and value != () for value in selection.values())
    if [bool(names), given, everything].count(True) != 1:
        raise click.UsageError("say which: NAME..., or options such as --code and --topic, or --all")
    settings = Settings.load()
    letter_filter = _letter_filter(**selection, names=_named(names, settings.dead_letter_topic))

    from timers.dead_letters.letter_log import LetterLog
    from timers.dead_letters.retrier import Retrier

    if dry_run:
        with LetterLog(settings) as log:
            _Round(settings, log, letter_filter, force).look()
        return
    # First of all whoever else retries is fenced: what it committed until then is seen below as marked.
    retrier = Retrier(settings)
    with LetterLog(settings) as log:
        turn = _Round(settings, log, letter_filter, force)
        turn.look()
        if not turn.count:
            return
        question = f"Publish {_requests(turn.count)} again?"
        if not yes and sys.stdin.isatty() and not click.confirm(question, err=True):
            click.echo("nothing published", err=True)
            ctx.exit(1)
        turn.publish(retrier)


class _Round:
    """One call of ``retry``: looks first, then publishes just what it saw."""

    def __init__(self, settings: Settings, log: LetterLog, letter_filter: LetterFilter, force: bool) -> None:
        self._settings = settings
        self._log = log
        self._letter_filter = letter_filter
        self._force = force
        self._spans: list[Span] = log.spans(letter_filter)
        self._marks = log.marks()
        self.count = 0

    def look(self) -> None:
        """Count, and say what will be published and what will not, and why.

        Raises:
            TimersError: one that was named is not there, or cannot be published: then nothing is.
        """
        overdue, left_out, now_s = 0, Counter[str](), time.time()
        missing = set(self._letter_filter.names)
        for letter in self._log.read(self._letter_filter, self._spans):
            missing -= self._letter_filter.names_of(letter)
            verdict = self._judge(letter)
            if verdict.request is not None:
                self.count += 1
                due_s = letter.asked.due_s
                overdue += due_s is not None and due_s <= now_s
            elif self._letter_filter.names:
                raise TimersError(f"{letter.position} is not retried, and nothing else: {verdict.reason}")
            else:
                left_out[verdict.kind] += 1
        if missing:
            raise TimersError(_not_there(missing, self._settings))
        late = f", {overdue:,} of them overdue: they fire at once" if overdue else ""
        click.echo(f"{_requests(self.count)} to publish again{late}", err=True)
        for kind, count in left_out.most_common():
            click.echo(f"{count:,} left out: {kind}", err=True)

    def _judge(self, letter: Letter) -> Any:
        from timers.dead_letters.letters import judge

        mark = self._marks.get(letter.mark_key)
        original = self._log.original(letter)
        return judge(letter, original, mark, self._settings.max_request_bytes, self._force)

    def publish(self, retrier: Retrier) -> None:
        """Publish what was counted, a line on standard output for each once it is committed."""
        done = 0
        try:
            for chunk in self._chunks():
                for (letter, _), timer_id in zip(chunk, retrier.publish(chunk), strict=True):
                    done += 1
                    click.echo(f"{letter.position} {letter.opened.code} {letter.opened.source} -> {timer_id}")
        finally:
            click.echo(f"{_requests(done)} published again", err=True)

    def _chunks(self) -> Iterator[list[Any]]:
        chunk: list[Any] = []
        size = 0
        for letter in self._log.read(self._letter_filter, self._spans):
            request = self._judge(letter).request
            if request is None:
                continue
            chunk.append((letter, request))
            size += len(request.key or b"") + len(request.value or b"")
            if len(chunk) == _CHUNK or size >= _CHUNK_BYTES:
                yield chunk
                chunk, size = [], 0
        if chunk:
            yield chunk


def _requests(count: int) -> str:
    return f"{count:,} request{'' if count == 1 else 's'}"
