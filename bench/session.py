"""The start and the end that all benchmarks share: a lock, a directory, a broker of their own, no process left."""

from __future__ import annotations

import fcntl
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import IO

from bench.harness.cluster import Cluster
from bench.harness.console import Console
from bench.harness.process import stop_everything
from bench.harness.publisher import Publication, publish
from bench.harness.subject import ROOT, Bench
from bench.peers import bare
from bench.workload import Workload
from timers.broker import EmbeddedBroker

RESULTS = ROOT / "bench" / "results"
WARM_UP = Workload("warm-up", 300_000, 1)


@contextmanager
def measuring(prefix: str = "", *, keep: bool = False) -> Iterator[Bench]:
    """A running broker and a new directory for as long as the block lasts. SIGTERM ends the block as Ctrl-C does.

    Args:
        prefix: of the directory's name.
        keep: leave the logs and the broker's data.

    Raises:
        SystemExit: another benchmark runs in this tree.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    lock = _only_one()
    workdir = ROOT / ".timers" / "bench" / time.strftime(f"{prefix}%Y%m%d-%H%M%S")
    workdir.mkdir(parents=True)
    broker = EmbeddedBroker(workdir / "broker", 0, out=sys.stdout)
    console = Console()
    try:
        with console.doing("starting the broker"):
            brokers = broker.start()
        if broker.pid is None:
            raise RuntimeError("the broker ended after it had answered")
        yield Bench(console, Cluster(brokers), broker.pid, workdir / "broker", workdir, keep)
    finally:
        stop_everything()
        broker.stop()
        if not keep:
            shutil.rmtree(workdir, ignore_errors=True)
        lock.close()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _only_one() -> IO[str]:
    """Take the lock that only one benchmark of a tree can hold: two at once would disturb each other's figures."""
    path = ROOT / ".timers" / "bench" / "lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise SystemExit("bench: another benchmark is running in this tree: wait for its end, or stop it") from None
    return lock


def warm_up(bench: Bench) -> None:
    """Let the broker's Java compile its hot paths, so that the first system measured has no disadvantage."""
    names = bench.names("warm-up")
    bench.cluster.create(names.request, WARM_UP.partitions)
    with bench.console.doing("warming the broker up"):
        publish(
            Publication(
                brokers=bench.cluster.brokers,
                topic=names.request,
                target=names.target,
                timers=WARM_UP.timers,
                first_due_s=int(time.time()),
                spread_s=1,
                payload_bytes=WARM_UP.payload_bytes,
                partitions=WARM_UP.partitions,
                partitioner="spread",
            )
        )
        bare.run(bench, WARM_UP.smaller(6), with_headers=True)
    bench.clear(names)
