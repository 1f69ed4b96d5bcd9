"""Measures a worker that starts with millions of overdue timers. Its memory must not grow with their number."""

import time
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any

from bench import storm
from bench.session import RunNames, Session
from bench.subject import Running, Subject
from bench.workload import Workload
from tests.harness.callbacks import check
from tests.harness.judge import Fired
from tests.harness.publication import Publication, publish_in_process

BACKLOG = Workload("backlog", 5_000_000, 60)
"""Half of the timers are accepted before the worker stops, half are published while it is stopped."""

BEFORE_DUE_S = 5.0
"""How long the worker is stopped before the first timer is due."""
PATIENCE_S = 300.0
STABLE_S = 2.0
POLL_S = 0.1


@dataclass(frozen=True)
class BacklogResult:
    """Figures of a worker that was stopped while ``timers`` became due."""

    subject: str
    timers: int
    out_s: float
    """From the start of the process to the append of the last callback."""
    timers_per_s: float
    """From the first callback to the last."""
    cpu_s: float
    """CPU seconds of the new process until the last callback."""
    ready_mb: float
    """Resident memory when it was ready."""
    early_half_mb: float
    """Median resident memory during the first half of the callbacks."""
    late_half_mb: float
    """Median resident memory during the second half. It should be the same."""
    peak_mb: float
    lost: int
    duplicates: int
    early: int
    altered: int
    memory: list[tuple[float, float, int]] = field(repr=False)
    """Seconds since the start of the process, MB resident, entries in the target topic (callbacks, commit markers)."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def run(session: Session, subject: Subject, workload: Workload = BACKLOG) -> BacklogResult:
    """Let the subject accept half, stop it, publish the rest, wait until all is due, start it, and measure."""
    names = session.names(subject.name)
    session.printer.line(f"  backlog of {workload.timers:,} overdue timers: {subject.name}")
    session.cluster.create(names.target, workload.partitions)
    half = workload.timers // 2
    lead_s = subject.head_start_s + half / subject.accepts_per_s + BEFORE_DUE_S
    with session.printer.doing(f"starting {subject.name}"):
        running = subject.start(session, names, workload)
    publication = Publication(
        brokers=session.cluster.brokers,
        topic=names.request,
        target=names.target,
        timers=half,
        first_due_s=int(time.time() + lead_s) + 1,
        spread_s=workload.spread_s,
        payload_bytes=workload.payload_bytes,
        partitions=workload.partitions,
        partitioner=subject.partitioner,
    )
    try:
        accepted = storm.publish(session, subject, names, running, publication, publication.first_due_s - BEFORE_DUE_S)
    finally:
        with session.printer.doing(f"stopping {subject.name}"):
            running.stop()
    if accepted.accepted_at is None or time.time() > publication.first_due_s:
        raise RuntimeError(f"{subject.name} had not accepted {half:,} timers and stopped before the first was due")
    all_timers = replace(publication, timers=workload.timers)
    with session.printer.doing("publishing the other half"):
        publish_in_process(replace(all_timers, first=half), names.directory)
    with session.printer.doing("waiting until all of it is due"):
        time.sleep(max(0.0, publication.first_due_s + workload.spread_s - time.time()))
    with session.printer.doing(f"starting {subject.name} again"):
        running = subject.start(session, names, workload)
    try:
        result = _drained(session, subject, names, running, all_timers)
    finally:
        if not running.exit_codes:
            running.stop()
    session.clear(names)
    return result


def drain(
    session: Session, names: RunNames, running: Running, publication: Publication
) -> tuple[Fired, list[tuple[float, float, int]]]:
    """Wait until all callbacks are out; return what was fired, and :attr:`BacklogResult.memory`."""
    started_at, give_up_at = running.processes[0].started_at, time.time() + PATIENCE_S
    memory: list[tuple[float, float, int]] = []
    out, since = 0, time.time()

    def detail() -> str:
        return f"{out:,} of {publication.timers:,} out, {memory[-1][1]:,.0f} MB" if memory else ""

    with session.printer.doing("firing", detail):
        while time.time() < give_up_at and not (out >= publication.timers and time.time() - since > STABLE_S):
            running.check()
            before, out = out, session.cluster.end(names.target)
            now = time.time()
            since = now if out != before else since
            memory.append((round(now - started_at, 2), round(running.usage.rss_mb("subject"), 1), out))
            time.sleep(POLL_S)
    with session.printer.doing("checking what was fired"):
        return check(session.cluster, publication), memory


def _drained(
    session: Session, subject: Subject, names: RunNames, running: Running, publication: Publication
) -> BacklogResult:
    fired, memory = drain(session, names, running, publication)
    if fired.lost == publication.timers:
        raise RuntimeError(f"{subject.name} fired none of {publication.timers:,} timers within {PATIENCE_S:.0f} s")
    started_at = running.processes[0].started_at
    last_s = fired.last_ms / 1000
    middle = publication.timers / 2
    firing = [one for one in memory if one[0] <= last_s - started_at]
    return BacklogResult(
        subject=subject.name,
        timers=publication.timers,
        out_s=last_s - started_at,
        timers_per_s=publication.timers / max(0.001, (fired.last_ms - fired.first_ms) / 1000),
        cpu_s=running.usage.cpu_s("subject", None, last_s),
        ready_mb=memory[0][1],
        early_half_mb=median([mb for _, mb, count in firing if count < middle] or [0.0]),
        late_half_mb=median([mb for _, mb, count in firing if count >= middle] or [0.0]),
        peak_mb=running.usage.peak_mb("subject"),
        lost=fired.lost,
        duplicates=fired.duplicates,
        early=fired.early,
        altered=fired.altered,
        memory=memory,
    )
