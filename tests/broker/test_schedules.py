"""Topics of kafka-message-scheduler: its records, unchanged, in topics that stay its users' own."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.patience import due_in
from tests.harness.records import Headers, Publisher, Record
from tests.harness.system import System
from timers.wire.doors import schedule

pytestmark = pytest.mark.broker

PARTITIONS = 3


class Schedules:
    """A system whose door for schedules is open, over topics that its users have made."""

    def __init__(self, address: str, directory: Path, **settings: str) -> None:
        run = uuid.uuid4().hex[:8]
        self.topics = (f"schedules-{run}", f"more-schedules-{run}")
        self.topic = self.topics[0]
        self.system = System(address, directory, TIMERS_SCHEDULE_TOPICS=",".join(self.topics), **settings)
        by_producers = {"message.timestamp.type": "CreateTime"}
        self.system.create_topic(self.topics[0], PARTITIONS, **{"cleanup.policy": "compact"}, **by_producers)
        self.system.create_topic(self.topics[1], 1, **by_producers)
        self.system.create_own_topics()
        self.target = self.system.target(partitions=2)
        self.fired = self.system.reader(self.target)
        self.producer = Publisher(address, self.topic).producer

    def set(
        self,
        id: bytes,
        due_s: int,
        value: bytes,
        *,
        key: bytes | None = b"key",
        headers: Headers = (),  # type: ignore[assignment]
        target: str = "",
        topic: str = "",
        timestamp_s: int = 0,
    ) -> None:
        sent = [*headers, *schedule.encode_headers(due_s, target or self.target, key)]
        where = topic or self.topic
        self.producer.produce(where, value, id, headers=sent, timestamp=1000 * timestamp_s or int(1000 * time.time()))

    def delete(self, id: bytes) -> None:
        self.producer.produce(self.topic, None, id)

    def log(self, topic: str = "") -> list[Record]:
        """All that can be read of a topic of schedules."""
        reader = self.system.reader(topic or self.topic, append_time=False)
        return reader.rest()


@pytest.fixture(scope="module")
def schedules(broker_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Schedules]:
    schedules = Schedules(broker_address, tmp_path_factory.mktemp("schedules"))
    yield schedules
    schedules.system.close()


def test_message_for_message(schedules: Schedules) -> None:
    schedules.system.worker().start().ready()
    due_s = due_in(4)
    schedules.set(b"vid1-online", due_s + 90, b'"video 0"', key=b"vid1")
    schedules.set(
        b"vid1-online",
        due_s,
        b'"video 1"',
        key=b"vid1",
        headers=[("customer-header", b"dummy")],
        timestamp_s=1607918336,
    )
    schedules.set(b"vid2-online", due_s, b"deleted")
    schedules.delete(b"vid2-online")
    schedules.set(b"\xff\xfe", due_s, b"", key=b"\x80")
    schedules.set(b"no-key", due_s, b"v", key=None)
    schedules.set(b"elsewhere", due_s, b"v", topic=schedules.topics[1])
    schedules.producer.flush()
    records = schedules.fired.take(4)
    by_id = {next(value for name, value in r.headers if name == "scheduler-key"): r for r in records}
    assert by_id.keys() == {b"vid1-online", b"\xff\xfe", b"no-key", b"elsewhere"}
    video = by_id[b"vid1-online"]
    assert (video.key, video.value) == (b"vid1", b'"video 1"')
    assert video.headers[:5] == [
        ("customer-header", b"dummy"),
        ("scheduler-timestamp", b"1607918336"),
        ("scheduler-key", b"vid1-online"),
        ("scheduler-topic", schedules.topic.encode()),
        ("timer-id", b"vid1-online"),
    ]
    assert [name for name, _ in video.headers[5:]] == ["timer-due", "timer-fired"]
    assert (by_id[b"\xff\xfe"].key, by_id[b"\xff\xfe"].value) == (b"\x80", b"")
    assert dict(by_id[b"\xff\xfe"].headers)["timer-id"] == b"\xff\xfe"
    assert by_id[b"no-key"].key is None
    assert by_id[b"elsewhere"].text("scheduler-topic") == schedules.topics[1]
    assert all(record.due_s == due_s and record.lag_ms >= 0 for record in records)
    for topic in schedules.topics:
        log = schedules.log(topic)
        latest = {record.key: record for record in log}
        assert all(record.value is None for record in latest.values())
        for record in log:
            if record.value is None and record.headers:
                ended = next(
                    r
                    for r in log
                    if r.partition == record.partition and r.offset == int(record.text("timer-fired-offset"))
                )
                assert ended.key == record.key and ended.value is not None
