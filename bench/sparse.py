"""Measures timers that each have a second of their own: a day or years of them are accepted, or 60 days are overdue."""

import time
from dataclasses import dataclass
from typing import Any

from bench import backlog, storm
from bench.engine import Engine
from bench.session import Session
from bench.workload import Workload
from tests.harness.publication import publish_in_process
from tests.harness.scrape import scrape

LATER_S = 3600
"""The first timer of :func:`accept` is due this many seconds later."""
ACCEPT_S = 600.0
PUBLISH_S = 300.0


@dataclass(frozen=True)
class SparseResult:
    """Figures of one run. CPU seconds are user + system of all of the subject's processes."""

    cpu_accept_s: float | None
    """From ready until all timers are accepted; None if they were overdue."""
    cpu_fire_s: float | None
    """From ready until half a second after the last callback; None if none was due."""
    peak_mb: float
    lost: int
    """Timers that are neither pending nor fired."""
    duplicates: int = 0
    early: int = 0
    altered: int = 0


def accept(session: Session, subject: Engine, workload: Workload) -> SparseResult:
    """Let the worker accept timers, none of which is due yet."""
    names = session.names(subject.name)
    session.printer.line(f"  {workload.title}, accepted: {subject.name}")
    session.cluster.create(names.target, workload.partitions)
    with session.printer.doing(f"starting {subject.name}"):
        running = subject.start(session, names, workload)
    try:
        publication = session.publication(names, workload, int(time.time()) + LATER_S)
        accepted = storm.publish(session, subject, names, running, publication, time.time() + ACCEPT_S)
        if accepted.accepted_at is None:
            raise RuntimeError(f"{subject.name} had not accepted {workload.timers:,} timers after {ACCEPT_S:.0f} s")
        cpu_s = running.usage.cpu_s("subject", running.ready_at, accepted.accepted_at)
        pending = int(scrape(subject.port).total("timers_pending"))
    finally:
        running.stop()
    session.clear(names)
    return SparseResult(cpu_s, None, running.usage.peak_mb("subject"), workload.timers - pending)


def overdue(session: Session, subject: Engine, workload: Workload) -> SparseResult:
    """Publish timers of the past while the worker is stopped, start it, and let it fire them."""
    names = session.names(subject.name)
    session.printer.line(f"  {workload.title}, overdue: {subject.name}")
    session.cluster.create(names.target, workload.partitions)
    with session.printer.doing(f"starting {subject.name}, which makes its topics"):
        subject.start(session, names, workload).stop()
    publication = session.publication(names, workload, int(time.time()) - workload.spread_s)
    with session.printer.doing("publishing"):
        publish_in_process(publication, names.directory, PUBLISH_S)
    with session.printer.doing(f"starting {subject.name}"):
        running = subject.start(session, names, workload)
    try:
        fired, _ = backlog.drain(session, names, running, publication)
    finally:
        running.stop()
    session.clear(names)
    cpu_s = running.usage.cpu_s("subject", running.ready_at, fired.last_ms / 1000 + storm.AFTER_S)
    found: dict[str, Any] = {name: getattr(fired, name) for name in ("lost", "duplicates", "early", "altered")}
    return SparseResult(None, cpu_s, running.usage.peak_mb("subject"), **found)
