"""A system under test: it takes timers from a request topic and fires them. Our engine is one, and so is each peer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from bench.session import RunNames, Session
from bench.workload import Workload
from tests.harness.process import Process
from tests.harness.usage import UsageSampler


class Unavailable(Exception):
    """A peer that cannot be built or run here. The message is the reason that the report prints."""


@dataclass
class Running:
    """A started subject and the samples of its CPU time and memory."""

    processes: list[Process]
    usage: UsageSampler
    ready_at: float
    exit_codes: list[int | None] = field(default_factory=list)

    def check(self) -> None:
        """Raise if one of the processes has ended."""
        for process in self.processes:
            if not process.running:
                raise RuntimeError(f"{process.name} has ended; the last lines of its log:\n{process.tail()}")

    def stop(self) -> None:
        self.usage.close()
        self.exit_codes = [process.end() for process in self.processes]


class Subject(ABC):
    """One system under test."""

    name: str
    partitioner: ClassVar[str] = "spread"
    """How its publishers choose the partition (see :class:`tests.harness.publication.Publication`)."""
    accepts_per_s: ClassVar[int]
    """A low guess of how many requests it accepts in one second."""
    head_start_s: ClassVar[float] = 4.0
    """A guess of what it needs besides. Both decide only how far ahead the first due second is."""

    def prepare(self, session: Session) -> None:  # noqa: B027 - most have nothing to build
        """Build the subject.

        Raises:
            Unavailable: it cannot be built here.
        """

    @abstractmethod
    def launch(self, session: Session, names: RunNames, workload: Workload) -> tuple[list[Process], float]:
        """Start it on ``names.data_dir``, with the data of a former launch if there is any.

        Returns:
            The processes and the epoch time at which they were ready for requests.
        """

    def start(self, session: Session, names: RunNames, workload: Workload) -> Running:
        """Launch it and begin to sample its CPU time and memory."""
        names.data_dir.mkdir(parents=True, exist_ok=True)
        processes, ready_at = self.launch(session, names, workload)
        usage = UsageSampler({"subject": [process.pid for process in processes], "broker": [session.broker_pid]})
        return Running(processes, usage, ready_at)

    def recovered_s(self, processes: list[Process], timers: int) -> float:
        """Seconds from assignment to ready, from the output of the last launch.

        Raises:
            RuntimeError: the output does not tell it, or another number than ``timers`` was pending.
        """
        raise RuntimeError(f"{self.name} does not tell how long it took to recover {timers:,} timers")

    def accepted(self, session: Session, names: RunNames) -> int:
        """How many requests it has accepted so far: by default what its group has committed."""
        return session.cluster.committed(names.app_id, names.request)
