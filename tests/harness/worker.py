"""A worker as a process of its own, started as a user starts it, and watched through its log."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.harness.process import Process, clean_environment, python
from tests.harness.waiting import DEADLINE_S
from timers.broker.config import free_port
from timers.config.settings import default_worker_id

READY = r"ready: (\d+) partitions, (\d+) timers pending, ([0-9.]+) s after assignment"
"""The line after which every assigned partition accepts and fires."""

COMMAND = ("faust", "-A", "timers.app", "worker")


def worker_command(port: int, log_level: str = "info") -> list[str]:
    """Command line of a worker."""
    return python(*COMMAND, "-l", log_level, "--web-port", str(port))


class Worker(Process):
    """``python -m faust -A timers.app worker``. It keeps its port, and so its worker id, over restarts.

    Args:
        directory: for its data and its log.
        environment: ``TIMERS_*`` of its system.

    Attributes:
        log_level: of the next start.
        ready_s: how long its last start took until it was ready; this shows how busy the machine is.
    """

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        directory.mkdir(parents=True)
        self.log_level = "info"
        self.ready_s = 0.0
        self.port = free_port()
        self.data_dir = directory / "data"
        variables = clean_environment(**{**environment, "TIMERS_DATA_DIR": str(self.data_dir)})
        super().__init__("the worker", (), variables, directory, directory / "log")

    def _command(self) -> list[str]:
        return worker_command(self.port, self.log_level)

    def ready(self) -> Self:
        """Wait until it has written that it is ready."""
        self.wait_for(READY, 2 * DEADLINE_S)
        self.ready_s = time.time() - self.started_at
        return self

    @property
    def sentences(self) -> list[str]:
        """The lines in which it says why it ended; none if it was killed or stopped."""
        return [line for line in self.log.splitlines() if line.startswith("timers: ")]

    @property
    def worker_id(self) -> str:
        """Its name in the group."""
        return default_worker_id(self.port)

    def stop(self) -> None:
        """Stop it as an operator does, and check that it ends well."""
        self.send(signal.SIGTERM)
        code = self.exit_code()
        too_early = code == -signal.SIGTERM and "Starting..." not in self.log  # it did not handle signals yet
        assert code == 0 or too_early, f"exit code {code}:\n{self.tail()}"
