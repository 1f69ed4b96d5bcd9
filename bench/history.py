"""Measures a takeover with an empty disk after a long history: with snapshots, and by reading the whole log.

Many requests fire, beside some that wait to the end. Then the worker is stopped, its disk is wiped, and it is started
again: first with the snapshots that it has taken, and then without any.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from bench.engine import Engine
from bench.session import RESULTS, RunNames, Session, measuring
from bench.subject import Running
from bench.workload import DAY_S, Workload
from tests.harness import kafka_version
from tests.harness.process import ROOT
from tests.harness.publication import publish_in_process
from tests.harness.scrape import scrape

STEP = 1_000_000
"""Requests that are published at a time, overdue: they fire when they are accepted."""
PATIENCE_S = 900.0
SETTLED_S = 20.0
"""Longer than two looks of a worker at which partitions need a snapshot."""
KEPT = {"TIMERS_LOG_KEEP_S": "never"}
"""Else there would be no whole log to compare with."""


@dataclass(frozen=True)
class HistoryResult:
    """Figures of one run."""

    requests: int
    pending: int
    recovered_s: float
    """From the assignment of the partitions to ready, with snapshots."""
    start_to_ready_s: float
    """From the start of the process."""
    whole_log_recovered_s: float
    whole_log_start_to_ready_s: float
    peak_mb: float
    """Of the worker that restored."""
    snapshots: int
    snapshot_mb: float
    """Size of the newest snapshots, before compression, rounded up to whole records."""
    replayed: int
    """Records that were read again after the restore."""


def run(session: Session, requests: int, pending: int) -> HistoryResult:
    """Let requests fire, and measure the start on an empty disk."""
    waiting, names = Workload("history", pending, 30 * DAY_S, at_random=True), session.names("history")
    session.cluster.create(names.target, waiting.partitions)
    engine = Engine(KEPT)
    running = engine.start(session, names, waiting)
    try:
        publish_in_process(session.publication(names, waiting, int(time.time()) + DAY_S), names.directory)
        for begin in range(0, requests, STEP):
            fired = Workload("fired", min(STEP, requests - begin), 20)
            publish_in_process(session.publication(names, fired, int(time.time()) - 30), names.directory, PATIENCE_S)
            _wait_accepted(session, engine, names, pending + begin + fired.timers)
            session.printer.line(f"  {begin + fired.timers:,} of {requests:,} have fired")
        time.sleep(SETTLED_S)
        taken = int(scrape(engine.port).total("timers_snapshots_total"))
        written = int(scrape(engine.port).total("timers_snapshot_bytes"))
    finally:
        running.stop()
        engine.end_counting()
    restored = _again(session, engine, names, waiting)
    text = restored.processes[0].log
    replayed = sum(int(each) for each in re.findall(r" pending, (\d+) records read again", text))
    session.cluster.delete([topic for topic in session.cluster.topics() if "-snapshot-" in topic])
    whole = Engine({**KEPT, "TIMERS_SNAPSHOT_FACTOR": "0"})
    read = _again(session, whole, names, waiting)
    return HistoryResult(
        requests,
        pending,
        engine.recovered_s(restored.processes, pending),
        restored.ready_at - restored.processes[0].started_at,
        whole.recovered_s(read.processes, pending),
        read.ready_at - read.processes[0].started_at,
        restored.usage.peak_mb("subject"),
        taken,
        written / 1e6,
        replayed,
    )


def _wait_accepted(session: Session, engine: Engine, names: RunNames, count: int) -> None:
    until = time.monotonic() + PATIENCE_S
    while engine.accepted(session, names) < count:
        if time.monotonic() > until:
            raise RuntimeError(f"not all of {count:,} requests were accepted within {PATIENCE_S:.0f} s")
        time.sleep(0.2)


def _again(session: Session, engine: Engine, names: RunNames, workload: Workload) -> Running:
    shutil.rmtree(names.data_dir)
    running = engine.start(session, names, workload)
    running.stop()
    return running


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.history", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--requests", type=int, default=2_000_000, help="that fire (2000000)")
    parser.add_argument("--pending", type=int, default=30_000, help="that wait to the end (30000)")
    parser.add_argument("--publish", action="store_true", help="write results/history.json, which is tracked")
    kafka_version.add_option(parser)
    options = parser.parse_args(argv)
    with measuring("history-") as session:
        result = run(session, options.requests, options.pending)
    path = (RESULTS if options.publish else RESULTS / "local") / "history.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"kafka": kafka_version.chosen(), **asdict(result)}, indent=1) + "\n")
    print(f"\n{path.read_text()}\nwritten: {path.relative_to(ROOT)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
