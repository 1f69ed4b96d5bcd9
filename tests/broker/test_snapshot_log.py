"""Snapshots on their topic: what was written is read again, and what the brokers no longer have is unreadable."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from time import monotonic

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions

from tests.harness.cluster import client_settings
from tests.harness.command_line import command
from tests.harness.memory_store import MemoryStore, MemoryView
from tests.harness.snapshots import NUMBER, PLACE, Records, records_of
from tests.harness.system import System
from tests.harness.waiting import wait_until
from timers.core.levels import FIRST_LEVEL
from timers.core.ports import Lost
from timers.core.progress import FEATURE_LEVEL, History, NamedSnapshot, Progress, SettingChange
from timers.core.snapshots import Footer, Unreadable, bytes_of_snapshot, footer_of
from timers.kafka import topics
from timers.kafka.progress_rules import progress_partition
from timers.kafka.records import Record, TransactionalWriter
from timers.kafka.snapshot_log import RECORD_BYTES, SnapshotLog, Unwritten
from timers.kafka.topic_admin import configs
from timers.process.config.settings import Settings
from timers.wire import snapshot
from timers.wire.progress import encode, encode_key, machine_name
from timers.wire.topics import snapshots

pytestmark = pytest.mark.broker

FAST = 1e9


def view(rows: int = 40, row_bytes: int = 100_000) -> MemoryView:
    store = MemoryStore()
    group = [(at, "topic", "key", bytes([at]) * row_bytes, None, None) for at in range(rows)]
    store.write({due_s: [row] for due_s, row in enumerate(group)}, rows)
    return store.view()


def footer(of: MemoryView) -> Callable[[int, bytes], Footer]:
    return lambda keys, digest: footer_of(of, PLACE, (5, 6), keys, digest)


@contextmanager
def log_of(system: System, topic: str, check: Callable[[], None] = lambda: None) -> Iterator[SnapshotLog]:
    log = SnapshotLog(system.settings, topic, 0, check)
    try:
        yield log
    finally:
        log.close()


def publish(system: System, topic: str, records: Records) -> None:
    producer = Producer(client_settings(system.address))
    for key, value in records:
        producer.produce(topic, value, key, 0)
    assert producer.flush(30) == 0


def stop() -> None:
    raise Lost("told to stop")


def test_what_is_written_is_read_again(system: System) -> None:
    topic = system.create_topic(f"{system.settings.app_id}-snapshot", 2)
    publish(system, topic, [(snapshot.record_key(9, 0), b"\1dof another attempt")])
    seen = view()
    with log_of(system, topic) as log:
        assert not log.has_written
        first = log.write(seen, footer(seen), FAST)
        assert log.has_written
        second = log.write(seen, footer(seen), FAST)
        assert log.unnamed_bytes([second]) == 0, "what is before it is still there"
        assert log.unnamed_bytes([second, first]) == 0, "the other attempt is before both"
        assert (first.first_offset, first.end_offset) == (1, 10), "eight records of 512 KB, and the footer"
        assert second.first_offset == 10 and second.number != first.number
        assert (first.applied, first.rows, first.keys) == (40, 40, len(list(seen)))
        for named in (first, second):
            assert [*chain.from_iterable(log.pages(named))] == list(seen)
            assert log.footer(named) == footer_of(seen, PLACE, (5, 6), named.keys, named.digest)
        assert log.has_footer(first)
        assert not log.has_footer(first._replace(number=8)), "it is a footer of another number"
        third = log.write(seen, footer(seen), FAST)
        log.delete_before(second.first_offset)
        assert log.unnamed_bytes([second]) == bytes_of_snapshot(third)
        assert log.unnamed_bytes([third, second]) == 0
        with pytest.raises(Unreadable, match=r"has the offsets 10 to 27, and not all of 1 to 9"):
            log.footer(first)
        assert [*chain.from_iterable(log.pages(second))] == list(seen)


def test_a_snapshot_is_written_at_its_pace_and_may_be_stopped(system: System) -> None:
    topic = system.create_topic(f"{system.settings.app_id}-snapshot")
    seen = view()
    began = monotonic()
    with log_of(system, topic) as log:
        log.write(seen, footer(seen), 4_000_000.0)
        assert monotonic() - began >= 1.0
    with log_of(system, topic, stop) as log, pytest.raises(Lost, match="told to stop"):
        log.write(seen, footer(seen), 1000.0)


def test_records_of_others_in_between_are_skipped_and_a_missing_one_is_noticed(system: System) -> None:
    topic = system.create_topic(f"{system.settings.app_id}-snapshot")
    records, named = records_of(view(3, 100))
    others: Records = [(snapshot.record_key(8, 0), b"\1dx"), (b"a key of another program", None), (None, b"v")]
    mixed = [each for record in records for each in (record, *others)][: -len(others)]
    publish(system, topic, mixed)
    end = len(mixed)
    publish(system, topic, [*records[:1], *records[2:]])
    whole = named._replace(topic_id=topic_id(system, topic), end_offset=end)
    broken = whole._replace(first_offset=end, end_offset=end + len(records) - 1)
    with log_of(system, topic) as log:
        assert sum(map(len, log.pages(whole))) == named.keys
        assert log.footer(broken).keys == named.keys, "its footer is there"
        with pytest.raises(Unreadable, match="record 1 is missing: record 2 follows"):
            list(log.pages(broken))
        with pytest.raises(Unreadable, match="last record begins with"):
            log.footer(whole._replace(end_offset=1))


def topic_id(system: System, topic: str) -> bytes:
    seen = view(1, 1)
    with log_of(system, topic) as log:
        return log.write(seen, footer(seen), FAST).topic_id


@pytest.fixture
def gone(system: System) -> tuple[str, NamedSnapshot]:
    topic = system.create_topic(f"{system.settings.app_id}-snapshot")
    seen = view(1, 1)
    with log_of(system, topic) as log:
        named = log.write(seen, footer(seen), FAST)
    system.delete_topic(topic)
    return topic, named


def test_a_topic_that_was_deleted_is_an_answer(system: System, gone: tuple[str, NamedSnapshot]) -> None:
    topic, named = gone
    seen = view(1, 1)
    with log_of(system, topic) as log:
        with pytest.raises(Unreadable, match=f"^the topic of snapshots '{topic}' does not exist"):
            log.footer(named)
        with pytest.raises(Unwritten, match=f"^the topic of snapshots '{topic}' does not exist"):
            log.write(seen, footer(seen), FAST)


def test_a_topic_that_was_made_anew_is_an_answer(system: System, gone: tuple[str, NamedSnapshot]) -> None:
    topic, named = gone
    system.create_topic(topic)
    with log_of(system, topic) as log:
        log.write(one := view(1, 1), footer(one), FAST)
        with pytest.raises(Unreadable, match="was made anew"):
            log.footer(named)


def test_a_topic_that_takes_no_record_of_a_snapshot_is_named(system: System) -> None:
    topic = system.create_topic(f"{system.settings.app_id}-snapshot", max_message_bytes="1000")
    seen = view(12, RECORD_BYTES // 4)
    for at, item in enumerate(seen.items):  # bytes that cannot be compressed
        assert isinstance(seen.items, list)
        seen.items[at] = item[0], item[1][:20] + bytes(hash((at, each)) & 255 for each in range(5000))
    with log_of(system, topic) as log, pytest.raises(Unwritten, match=r"-snapshot/0 takes no snapshot: .*size"):
        log.write(seen, footer(seen), FAST)


def test_snapshots_are_listed_with_their_size_and_age_and_what_they_replace(
    system: System, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    system.create_own_topics()
    system.use(monkeypatch)
    requests, topic = system.request_topic, snapshots(system.settings.app_id, system.request_topic)
    publish(system, requests, [(b"1", b"")] * 45)
    seen = view()
    with log_of(system, topic) as log:
        log.prepare(requests)
        older, newest = (log.write(seen, footer(seen), FAST) for _ in range(2))
    older = older._replace(applied=30)
    level = History([SettingChange(FEATURE_LEVEL, 0, FIRST_LEVEL)])
    known = Progress(45, settings=level, snapshot=newest, older_snapshot=older)
    name_in_progress(system, 0, known)
    name_in_progress(system, 1, Progress(7))
    shown = [json.loads(line) for line in command(capsys, "snapshots", "-o", "json").out.splitlines()]
    age_s = shown[0].pop("age_s")
    assert 0 <= age_s < 60
    assert shown == [
        {
            "topic": requests,
            "partition": 0,
            "offset": 40,
            "timers": 40,
            "most_bytes": 9 * 2**19,
            "log_since": 5,
            "not_needed": 30,
            "problem": None,
        },
        {"topic": requests, "partition": 1, "offset": None},
    ]
    system.cluster.delete_records(topic, {0: newest.first_offset + 1})
    (first, *_) = command(capsys, "snapshots").out.splitlines()[1:]
    assert "unreadable" in first and f"{topic}/0 has the offsets 10 to 17, and not all of 9 to 17" in first


def name_in_progress(system: System, partition: int, progress: Progress) -> None:
    """Write the progress of a machine, as its worker would."""
    settings = system.settings
    known = topics.ensure(settings)
    machine = machine_name(settings.app_id, system.request_topic, partition)
    value = encode(progress, known.topic_ids[system.request_topic], machine)
    tp = system.request_topic, partition
    place = progress_partition(tp, known, settings)
    writer = TransactionalWriter(client_settings(system.address), f"{settings.app_id}-test", 10**6)
    with writer.transaction() as send:
        send([Record(settings.progress_topic, place, encode_key(*tp), value, [])])


def test_a_topic_is_created_like_its_request_topic_and_what_a_user_changes_is_named(system: System) -> None:
    requests = system.create_topic(f"{system.settings.app_id}-requests", 2, min_insync_replicas="1")
    topic = f"{system.settings.app_id}-snapshot"
    with log_of(system, topic) as log:
        assert log.prepare(requests) == []
        assert system.cluster.partitions(topic) == [0, 1]
        wait_until(lambda: configs(system.admin, [topic])[topic]["segment.bytes"] == "16777216", "the configuration")
        assert log.prepare(requests) == []
        system.configure(topic, retention_ms="604800000")
        wait_until(lambda: configs(system.admin, [topic])[topic]["retention.ms"] == "604800000", "the change")
        (sentence,) = log.prepare(requests)
        assert "has retention.ms=604800000, so snapshots may get lost" in sentence
        system.admin.create_partitions([NewPartitions(requests, 3)])[requests].result()
        wait_until(lambda: log.prepare(requests) and system.cluster.partitions(topic) == [0, 1, 2], "a third partition")


def test_a_name_that_is_too_long_for_a_topic_is_said() -> None:
    log = SnapshotLog(Settings(brokers="localhost:1"), "t" * 250, 0, stop)
    with pytest.raises(Unwritten, match="its name is too long for Kafka"):
        log.prepare("requests")
    log.close()


def test_silence_of_the_brokers_is_waited_for() -> None:
    waits = iter(range(3))

    def check() -> None:
        if next(waits, None) is None:
            raise Lost("told to stop")

    log = SnapshotLog(Settings(brokers="localhost:1"), "t", 0, check)
    named = NamedSnapshot(b"t", NUMBER, 0, 1, 0, 0, 0, b"")
    with pytest.raises(Lost, match="told to stop"):
        log.footer(named)
    log.close()
