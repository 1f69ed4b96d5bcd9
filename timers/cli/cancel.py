"""``timers cancel``: one timer by its id, or all that a selection names."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import click

from timers.cli.find import COLUMNS, WIDTHS, Pages, cells, selected, selection_options
from timers.cli.output import Output, argument_id, output_option, say
from timers.cli.reach import WorkerToAsk, load_settings, worker_option
from timers.cli.schedule import EXIT_CODES, fields, if_source_option, sentence
from timers.config.settings import Settings
from timers.core.grouping import groups
from timers.counted import counted
from timers.errors import TimersError
from timers.wire import topics
from timers.wire.query import Timer
from timers.wire.verdict import VerdictMessage

TIMEOUT_S = 10.0

_UNDECIDED = "undecided"

AT_ONCE = 500
"""Cancels that are written before their verdicts are awaited."""


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

    A selection is one or more of --prefix, --topic, --key, --from and --to, as of `timers list`. Timers without an id
    cannot be cancelled: they are counted and left out. A timer that was changed after it was listed is not cancelled.

    Exit codes: 0 cancelled, 3 already fired, 4 there is no timer with this id, 5 nothing was changed: it is another
    version, or too late, 1 no verdict came, or a worker does not answer. With a selection: 0 all that have an id, 4
    there is none, or else the highest code of its timers.

    \b
      timers cancel order-17
      timers cancel --prefix customer-17/ --dry-run
    """
    is_selection = any(text is not None for text in selection.values())
    if is_selection == (id is not None):
        raise click.UsageError("say which: ID, or at least one of --prefix, --topic, --key, --from and --to")
    if selection["prefix"] == "":
        raise click.UsageError("--prefix is empty: it would select every timer")
    if id is None:
        if if_source is not None:
            raise click.UsageError("--if-source goes with ID")
        pages = Pages(WorkerToAsk(worker), selected(selection), 0)
        return _cancel_all(load_settings(), pages, timeout_s, output, only_look=dry_run)
    if dry_run or worker is not None:
        raise click.UsageError("--dry-run and --worker go with a selection, such as --prefix")
    settings = load_settings()

    from timers.client import TimersClient  # not at the top: `--help` needs no librdkafka

    with TimersClient(settings.brokers, timeout_s=TIMEOUT_S) as client:
        result = client.cancel(argument_id(id), if_source=if_source, timeout_s=timeout_s)
    output.show(fields(result), sentence(result))
    return EXIT_CODES[result.verdict]


def _cancel_all(settings: Settings, pages: Pages, timeout_s: float, output: Output, *, only_look: bool) -> int:
    timers = _Cancellable(settings, pages)
    verdicts: Counter[str] = Counter()
    if only_look:
        output.table(COLUMNS, WIDTHS, ((timer, cells(timer)) for timer in timers))
        said = f"{counted(timers.count, 'timer')} would be cancelled"
    else:
        for group in groups(timers, lambda timer: 1, AT_ONCE, AT_ONCE):
            for result in asyncio.run(_verdicts(settings, group, timeout_s)):
                if isinstance(result, VerdictMessage):
                    verdicts[result.verdict] += 1
                    output.show(fields(result), sentence(result))
                else:
                    verdicts[_UNDECIDED] += 1
                    say(str(result))
        said = ", ".join(f"{number:,} {verdict}" for verdict, number in verdicts.items()) or "no timer to cancel"
    say("".join([said, *(f"; {number:,} left out: {why}" for why, number in timers.left_out.items())]))
    pages.check()
    if verdicts[_UNDECIDED]:
        raise TimersError(f"{counted(verdicts[_UNDECIDED], 'cancel')} without a verdict: run the command again")
    return max(map(EXIT_CODES.__getitem__, verdicts), default=0) if timers.count else EXIT_CODES["unknown"]


class _Cancellable:
    """The timers with an id that wait for their first attempt.

    Attributes:
        count: how many there were.
        left_out: why others are not among them -> their number.
    """

    def __init__(self, settings: Settings, timers: Iterable[Timer]) -> None:
        self._id_topic = settings.id_topic
        self._timers = timers
        self.count = 0
        self.left_out: Counter[str] = Counter()

    def __iter__(self) -> Iterator[Timer]:
        for timer in self._timers:
            place = topics.parse_source(timer["source"])
            if place is None or place[0] != self._id_topic:
                self.left_out["without an id"] += 1
            elif "retry" in timer:
                self.left_out["fired, and waiting for another attempt"] += 1
            else:
                self.count += 1
                yield timer


async def _verdicts(
    settings: Settings, timers: Sequence[Timer], timeout_s: float
) -> list[VerdictMessage | TimersError]:
    """The verdict on the cancel of each timer, or why there is none. Only the version that was listed is cancelled."""
    from timers.client import AsyncTimersClient

    async with AsyncTimersClient(settings.brokers, timeout_s=TIMEOUT_S) as client:

        async def one(timer: Timer) -> VerdictMessage | TimersError:
            try:
                return await client.cancel(timer["id"], if_source=timer["source"], timeout_s=timeout_s)
            except TimersError as error:
                return error

        return list(await asyncio.gather(*map(one, timers)))
