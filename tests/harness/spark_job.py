"""Spark commands of the command line as child processes."""

import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import psutil

from tests.harness.process import python
from tests.harness.worker import Worker

SPARK_S = 400.0
"""Deadline for the start of a session, which takes 10 s, and up to 100 s on a busy machine."""

JAVA_OPTIONS = "spark.driver.extraJavaOptions"

FAST = {
    JAVA_OPTIONS: "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djdk.lang.Process.launchMechanism=VFORK",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
    # A busy machine may need longer than the default of 15 s to start a Python process.
    "spark.python.authenticate.socketTimeout": "60s",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
}
"""Settings for jobs that last a second. What Java and Spark would spend on making their code faster costs more than it
brings. A file of a checkpoint has no checksum file beside it, since Hadoop starts a process for each new file."""

FAST_OPTIONS = [part for setting in FAST.items() for part in ("--conf", "=".join(setting))]
"""The same for the command line."""

MICRO_BATCH = r"micro-batch \d+: .*lag"
"""Pattern of the line of a micro-batch with a tick."""


class SparkJob(Worker):
    """A process ``timers spark JOB`` with its Java and Python workers.

    Args:
        directory: directory of its log.
        environment: ``TIMERS_*`` variables of its system.
        command: the job and its options.
        master: Spark master URL.
    """

    def __init__(
        self, directory: Path, environment: Mapping[str, str], *command: str, master: str = "local[2]"
    ) -> None:
        super().__init__(directory, {**environment, "PYSPARK_PYTHON": sys.executable})  # Python of the executors
        self._arguments = ("spark", *command, "--master", master, "--log-file", str(directory / "spark.log"))

    def _command(self) -> list[str]:
        spark, job, *options = self._arguments
        return python("timers.cli.main", spark, job, *FAST_OPTIONS, *options)

    def stop(self) -> None:
        """Stop it as a service manager does: SIGTERM to the driver, its Java, and Spark's daemon and workers."""
        for process in [psutil.Process(self.pid), *psutil.Process(self.pid).children(recursive=True)]:
            with contextlib.suppress(ProcessLookupError):  # a worker that has just ended
                os.kill(process.pid, signal.SIGTERM)
        assert self.exit_code() == 0, f"not stopped between two micro-batches:\n{self.tail()}"
        assert "Traceback" not in self.log and "starts again" not in self.log, self.tail()

    def run(self) -> str:
        """Start the job, wait for its end, and return its output."""
        code = self.start().exit_code(SPARK_S)
        assert code == 0, f"exit code {code}:\n{self.tail()}"
        return self.log


class SparkEngine(SparkJob):
    """A process ``timers spark engine``.

    Args:
        directory: directory of its checkpoint and logs.
        environment: ``TIMERS_*`` variables of its system.
        options: options of the command line.
        master: Spark master URL.

    Attributes:
        buckets: number of buckets of the next start.
    """

    def __init__(
        self, directory: Path, environment: Mapping[str, str], *options: str, master: str = "local[2]"
    ) -> None:
        self.buckets = 2
        self.checkpoint = directory / "checkpoint"
        fast = f"{JAVA_OPTIONS}={FAST[JAVA_OPTIONS]}"
        mine = ("--checkpoint", self.checkpoint.as_uri(), "--conf", fast)
        super().__init__(directory, environment, "engine", *mine, *options, master=master)

    def _command(self) -> list[str]:
        return python("timers.cli.main", *self._arguments, "--buckets", str(self.buckets))

    def ready(self) -> Self:
        """Wait for a micro-batch with a tick."""
        self.wait_for(MICRO_BATCH, SPARK_S)
        return self
