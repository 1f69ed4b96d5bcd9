"""An audit of logs that no longer have their first requests counts from what was pending in a snapshot."""

import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.harness.records import Publisher
from tests.harness.system import System, timers
from tests.harness.waiting import due_in, wait_until
from timers.core.timer import TopicPartition
from timers.kafka import progress_log
from timers.kafka.clients import asking_admin
from timers.kafka.topics import existing_topics
from timers.offline import pending
from timers.process.config.settings import Settings
from timers.spark.audit import reading, report
from timers.spark.audit.gaps import Scope
from timers.spark.audit.outcomes import CANCELLED, FIRED, PENDING, Moment
from timers.spark.jobs import audit
from timers.wire import future
from timers.wire.formats import future_by_id


def trim(system: System, *topics: str) -> dict[TopicPartition, int]:
    """Wait until each partition of these topics has two snapshots, and delete all before the older one.

    Returns:
        The first offset of each partition.
    """
    cluster = existing_topics(asking_admin(system.settings), system.settings)
    tps = {(topic, partition) for topic in topics for partition in range(cluster.partitions[topic])}
    begins: dict[TopicPartition, int] = {}

    def all_have_two() -> bool:
        for tp, progress in progress_log.read_all(system.settings, cluster).items():
            if tp in tps and progress.older_snapshot is not None:
                begins[tp] = progress.older_snapshot.applied
        return begins.keys() == tps

    wait_until(all_have_two, "two snapshots of each partition")
    for (topic, partition), begin in begins.items():
        system.cluster.delete_records(topic, {partition: begin})
    return begins


pytestmark = pytest.mark.spark

WAITING, SOON, FILLING = 30, 7, 40


@pytest.mark.long
def test_an_audit_counts_from_the_snapshot_of_a_trimmed_log(
    broker_address: str, spark: SparkSession, tmp_path: Path
) -> None:
    system = System(broker_address, tmp_path, TIMERS_PARTITIONS="1", TIMERS_SNAPSHOT_RECORDS="20")
    ids = f"{system.request_topic}-by-id"
    system.environment |= {"TIMERS_ID_TOPIC": ids, "TIMERS_VERDICT_TOPIC": f"{system.app_id}-verdict"}
    system.settings = system.settings.load(system.environment)
    try:
        system.worker().start().ready()
        target, due_s, by_id = system.target(), due_in(900), Publisher(broker_address, ids)
        named = [(b"id-%d" % number, future.encode(target, "k", b"v")) for number in range(WAITING)]
        for key, value in named:
            by_id.queue_raw(key, value, future_by_id.encode_headers(due_s), 0)
        by_id.queue_raw(
            b"id-0", named[1][1], future_by_id.encode_headers(due_s + 5), 0
        )  # replaced before the log begins
        by_id.flush()
        system.send(*timers(target, WAITING, due_s, 3))
        soon_s = due_in(30)
        soon = system.send(*timers(target, SOON, soon_s, 2))
        for _ in range(3):  # each time a snapshot is due
            system.send(*timers(target, FILLING, due_in(1), 1))
            for number in range(FILLING):
                by_id.queue_raw(b"other-%d" % number, named[0][1], future_by_id.encode_headers(due_s), 0)
            by_id.flush()
            time.sleep(3)
        begins = trim(system, system.request_topic, ids)
        assert min(begins.values()) > WAITING + SOON
        by_id.send_raw(b"id-2", None, [], 0)
        system.wait_past(soon_s)
        arguments = audit.Audit(system.settings, Scope(), Moment(int(time.time() * 1000), 5))
        found = audit.run(spark, arguments, print)
        assert (found.verdict, found.gaps) == ("clean", [])
        counted = {(begin.topic, begin.partition): (begin.start, begin.timers) for begin in found.begins}
        begun, waited = counted[system.request_topic, 0]
        assert begun == begins[system.request_topic, 0]
        assert waited >= WAITING + SOON, "on a busy machine some of the others had not fired yet"
        start, opened = counted[ids, 0]
        assert (start, opened >= WAITING) == (begins[ids, 0], True)
        assert found.statuses[CANCELLED] == 1
        assert found.statuses[PENDING] >= 2 * WAITING
        assert found.statuses[FIRED] >= SOON
        assert found.requests == found.statuses[PENDING] + found.statuses[FIRED] + found.statuses["replaced"] + 1
        said = [line for line in report.lines(found) if "that were pending at offset" in line]
        assert len(said) == 2
        assert f"it counts from {waited} requests" in "".join(said)
        assert len(soon) == SOON
        later_s = due_in(45)
        system.send(*timers(target, 3, later_s, 1))
        system.wait_past(due_in(1))  # the worker has accepted and committed them
        cluster = existing_topics(asking_admin(system.settings), system.settings)
        pending.export(
            system.settings, cluster, tmp_path / "file", move=True, check=lambda: None, report=lambda _: None
        )
        time.sleep(max(0.0, later_s - time.time()))
        system.wait_past(later_s)
        arguments = audit.Audit(system.settings, Scope(), Moment(int(time.time() * 1000), 0))
        after = audit.run(spark, arguments, print)
        assert (after.verdict, dict(after.undecided), after.gaps) == ("undecided", {"moved": 3}, [])
    finally:
        system.close()


def test_an_opening_balance_without_a_timer_has_no_rows(spark: SparkSession) -> None:
    """Such as of a trimmed log of which nothing is pending, or only in the cold tier."""
    found = reading.read_opening(spark, Settings(), {"schedules": {0: 5}}, {})
    assert (found.records.count(), found.begins, found.unknown) == (0, {}, {})
