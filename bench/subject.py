"""A system under test, which accepts timers of a request topic and fires them: the engine of this project or a peer."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from bench.session import RunNames, Session
from bench.workload import Workload
from tests.harness.process import Process
from tests.harness.usage import UsageSampler


class Unavailable(Exception):
    """A peer cannot be built or run here. The message is the reason in the report."""


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
    """A low estimate of the requests that it accepts in one second."""
    head_start_s: ClassVar[float] = 4.0
    """Further seconds that it needs. Both figures decide only how far ahead the first due second is."""

    def prepare(self, session: Session) -> None:  # noqa: B027 - optional
        """Build the subject.

        Raises:
            Unavailable: it cannot be built here.
        """

    @abstractmethod
    def launch(self, session: Session, names: RunNames, workload: Workload) -> tuple[list[Process], float]:
        """Start it with ``names.data_dir``, which may have data of an earlier launch.

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
            RuntimeError: the output does not contain it, or not ``timers`` timers were pending.
        """
        raise RuntimeError(f"{self.name} does not tell how long it took to recover {timers:,} timers")

    def accepted(self, session: Session, names: RunNames) -> int:
        """Number of accepted requests; by default the committed offsets of its group."""
        return session.cluster.committed(names.app_id, names.request)

    def end_counting(self) -> None:  # noqa: B027 - optional
        """Note that :meth:`accepted` is not called again for this run."""
