"""A worker as a process of its own, started as a user starts it, and watched through its log."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tests.harness.waiting import DEADLINE_S, wait_until
from timers.broker.config import free_port
from timers.config.settings import default_worker_id

READY = r"ready: (\d+) partitions, (\d+) timers pending"

COMMAND = ("faust", "-A", "timers.app", "worker")
_ROOT = Path(__file__).parents[2]


class Worker:
    """``python -m faust -A timers.app worker``. Keeps its port, and so its worker id, over restarts.

    Args:
        directory: where its data and its log live.
        environment: ``TIMERS_*`` of its system.

    Attributes:
        log_level: of the next start.
        ready_s: how long its last start took until it was ready: how busy this machine is.
    """

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        directory.mkdir(parents=True)
        self.log_level = "info"
        self.ready_s = 0.0
        self.port = free_port()
        self.data_dir = directory / "data"
        self.log_path = directory / "log"
        self.log_path.touch()
        self._directory = directory
        self._environment = {**environment, "TIMERS_DATA_DIR": str(self.data_dir)}
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self._started_at = 0.0

    def start(self, **changes: str) -> Worker:
        """Start the process and return at once; ``changes`` are settings of this start only."""
        assert self._process is None or self._process.poll() is not None, "it still runs"
        self._log_start = self.log_path.stat().st_size
        self._started_at = time.monotonic()
        clean = {name: value for name, value in os.environ.items() if not name.startswith("TIMERS_")}
        with self.log_path.open("ab") as output:
            self._process = subprocess.Popen(
                self._command(),
                cwd=self._directory,
                env={**clean, "PYTHONPATH": str(_ROOT), **self._environment, **changes},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def _command(self) -> list[str]:
        return [sys.executable, "-m", *COMMAND, "-l", self.log_level, "--web-port", str(self.port)]

    def ready(self) -> Worker:
        """Wait until it says that it is."""
        self.wait_for(READY, 2 * DEADLINE_S)
        self.ready_s = time.monotonic() - self._started_at
        return self

    @property
    def log(self) -> str:
        """What it has written since its last start."""
        with self.log_path.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode(errors="replace")

    def wait_for(self, pattern: str, deadline_s: float = DEADLINE_S) -> re.Match[str]:
        """Wait for a line in the log of this start."""

        def look() -> re.Match[str] | None:
            running = self.running
            found = re.search(pattern, self.log)
            assert found or running, f"it ended before it said {pattern!r}"
            return found

        try:
            return wait_until(look, f"a line with {pattern!r}", deadline_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.tail()}") from None

    def tail(self) -> str:
        return self.log[-4000:]

    @property
    def pid(self) -> int:
        """Of the process that runs."""
        assert self._process is not None and self.running, f"it does not run:\n{self.tail()}"
        return self._process.pid

    @property
    def sentences(self) -> list[str]:
        """Why it ended, as it told whoever started it; empty if it was killed or stopped."""
        return [line for line in self.log.splitlines() if line.startswith("timers: ")]

    @property
    def worker_id(self) -> str:
        """Its name in the group."""
        return default_worker_id(self.port)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Signal the process."""
        assert self._process is not None and self.running, f"it does not run:\n{self.tail()}"
        self._process.send_signal(number)

    def exit_code(self) -> int:
        """Wait for its end."""
        assert self._process is not None
        try:
            return self._process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end:\n{self.tail()}") from None

    def stop(self) -> None:
        """Stop it as an operator does."""
        self.send(signal.SIGTERM)
        code = self.exit_code()
        unborn = code == -signal.SIGTERM and "Starting..." not in self.log  # not far enough to hear of it
        assert code == 0 or unborn, f"exit code {code}:\n{self.tail()}"

    def kill(self) -> None:
        """End it as a crash does."""
        self.send(signal.SIGKILL)
        self.exit_code()

    @property
    def left_processes(self) -> bool:
        """Whether anything it has started still runs."""
        assert self._process is not None
        try:
            os.killpg(self._process.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def clean_up(self) -> None:
        """Leave nothing behind, whatever state it is in."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
