"""``timers spark audit`` of timers that repeat, on the log of a broker: whole chains, and twenty planted faults."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from tests.harness.system import System, with_ids
from tests.harness.waiting import DEADLINE_S
from tests.spark.repeat_chains import Became, ChainLog, broken_chains, whole_chains
from timers.core.levels import REPEATS
from timers.core.progress import FEATURE_LEVEL, Progress
from timers.core.timer import Headers
from timers.spark.audit.gaps import Scope
from timers.spark.audit.outcomes import UNASKED, UNDECIDED, Moment
from timers.spark.jobs import audit
from timers.wire import headers as h
from timers.wire import progress as progress_record
from timers.wire.topics import source

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

STEP_S = 600
"""The definitions are appended in the first of these: the broker sets their times."""


class BrokerLog(ChainLog):
    """Records on a broker, which the audit reads as if a day had passed."""

    def __init__(self, system: System) -> None:
        settings = system.settings
        target = system.target(message_timestamp_type="CreateTime")
        super().__init__((settings.id_topic, 0), target, int(time.time()), STEP_S)
        self._settings = settings
        self._producer: Any = Producer({"bootstrap.servers": system.address, "acks": "all", "linger.ms": 0})
        self.offsets: dict[str, list[int]] = defaultdict(list)
        """Id -> offsets of its records that are no cancels."""
        at_level = Progress(0).with_setting(FEATURE_LEVEL, REPEATS)
        value = progress_record.encode(at_level, b"")
        self._write(settings.progress_topic, progress_record.encode_key(*self.place), value, [])

    def add(self, id: str, value: bytes | None, headers: Headers, at_s: int) -> int:
        offset = self._write(self.place[0], id.encode(), value, headers)
        if value is not None:
            self.offsets[id].append(offset)
        return offset

    def tell(self, key: str, value: bytes, headers: list[h.Header]) -> None:
        self._write(self._settings.verdict_topic, key.encode(), value, headers)

    def send(self, offset: int, id: str, due_s: int, at_s: int) -> None:
        own = h.identity(id.encode(), self.source(offset).encode())
        headers = [(h.TIMER_VERSION, b"by-id/0/0"), (h.TIMER_NOMINAL, b"0"), *own]
        tick_ms = at_s * 1000 + 20
        self._write(self.target, None, b"value", [*headers, *h.firing(due_s, b"%d" % tick_ms)], tick_ms)

    def _write(self, topic: str, key: bytes | None, value: bytes | None, headers: Headers, time_ms: int = 0) -> int:
        """Write a record. Returns its offset."""
        places: list[int] = []

        def delivered(error: object, message: Any) -> None:
            assert error is None, error
            places.append(message.offset())

        self._producer.produce(topic, value, key, headers=[*headers], timestamp=time_ms, on_delivery=delivered)
        assert self._producer.flush(DEADLINE_S) == 0
        return places[0]


@pytest.fixture
def log(broker_address: str, tmp_path: Path) -> Iterator[BrokerLog]:
    system = System(broker_address, tmp_path, **with_ids(), TIMERS_PARTITIONS="1")
    system.create_own_topics()
    yield BrokerLog(system)
    system.close()


def audited(spark: SparkSession, log: BrokerLog) -> tuple[Counter[str], dict[str, list[str]]]:
    """Returns status -> number of records, and fault -> the records that have it."""
    moment = Moment((log.fourth + 86_400) * 1000, 5)
    findings = audit.run(spark, audit.Audit(log._settings, Scope(), moment), print)
    assert not findings.gaps
    return findings.statuses, {fault: sorted(row["request"] for row in rows) for fault, rows in findings.listed.items()}


def expected(log: BrokerLog, became: dict[str, list[Became]]) -> tuple[Counter[str], dict[str, list[str]]]:
    """Returns the same, as planted."""
    places = {id: zip(log.offsets[id], found, strict=True) for id, found in became.items()}
    records = [(source(*log.place, offset), *each) for found in places.values() for offset, each in found]
    faults: dict[str, list[str]] = defaultdict(list)
    for name, _, found in records:
        for fault in found:
            faults[fault].append(name)
    return Counter(status for _, status, _ in records), {fault: sorted(names) for fault, names in faults.items()}


def test_whole_chains_have_no_faults(spark: SparkSession, log: BrokerLog) -> None:
    planted = whole_chains(log)
    statuses, faults = audited(spark, log)
    assert (statuses, faults) == expected(log, planted)
    assert not faults
    assert statuses[UNDECIDED] == 1


def test_each_planted_fault_is_named(spark: SparkSession, log: BrokerLog) -> None:
    planted = whole_chains(log) | broken_chains(log)
    statuses, faults = expected(log, planted)
    assert sum(map(len, faults.values())) >= 20
    # A worker cannot read these, so no request asks for their callbacks.
    faults[UNASKED] = sorted(log.source(log.offsets[id][-1]) for id in ("due-late", "no-share"))
    found, named = audited(spark, log)
    assert named.keys() == faults.keys()
    for fault, names in faults.items():
        assert named[fault] == names, fault
    assert found == statuses
