"""Measures lag and CPU time of timers that are published in advance, and checks the callbacks."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from bench import receiving
from bench.session import RunNames, Session
from bench.subject import Running, Subject
from bench.workload import Workload
from tests.harness.callbacks import check
from tests.harness.judge import Fired
from tests.harness.process import Process
from tests.harness.publication import Publication, start_publisher, wait_published

BEFORE_S = 1.0
"""Firing is measured from this many seconds before the first due second on."""
AFTER_S = 0.5
"""Firing is measured until this many seconds after the last callback."""
STABLE_S = 2.0
"""The target is complete when its end offsets have reached the number of timers and not changed for this long."""
LATEST_S = 60.0
"""A missing callback counts as lost this many seconds after the last due second."""
POLL_S = 0.1
SETTLE_S = 5.0
"""An idle subject is measured from this many seconds after it is ready on."""
MIDDLE = (0.1, 0.9)
"""Shares of the timers between which acceptance counts as steady."""


@dataclass(frozen=True)
class Acceptance:
    """Times of publishing and acceptance, in epoch seconds."""

    begin_at: float
    published_at: float
    accepted_at: float | None
    """None: not all were accepted before the first due second."""
    series: list[tuple[float, int]]
    """Samples: (seconds since ``begin_at``, number of accepted timers)."""

    def per_s(self, timers: int) -> float | None:
        """Timers per second from the first published to the last accepted one."""
        return None if self.accepted_at is None else timers / (self.accepted_at - self.begin_at)

    def steady_per_s(self, timers: int) -> float | None:
        """Timers per second between the first and the last commit within ``MIDDLE``; None with too few commits."""
        steps = [
            after
            for before, after in pairwise(self.series)
            if after[1] != before[1] and MIDDLE[0] * timers <= after[1] <= MIDDLE[1] * timers
        ]
        if len(steps) < 2:
            return None
        (since, first), (until, last) = steps[0], steps[-1]
        return (last - first) / (until - since)


@dataclass(frozen=True)
class StormResult:
    """Figures of one run. CPU seconds are user + system of all of the subject's processes, children included."""

    subject: str
    workload: dict[str, Any]
    title: str
    lag_p50_ms: float
    lag_p99_ms: float
    lag_max_ms: float
    received_p50_ms: float | None
    """From the start of the due second until a ``read_committed`` consumer has the callback; None: there was none."""
    received_p99_ms: float | None
    cpu_fire_s: float
    """From one second before the first due second until half a second after the last callback."""
    cpu_accept_s: float
    """From ready until firing is measured: all of acceptance."""
    cpu_total_s: float
    """From the start of the processes until half a second after the last callback."""
    broker_cpu_fire_s: float
    cpu_beyond_idle_s: float | None
    """``cpu_fire_s`` without what an idle subject takes in this time; None if that was not measured."""
    broker_cpu_beyond_idle_s: float | None
    others_cpu_fire_s: float
    """CPU seconds of all other programs of the machine while timers fired."""
    fire_window_s: float
    peak_mb: float
    fired: int
    lost: int
    duplicates: int
    early: int
    altered: int
    accepted_before_due: bool
    accepts_per_s: float | None
    """From the first published to the last accepted timer."""
    accepts_steady_per_s: float | None
    """Without the start and the end; None with too few commits."""
    accepted_series: list[tuple[float, int]] = field(repr=False)
    """Samples: (seconds since the start of publishing, number of accepted timers)."""
    publishes_per_s: float
    out_s: float
    """From the start of the first due second to the append of the last callback."""
    exit_codes: list[int | None]
    lag_percentiles_ms: list[float] = field(repr=False)
    """Percentiles 0 to 100."""
    lag_by_second_ms: list[list[float]] = field(repr=False)
    """For each due second: p50, p99, max."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def publish(
    session: Session, subject: Subject, names: RunNames, running: Running, publication: Publication, until: float
) -> Acceptance:
    """Publish, and sample the accepted timers until all are accepted or the time is ``until``."""
    begun = time.time()
    publisher = start_publisher(publication, names.directory)
    seen = 0
    series: list[tuple[float, int]] = []
    accepted_at: float | None = None
    times: tuple[float, float] | None = None
    total = publication.timers

    def detail() -> str:
        return f"{seen:,} of {total:,} accepted, {until - time.time():.0f} s left"

    try:
        with session.printer.doing("publishing", detail):
            while accepted_at is None and time.time() < until:
                running.check()
                seen = subject.accepted(session, names)
                now = time.time()
                series.append((now, seen))
                if times is None and not publisher.running:
                    times = wait_published(publisher, 5)
                if seen >= total:
                    accepted_at = now
                time.sleep(POLL_S)
        if times is None:
            times = wait_published(publisher, 60)
            accepted_at = None
    finally:
        subject.end_counting()
        publisher.end(1)
    begin = max(begun, times[0])
    return Acceptance(begin, times[1], accepted_at, [(round(at - begin, 2), count) for at, count in series])


def wait_for_end(session: Session, running: Running, publication: Publication) -> Fired:
    """Wait until all callbacks are written, or no more follow; read and check them."""
    last_due_s = publication.first_due_s + publication.spread_s - 1
    deadline = last_due_s + LATEST_S
    out, since = 0, time.time()

    def detail() -> str:
        return f"{out:,} of {publication.timers:,} out, last second in {max(0.0, last_due_s - time.time()):.0f} s"

    while True:
        with session.printer.doing("firing", detail):
            while True:
                running.check()
                now, before = time.time(), out
                out = session.cluster.end(publication.target)
                since = now if out != before else since
                if now > last_due_s and now - since > STABLE_S and (out >= publication.timers or now > deadline):
                    break
                # While timers fire, once in the middle of each second: else these questions would be a quarter of the
                # requests that the broker gets.
                time.sleep(POLL_S if now > last_due_s else 1.5 - now % 1)
        with session.printer.doing("checking what was fired"):
            fired = check(session.cluster, publication)
        if not fired.lost or time.time() > deadline:
            return fired
        out, since = -1, time.time()
        session.printer.line(
            f"    {fired.lost:,} are still missing: waiting for them until {LATEST_S:.0f} s after the last"
        )
        deadline = min(deadline, time.time() + LATEST_S / 4)


def result(
    subject: Subject,
    workload: Workload,
    running: Running,
    acceptance: Acceptance,
    publication: Publication,
    fired: Fired,
    received: Sequence[float] | None,
) -> StormResult:
    """The figures of a finished run."""
    fire_from, fire_to = publication.first_due_s - BEFORE_S, fired.last_ms / 1000 + AFTER_S
    usage = running.usage

    def beyond_idle_s(group: str) -> float | None:
        if not workload.idle_s:
            return None
        begin, end = running.ready_at + SETTLE_S, running.ready_at + workload.idle_s
        idle_share = usage.cpu_s(group, begin, end) / (end - begin)
        return usage.cpu_s(group, fire_from, fire_to) - idle_share * (fire_to - fire_from)

    lag = fired.lag_ms if len(fired.lag_ms) else np.zeros(1, np.int64)
    percentiles = np.percentile(lag, np.arange(101))
    by_second = [
        [float(value) for value in (*np.percentile(one, (50, 99)), one.max())]
        for second in range(workload.spread_s)
        if len(one := fired.lag_ms[fired.due_index == second])
    ]
    return StormResult(
        subject=subject.name,
        workload=asdict(workload),
        title=workload.title,
        lag_p50_ms=float(percentiles[50]),
        lag_p99_ms=float(percentiles[99]),
        lag_max_ms=float(lag.max()),
        received_p50_ms=None if received is None else received[50],
        received_p99_ms=None if received is None else received[99],
        cpu_fire_s=usage.cpu_s("subject", fire_from, fire_to),
        cpu_accept_s=usage.cpu_s("subject", running.ready_at, fire_from),
        cpu_total_s=usage.cpu_s("subject", None, fire_to),
        broker_cpu_fire_s=usage.cpu_s("broker", fire_from, fire_to),
        cpu_beyond_idle_s=beyond_idle_s("subject"),
        broker_cpu_beyond_idle_s=beyond_idle_s("broker"),
        others_cpu_fire_s=usage.others_cpu_s(fire_from, fire_to),
        fire_window_s=fire_to - fire_from,
        peak_mb=usage.peak_mb("subject"),
        fired=fired.records,
        lost=fired.lost,
        duplicates=fired.duplicates,
        early=fired.early,
        altered=fired.altered,
        accepted_before_due=acceptance.accepted_at is not None,
        accepts_per_s=acceptance.per_s(publication.timers),
        accepts_steady_per_s=acceptance.steady_per_s(publication.timers),
        accepted_series=acceptance.series,
        publishes_per_s=publication.timers / (acceptance.published_at - acceptance.begin_at),
        out_s=fired.last_ms / 1000 - publication.first_due_s,
        exit_codes=running.exit_codes,
        lag_percentiles_ms=[float(value) for value in percentiles],
        lag_by_second_ms=by_second,
    )


def run(
    session: Session,
    subject: Subject,
    workload: Workload,
    *,
    time_factor: float = 1.0,
    observe: Callable[[str, RunNames], None] = lambda moment, names: None,
    first_due_s: Callable[[int], int] = lambda earliest_s: earliest_s,
) -> StormResult:
    """Run one storm on one subject, with new topics and an empty disk.

    If the subject has not accepted all timers before the first due second, the lag would be wrong: the run is repeated
    once with twice the time.

    Args:
        time_factor: multiplies the time for acceptance.
        observe: called when the subject is ``ready``, when all is ``pending`` and when all has ``fired``.
        first_due_s: returns the first due second, which is not before the one that it gets.
    """
    names = session.names(subject.name)
    session.printer.line(f"  {workload.title}: {subject.name}")
    session.cluster.create(names.target, workload.partitions)
    with session.printer.doing(f"starting {subject.name}"):
        running = subject.start(session, names, workload)
    observe("ready", names)
    receiver: Process | None = None
    try:
        if workload.idle_s:
            with session.printer.doing(f"measuring {subject.name} without timers"):
                time.sleep(workload.idle_s)
        if workload.is_received:
            receiver = receiving.start(session.cluster.brokers, names.target, workload.timers, names.directory)
        lead_s = time_factor * (subject.head_start_s + workload.timers / subject.accepts_per_s)
        due_s = first_due_s(int(time.time() + lead_s) + 1)
        publication = session.publication(names, workload, due_s, partitioner=subject.partitioner)
        acceptance = publish(session, subject, names, running, publication, publication.first_due_s - BEFORE_S)
        if acceptance.accepted_at is not None or time_factor > 1.0:
            observe("pending", names)
            fired = wait_for_end(session, running, publication)
            observe("fired", names)
            received = None if receiver is None else receiving.percentiles_ms(receiver)
            running.stop()
            session.clear(names)
            return result(subject, workload, running, acceptance, publication, fired, received)
        session.printer.line("    not all accepted before the first due second: once more, with twice the time")
    finally:
        if not running.exit_codes:
            running.stop()
        if receiver is not None:
            receiver.end(1)
    session.clear(names)
    return run(session, subject, workload, time_factor=2.0, observe=observe, first_due_s=first_due_s)
