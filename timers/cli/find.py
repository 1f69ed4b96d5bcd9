"""``timers get`` and ``timers list``: one timer, and the pending timers in the order in which they are due."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import click

from timers.asking import missing
from timers.cli.output import Output, argument_id, output_option, say
from timers.cli.reach import WorkerToAsk, worker_option
from timers.client.times import from_now, parse_ahead
from timers.counted import counted
from timers.errors import QueryError
from timers.wire import query as wire
from timers.wire.printable import one_line
from timers.wire.query import Query, Timer, key_as_bytes

UNKNOWN = 4
"""Exit code, as of ``timers cancel``."""


@click.command()
@click.argument("id")
@click.option("--value", "with_value", is_flag=True, help="With -o json: also the callback's value, in base64.")
@worker_option
@output_option()
def get(id: str, with_value: bool, worker: str | None, output: Output) -> int:
    """Show the timer that has this ID: whether it waits or has fired, when it is due, and where it goes.

    ID is one that its sender gave it (TIMERS_ID_TOPIC), or <topic>/<partition>/<offset> as `timers schedule` prints it.
    Asks the worker at TIMERS_WORKER_URL, which asks the others. It must be one of the cluster at TIMERS_BROKERS.

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
        return UNKNOWN
    return 0


def _sentence(timer: Timer) -> str:
    parts = [timer["state"]]
    if "due" in timer:
        parts.append(f"due {timer['due_at']} ({timer['due']}, {from_now(timer['due'] - time.time())})")
    if "topic" in timer:
        parts.append(f"topic {timer['topic']}")
        parts.append(f"key {one_line(key_as_bytes(timer))}")
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

    Asks the worker at TIMERS_WORKER_URL, which asks the others. It must be one of the cluster at TIMERS_BROKERS. If one
    of them does not answer, the rest is listed, a sentence says which partitions are missing, and the exit code is 1.

    \b
      timers list --topic order-timeouts --to 1h
      timers list --prefix customer-17/
      timers list -n 0 -o json | jq -r .topic | sort | uniq -c
    """
    if with_values and not output.as_json:
        raise click.UsageError("--values goes with -o json")
    pages = Pages(WorkerToAsk(worker), selected(selection, with_values=with_values), limit)
    output.table(COLUMNS, WIDTHS, ((timer, cells(timer)) for timer in pages))
    more = ", and there are more (--limit 0 lists all)" if pages.more else ""
    say(f"{counted(pages.count, 'timer')}{more}")
    pages.check()


class Pages:
    """Asks for the timers page by page, and yields them."""

    def __init__(self, worker: WorkerToAsk, query: Query, limit: int) -> None:
        self._worker = worker
        self._query = query
        self._limit = limit
        self.count = 0
        self.more = False
        self._missing: dict[str, str] = {}

    def check(self) -> None:
        """Raise if partitions were missing in at least one page.

        Raises:
            QueryError: some were.
        """
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
    return (
        timer["due_at"],
        timer["topic"],
        one_line(key_as_bytes(timer)),
        timer["id"] + attempt,
        f"{timer['value_bytes']:,}",
    )
