"""The upper limit: the same clients and bytes without a store and without waiting."""

import time
from dataclasses import asdict, dataclass
from typing import Any

from bench.session import Session
from bench.workload import Workload
from tests.harness.callbacks import check
from tests.harness.process import ROOT, Process, clean_environment, python
from tests.harness.publication import publish, publish_in_process
from tests.harness.usage import UsageSampler

END_S = 120.0
WARM_UP = Workload("warm-up", 300_000, 1)


@dataclass(frozen=True)
class BareResult:
    """Figures of one run of the bare loop, which starts after all requests are published."""

    subject: str
    workload: dict[str, Any]
    title: str
    per_s: float
    """Callbacks a second, from the first append to the last."""
    out_s: float
    cpu_total_s: float
    broker_cpu_s: float
    peak_mb: float
    lost: int
    duplicates: int
    altered: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def run(session: Session, workload: Workload, *, with_headers: bool) -> BareResult:
    """Publish all requests, then run the loop to its end."""
    name = "bare+headers" if with_headers else "bare"
    names = session.names(name.replace("+", "-"))
    session.printer.line(f"  storm {workload.title}: {name} (no store, no time)")
    session.cluster.create(names.target, workload.partitions)
    session.cluster.create(names.request, workload.partitions)
    publication = session.publication(names, workload, int(time.time()))
    with session.printer.doing("publishing"):
        publish_in_process(publication, names.directory)
    argv = python(
        "bench.peers.bare_loop", session.cluster.brokers, names.request, str(workload.timers), str(int(with_headers))
    )
    loop = Process(name, argv, clean_environment(), ROOT, names.directory / "loop.log").start()
    usage = UsageSampler({"subject": [loop.pid], "broker": [session.broker_pid]})
    try:
        with session.printer.doing(f"running {name}"):
            loop.wait_for(r"^ready", END_S)
            ready_at = time.time()
            sent_all = loop.wait_for(r"^sent \d+ with ([0-9.]+) CPU s", END_S)
            ended_at = time.time()
            loop.exit_code(END_S)
    finally:
        usage.close()
        loop.end(5)
    with session.printer.doing("checking what was sent"):
        sent = check(session.cluster, publication)
    session.clear(names)
    out_s = (sent.last_ms - sent.first_ms) / 1000
    return BareResult(
        subject=name,
        workload=asdict(workload),
        title=workload.title,
        per_s=workload.timers / max(out_s, 0.001),
        out_s=out_s,
        cpu_total_s=float(sent_all[1]),
        broker_cpu_s=usage.cpu_s("broker", ready_at, ended_at),
        peak_mb=usage.peak_mb("subject"),
        lost=sent.lost,
        duplicates=sent.duplicates,
        altered=sent.altered,
    )


def warm_up(session: Session) -> None:
    """Warm up the Java compiler of the broker, so that the first measured system has no disadvantage."""
    names = session.names("warm-up")
    session.cluster.create(names.request, WARM_UP.partitions)
    with session.printer.doing("warming the broker up"):
        publish(session.publication(names, WARM_UP, int(time.time())))
        run(session, WARM_UP.smaller(6), with_headers=True)
    session.clear(names)
