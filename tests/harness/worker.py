"""A worker as a child process, started as a user starts it."""

import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.harness.process import Process, clean_environment, python
from tests.harness.waiting import DEADLINE_S
from timers.cli.broker.embedded import free_port
from timers.process.config.settings import default_worker_id

READY = r"ready: (\d+) partitions, (\d+) timers pending, ([0-9.]+) s after assignment"
"""Pattern of the line after which all assigned partitions accept and fire."""

QUICK = "tests.harness.quick_app"
"""The app of a worker with short periods."""

COMMAND = ("faust", "-A", "timers.app", "worker")


def worker_command(port: int, log_level: str = "info", app: str = "timers.app") -> list[str]:
    """Command line that starts a worker."""
    return python("faust", "-A", app, "worker", "-l", log_level, "--web-port", str(port))


STOPPING = "tests.harness.stopping_app"
"""An app that stops its process in a transaction."""


class Worker(Process):
    """A process ``python -m faust -A timers.app worker``. It keeps its port and its worker id over restarts.

    Args:
        directory: directory of its data and its log.
        environment: ``TIMERS_*`` variables of its system.
        forked: start it in a fork; a user starts the command.

    Attributes:
        log_level: log level of the next start.
        app: module of the app of the next start.
        ready_s: seconds that the last start took until ready; they show how busy the machine is.
    """

    def __init__(self, directory: Path, environment: Mapping[str, str], *, forked: bool = False) -> None:
        directory.mkdir(parents=True)
        self.log_level = "info"
        self.app = "timers.app"
        self.ready_s = 0.0
        self.port = free_port()
        self.data_dir = directory / "data"
        variables = clean_environment(**{**environment, "TIMERS_DATA_DIR": str(self.data_dir)})
        super().__init__("the worker", (), variables, directory, directory / "log", forked=forked)

    def _command(self) -> list[str]:
        return worker_command(self.port, self.log_level, self.app)

    def ready(self) -> Self:
        """Wait until its log says that it is ready."""
        self.wait_for(READY, 2 * DEADLINE_S)
        self.ready_s = time.time() - self.started_at
        return self

    @property
    def sentences(self) -> list[str]:
        """Log lines with the reason why it ended; none after a kill or a normal stop."""
        return [line for line in self.log.splitlines() if line.startswith("timers: ")]

    @property
    def worker_id(self) -> str:
        """Its worker id in the group."""
        return default_worker_id(self.port)

    def stop(self) -> None:
        """Stop it as an operator does, and check its exit code."""
        self.send(signal.SIGTERM)
        assert self.has_stopped(), f"exit code {self.exit_code()}:\n{self.tail()}"

    def has_stopped(self) -> bool:
        """Whether it has ended as one that was asked to stop; one that did not handle signals yet is ended by them."""
        code = self.exit_code()
        return code == 0 or (code == -signal.SIGTERM and "Starting..." not in self.log)
