"""Workers in place of kafka-mq-go's redelivery tracker: its markers, as its consumers write them."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.letters import await_letters
from tests.harness.records import Publisher, Record
from tests.harness.system import System
from timers.v1.marker_pb2 import Marker
from timers.wire.formats import marker

pytestmark = pytest.mark.broker

QUEUE = b"queue-1"
MESSAGE_PARTITIONS = 3
BAD = (b"no marker", None)


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

    def written(self) -> list[Record]:
        """All records of the markers topic."""
        return self.system.reader(self.markers).rest()

    def source(self, record: Record) -> str:
        return f"{record.topic}/{record.partition}/{record.offset}"


def _id(record: Record) -> str:
    return f"{record.partition}/{record.offset}"


def _place(read: Marker) -> str:
    return f"{read.message_id.partition}/{read.message_id.offset}"


@pytest.fixture
def mq(broker_address: str, tmp_path: Path) -> Iterator[Mq]:
    mq = Mq(broker_address, tmp_path)
    yield mq
    mq.system.close()


def test_a_message_without_an_end_is_delivered_again_when_its_lease_is_over(mq: Mq) -> None:
    """Also if the worker is killed before. Markers of one message that must not be late are sent together."""
    worker = mq.system.worker().start().ready()
    ended, kept, *dropped = mq.send(2 + 13)
    mq.start(ended, 3000)
    mq.end(ended)
    mq.keep_alive(ended, 1000)
    mq.start(kept, 3000)
    mq.keep_alive(kept, 6000)
    for record in dropped:
        mq.start(record, 3000)
    mq.mark(b"no marker")
    mq.mark(None)
    mq.flush()
    worker.kill()
    mq.system.worker().start().ready()
    again = {record.value: record for record in mq.delivered.take(1 + len(dropped))}
    assert again.keys() == {record.value for record in (kept, *dropped)}
    written = [(each, Marker.FromString(each.value or b"")) for each in mq.written() if each.value not in BAD]
    leases = {_place(read): (each, read) for each, read in written if read.type != Marker.END}
    for original in (kept, *dropped):
        record = again[original.value]
        marked, read = leases[_id(original)]
        assert (record.key, record.text("timer-id")) == (QUEUE, _id(original))
        assert record.due_s == -(-(marked.append_ms + read.redeliver_after_ms) // 1000)
        assert record.lag_ms >= 0
    assert len({record.partition for record in again.values()}) > 1, "all messages have the same key"
    ends = [_place(read) for _, read in written if read.type == Marker.END]
    assert sorted(ends) == sorted(map(_id, (ended, kept, *dropped)))
    letters = await_letters(mq.system, [mq.source(each) for each in mq.written() if each.value in BAD])
    assert {letter.text("timer-error") for letter in letters.values()} == {"value-not-a-marker", "value-missing"}
