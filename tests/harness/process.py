"""Child processes of tests and benchmarks."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import psutil

from tests.harness.forked import Forked, fits
from tests.harness.waiting import DEADLINE_S, wait_until

ROOT = Path(__file__).resolve().parents[2]
TAIL_BYTES = 4000

_started: list[Process] = []


def stop_everything() -> None:
    """End all processes that still run, after an error or Ctrl-C."""
    for process in _started:
        process.end(5)


def clean_environment(**more: str) -> dict[str, str]:
    """This process's environment without ``TIMERS_*`` settings, plus ``more``; Python imports from this checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TIMERS_")}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **more}


def python(module: str, *arguments: str) -> list[str]:
    """Command line of a Python module of this checkout."""
    return [sys.executable, "-m", module, *arguments]


class Process:
    """A command that runs as a child process in a session of its own. It may be started again after its end.

    Args:
        name: name in messages.
        command: the program and its arguments.
        environment: all variables of the process.
        cwd: its working directory.
        log_path: a file to which all its output is appended.
        forked: run a Python module in a fork, whose start costs less. A benchmark, and a test of the start itself, run
            the command.

    Attributes:
        started_at: epoch time of the last start.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        cwd: Path,
        log_path: Path,
        *,
        forked: bool = False,
    ) -> None:
        self.name = name
        self.forked = forked
        self.log_path = log_path
        self.started_at = 0.0
        self._command_line = list(command)
        self._environment = dict(environment)
        self._cwd = cwd
        self._log_start = 0
        self._clean = True
        self._process: subprocess.Popen[bytes] | Forked | None = None

    def start(self, **changes: str) -> Self:
        """Start the process and return at once; ``changes``: environment variables of this start only."""
        assert not self.running, f"{self.name} still runs"
        self.log_path.touch()
        self._log_start = self.log_path.stat().st_size
        self.started_at = time.time()
        self._process = self._spawn(self._command(), {**self._environment, **changes})
        self._clean = False
        _started.append(self)
        return self

    def _spawn(self, command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes] | Forked:
        if self.forked and fits(command):
            return Forked(command, environment, self._cwd, self.log_path)
        with self.log_path.open("ab") as output:
            return subprocess.Popen(
                command,
                cwd=self._cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _command(self) -> list[str]:
        return self._command_line

    # ---- state --------------------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id while it runs."""
        assert self._process is not None and self.running, f"{self.name} does not run:\n{self.tail()}"
        return self._process.pid

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped it, and none has continued it."""
        is_stopped: bool = psutil.Process(self.pid).status() == psutil.STATUS_STOPPED
        return is_stopped

    @property
    def left_processes(self) -> bool:
        """Whether child processes of the process still run."""
        assert self._process is not None
        try:
            os.killpg(self._process.pid, 0)
        except ProcessLookupError:
            return False
        return True

    # ---- output -------------------------------------------------------------------------------------------------

    @property
    def log(self) -> str:
        """Output since the last start."""
        with self.log_path.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode(errors="replace")

    def tail(self) -> str:
        """Last lines of the output."""
        return self.log[-TAIL_BYTES:]

    def wait_for(self, pattern: str, deadline_s: float = DEADLINE_S) -> re.Match[str]:
        """Wait until the output since the last start matches ``pattern``; ``^`` and ``$`` match at lines.

        Raises:
            AssertionError: the process ended, or there was no match in time; with the last lines of the output.
        """

        def look() -> re.Match[str] | None:
            running = self.running
            found = re.search(pattern, self.log, re.MULTILINE)
            assert found or running, f"{self.name} ended before it wrote {pattern!r}"
            return found

        try:
            return wait_until(look, f"a line of {self.name} with {pattern!r}", deadline_s)
        except AssertionError as error:
            log = "/".join(self.log_path.parts[-2:])  # results of benchmarks must not hold a path of this machine
            raise AssertionError(f"{error}; the end of {log}:\n{self.tail()}") from None

    # ---- the end ------------------------------------------------------------------------------------------------

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        os.kill(self.pid, number)

    def exit_code(self, deadline_s: float = DEADLINE_S) -> int:
        """Wait for the end of the process and return its exit code."""
        assert self._process is not None
        try:
            return self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} does not end:\n{self.tail()}") from None

    def kill(self) -> None:
        """Kill the process and all its child processes."""
        assert self.running, f"{self.name} does not run:\n{self.tail()}"
        self.clean_up()

    def clean_up(self) -> None:
        """Kill the process and its child processes, if they still run."""
        if self._process is not None and not self._clean:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()  # a fork that was just made is not the leader of a group yet
            self._process.wait()
            self._clean = True  # the system may now give the process id to another process

    def end(self, deadline_s: float = 30) -> int | None:
        """Ask the process to end, kill it after ``deadline_s``; return its exit code, None if it was not started."""
        if self._process is None:
            return None
        if self.running:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(deadline_s)
        self.clean_up()
        return self._process.returncode
