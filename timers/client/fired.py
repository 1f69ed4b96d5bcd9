"""One record of a callback topic as a line or for a program. Pure: no I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from timers.kafka.records import headers_of
from timers.wire import headers as names
from timers.wire.headers import Header
from timers.wire.printable import json_value, one_line

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_VALUE_BYTES = 200
"""Bytes of a value that a line shows."""

_OWN = frozenset({names.TIMER_ID, names.TIMER_SOURCE, names.TIMER_DUE, names.TIMER_FIRED})

_HEADER_BYTES = 200
"""What Python needs for a header beside its name and its value. A record of 1 MB may have 500,000 empty headers."""


@dataclass(frozen=True)
class CallbackRecord:
    """A record of a callback topic.

    Attributes:
        timestamp_ms: the broker's append time on topics with LogAppendTime, else the time its producer gave it.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]

    @classmethod
    def of(cls, message: Any) -> CallbackRecord:
        """Convert a confluent-kafka message without an error."""
        return cls(
            message.topic(),
            message.partition(),
            message.offset(),
            message.timestamp()[1],
            message.key(),
            message.value(),
            headers_of(message),
        )

    def cut(self, most: int) -> CallbackRecord:
        """The record with at most so many bytes of its key and of its value, and with headers of the engine alone."""
        headers = [(name, value[:most] if value else value) for name, value in self.headers if name in _OWN]
        return replace(self, key=self.key and self.key[:most], value=self.value and self.value[:most], headers=headers)

    @property
    def size(self) -> int:
        """About how many bytes of memory the record takes."""
        headers = sum(_HEADER_BYTES + len(name) + len(value or b"") for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + headers

    @property
    def due_s(self) -> int | None:
        """The due second; None if the record is not a callback of a timer."""
        due = names.last(self.headers, names.TIMER_DUE)
        return int(due) if due is not None and re.fullmatch(rb"[0-9]{1,11}", due) else None

    @property
    def lag_ms(self) -> int | None:
        """Milliseconds from the start of the due second to the record's timestamp; None without a due second."""
        return None if self.due_s is None else self.timestamp_ms - self.due_s * 1000

    def line(self) -> str:
        """``fired topic=T key=K due=S lag_ms=N``; for a record without a timer, its offset and time."""
        where = f"topic={self.topic} key={one_line(self.key)}"
        if self.due_s is None:
            return f"record {where} partition={self.partition} offset={self.offset} timestamp_ms={self.timestamp_ms}"
        return f"fired {where} due={self.due_s} lag_ms={self.lag_ms}"

    def long_line(self) -> str:
        """The line, followed by ``at=TIME value=V``: the timestamp as RFC 3339 in UTC, and the first 200 bytes."""
        try:
            at = (_EPOCH + timedelta(milliseconds=self.timestamp_ms)).isoformat(timespec="milliseconds")[:-6] + "Z"
        except OverflowError:
            at = "after-9999"
        value = one_line(self.value and self.value[:_MAX_VALUE_BYTES])
        rest = f" ... ({len(self.value):,} bytes)" if self.value and len(self.value) > _MAX_VALUE_BYTES else ""
        return f"{self.line()} at={at} value={value}{rest}"

    def fields(self) -> dict[str, Any]:
        """The record for a program."""
        timer_id = names.last(self.headers, names.TIMER_ID)
        source = names.last(self.headers, names.TIMER_SOURCE) or timer_id
        return {
            "topic": self.topic,
            "key": json_value(self.key),
            "due_s": self.due_s,
            "lag_ms": self.lag_ms,
            "timer_id": json_value(timer_id),
            "source": None if self.due_s is None else json_value(source),
            "value": json_value(self.value),
            "headers": [[name, json_value(value)] for name, value in self.headers],
            "partition": self.partition,
            "offset": self.offset,
            "timestamp_ms": self.timestamp_ms,
        }
