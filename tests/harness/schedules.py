"""A system with request topics for schedules in the format of kafka-message-scheduler."""

import time
import uuid
from pathlib import Path
from typing import Any

from tests.harness.records import Headers, Publisher, Record
from tests.harness.system import System
from tests.harness.waiting import DEADLINE_S
from timers.wire.formats import schedule

PARTITIONS = 3


class Schedules:
    """A system with two existing topics of schedules; the first one is compacted."""

    def __init__(self, address: str, directory: Path, **settings: str) -> None:
        run = uuid.uuid4().hex[:8]
        self.topics = (f"schedules-{run}", f"more-schedules-{run}")
        self.topic = self.topics[0]
        self.system = System(address, directory, TIMERS_SCHEDULE_TOPICS=",".join(self.topics), **settings)
        by_producers = {"message.timestamp.type": "CreateTime"}
        compacted = {
            "cleanup.policy": "compact",
            "segment.ms": "500",
            "min.cleanable.dirty.ratio": "0.001",
            "delete.retention.ms": "600000",
        }
        self.system.create_topic(self.topics[0], PARTITIONS, **compacted, **by_producers)
        self.system.create_topic(self.topics[1], 1, **by_producers)
        self.system.create_own_topics()
        self.target = self.system.target(partitions=2)
        self.fired = self.system.reader(self.target)
        self.producer: Any = Publisher(address, self.topic).producer  # its type stubs do not allow a list of Headers

    def set(
        self,
        id: bytes,
        due_s: int,
        value: bytes,
        *,
        key: bytes | None = b"key",
        headers: Headers | None = None,
        target: str = "",
        topic: str = "",
        timestamp_s: int | None = None,
    ) -> None:
        sent = [*(headers or ()), *schedule.encode_headers(due_s, target or self.target, key)]
        timestamp_ms = int(1000 * time.time()) if timestamp_s is None else 1000 * timestamp_s
        self.send(id, value, sent, topic, timestamp_ms)

    def delete(self, id: bytes) -> None:
        self.send(id, None, [])

    def send(
        self, id: bytes | None, value: bytes | None, headers: Headers, topic: str = "", timestamp_ms: int = 0
    ) -> None:
        self.producer.produce(topic or self.topic, value, id, headers=headers, timestamp=timestamp_ms)
        self.producer.poll(0)

    def flush(self) -> None:
        assert self.producer.flush(DEADLINE_S) == 0

    def log(self, topic: str = "") -> list[Record]:
        """All records of a topic of schedules."""
        reader = self.system.reader(topic or self.topic, append_time=False)
        return reader.rest()

    def wait_past(self, due_s: int) -> None:
        """Wait until all schedules due by ``due_s`` have fired, by waiting for later ones on each partition."""
        fence = self.system.target()
        reader = self.system.reader(fence)  # waits until the brokers know the topic
        for partition in range(PARTITIONS):
            sent = schedule.encode_headers(due_s, fence, None)
            self.producer.produce(self.topic, b"", f"fence-{partition}-{fence}".encode(), partition, headers=sent)
        self.flush()
        reader.take(PARTITIONS)

    def check_all_ended(self, topic: str = "") -> None:
        """Check that the last record of each id is a tombstone, and that each tombstone of the worker names a version
        of its id on the same partition."""
        log = self.log(topic)
        latest = {(record.partition, record.key): record for record in log}
        assert [record for record in latest.values() if record.value is not None] == []
        versions = {(record.partition, record.offset): record for record in log if record.value is not None}
        for record in log:
            if record.value is None and record.headers:
                ended = versions.get((record.partition, int(record.text("timer-fired-offset"))))
                assert ended is None or ended.key == record.key  # compaction may have removed it


def id_of(record: Record) -> bytes:
    return next(value or b"" for name, value in record.headers if name == "scheduler-key")
