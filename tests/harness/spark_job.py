"""Commands on Spark as processes of their own, started as a user starts them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.harness.process import python
from tests.harness.worker import Worker

SPARK_S = 400.0
"""A deadline. A session starts in ten seconds, and on a busy machine in ten times that."""

MICRO_BATCH = r"micro-batch \d+: .*lag"
"""The line of a micro-batch that had a tick."""


class SparkJob(Worker):
    """``timers spark JOB``, with its Java and its Python workers.

    Args:
        directory: for its log.
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
        return [*python("timers.cli.main", *self._arguments), "--conf", fast]

    def run(self) -> str:
        """Start it, wait for its end, and return its output."""
        code = self.start().exit_code(SPARK_S)
        assert code == 0, f"exit code {code}:\n{self.tail()}"
        return self.log


class SparkEngine(SparkJob):
    """``timers spark engine``.

    Args:
        directory: for its checkpoint and its logs.
        environment: ``TIMERS_*`` of its system.
        options: of the command line.
        master: of Spark.
    """

    def __init__(
        self, directory: Path, environment: Mapping[str, str], *options: str, master: str = "local[2]"
    ) -> None:
        self.checkpoint = directory / "checkpoint"
        mine = ("--checkpoint", str(self.checkpoint), "--buckets", "2")
        super().__init__(directory, environment, "engine", *mine, *options, master=master)

    def _command(self) -> list[str]:
        return python("timers.cli.main", *self._arguments)

    def ready(self) -> Self:
        """Wait until a micro-batch has had a tick."""
        self.wait_for(MICRO_BATCH, SPARK_S)
        return self
