"""Requests written to a topic, and records read from one as a ``read_committed`` receiver sees them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    IsolationLevel,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.harness.waiting import DEADLINE_S, wait_until
from timers.wire import future, topics

CLIENT = {"log_level": 0}
"""What a client cannot do, its call says: no second report on stderr."""

Headers = list[tuple[str, bytes | None]]


@dataclass
class Request:
    """One timer to ask for."""

    target: str
    due_s: int
    key: str = ""
    value: bytes = b""
    headers: Headers = field(default_factory=list)
    partition: int | None = None
    source: str = ""
    """``<topic>/<partition>/<offset>``, known once the broker has it."""

    @property
    def wire_key(self) -> bytes:
        return b"%d" % self.due_s

    @property
    def wire_value(self) -> bytes:
        return future.encode(self.target, self.key, self.value)


class Publisher:
    """An acks=all producer of one request topic.

    Args:
        address: of the broker.
        topic: where requests go.
        options: further settings of librdkafka's, such as ``partitioner``.
    """

    def __init__(self, address: str, topic: str, **options: Any) -> None:
        named = {name.replace("_", "."): value for name, value in options.items()}
        self.topic = topic
        self.producer = Producer({**CLIENT, "bootstrap.servers": address, "acks": "all", "linger.ms": 5, **named})

    def queue(self, requests: Iterable[Request]) -> None:
        """Hand requests over without waiting for the broker."""
        for request in requests:
            self._produce(request, request.wire_key, request.wire_value, request.headers, request.partition)

    def send(self, requests: Sequence[Request]) -> Sequence[Request]:
        """Publish, and return when the broker has them all; each then knows its ``source``."""
        self.queue(requests)
        self.flush()
        return requests

    def send_raw(self, key: bytes | None, value: bytes | None, headers: Headers, partition: int) -> str:
        """Publish anything, and return its source."""
        record = self.queue_raw(key, value, headers, partition)
        self.flush()
        return record.source

    def queue_raw(self, key: bytes | None, value: bytes | None, headers: Headers, partition: int) -> Request:
        """Hand anything over without waiting for the broker; what is returned knows its source after a flush."""
        record = Request("", 0)
        self._produce(record, key, value, headers, partition)
        return record

    def flush(self) -> None:
        assert self.producer.flush(DEADLINE_S) == 0, "the broker did not take all requests"

    def _produce(
        self, request: Request, key: bytes | None, value: bytes | None, headers: Headers, partition: int | None
    ) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            assert error is None, error
            request.source = topics.source(self.topic, message.partition(), message.offset())

        where = {} if partition is None else {"partition": partition}
        while True:
            try:
                self.producer.produce(self.topic, value, key, headers=headers, on_delivery=delivered, **where)
                break
            except BufferError:
                self.producer.poll(0.1)
        self.producer.poll(0)


@dataclass(frozen=True)
class Record:
    """One record as a receiver sees it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    append_ms: int

    @property
    def timer_id(self) -> str:
        return self.text("timer-id")

    @property
    def due_s(self) -> int:
        return int(self.text("timer-due"))

    @property
    def lag_ms(self) -> int:
        """Append time minus start of the due second; negative is early."""
        return self.append_ms - self.due_s * 1000

    def text(self, header: str) -> str:
        """The only value of a header."""
        values = [value for name, value in self.headers if name == header]
        assert len(values) == 1, f"{header} occurs {len(values)} times in {self.headers}"
        assert values[0] is not None
        return values[0].decode()


class Reader:
    """A receiver of one topic, from its beginning.

    Args:
        address: of the broker.
        topic: what to read.
        append_time: the topic's records carry the broker's time; anything else is then refused.
        committed: reads ``read_committed``.
    """

    def __init__(self, address: str, topic: str, *, append_time: bool = True, committed: bool = True) -> None:
        self.topic = topic
        self._append_time = append_time
        self._admin = AdminClient({**CLIENT, "bootstrap.servers": address})
        self._consumer = Consumer(
            {
                **CLIENT,
                "bootstrap.servers": address,
                "group.id": f"reader-of-{topic}",
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 20,
            }
        )

        def look() -> Any:  # a broker hears of a new topic a moment after it was made
            found = self._consumer.list_topics(topic, timeout=DEADLINE_S).topics[topic]
            return found if found.error is None else None

        found = wait_until(look, f"topic {topic} is there")
        self._partitions = [TopicPartition(topic, partition, 0) for partition in found.partitions]
        self._reached = dict.fromkeys(found.partitions, 0)
        self._consumer.assign(self._partitions)

    def close(self) -> None:
        self._consumer.close()

    def take(self, count: int, deadline_s: float = DEADLINE_S) -> list[Record]:
        """The next ``count`` records."""
        records: list[Record] = []
        give_up = time.monotonic() + deadline_s
        while len(records) < count:
            left = give_up - time.monotonic()
            assert left > 0, f"{self.topic}: {len(records)} of {count} records within {deadline_s:.0f} s"
            records += self._poll(min(left, 0.5), count - len(records))
        return records

    def rest(self, deadline_s: float = DEADLINE_S) -> list[Record]:
        """Everything up to the present end of the topic; waits for transactions that are open there."""
        latest = self._admin.list_offsets(
            {TopicPartition(p.topic, p.partition): OffsetSpec.latest() for p in self._partitions},
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
        )
        ends = {p.partition: ended.result(DEADLINE_S).offset for p, ended in latest.items()}
        records: list[Record] = []
        give_up = time.monotonic() + deadline_s
        while any(self._reached[partition] < end for partition, end in ends.items()):
            assert time.monotonic() < give_up, f"{self.topic}: a transaction stays open: {self._reached} of {ends}"
            records += self._poll(0.5, 100_000)
        return records

    def _poll(self, timeout_s: float, most: int) -> list[Record]:
        records = []
        for message in self._consumer.consume(min(most, 5000), timeout=timeout_s if most == 1 else 0.05):
            error = message.error()
            partition, offset = message.partition(), message.offset()
            assert partition is not None and offset is not None
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    self._reached[partition] = max(self._reached[partition], offset)
                    continue
                raise AssertionError(f"{self.topic}: {error}")
            self._reached[partition] = offset + 1
            kind, append_ms = message.timestamp()
            assert kind == TIMESTAMP_LOG_APPEND_TIME or not self._append_time, "lags need the broker's time"
            headers = message.headers() or []
            records.append(Record(self.topic, partition, offset, message.key(), message.value(), headers, append_ms))
        return records
