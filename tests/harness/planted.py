"""Writes requests, and what an engine writes or must not write, to try the audit.

Two writers put the same records on the topics: one with the code of the product, and one byte by byte, which shares
no code with it.
"""

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, TypeAlias

from confluent_kafka import Producer

from tests.harness.records import Headers
from tests.harness.system import System
from tests.harness.waiting import DEADLINE_S
from timers.core.operation import Verdict
from timers.core.timer import Rejected
from timers.wire import cold, dead_letter, future, verdict
from timers.wire import headers as h
from timers.wire.formats import RequestRecord, countdown, future_by_id, schedule

Record: TypeAlias = tuple[bytes | None, bytes, Headers, int]
"""Key, value, headers and time of a request."""


@dataclass(frozen=True)
class Asked:
    """A request, and what its callback must be."""

    source: str
    timer_id: str
    due_s: int
    target: str
    key: bytes | None
    value: bytes
    headers: Headers
    """Headers that go from the request to the callback."""
    record: Record


class Writer(ABC):
    """Writes records to the topics of a system. The times of most records are those that the test says."""

    def __init__(self, system: System) -> None:
        self._settings = system.settings
        self._producer: Any = Producer(
            {"bootstrap.servers": system.address, "acks": "all", "linger.ms": 0, "partitioner": "murmur2_random"}
        )

    # ---- encodings --------------------------------------------------------------------------------------------------

    @abstractmethod
    def future(self, topic: str, key: str, value: bytes) -> bytes: ...
    @abstractmethod
    def due_headers(self, due_s: int) -> Headers: ...
    @abstractmethod
    def countdown(self, topic: str, message: str, seconds: float) -> bytes: ...
    @abstractmethod
    def schedule_headers(self, due_s: int, topic: str, key: bytes) -> Headers: ...
    @abstractmethod
    def scheduled_headers(self, topic: str, id: bytes, time_ms: int) -> Headers: ...
    @abstractmethod
    def callback_headers(self, asked: Asked, tick_ms: int) -> Headers: ...
    @abstractmethod
    def letter_headers(self, asked: Asked) -> Headers: ...
    @abstractmethod
    def verdict(self, id: str, name: str, due_s: int) -> bytes: ...
    @abstractmethod
    def cold_headers(self, asked: Asked) -> Headers: ...

    # ---- records ----------------------------------------------------------------------------------------------------

    def write(self, topic: str, key: bytes | None, value: bytes | None, headers: Headers, time_ms: int) -> str:
        """Write a record, and return its source."""
        places: list[str] = []

        def delivered(error: object, message: Any) -> None:
            assert error is None, error
            places.append(f"{message.topic()}/{message.partition()}/{message.offset()}")

        self._producer.produce(topic, value, key, headers=headers, timestamp=time_ms, on_delivery=delivered)
        assert self._producer.flush(DEADLINE_S) == 0
        return places[0]

    def ask(
        self,
        target: str,
        due_s: int,
        at_ms: int,
        key: str = "key",
        value: bytes = b"value",
        headers: Headers | None = None,
    ) -> Asked:
        """A native request."""
        sent = list(headers or ())
        record: Record = b"%d" % due_s, self.future(target, key, value), sent, at_ms
        source = self.write(self._settings.request_topic, *record)
        return Asked(source, source, due_s, target, key.encode(), value, sent, record)

    def ask_by_id(self, target: str, id: str, due_s: int, at_ms: int) -> Asked:
        record: Record = id.encode(), self.future(target, "key", b"by id"), self.due_headers(due_s), at_ms
        source = self.write(self._settings.id_topic, *record)
        return Asked(source, id, due_s, target, b"key", b"by id", [], record)

    def cancel(self, id: str, at_ms: int) -> str:
        return self.write(self._settings.id_topic, id.encode(), None, [], at_ms)

    def wait(self, target: str, due_s: int, seconds: int) -> Asked:
        """A countdown."""
        record: Record = b"key", self.countdown(target, "message", seconds), [], (due_s - seconds) * 1000
        source = self.write(self._settings.countdown_topic, *record)
        return Asked(source, source, due_s, target, b"key", b"message", [], record)

    def schedule(self, target: str, id: str, due_s: int, at_ms: int) -> Asked:
        topic = self._settings.schedule_topics[0]
        record: Record = id.encode(), b"scheduled", self.schedule_headers(due_s, target, b"key"), at_ms
        source = self.write(topic, *record)
        headers = self.scheduled_headers(topic, id.encode(), at_ms)
        return Asked(source, id, due_s, target, b"key", b"scheduled", headers, record)

    def fire(self, asked: Asked, tick_ms: int | None = None, **other: Any) -> None:
        """The callback of a request; ``other`` replaces its key, value or headers."""
        tick_ms = asked.due_s * 1000 + 20 if tick_ms is None else tick_ms
        key, value = other.get("key", asked.key), other.get("value", asked.value)
        headers = [*other.get("headers", asked.headers), *self.callback_headers(asked, tick_ms)]
        self.write(asked.target, key, value, headers, tick_ms)

    def write_dead_letter(self, asked: Asked) -> None:
        """The dead letter of a request."""
        key, value, headers, at_ms = asked.record
        all_headers = [*headers, *self.letter_headers(asked)]
        self.write(self._settings.dead_letter_topic, key, value, all_headers, at_ms)

    def write_verdict(self, source: str, asked: Asked, name: str) -> None:
        """A verdict on the record at ``source``, which changed ``asked``."""
        value = self.verdict(asked.timer_id, name, asked.due_s)
        headers: Headers = [("timer-source", source.encode())]
        self.write(self._settings.verdict_topic, asked.timer_id.encode(), value, headers, asked.due_s * 1000)

    def put_cold(self, asked: Asked) -> None:
        """The request on the topic of the cold tier."""
        key, value, headers, at_ms = asked.record
        self.write(self._settings.cold_topic, key, value, [*headers, *self.cold_headers(asked)], at_ms)


class ProductWriter(Writer):
    """Writes with the code of the product."""

    def future(self, topic: str, key: str, value: bytes) -> bytes:
        return future.encode(topic, key, value)

    def due_headers(self, due_s: int) -> Headers:
        return future_by_id.encode_headers(due_s)

    def countdown(self, topic: str, message: str, seconds: float) -> bytes:
        return countdown.encode(topic, message, seconds)

    def schedule_headers(self, due_s: int, topic: str, key: bytes) -> Headers:
        return schedule.encode_headers(due_s, topic, key)

    def scheduled_headers(self, topic: str, id: bytes, time_ms: int) -> Headers:
        stamp = b"%d" % (time_ms // 1000)
        return [(schedule.TIMESTAMP, stamp), (schedule.KEY, id), (schedule.TOPIC, topic.encode())]

    def callback_headers(self, asked: Asked, tick_ms: int) -> Headers:
        identity = h.identity(asked.timer_id.encode(), asked.source.encode())
        return [*identity, *h.firing(asked.due_s, b"%d" % tick_ms)]

    def letter_headers(self, asked: Asked) -> Headers:
        rejected = Rejected(0, "topic-unknown", "no such topic", None, b"", [])
        return dead_letter.encode(rejected, asked.source, 10_000).headers

    def verdict(self, id: str, name: str, due_s: int) -> bytes:
        return verdict.encode(Verdict(id.encode(), 0, name, due_s), str)  # type: ignore[arg-type]

    def cold_headers(self, asked: Asked) -> Headers:
        key, value, headers, at_ms = asked.record
        sealed = cold.encode_cold(RequestRecord(0, key, value, headers, at_ms), asked.source, asked.due_s, 7)
        return sealed[len(headers) :]


class ByteWriter(Writer):
    """Writes byte by byte, as the documentation says."""

    def future(self, topic: str, key: str, value: bytes) -> bytes:
        fields = ((0x0A, topic.encode()), (0x12, key.encode()), (0x1A, value))

        def length(count: int) -> list[int]:
            assert count < 128 * 128
            return [count] if count < 128 else [count % 128 + 128, count // 128]

        return b"".join(bytes([tag, *length(len(content))]) + content for tag, content in fields if content)

    def due_headers(self, due_s: int) -> Headers:
        return [("timer-due", str(due_s).encode())]

    def countdown(self, topic: str, message: str, seconds: float) -> bytes:
        return json.dumps({"countdown": seconds, "message": message, "topic": topic}).encode()

    def schedule_headers(self, due_s: int, topic: str, key: bytes) -> Headers:
        return [
            ("scheduler-target-key", key),
            ("scheduler-target-topic", topic.encode()),
            ("scheduler-epoch", str(due_s).encode()),
        ]

    def scheduled_headers(self, topic: str, id: bytes, time_ms: int) -> Headers:
        return [
            ("scheduler-timestamp", str(time_ms // 1000).encode()),
            ("scheduler-key", id),
            ("scheduler-topic", topic.encode()),
        ]

    def callback_headers(self, asked: Asked, tick_ms: int) -> Headers:
        source = [] if asked.timer_id == asked.source else [("timer-source", asked.source)]
        named = [
            *source,
            ("timer-id", asked.timer_id),
            ("timer-due", str(asked.due_s)),
            ("timer-fired", str(tick_ms)),
        ]
        return [(name, text.encode()) for name, text in named]

    def letter_headers(self, asked: Asked) -> Headers:
        return [
            ("timer-error", b"topic-unknown"),
            ("timer-error-message", b"there is no such topic"),
            ("timer-source", asked.source.encode()),
        ]

    def verdict(self, id: str, name: str, due_s: int) -> bytes:
        return json.dumps({"id": id, "verdict": name, "due": due_s}).encode()

    def cold_headers(self, asked: Asked) -> Headers:
        return [
            ("timer-source", asked.source.encode()),
            ("timer-due", str(asked.due_s).encode()),
            ("timer-appended", str(asked.record[3]).encode()),
            ("timer-seal", b"0123456789abcdef" * 2),
        ]
