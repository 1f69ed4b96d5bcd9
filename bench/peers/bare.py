"""The limit: what the same clients do with the same bytes when there is nothing to remember and nothing to wait for."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from bench.harness.checker import check
from bench.harness.process import PartitionMetrics, Process
from bench.harness.publisher import Publication, argument
from bench.harness.subject import ROOT, Bench, environment, python
from bench.workload import Workload

END_S = 120.0


@dataclass(frozen=True)
class BareResult:
    """Figures of one run of the bare loop over requests that were all there when it started."""

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


def run(bench: Bench, workload: Workload, *, with_headers: bool) -> BareResult:
    """Publish everything, then start the loop and let it run to the end."""
    name = "bare+headers" if with_headers else "bare"
    names = bench.names(name.replace("+", "-"))
    bench.console.line(f"  storm {workload.title}: {name} (no store, no time)")
    bench.cluster.create(names.target, workload.partitions, {"message.timestamp.type": "LogAppendTime"})
    bench.cluster.create(names.request, workload.partitions, {"message.timestamp.type": "LogAppendTime"})
    publication = Publication(
        brokers=bench.cluster.brokers,
        topic=names.request,
        target=names.target,
        timers=workload.timers,
        first_due_s=int(time.time()),
        spread_s=workload.spread_s,
        payload_bytes=workload.payload_bytes,
        partitions=workload.partitions,
        partitioner="spread",
    )
    publisher = Process(
        "publisher",
        python("bench.harness.publisher", argument(publication)),
        environment(),
        ROOT,
        names.directory / "publisher.log",
    )
    with bench.console.doing("publishing"):
        publisher.wait_for(r"published", END_S)
        publisher.stop(5)
    argv = python(
        "bench.peers.bare_loop", bench.cluster.brokers, names.request, str(workload.timers), str(int(with_headers))
    )
    loop = Process(name, argv, environment(), ROOT, names.directory / "loop.log")
    metrics = PartitionMetrics({"subject": [loop.pid], "broker": [bench.broker_pid]})
    try:
        with bench.console.doing(f"running {name}"):
            ready_at, _ = loop.wait_for(r"^ready", END_S)
            ended_at, said = loop.wait_for(r"^sent \d+ with ([0-9.]+) CPU s", END_S)
            loop.wait(END_S)
    finally:
        metrics.close()
        loop.stop(5)
    with bench.console.doing("checking what was sent"):
        sent = check(bench.cluster, publication)
    bench.clear(names)
    out_s = (sent.last_ms - sent.first_ms) / 1000
    return BareResult(
        subject=name,
        workload=asdict(workload),
        title=workload.title,
        per_s=workload.timers / max(out_s, 0.001),
        out_s=out_s,
        cpu_total_s=float(said[1]),
        broker_cpu_s=metrics.cpu_s("broker", ready_at, ended_at),
        peak_mb=metrics.peak_mb("subject"),
        lost=sent.lost,
        duplicates=sent.duplicates,
        altered=sent.altered,
    )
