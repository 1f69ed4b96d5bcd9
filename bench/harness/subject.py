"""What is measured: a system that takes timers from one topic and fires them. Ours is one, each peer another."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from bench.harness.cluster import Cluster
from bench.harness.console import Console
from bench.harness.process import PartitionMetrics, Process
from bench.workload import Workload

ROOT = Path(__file__).resolve().parents[2]


class Unavailable(Exception):
    """This peer cannot be built or run here; the message is the reason that the report prints."""


@dataclass
class Bench:
    """What every question is given."""

    console: Console
    cluster: Cluster
    broker_pid: int
    broker_directory: Path
    workdir: Path
    keep_logs: bool = False
    runs: int = 0

    def names(self, subject: str) -> Names:
        """Fresh topics, group and directory for one run, so that no run sees another's state."""
        self.runs += 1
        run = f"{subject.replace('_', '-')}-{self.runs}"
        directory = self.workdir / run
        directory.mkdir(parents=True)
        return Names(run, f"timer-request-{run}", f"oscillator-{run}", f"target-{run}", f"bench-{run}", directory)

    def clear(self, names: Names) -> None:
        """Delete the run's topics, its data and, unless they are to be kept, its logs."""
        self.cluster.delete([topic for topic in self.cluster.topics() if names.owns(topic)])
        shutil.rmtree(names.data_dir, ignore_errors=True)
        if not self.keep_logs:
            shutil.rmtree(names.directory, ignore_errors=True)


@dataclass(frozen=True)
class Names:
    """Where one run takes place."""

    run: str
    request: str
    oscillator: str
    target: str
    app_id: str
    directory: Path

    @property
    def data_dir(self) -> Path:
        return self.directory / "data"

    def owns(self, topic: str) -> bool:
        """Whether a topic belongs to this run: by its last word, or by the app id that internal topics start with."""
        return topic.endswith(f"-{self.run}") or topic.startswith(f"{self.app_id}-")


@dataclass
class Running:
    """A started subject and its partition metrics."""

    processes: list[Process]
    metrics: PartitionMetrics
    ready_at: float
    exit_codes: list[int] = field(default_factory=list)

    def check(self) -> None:
        """Raise if one of the processes ended."""
        for process in self.processes:
            if not process.running:
                raise RuntimeError(
                    f"{process.name} ended before its time; last lines ({process.log_name}):\n{process.tail()}"
                )

    def stop(self) -> None:
        self.metrics.close()
        self.exit_codes = [process.stop() for process in self.processes]


class Subject(ABC):
    """One system under test."""

    name: str
    partitioner: ClassVar[str] = "spread"
    """How its publishers pick the partition (see :class:`bench.harness.publisher.Publication`)."""
    accepts_per_s: ClassVar[int]
    """A low guess of how fast it takes requests in, and ..."""
    head_start_s: ClassVar[float] = 4.0
    """... of what it needs beyond that. They decide only how far ahead the first due second lies."""

    def prepare(self, bench: Bench) -> None:  # noqa: B027 - most have nothing to build
        """Build what must be built.

        Raises:
            Unavailable: it cannot be, and why.
        """

    @abstractmethod
    def launch(self, bench: Bench, names: Names, workload: Workload) -> tuple[list[Process], float]:
        """Start on ``names.data_dir`` (kept from a former launch if it is still there).

        Returns the processes and the epoch time at which they were ready for requests.
        """

    def start(self, bench: Bench, names: Names, workload: Workload) -> Running:
        """Launch and measure from the first moment."""
        names.data_dir.mkdir(parents=True, exist_ok=True)
        processes, ready_at = self.launch(bench, names, workload)
        metrics = PartitionMetrics({"subject": [process.pid for process in processes], "broker": [bench.broker_pid]})
        return Running(processes, metrics, ready_at)

    def recovered_s(self, processes: list[Process], timers: int) -> float:
        """Seconds from assignment to ready, as the last launch's own output says.

        Raises:
            RuntimeError: it does not say so, or that it found something else than ``timers`` pending.
        """
        raise RuntimeError(f"{self.name} does not say how long it took to recover {timers:,} timers")

    def accepted(self, bench: Bench, names: Names) -> int:
        """How many requests it has taken in so far: what its group has committed."""
        return bench.cluster.committed(names.app_id, names.request)


def python(module: str, *arguments: str) -> list[str]:
    """Command line of one of our own Python processes."""
    return [sys.executable, "-m", module, *arguments]


def environment(**more: str) -> dict[str, str]:
    """Our environment without any TIMERS_ setting of the person who measures, plus ``more``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TIMERS_")}
    return {**kept, "PYTHONUNBUFFERED": "1", **more}


def free_port() -> int:
    """A port that nothing listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
