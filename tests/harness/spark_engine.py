"""The engine on Spark as a process of its own, started as a user starts it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.harness.worker import Worker

MICRO_BATCH = r"micro-batch \d+: .*lag"
"""A micro-batch that a tick came with."""

START_S = 400.0
"""A session starts in ten seconds, the first micro-batch takes ten more; on a busy machine, ten times that."""


class SparkEngine(Worker):
    """``timers spark engine``.

    Args:
        directory: where its checkpoint and its logs live.
        environment: ``TIMERS_*`` of its system.
        options: of the command line.
        master: of Spark.
    """

    def __init__(
        self, directory: Path, environment: Mapping[str, str], *options: str, master: str = "local[2]"
    ) -> None:
        super().__init__(directory, {**environment, "PYSPARK_PYTHON": sys.executable})
        self._master = master
        self.checkpoint = directory / "checkpoint"
        self._options = options

    def _command(self) -> list[str]:
        mine = (
            "--checkpoint",
            str(self.checkpoint),
            "--buckets",
            "2",
            "--log-file",
            str(self._directory / "spark.log"),
        )
        return [
            sys.executable,
            "-m",
            "timers.cli.main",
            "spark",
            "engine",
            "--master",
            self._master,
            *mine,
            *self._options,
        ]

    def ready(self) -> SparkEngine:
        """Wait until a tick has come through."""
        self.wait_for(MICRO_BATCH, START_S)
        return self

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
