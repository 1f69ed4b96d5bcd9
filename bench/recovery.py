"""Measures how long a worker recovers with an empty disk."""

from __future__ import annotations

import shutil
import time
from dataclasses import asdict, dataclass
from typing import Any

from bench import storm
from bench.session import Session
from bench.subject import Subject
from bench.workload import Workload

FAR_S = 86_400
"""The timers are due in a day, so that none fires during the run."""
PATIENCE_S = 120.0

RECOVERY = Workload("recovery", 1_000_000, 20)


@dataclass(frozen=True)
class RecoveryResult:
    """Figures of a worker that was stopped with ``timers`` pending and started on an empty disk."""

    subject: str
    timers: int
    recovered_s: float
    """From assignment to ready, from its own output."""
    start_to_ready_s: float
    """From the start of the process to ready."""
    cpu_s: float
    """CPU seconds of the new process until ready."""
    peak_mb: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def run(session: Session, subject: Subject, workload: Workload = RECOVERY) -> RecoveryResult:
    """Let the subject accept all timers, stop it, wipe its disk, start it, and measure."""
    names = session.names(subject.name)
    session.console.line(f"  recovery of {workload.timers:,} pending timers from an empty disk: {subject.name}")
    publication = session.publication(names, workload, int(time.time()) + FAR_S, partitioner=subject.partitioner)
    with session.console.doing(f"starting {subject.name}"):
        running = subject.start(session, names, workload)
    try:
        acceptance = storm.publish(session, subject, names, running, publication, time.time() + PATIENCE_S)
    finally:
        with session.console.doing(f"stopping {subject.name}"):
            running.stop()
    if acceptance.accepted_at is None:
        raise RuntimeError(f"{subject.name} had not accepted {workload.timers:,} timers after {PATIENCE_S:.0f} s")
    shutil.rmtree(names.data_dir)
    with session.console.doing(f"starting {subject.name} again with an empty disk"):
        running = subject.start(session, names, workload)
    try:
        started_at = running.processes[0].started_at
        result = RecoveryResult(
            subject=subject.name,
            timers=workload.timers,
            recovered_s=subject.recovered_s(running.processes, workload.timers),
            start_to_ready_s=running.ready_at - started_at,
            cpu_s=running.usage.cpu_s("subject"),
            peak_mb=running.usage.peak_mb("subject"),
        )
    finally:
        running.stop()
    session.clear(names)
    return result
