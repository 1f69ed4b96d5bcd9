"""The baseline: the rate at which a plain Faust table accepts timers. It fires nothing."""

import time
from dataclasses import asdict, dataclass
from typing import Any

from bench.session import Session
from bench.workload import Workload
from tests.harness.process import ROOT, Process, clean_environment, python
from tests.harness.publication import publish_in_process
from tests.harness.usage import UsageSampler
from timers.cli.broker.embedded import free_port

START_S = 60.0
END_S = 120.0
POLL_S = 0.1
MIDDLE = (0.1, 0.9)
"""The rate is measured between these shares of the timers, so that the start does not count."""


@dataclass(frozen=True)
class FaustTableResult:
    """Acceptance into a table, as its changelog topic shows it."""

    subject: str
    timers: int
    accepts_per_s: float
    cpu_us_per_timer: float
    """CPU microseconds of the worker for each timer, between the same two moments."""
    broker_cpu_us_per_timer: float
    peak_mb: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def run(session: Session, workload: Workload) -> FaustTableResult:
    """Publish, start the worker, and wait until its changelog contains all timers."""
    names = session.names("faust-table")
    names.data_dir.mkdir()
    session.printer.line(f"  faust_table: {workload.timers:,} timers into a table with changelog")
    session.cluster.create(names.request, workload.partitions, {})
    publication = session.publication(names, workload, int(time.time()) + 3600)
    publish_in_process(publication, names.directory)
    env = clean_environment(
        BENCH_APP_ID=names.app_id,
        BENCH_BROKERS=session.cluster.brokers,
        BENCH_DATA_DIR=str(names.data_dir),
        BENCH_PARTITIONS=str(workload.partitions),
        BENCH_REQUEST_TOPIC=names.request,
    )
    argv = python("faust", "-A", "bench.peers.faust_table_app", "worker", "-l", "warn", "--web-port", str(free_port()))
    worker = Process("faust_table", argv, env, ROOT, names.directory / "worker.log").start()
    usage = UsageSampler({"subject": [worker.pid], "broker": [session.broker_pid]})
    changelog, kept = f"{names.app_id}-pending-changelog", 0
    seen: list[tuple[float, int]] = []
    deadline = time.time() + START_S + END_S
    try:
        with session.printer.doing("running faust_table", lambda: f"{kept:,} of {workload.timers:,} kept"):
            while kept < workload.timers:
                if not worker.running or time.time() > deadline:
                    raise RuntimeError(f"the faust_table worker kept {kept:,} of {workload.timers:,}:\n{worker.tail()}")
                kept = session.cluster.end(changelog)
                seen.append((time.time(), kept))
                time.sleep(POLL_S)
    finally:
        usage.close()
        worker.end()
    session.clear(names)
    low, high = (share * workload.timers for share in MIDDLE)
    since, first = next((at, count) for at, count in seen if count >= low)
    until, last = next((at, count) for at, count in seen if count >= high)
    counted = max(1, last - first)
    return FaustTableResult(
        subject="faust_table",
        timers=workload.timers,
        accepts_per_s=counted / max(until - since, POLL_S),
        cpu_us_per_timer=1e6 * usage.cpu_s("subject", since, until) / counted,
        broker_cpu_us_per_timer=1e6 * usage.cpu_s("broker", since, until) / counted,
        peak_mb=usage.peak_mb("subject"),
    )
