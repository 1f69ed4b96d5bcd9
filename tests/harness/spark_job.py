"""A job on Spark as a process of its own, started as a user starts it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.harness.worker import Worker

SPARK_S = 400.0
"""A session starts in ten seconds; on a busy machine, ten times that."""


class SparkJob(Worker):
    """``timers spark JOB``, with its Java and its Python workers.

    Args:
        directory: where its log lives.
        environment: ``TIMERS_*`` of its system.
        command: the job and its options.
        master: of Spark.
    """

    def __init__(
        self, directory: Path, environment: Mapping[str, str], *command: str, master: str = "local[2]"
    ) -> None:
        super().__init__(directory, {**environment, "PYSPARK_PYTHON": sys.executable})  # executors run it too
        self._arguments = ("spark", *command, "--master", master, "--log-file", str(directory / "spark.log"))

    def _command(self) -> list[str]:
        fast = "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1"
        return [sys.executable, "-m", "timers.cli.main", *self._arguments, "--conf", fast]

    def run(self) -> str:
        """Start it and wait for its end; what it has said."""
        self.start()
        assert self._process is not None
        code = self._process.wait(SPARK_S)
        assert code == 0, f"exit code {code}:\n{self.tail()}"
        return self.log

    def kill(self) -> None:
        """End it, Java and all, as a crash does."""
        self._kill_all()
        self.exit_code()

    def clean_up(self) -> None:
        """Leave nothing behind, whatever state it is in."""
        self._kill_all()
        super().clean_up()

    def _kill_all(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
