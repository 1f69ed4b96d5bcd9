"""Workers in place of kafka-mq-go's redelivery tracker: its markers, as its consumers write them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.records import Publisher, Record
from tests.harness.system import MAX_LAG_MS, System
from timers.v1.marker_pb2 import Marker
from timers.wire.formats import marker

pytestmark = pytest.mark.broker

QUEUE = b"queue-1"
MESSAGE_PARTITIONS = 3


class Mq:
    """Queue topic and markers topic of kafka-mq-go, and what its producers and consumers write to them."""

    def __init__(self, address: str, directory: Path) -> None:
        run = uuid.uuid4().hex[:8]
        self.messages, self.markers = f"messages-{run}", f"markers-{run}"
        self.system = System(address, directory, TIMERS_MARKER_TOPIC=self.markers, TIMERS_MESSAGE_TOPIC=self.messages)
        self.system.create_topic(self.messages, MESSAGE_PARTITIONS)
        self.system.create_topic(self.markers, 2)
        self.delivered = self.system.reader(self.messages)
        self._messages = Publisher(address, self.messages, partitioner="random")
        self._markers = Publisher(address, self.markers, partitioner="murmur2_random")

    def send(self, count: int) -> list[Record]:
        """Send messages, and return them as a consumer gets them."""
        for number in range(count):
            self._messages.queue_raw(QUEUE, b"message %d" % number, [], None)  # type: ignore[arg-type]
        self._messages.flush()
        return sorted(self.delivered.take(count), key=lambda record: int((record.value or b"").split()[1]))

    def start(self, record: Record, after_ms: int) -> None:
        assert record.key is not None and record.value is not None
        self.mark(marker.encode_start(_id(record), record.key, record.value, after_ms))

    def keep_alive(self, record: Record, after_ms: int) -> None:
        self.mark(marker.encode_keep_alive(_id(record), after_ms))

    def end(self, record: Record) -> None:
        self.mark(marker.encode_end(_id(record)))

    def mark(self, value: bytes | None) -> None:
        self._markers.queue_raw(QUEUE, value, [], None)  # type: ignore[arg-type]

    def flush(self) -> None:
        self._markers.flush()

    def written(self) -> list[tuple[Record, Marker]]:
        """All markers in the topic, in order."""
        records = self.system.reader(self.markers).rest()
        return [(record, Marker.FromString(record.value or b"")) for record in records]


def _id(record: Record) -> str:
    return f"{record.partition}/{record.offset}"


@pytest.fixture
def mq(broker_address: str, tmp_path: Path) -> Iterator[Mq]:
    mq = Mq(broker_address, tmp_path)
    yield mq
    mq.system.close()


def test_a_message_without_an_end_is_delivered_again_when_its_lease_is_over(mq: Mq) -> None:
    worker = mq.system.worker().start().ready()
    ended, kept, dropped, late, *more = mq.send(4 + 12)
    for record in (ended, dropped, late, *more):
        mq.start(record, 3000)
    mq.start(kept, 3000)
    mq.flush()
    mq.keep_alive(kept, 7000)
    mq.end(ended)
    mq.keep_alive(ended, 1000)
    mq.flush()
    worker.kill()  # what follows is for the next one
    mq.system.worker().start().ready()
    again = {record.value: record for record in mq.delivered.take(3 + len(more))}
    assert again.keys() == {record.value for record in (kept, dropped, late, *more)}
    last_markers = {
        (read.message_id.partition, read.message_id.offset): (record, read)
        for record, read in mq.written()
        if read.type != Marker.END
    }
    for original in (kept, dropped, late, *more):
        record = again[original.value]
        marked, read = last_markers[original.partition, original.offset]
        assert (record.key, record.text("timer-id")) == (QUEUE, _id(original))
        assert record.due_s == -(-(marked.append_ms + read.redeliver_after_ms) // 1000)
        assert 0 <= record.lag_ms <= MAX_LAG_MS + 1000 * 10, "the worker was killed"
    assert len({record.partition for record in again.values()}) > 1, "all messages have the same key"
    ends = [f"{read.message_id.partition}/{read.message_id.offset}" for _, read in mq.written() if read.type == 1]
    assert sorted(ends) == sorted(map(_id, (ended, kept, dropped, late, *more)))
