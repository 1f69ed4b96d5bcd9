"""The lock, directory, broker and names that all benchmarks use."""

import fcntl
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from bench.workload import Workload
from tests.harness import kafka_version
from tests.harness.cluster import Cluster
from tests.harness.printer import Printer
from tests.harness.process import ROOT, stop_everything
from tests.harness.publication import Publication
from timers.cli.broker import EmbeddedBroker

RESULTS = ROOT / "bench" / "results"


@dataclass(frozen=True)
class RunNames:
    """Topics, app id and directory of one run."""

    run: str
    request: str
    oscillator: str
    target: str
    app_id: str
    directory: Path

    @property
    def data_dir(self) -> Path:
        return self.directory / "data"

    def owns(self, topic: str) -> bool:
        """Whether a topic belongs to this run: its name ends with the run, or begins with the app id."""
        return topic.endswith(f"-{self.run}") or topic.startswith(f"{self.app_id}-")


@dataclass
class Session:
    """A running broker, and helpers for a benchmark."""

    printer: Printer
    cluster: Cluster
    broker_pid: int
    broker_directory: Path
    workdir: Path
    keep_logs: bool = False
    runs: int = 0

    def names(self, subject: str) -> RunNames:
        """New topics, group and directory for one run, so that no run depends on a former one."""
        self.runs += 1
        run = f"{subject.replace('_', '-')}-{self.runs}"
        directory = self.workdir / run
        directory.mkdir(parents=True)
        return RunNames(run, f"timer-request-{run}", f"oscillator-{run}", f"target-{run}", f"bench-{run}", directory)

    def publication(self, names: RunNames, workload: Workload, first_due_s: int, **changes: Any) -> Publication:
        """The publication of a workload, with the topics of the run."""
        fields = {
            "brokers": self.cluster.brokers,
            "topic": names.request,
            "target": names.target,
            "timers": workload.timers,
            "first_due_s": first_due_s,
            "spread_s": workload.spread_s,
            "payload_bytes": workload.payload_bytes,
            "partitions": workload.partitions,
            "partitioner": "spread",
            "at_random": workload.at_random,
        }
        return Publication(**{**fields, **changes})

    def clear(self, names: RunNames) -> None:
        """Delete the topics and the data of a run, and its logs unless they are to be kept."""
        self.cluster.delete([topic for topic in self.cluster.topics() if names.owns(topic)])
        shutil.rmtree(names.data_dir, ignore_errors=True)
        if not self.keep_logs:
            shutil.rmtree(names.directory, ignore_errors=True)


@contextmanager
def measuring(prefix: str = "", *, keep: bool = False, stored: str = "") -> Iterator[Session]:
    """Run a broker during the block, in a new directory. SIGTERM ends the block as Ctrl-C does.

    Args:
        prefix: first part of the directory's name.
        keep: whether to keep the logs and the data of the broker.
        stored: name of a directory that is kept, and used again by the next run; empty: a new one.

    Raises:
        SystemExit: another benchmark runs in this tree.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    lock = _take_lock()
    workdir = ROOT / ".timers" / "bench" / (stored or time.strftime(f"{prefix}%Y%m%d-%H%M%S"))
    workdir.mkdir(parents=True, exist_ok=bool(stored))
    broker = EmbeddedBroker(workdir / "broker", 0, out=sys.stdout)
    printer = Printer()
    try:
        printer.line(f"on Kafka {kafka_version.chosen()}")
        with printer.doing("starting the broker"):
            brokers = broker.start()
        if broker.pid is None:
            raise RuntimeError("the broker ended after it had answered")
        yield Session(printer, Cluster(brokers), broker.pid, workdir / "broker", workdir, keep)
    finally:
        stop_everything()
        broker.stop()
        if not (keep or stored):
            shutil.rmtree(workdir, ignore_errors=True)
        lock.close()


def _take_lock() -> IO[str]:
    """Take the lock of this tree, because two benchmarks at once would disturb each other."""
    path = ROOT / ".timers" / "bench" / "lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise SystemExit("bench: another benchmark is running in this tree: wait for its end, or stop it") from None
    return lock
