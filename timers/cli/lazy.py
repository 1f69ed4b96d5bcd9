"""A group of commands that imports a command's module only when the command is used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click
from click.shell_completion import CompletionItem


class LazyGroup(click.Group):
    """Each command is the object of the same name in a module of the same name; ``-`` in a command is ``_`` there.

    Args:
        lines: each command and its line in ``--help``, in order.
        heading: heading of these lines in ``--help``.
        modules: module and object of a command whose name is no Python name.
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
        name = self._modules.get(cmd_name, cmd_name.replace("-", "_"))
        command: click.Command = getattr(importlib.import_module(f"{self._package}.{name}"), name)
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
