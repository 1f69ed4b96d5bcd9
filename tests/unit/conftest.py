"""What several unit tests share."""

from __future__ import annotations

import socket
import sqlite3
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness.constants import Constants
from tests.harness.waiting import DEADLINE_S
from timers.process.config import project, settings

if TYPE_CHECKING:
    from tests.harness.command_line import Run
    from tests.harness.queue_thread import Opened

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def no_broker_of_this_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """``make run`` may have been here: the settings would refuse to take other brokers than the one that has ended."""

    def last_broker() -> str | None:
        return None if project.project_dir().parent == ROOT else project.last_broker()

    monkeypatch.setattr(settings, "last_broker", last_broker)


@pytest.fixture
def patient_pages(constants: Constants) -> None:
    """The first paint of a page waits for the answers of simulated workers, however busy the machine is."""
    constants("timers.console.web.page", FIRST_PAINT_S=DEADLINE_S)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command."""
    from tests.harness.command_line import command

    return partial(command, capsys)


@pytest.fixture
def queue() -> Iterator[Opened]:
    """The thread of a queue over a simulated transport. A file may have another fixture of this name."""
    from tests.harness.queue_thread import Opened  # not at the top: most unit tests need no queue

    opened = Opened()
    yield opened
    opened.close()


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A database of its own."""
    connection = sqlite3.connect(tmp_path / "connection.db")
    yield connection
    connection.close()


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that takes connections, and does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
