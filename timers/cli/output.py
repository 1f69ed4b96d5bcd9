"""Output of the commands: data only on stdout, as text or with ``-o json`` as JSON; messages on stderr.

No other module of the commands prints: what others have sent is made safe here, see :mod:`timers.core.printable`.

In JSON, each thing that a command shows (a timer, a callback, a verdict) is one object on a line of its own. A program
ignores fields that it does not know: a later version may add some.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import click

from timers.core.printable import printable
from timers.process.hosts import in_url

INTERRUPTED_EXIT_CODE = 130
"""Exit code after Ctrl-C."""

_Command = TypeVar("_Command", bound=Callable[..., Any])


class Output:
    """Prints what a command shows, as text or as JSON. Each line is written at once, also into a pipe."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json

    def show(self, fields: Mapping[str, Any], *lines: str, **style: Any) -> None:
        """Print one thing: its fields as a JSON object, or its lines of text.

        Args:
            style: of the first line on a terminal, as of ``click.style``.
        """
        if self.as_json:
            click.echo(json.dumps(fields))
            return
        for number, line in enumerate(lines):
            text = printable(line)
            click.echo(click.style(text, **style) if style and not number else text)

    def table(
        self, columns: Sequence[str], widths: Sequence[int], rows: Iterable[tuple[Mapping[str, Any], Sequence[str]]]
    ) -> None:
        """Print each row, given as its fields and its cells, at once. As text, the names of the columns come first."""
        for number, (fields, cells) in enumerate(rows):
            if not number and not self.as_json:
                self.show({}, _aligned(columns, widths))
            self.show(fields, _aligned(cells, widths))


def flush() -> None:
    """Write what waits for stdout, unless a handler of a queue has closed or removed it."""
    if sys.stdout is not None and not sys.stdout.closed:
        sys.stdout.flush()


def say(line: str) -> None:
    """Print a message for a person on stderr. Without a reader, or if a handler has closed it, it is lost."""
    with contextlib.suppress(OSError, ValueError):
        click.echo(printable(line), err=True)


def confirm(question: str) -> bool:
    """Whether the user, who is asked on stderr, says yes."""
    return click.confirm(printable(question), err=True)


def require_terminal(ways_out: str) -> None:
    """Raise UsageError if the command cannot ask the user.

    Args:
        ways_out: what to do without a terminal, such as ``"add --yes"``.
    """
    if not sys.stdin.isatty():
        raise click.UsageError(f"without a terminal this command cannot ask: {ways_out}")


def say_failure(sentence: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        click.echo(f"{click.style('timers:', fg='red')} {printable(sentence)}", err=True)


def say_usage(error: click.ClickException) -> None:
    text = io.StringIO()
    error.show(text)
    for line in text.getvalue().removesuffix("\n").split("\n"):
        say(line)


def argument_bytes(text: str) -> bytes:
    """The bytes of an argument, as the shell gave them, whatever the locale says: a value need not be UTF-8."""
    return os.fsencode(text)


def argument_id(text: str) -> str:
    """An id that is an argument, as UTF-8. Wrong bytes are as ``surrogateescape`` decodes them."""
    return argument_bytes(text).decode(errors="surrogateescape")


def output_option(*names: str) -> Callable[[_Command], _Command]:
    """Add the option ``-o``; the command gets an :class:`Output` as its argument ``output``.

    Args:
        names: of the option, if ``--output`` has another meaning in this command.
    """

    return click.option(
        *(names or ("--output", "-o")),
        "output",
        type=click.Choice(["text", "json"]),
        default="text",
        callback=lambda _, __, form: Output(as_json=form == "json"),
        help="json: one JSON object a line.",
    )


def metrics_options(command: _Command) -> _Command:
    """Add the options ``metrics_port`` and ``metrics_host`` of a command that serves metrics and health."""
    port = click.option(
        "--metrics-port", type=click.IntRange(0, 65_535), metavar="PORT", help="Port of /metrics and /health."
    )
    host = click.option(
        "--metrics-host", default="127.0.0.1", show_default=True, help="Address of this port; 0.0.0.0: all."
    )
    return port(host(command))


def say_metrics(host: str, port: int) -> None:
    """Say where the metrics are."""
    say(f"metrics at http://{in_url(host)}:{port}/metrics")


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{printable(cell):<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()
