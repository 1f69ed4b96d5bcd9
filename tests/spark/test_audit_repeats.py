"""``timers spark audit`` of timers that repeat, on the log of a broker: whole chains, and twenty planted faults."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.harness.system import System, with_ids
from tests.spark.repeat_chains import Became, ChainLog, broken_chains, whole_chains
from timers.spark.audit.gaps import Scope
from timers.spark.audit.outcomes import UNASKED, UNDECIDED, Moment
from timers.spark.jobs import audit
from timers.wire.topics import source

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture
def log(broker_address: str, tmp_path: Path) -> Iterator[ChainLog]:
    system = System(broker_address, tmp_path, **with_ids(), TIMERS_PARTITIONS="1")
    system.create_own_topics()
    yield ChainLog(system)
    system.close()


def audited(spark: SparkSession, log: ChainLog) -> tuple[Counter[str], dict[str, list[str]]]:
    """Returns status -> number of records, and fault -> the records that have it."""
    moment = Moment((log.fourth + 86_400) * 1000, 5)
    findings = audit.run(spark, audit.Audit(log.settings, Scope(), moment), print)
    assert not findings.gaps
    return findings.statuses, {fault: sorted(row["request"] for row in rows) for fault, rows in findings.listed.items()}


def expected(log: ChainLog, became: dict[str, list[Became]]) -> tuple[Counter[str], dict[str, list[str]]]:
    """Returns the same, as planted."""
    places = {id: zip(log.offsets[id], found, strict=True) for id, found in became.items()}
    records = [(source(*log.place, offset), *each) for found in places.values() for offset, each in found]
    faults: dict[str, list[str]] = defaultdict(list)
    for name, _, found in records:
        for fault in found:
            faults[fault].append(name)
    return Counter(status for _, status, _ in records), {fault: sorted(names) for fault, names in faults.items()}


def test_whole_chains_have_no_faults(spark: SparkSession, log: ChainLog) -> None:
    planted = whole_chains(log)
    statuses, faults = audited(spark, log)
    assert (statuses, faults) == expected(log, planted)
    assert not faults
    assert statuses[UNDECIDED] == 1


def test_each_planted_fault_is_named(spark: SparkSession, log: ChainLog) -> None:
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
