"""``timers`` commands in the process of a test, and other commands that a test needs."""

import os
import shutil
from collections.abc import Callable, Mapping
from typing import NamedTuple

import pytest

from timers.cli.main import main


class Ran(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str


Run = Callable[..., Ran]
"""``run("list", "-o", "json")``: a command in the process of a unit test."""


def command(console: pytest.CaptureFixture[str], *arguments: str) -> Ran:
    """Run a ``timers`` command in this process and collect its output, also that of librdkafka."""
    console.readouterr()
    return Ran(main(arguments), *console.readouterr())


def set_environment(monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str]) -> None:
    """Set these variables for commands and clients in this process."""
    for name, text in environment.items():
        monkeypatch.setenv(name, text)


def need(tool: str) -> str:
    """The path of a tool. Without it, the test is skipped with a message; with ``CI=true`` it fails."""
    found = shutil.which(tool)
    if found is None:
        message = f"NOT TESTED: an example needs `{tool}`, and this machine has none"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return found
