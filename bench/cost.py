"""What does a timer cost in disk and in Kafka records, while it is pending and once it has fired?"""

from __future__ import annotations

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
    """What stands in one topic, for each timer."""

    records: float
    """Log entries: records and the markers of transactions."""
    bytes: float


@dataclass(frozen=True)
class CostResult:
    """Everything is for each timer, less what was there before the first was published."""

    subject: str
    timers: int
    payload_bytes: int
    pending: dict[str, Topic]
    """By topic, after acceptance. RunNames without the run's number; the broker's own topics included."""
    fired: dict[str, Topic]
    """By topic, after firing."""
    pending_store_bytes: float
    """Disk blocks of the subject's own directory."""
    fired_store_bytes: float

    def kafka_records(self, moment: dict[str, Topic]) -> float:
        return sum(topic.records for topic in moment.values())

    def kafka_bytes(self, moment: dict[str, Topic]) -> float:
        return sum(topic.bytes for topic in moment.values())

    def to_json(self) -> dict[str, Any]:
        totals = {
            f"{name}_kafka_{what}": of(moment)
            for name, moment in (("pending", self.pending), ("fired", self.fired))
            for what, of in (("records", self.kafka_records), ("bytes", self.kafka_bytes))
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
    """Blocks that a directory occupies: a sparse file counts as what it takes."""
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())


class _Ledger:
    """What stood where at each moment."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.topics: dict[str, dict[str, tuple[int, int]]] = {}
        self.store: dict[str, int] = {}

    def note(self, moment: str, names: RunNames) -> None:
        cluster, sizes = self._session.cluster, _log_bytes(self._session.broker_directory)
        ours = [topic for topic in cluster.topics() if names.owns(topic) or topic.startswith("__")]
        short = {topic: topic.replace(f"-{names.run}", "").replace("bench-", "APP-", 1) for topic in ours}
        self.topics[moment] = {short[topic]: (cluster.end(topic), sizes.get(topic, 0)) for topic in ours}
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
    """One small storm, with a look at every disk before, between and after."""
    ledger = _Ledger(session)
    storm.run(session, subject, workload, observe=ledger.note)
    return CostResult(
        subject=subject.name,
        timers=workload.timers,
        payload_bytes=workload.payload_bytes,
        pending=ledger.per_timer("pending", workload.timers),
        fired=ledger.per_timer("fired", workload.timers),
        pending_store_bytes=ledger.store["pending"] / workload.timers,
        fired_store_bytes=ledger.store["fired"] / workload.timers,
    )
