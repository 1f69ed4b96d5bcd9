"""Requests that nothing needs any more are deleted: from the log, and from the disks of the brokers."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from rocksdict import Options, Rdict

from tests.docs.markdown import ROOT
from tests.harness.brokers import ended
from tests.harness.command_line import command
from tests.harness.records import Request
from tests.harness.strangers import has_kind, member
from tests.harness.system import System, timers
from tests.harness.waiting import DEADLINE_S, due_in, wait_until
from tests.harness.worker import READY
from timers.cli.broker import EmbeddedBroker
from timers.core.keys import NOTHING_FIRED
from timers.kafka.clients import librdkafka, reader
from timers.machines.log_trimmer import LogTrimmer
from timers.machines.store import layout
from timers.machines.store.memory_limit import RocksMemory
from timers.machines.store.rocks import RocksStore
from timers.process.config.settings import Settings
from timers.wire import topics

pytestmark = pytest.mark.broker

PARTITIONS = 2
RECORDS = 2_000
"""A snapshot is due after so many records of a partition."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker of its own, whose files a test may read."""
    broker = EmbeddedBroker(tmp_path / "broker", 0)
    with ended(broker):
        yield broker


def starts(system: System) -> dict[int, int]:
    """Partition -> first offset of the request log."""
    return system.cluster.starts(system.request_topic)


def log_bytes(broker: EmbeddedBroker, topic: str) -> int:
    """Size of the segments of a topic on the disk."""
    return sum(each.stat().st_size for each in broker.directory.glob(f"data/{topic}-*/*.log"))


def holders(broker: EmbeddedBroker, text: bytes) -> set[str]:
    """The files of a broker that hold a text."""
    found = set()
    for folder, _, names in os.walk(broker.directory / "data"):
        for path in (Path(folder, name) for name in names):
            with contextlib.suppress(FileNotFoundError):
                if text in path.read_bytes():
                    found.add(f"{path.parent.name}/{path.name}")
    return found


def test_what_has_fired_is_deleted_and_what_is_pending_survives_a_lost_disk(
    broker_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A worker without a disk restores snapshots, and reads what came after them only: nothing, as new ones were asked
    for before."""
    fired_count, soon_count, later_count = 20_000, 200, 2_800
    system = System(
        broker_address,
        tmp_path,
        TIMERS_PARTITIONS=str(PARTITIONS),
        TIMERS_SNAPSHOT_RECORDS=str(RECORDS),
        TIMERS_LOG_KEEP_S="1",
    )
    try:
        worker = system.worker(quick=True)  # an idle machine takes snapshots until one holds only what is pending
        worker.start().ready()
        target = system.target()
        later = timers(system.target(), later_count, due_in(86_400), 3)
        soon = timers(target, soon_count, due_in(25 + int(4 * worker.ready_s)), 2)
        fired = timers(system.target(partitions=2), fired_count, due_in(2), 4)
        for index, request in enumerate([*later, *soon, *fired]):
            request.partition = index % PARTITIONS
        system.send(*later, *soon, *fired)
        assert len(system.fired(fired, deadline_s=60)) == fired_count
        least = (fired_count + soon_count + later_count) // PARTITIONS - RECORDS
        wait_until(lambda: min(starts(system).values()) >= least, "both logs begin near their ends", 150)
        assert "log and snapshots agree" in worker.log
        system.use(monkeypatch, TIMERS_WEB_PORT=str(worker.port))
        asked = command(capsys, "snapshots", "--now")
        assert asked.code == 0, asked.err
        worker.stop()
        shutil.rmtree(worker.data_dir)
        worker.start()
        pending = int(worker.wait_for(READY)[2])
        assert later_count <= pending <= soon_count + later_count, "a paused machine fires the first ones before"
        assert worker.log.count("restored ") == PARTITIONS
        replayed = sum(int(found) for found in re.findall(r"(\d+) records read again", worker.log))
        assert replayed == 0, "the log before the snapshots is not read"
        assert len(system.fired(soon)) == soon_count
    finally:
        system.close()


def lose_a_timer(store: Path) -> None:
    """Let a store have a fault: it lacks one of its timers, and counts as if it never had it."""
    with closing(Rdict(str(store), Options(raw_mode=True))) as rdict:
        identity = rdict[layout.IDENTITY].decode().partition(" ")[2]
    opened = RocksStore.open(store, identity, RocksMemory(2**22))
    due_s, rows = next(opened.scan(NOTHING_FIRED, layout.LAST_S))
    opened.replace([((due_s, rows), rows[1:])])
    opened.close()


def runbook(partition: int, system: System) -> tuple[str, dict[int, int]]:
    """What the page says of a store that differs from a whole log: the command for the disk of each worker, and the
    offsets below which snapshots are deleted."""
    page = (ROOT / "docs" / "operations.md").read_text()
    section = page.partition("### Log and snapshots differ")[2].partition("\n### ")[0]
    (move,) = re.findall(r"^ *(for store in .*)$", section, re.MULTILINE)
    ((places),) = re.findall(r"snapshots-of-5.json: (.*)$", section, re.MULTILINE)
    (place,) = json.loads(places)["partitions"]
    assert (place["topic"], place["partition"]) == ("timers-snapshot-timer-request", 5)
    app, topic = f"/app-{system.settings.app_id}/", f"/{system.request_topic}/{partition}"
    return move.replace("/app-timers/", app).replace("/timer-request/5", topic), {partition: place["offset"]}


@pytest.mark.long
def test_the_way_on_of_a_store_that_differs_from_its_log_takes_nothing_from_a_trimmed_partition(
    broker_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log of partition 0 is trimmed, and the store of partition 1 has lost a timer. One worker has both."""
    keep, few = {"TIMERS_LOG_KEEP_S": "1"}, {"TIMERS_SNAPSHOT_RECORDS": "10"}
    system = System(broker_address, tmp_path, TIMERS_PARTITIONS=str(PARTITIONS), **keep, **few)

    def restarted(pending: int) -> None:
        worker.start()
        assert int(worker.wait_for(READY)[2]) == pending

    def snapshots(count: int) -> None:
        for _ in range(count):
            asked = command(capsys, "snapshots", "--now")
            assert asked.code == 0, asked.err

    def send(partition: int, *requests: Request) -> None:
        for request in requests:
            request.partition = partition
        system.send(*requests)

    try:
        worker = system.worker(quick=True)
        worker.start().ready()
        fired = timers(system.target(), 60, due_in(2), 2)
        send(0, *fired, *timers(system.target(), 10, due_in(86_400), 2))
        system.fired(fired, deadline_s=60)
        wait_until(lambda: starts(system)[0] >= 60, "the log of partition 0 is trimmed", 150)
        worker.stop()
        never = {"TIMERS_LOG_KEEP_S": "never"}
        worker._environment.update(never)
        restarted(10)
        send(1, *timers(system.target(), 40, due_in(86_400), 1))
        system.use(monkeypatch, TIMERS_WEB_PORT=str(worker.port), **never)
        snapshots(1)  # it holds all 40
        worker.stop()
        (store,) = worker.data_dir.glob(f"worker-*/app-*/{system.request_topic}/1")
        lose_a_timer(store)
        restarted(49)
        snapshots(1)
        found = command(capsys, "log", "verify")
        assert found.code == 1 and "docs/operations.md#log-and-snapshots-differ" in found.out
        assert f"{system.request_topic}/1: its log is whole" in found.out
        worker.stop()
        move, below = runbook(1, system)
        subprocess.run(["sh", "-c", move], cwd=worker.data_dir, check=True)
        assert not store.exists() and store.with_name("0").exists() and store.with_name("1-kept").exists()
        system.cluster.delete_records(topics.snapshots(system.settings.app_id, system.request_topic), below)
        restarted(50)
        snapshots(2)
        found = command(capsys, "log", "verify")
        assert found.code == 0 and found.out.count(" 0 differ") == PARTITIONS, found.out + found.err
        assert starts(system)[1] == 0 < starts(system)[0]
    finally:
        system.close()


@pytest.mark.long
def test_payloads_of_an_idle_app_leave_the_disk_of_the_broker(broker: EmbeddedBroker, tmp_path: Path) -> None:
    address = broker.start()
    system = System(address, tmp_path, TIMERS_PARTITIONS=str(PARTITIONS), TIMERS_LOG_KEEP_S="60")
    try:
        system.worker().start().ready()
        secret = b"personal data of customer 4711"
        target = system.target()
        sent = system.send(*timers(target, 200, due_in(3), 2, secret))
        assert len(system.fired(sent)) == 200
        pending = system.send(*timers(system.target(), 50, due_in(3600), 2, b"still to come"))
        system.delete_topic(target)

        assert holders(broker, secret), "it is stored as it is"
        wait_until(lambda: not holders(broker, secret), "no file holds what has fired", 180)
        assert holders(broker, b"still to come") and len(pending) == 50
    finally:
        system.close()


@pytest.mark.long
def test_what_a_killed_broker_brings_back_is_deleted_again(tmp_path: Path) -> None:
    """Brokers write down where a log begins once in a minute; this one later."""
    count = 3 * RECORDS
    broker = EmbeddedBroker(tmp_path / "broker", 0, {"log.flush.start.offset.checkpoint.interval.ms": "86400000"})
    settings = {"TIMERS_PARTITIONS": "1", "TIMERS_SNAPSHOT_RECORDS": str(RECORDS), "TIMERS_LOG_KEEP_S": "0"}
    with ended(broker), closing(System(broker.start(), tmp_path, **settings)) as system:
        system.worker(quick=True).start().ready()

        def fire() -> None:
            sent = system.send(*timers(system.target(), count, due_in(3), 3))
            assert len(system.fired(sent, deadline_s=60)) == count

        fire()
        wait_until(lambda: starts(system)[0] >= count - RECORDS, "what has fired is deleted", 60)
        broker.kill()
        broker.start()
        assert starts(system) == {0: 0}, "it is back"
        fire()
        wait_until(lambda: starts(system)[0] >= 2 * count - RECORDS, "it is deleted again", 60)


def test_a_trimmer_sees_who_else_reads_a_log_and_deletes_from_it(broker_address: str, tmp_path: Path) -> None:
    system = System(broker_address, tmp_path)
    topic = system.create_topic(system.request_topic, segment_ms="1000")
    trimmer, tp, place = LogTrimmer(system.settings), (topic, 0), TopicPartition(topic, 0, 3)
    consumer = reader(librdkafka(system.settings), group_id=f"billing-{system.app_id}")
    before_ms = int(time.time() * 1000) - 60_000
    system.send(*timers(topic, 10, due_in(60), 1))
    assert trimmer.ends(tp) == (0, 10)
    assert trimmer.first_since(tp, before_ms) == 0
    assert trimmer.first_since(tp, before_ms + 3_600_000) is None
    assert trimmer.segment_s(topic) == 1

    def readers() -> list[str]:
        return sorted(trimmer.other_readers(topic, PARTITIONS, lambda: None))

    assert readers() == []
    consumer.commit(offsets=[place], asynchronous=False)
    system.create_topic(f"other-snapshot-{topic}")
    wait_until(lambda: len(readers()) == 2, "the group and the app are seen")
    assert readers() == ["app 'other'", f"group 'billing-{system.app_id}'"]
    assert trimmer.topic_ids([topic, "missing"]).keys() == {topic}
    trimmer.delete_below({tp: 4}, DEADLINE_S)
    assert trimmer.ends(tp) == (4, 10)
    time.sleep(1.5)  # the segment is old enough for a new one
    trimmer.roll(tp)
    wait_until(lambda: trimmer.ends(tp) == (4, 12), "a record that was taken back, and the marker after it")
    consumer.close()
    system.close()


def kinds_here() -> list[str]:
    """One client of each kind of groups that the brokers of the chosen version have."""
    return [kind for kind in ("java", "java-848", "streams-1071", "share") if has_kind(kind)]


def readers_of(system: System, settings: Settings | None = None) -> list[str]:
    """Who else reads the request topic of a system, as a worker sees it."""
    trimmer = LogTrimmer(settings or system.settings)
    return sorted(trimmer.other_readers(system.request_topic, PARTITIONS, lambda: None))


def let_groups_begin(system: System, kinds: Sequence[str]) -> list[str]:
    """Let a program of each kind read the first records of the request topic, and end. Returns the groups."""
    topic = system.request_topic
    groups = [f"{kind}-{topic}" for kind in kinds]

    def is_seen(group: str) -> bool:
        system.send(*timers(system.target(), 10, due_in(1), 1))  # a consumer that has just joined begins at the end
        return f"group {group!r}" in readers_of(system)

    for kind, group in zip(kinds, groups, strict=True):
        with member(kind, system.address, group, topic):
            wait_until(partial(is_seen, group), f"{kind} is seen")
    return groups


def test_groups_of_each_kind_hold_trimming_back(broker_address: str, tmp_path: Path) -> None:
    """Also those that librdkafka does not list. Share groups keep their offsets elsewhere; one that has read nothing to
    the end has none yet."""
    system = System(broker_address, tmp_path)
    system.create_topic(system.request_topic)
    groups = let_groups_begin(system, kinds_here())
    system.send(*timers(system.request_topic, 10, due_in(60), 1))
    assert readers_of(system) == sorted(f"group {group!r}" for group in groups), "they are gone, and have not read all"
    past = replace(system.settings, trim_past_groups=(*groups[1:], "other"))
    assert readers_of(system, past) == [f"group {groups[0]!r}"]
    system.close()


@pytest.mark.long
def test_a_worker_deletes_nothing_that_a_group_of_any_kind_has_not_read(broker_address: str, tmp_path: Path) -> None:
    """All groups are behind by thousands of requests, which have fired. When the last of them is gone, it deletes."""
    count = 3 * RECORDS
    system = System(
        broker_address,
        tmp_path,
        TIMERS_PARTITIONS="1",
        TIMERS_SNAPSHOT_RECORDS=str(RECORDS),
        TIMERS_LOG_KEEP_S="0",
    )
    try:
        system.create_own_topics()
        groups = let_groups_begin(system, kinds_here())
        worker = system.worker(quick=True).start().ready()
        sent = system.send(*timers(system.target(), count, due_in(3), 3))
        assert len(system.fired(sent, deadline_s=60)) == count

        def holding() -> set[str] | None:
            """The groups that the worker has named last; None: more than it names."""
            said = re.findall(r"its log is not trimmed: (.*) may read it too", worker.log)
            return set(re.findall(r"'([^']+)'", said[-1])) if said and " more" not in said[-1] else None

        wait_until(lambda: "its log is not trimmed" in worker.log, "it has looked who else reads its log", 60)
        while groups:
            wait_until(lambda: holding() == (set(groups) if len(groups) <= 3 else None), f"{groups} hold it back", 60)
            assert starts(system) == {0: 0}
            group = groups.pop()
            system.admin.delete_consumer_groups([group])[group].result(DEADLINE_S)
        wait_until(lambda: starts(system)[0] >= count - RECORDS, "its log begins near its end", 60)
    finally:
        system.close()
