"""Writes single requests, and reads single committed records."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)

from tests.harness.cluster import Cluster, client_settings
from tests.harness.waiting import DEADLINE_S, wait_until
from timers.wire import future, topics

Headers = list[tuple[str, bytes | None]]


@dataclass
class Request:
    """One request for a timer."""

    target: str
    due_s: int
    key: str = ""
    value: bytes = b""
    headers: Headers = field(default_factory=list)
    partition: int | None = None
    source: str = ""
    """``<topic>/<partition>/<offset>``; set when the broker has acknowledged it."""

    @property
    def wire_key(self) -> bytes:
        return b"%d" % self.due_s

    @property
    def wire_value(self) -> bytes:
        return future.encode(self.target, self.key, self.value)


class Publisher:
    """An acks=all producer of one request topic.

    Args:
        address: address of the broker.
        topic: request topic.
        options: other settings of librdkafka, such as ``partitioner``.
    """

    def __init__(self, address: str, topic: str, **options: Any) -> None:
        self.topic = topic
        self.producer = Producer(client_settings(address, **{"acks": "all", "linger_ms": 5, **options}))

    def queue(self, requests: Iterable[Request]) -> None:
        """Give requests to the client without waiting for the broker."""
        for request in requests:
            self._produce(request, request.wire_key, request.wire_value, request.headers, request.partition)

    def send(self, requests: Sequence[Request]) -> Sequence[Request]:
        """Publish, wait for the acknowledgements, and set the ``source`` of each request."""
        self.queue(requests)
        self.flush()
        return requests

    def send_raw(self, key: bytes | None, value: bytes | None, headers: Headers, partition: int) -> str:
        """Publish any record, and return its source."""
        record = self.queue_raw(key, value, headers, partition)
        self.flush()
        return record.source

    def queue_raw(self, key: bytes | None, value: bytes | None, headers: Headers, partition: int) -> Request:
        """Give any record to the client without waiting; the result has its ``source`` after a flush."""
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
            at, offset = message.partition(), message.offset()
            assert at is not None and offset is not None
            request.source = topics.source(self.topic, at, offset)

        where = -1 if partition is None else partition  # -1: the partitioner of the client chooses
        sent = cast("list[tuple[str, str | bytes | None]]", headers)
        while True:
            try:
                self.producer.produce(self.topic, value, key, where, delivered, headers=sent)
                break
            except BufferError:
                self.producer.poll(0.1)
        self.producer.poll(0)


@dataclass(frozen=True)
class Record:
    """One record that was read."""

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
        """Milliseconds from the start of the due second to the append time; negative: early."""
        return self.append_ms - self.due_s * 1000

    def text(self, header: str) -> str:
        """The value of a header that the record has once."""
        values = [value for name, value in self.headers if name == header]
        assert len(values) == 1, f"{header} occurs {len(values)} times in {self.headers}"
        assert values[0] is not None
        return values[0].decode()


class Reader:
    """Reads one topic from its beginning.

    Args:
        address: address of the broker.
        topic: name of the topic.
        append_time: whether to check that timestamps are append times.
        committed: whether to read only committed records.
    """

    def __init__(self, address: str, topic: str, *, append_time: bool = True, committed: bool = True) -> None:
        self.topic = topic
        self._append_time = append_time
        self._cluster = Cluster(address)
        self._consumer = Consumer(
            {
                **client_settings(address),
                "group.id": f"reader-of-{topic}",
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                # How long a fetch waits if there is no record: many readers fetch all the time, and one that is at
                # the end of the log must know it soon.
                "fetch.wait.max.ms": 200,
            }
        )

        def look() -> Any:  # a broker knows a new topic a moment after the controller
            found = self._consumer.list_topics(topic, timeout=DEADLINE_S).topics[topic]
            return found if found.error is None else None

        found = wait_until(look, f"topic {topic} is there")
        self._partitions = [TopicPartition(topic, partition, 0) for partition in found.partitions]
        self._reached = dict.fromkeys(found.partitions, 0)
        self._consumer.assign(self._partitions)

    def close(self) -> None:
        self._consumer.close()

    def take(self, count: int, deadline_s: float = DEADLINE_S) -> list[Record]:
        """Wait for the next ``count`` records and return them."""
        records: list[Record] = []
        give_up = time.monotonic() + deadline_s
        while len(records) < count:
            left = give_up - time.monotonic()
            assert left > 0, f"{self.topic}: {len(records)} of {count} records within {deadline_s:.0f} s"
            records += self._poll(min(left, 0.5), count - len(records))
        return records

    def rest(self, deadline_s: float = DEADLINE_S) -> list[Record]:
        """All records up to the present end of the topic, after the end of its open transactions."""
        ends = self._cluster.ends(self.topic)
        records: list[Record] = []
        give_up = time.monotonic() + deadline_s
        while any(self._reached[partition] < end for partition, end in ends.items()):
            assert time.monotonic() < give_up, f"{self.topic}: a transaction stays open: {self._reached} of {ends}"
            records += self._poll(0.5, 100_000)
        return records

    def _poll(self, timeout_s: float, count: int) -> list[Record]:
        records = []
        for message in self._consumer.consume(min(count, 5000), timeout=timeout_s if count == 1 else 0.05):
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
            assert kind == TIMESTAMP_LOG_APPEND_TIME or not self._append_time, (
                f"{self.topic} has the producer's time, not the broker's"
            )
            headers = cast("Headers", message.headers() or [])
            records.append(Record(self.topic, partition, offset, message.key(), message.value(), headers, append_ms))
        return records
