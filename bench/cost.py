"""Measures disk use and Kafka records for each timer, while it is pending and after it has fired."""

from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import storm
from bench.session import RunNames, Session
from bench.subject import Subject
from bench.workload import Workload

COST = Workload("cost", 200_000, 5)


@dataclass(frozen=True)
class Topic:
    """Use of one topic for each timer."""

    records: float
    """Log entries: records and the markers of transactions."""
    bytes: float


@dataclass(frozen=True)
class CostResult:
    """Figures for each timer. Data from before the first timer was published does not count."""

    subject: str
    timers: int
    payload_bytes: int
    pending: dict[str, Topic]
    """By topic, after acceptance. Names are without the number of the run; topics of the broker are included."""
    fired: dict[str, Topic]
    """By topic, after firing."""
    pending_store_bytes: float
    """Bytes of the disk blocks in the data directory of the subject."""
    fired_store_bytes: float

    def kafka_records(self, moment: dict[str, Topic]) -> float:
        return sum(topic.records for topic in moment.values())

    def kafka_bytes(self, moment: dict[str, Topic]) -> float:
        return sum(topic.bytes for topic in moment.values())

    def to_json(self) -> dict[str, Any]:
        totals = {
            f"{name}_kafka_{what}": total(moment)
            for name, moment in (("pending", self.pending), ("fired", self.fired))
            for what, total in (("records", self.kafka_records), ("bytes", self.kafka_bytes))
        }
        return {**asdict(self), **totals}


def _log_bytes(broker_directory: Path) -> dict[str, int]:
    """Bytes of the log segments of every topic, without their preallocated indexes."""
    found: dict[str, int] = defaultdict(int)
    for segment in broker_directory.rglob("*-*/*.log"):
        topic, _, partition = segment.parent.name.rpartition("-")
        if partition.isdigit():
            found[topic] += segment.stat().st_size
    return found


def _disk_bytes(directory: Path) -> int:
    """Bytes of the disk blocks of a directory; holes of sparse files do not count."""
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())


class _DiskUsage:
    """Use of topics and of the data directory at several moments."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.topics: dict[str, dict[str, tuple[int, int]]] = {}
        self.store: dict[str, int] = {}

    def note(self, moment: str, names: RunNames) -> None:
        cluster, sizes = self._session.cluster, _log_bytes(self._session.broker_directory)
        counted = [topic for topic in cluster.topics() if names.owns(topic) or topic.startswith("__")]
        short_name = {topic: topic.replace(f"-{names.run}", "").replace("bench-", "APP-", 1) for topic in counted}
        self.topics[moment] = {short_name[topic]: (cluster.end(topic), sizes.get(topic, 0)) for topic in counted}
        self.store[moment] = _disk_bytes(names.data_dir)

    def per_timer(self, moment: str, timers: int) -> dict[str, Topic]:
        before = self.topics["ready"]
        grown = {}
        for topic, (records, size) in self.topics[moment].items():
            records_before, size_before = before.get(topic, (0, 0))
            if records > records_before:
                grown[topic] = Topic((records - records_before) / timers, max(0, size - size_before) / timers)
        return grown


def run(session: Session, subject: Subject, workload: Workload = COST) -> CostResult:
    """Run one small storm; measure disk use before it, when all is pending, and after it."""
    usage = _DiskUsage(session)
    storm.run(session, subject, workload, observe=usage.note)
    return CostResult(
        subject=subject.name,
        timers=workload.timers,
        payload_bytes=workload.payload_bytes,
        pending=usage.per_timer("pending", workload.timers),
        fired=usage.per_timer("fired", workload.timers),
        pending_store_bytes=usage.store["pending"] / workload.timers,
        fired_store_bytes=usage.store["fired"] / workload.timers,
    )
