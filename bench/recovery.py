"""How long does a worker need that comes back with an empty disk?"""

from __future__ import annotations

import shutil
import time
from dataclasses import asdict, dataclass
from typing import Any

from bench import storm
from bench.harness.publisher import Publication
from bench.harness.subject import Bench, Subject
from bench.workload import Workload

FAR_S = 86_400
"""The timers are due in a day: none fires meanwhile."""
PATIENCE_S = 120.0

RECOVERY = Workload("recovery", 1_000_000, 20)


@dataclass(frozen=True)
class RecoveryResult:
    """A worker stopped with ``timers`` pending, its disk wiped, and started again."""

    subject: str
    timers: int
    recovered_s: float
    """From assignment to ready, as its own output says."""
    start_to_ready_s: float
    """From the start of the process to ready, seen from outside."""
    cpu_s: float
    """CPU seconds of the new process until ready."""
    peak_mb: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def run(bench: Bench, subject: Subject, workload: Workload = RECOVERY) -> RecoveryResult:
    """Fill, stop, wipe, start, and read what the subject says."""
    names = bench.names(subject.name)
    bench.console.line(f"  recovery of {workload.timers:,} pending timers from an empty disk: {subject.name}")
    publication = Publication(
        brokers=bench.cluster.brokers,
        topic=names.request,
        target=names.target,
        timers=workload.timers,
        first_due_s=int(time.time()) + FAR_S,
        spread_s=workload.spread_s,
        payload_bytes=workload.payload_bytes,
        partitions=workload.partitions,
        partitioner=subject.partitioner,
    )
    with bench.console.doing(f"starting {subject.name}"):
        running = subject.start(bench, names, workload)
    try:
        acceptance = storm.publish(bench, subject, names, running, publication, time.time() + PATIENCE_S)
    finally:
        with bench.console.doing(f"stopping {subject.name}"):
            running.stop()
    if acceptance.accepted_at is None:
        raise RuntimeError(f"{subject.name} had not accepted {workload.timers:,} timers after {PATIENCE_S:.0f} s")
    shutil.rmtree(names.data_dir)
    with bench.console.doing(f"starting {subject.name} again with an empty disk"):
        running = subject.start(bench, names, workload)
    try:
        started_at = running.processes[0].started_at
        result = RecoveryResult(
            subject=subject.name,
            timers=workload.timers,
            recovered_s=subject.recovered_s(running.processes, workload.timers),
            start_to_ready_s=running.ready_at - started_at,
            cpu_s=running.metrics.cpu_s("subject"),
            peak_mb=running.metrics.peak_mb("subject"),
        )
    finally:
        running.stop()
    bench.clear(names)
    return result
