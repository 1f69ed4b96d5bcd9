"""Starts a Spark standalone cluster on this machine: a master and workers, each in its own JVM."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pyspark

from tests.harness.waiting import wait_until
from timers.cli.broker.embedded import free_port

_ROOT = Path(__file__).parents[2]
_SPARK = Path(pyspark.__file__).parent
START_S = 120.0
_EXECUTOR = "CoarseGrainedExecutorBackend"


class SparkCluster:
    """A master and its workers.

    Args:
        directory: directory of the logs and of the workers' temporary files.
        workers: number of workers, with one core each.
    """

    def __init__(self, directory: Path, workers: int) -> None:
        directory.mkdir(parents=True)
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        self.port = free_port()
        self.url = f"spark://127.0.0.1:{self.port}"
        self._start("master", "Master", "--host", "127.0.0.1", "--port", str(self.port), "--webui-port", "0")
        self._wait("master", r"I have been elected leader")
        for number in range(workers):
            name = f"worker-{number}"
            work = str(directory / name)
            self._start(
                name, "Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "2g", "--webui-port", "0",
                "--work-dir", work, self.url,
            )  # fmt: skip
            self._wait(name, r"Successfully registered with master")

    def _start(self, name: str, role: str, *arguments: str) -> None:
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("TIMERS_", "SPARK_"))}
        # Executors inherit these variables, which name their Python and the path of the package.
        environment = {
            **clean,
            "SPARK_HOME": str(_SPARK),
            "PYTHONPATH": str(_ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        with (self._directory / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [str(_SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{role.lower()}.{role}", *arguments],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def _wait(self, name: str, pattern: str) -> None:
        log = self._directory / f"{name}.log"
        wait_until(lambda: re.search(pattern, log.read_text(errors="replace")), f"{name} says {pattern!r}", START_S)

    def kill_worker(self, number: int) -> None:
        """Kill the JVM of a worker and its child processes, as a power loss does."""
        worker = self._processes[1 + number]
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait(30)

    def executors(self) -> list[psutil.Process]:
        """The JVMs in which tasks run."""
        found: list[psutil.Process] = []
        for worker in self._processes[1:]:
            with contextlib.suppress(psutil.NoSuchProcess):
                found += [one for one in psutil.Process(worker.pid).children() if _EXECUTOR in _command_of(one)]
        return found

    def close(self) -> None:
        """End all processes of the cluster."""
        for process in reversed(self._processes):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(30)


def _command_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""  # it has ended
