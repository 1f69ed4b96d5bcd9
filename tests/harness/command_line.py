"""``timers`` commands in the process of a test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pytest

from timers.cli.main import main


class Ran(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str


def command(console: pytest.CaptureFixture[str], *arguments: str) -> Ran:
    """Run a ``timers`` command in this process and collect its output, also that of librdkafka."""
    console.readouterr()
    return Ran(main(arguments), *console.readouterr())


def set_environment(monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str]) -> None:
    """Set these variables for commands and clients in this process."""
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
