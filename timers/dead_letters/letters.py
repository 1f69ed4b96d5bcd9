"""A dead letter as a line, for a program or in full, filters, and marks of those that were retried. Pure: no I/O."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from timers.core.timer import key_bytes
from timers.request_formats import NATIVE
from timers.wire import checks, dead_letter, future, topics
from timers.wire.dead_letter import QUEUE_CODES, RECEIVER_CODES, DecodedDeadLetter, Mark
from timers.wire.formats import RequestFormat, RequestRecord
from timers.wire.headers import Header
from timers.wire.printable import json_value, one_line, printable
from timers.wire.query import format_due

HEX_WIDTH = 16


@dataclass(frozen=True)
class Letter:
    """A record of the topic of dead letters."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    request: RequestRecord
    """The rejected request, with the letter's time; without key, value and headers in a truncated dead letter."""
    decoded: DecodedDeadLetter
    request_format: RequestFormat | None = None
    """Format of its request; None if its source is not in a request topic of this app, and no receiver wrote it."""

    @classmethod
    def of(cls, message: Any, headers: Sequence[Header], formats: Mapping[str, RequestFormat]) -> Letter | None:
        """Return the letter in a confluent-kafka message; None if it is not a dead letter."""
        decoded = dead_letter.decode(headers)
        if decoded is None:
            return None
        where, written_ms = (message.topic(), message.partition(), message.offset()), message.timestamp()[1]
        request = RequestRecord(message.offset(), message.key(), message.value(), decoded.headers, written_ms)
        source = topics.parse_source(decoded.source)
        request_format = formats.get(source[0]) if source else None
        return cls(*where, written_ms, request, decoded, NATIVE if decoded.code in RECEIVER_CODES else request_format)

    @property
    def position(self) -> str:
        """``<dead letter topic>/<partition>/<offset>``."""
        return topics.source(self.topic, self.partition, self.offset)

    @property
    def mark_key(self) -> tuple[str, str]:
        return self.position, self.decoded.source

    @property
    def is_of_receiver(self) -> bool:
        """Whether a receiver of messages wrote it: then its source is a message, and not its request."""
        return self.decoded.code in RECEIVER_CODES

    @property
    def is_truncated(self) -> bool:
        """Whether it has only error headers, because the request was too large."""
        return dead_letter.is_truncated(self.request.key, self.request.value, self.decoded)

    @property
    def is_cut(self) -> bool:
        """Whether it has only the first bytes of its request's value, because the value was too large."""
        return self.decoded.value_bytes is not None and self.decoded.value_bytes > len(self.request.value or b"")

    @property
    def summary(self) -> future.RequestSummary:
        """Due second, topic and key of its request, as far as they can be read."""
        rows = {} if self.request_format is None else self.request_format.read(self.request).rows
        for due_s, (row,) in rows.items():
            return future.RequestSummary(due_s, row[1], key_bytes(row[2]))
        return future.summarize_request(self.request.key, self.request.value, self.request.headers)

    @property
    def written_at(self) -> str:
        """Time of the record as text. Other programs may have written an invalid time."""
        second = self.timestamp_ms // 1000
        return format_due(second) if 0 <= second <= checks.MAX_DUE_S else f"{self.timestamp_ms} ms"

    def cells(self, mark: Mark | None) -> tuple[str, ...]:
        due_s, topic, _ = self.summary
        return (
            self.written_at,
            printable(self.decoded.code),
            f"{self.partition}/{self.offset}",
            printable(self.decoded.source),
            printable(topic or "-"),
            "-" if due_s is None else format_due(due_s),
            printable(mark.timer_id) if mark else "-",
        )

    def fields(self, mark: Mark | None, *, with_request: bool = False) -> dict[str, Any]:
        """The letter for a program; ``with_request`` adds key, value and headers of the request."""
        due_s, topic, key = self.summary
        fields: dict[str, Any] = {
            "code": self.decoded.code,
            "message": self.decoded.message,
            "source": self.decoded.source,
            "topic": topic,
            "key": json_value(key),
            "due_s": due_s,
            "position": self.position,
            "timestamp_ms": self.timestamp_ms,
            "truncated": self.is_truncated,
            "value_bytes": self.decoded.value_bytes,
            "value_sha256": self.decoded.value_sha256 or None,
            "retried_as": mark.timer_id if mark else None,
        }
        if with_request:
            fields["request"] = {
                "key": json_value(self.request.key),
                "value": json_value(self.request.value),
                "headers": [[name, json_value(value)] for name, value in self.decoded.headers],
            }
        return fields

    def text(self, mark: Mark | None, *, as_hex: bool) -> Iterator[str]:
        """The whole letter as lines of text."""
        due_s, topic, key = self.summary
        rows = [
            ("code", self.decoded.code),
            ("message", self.decoded.message),
            ("source", self.decoded.source),
            ("position", self.position),
            ("written", self.written_at),
            ("retried as", mark.timer_id if mark else "not retried"),
            ("topic", "-" if topic is None else f"'{topic}'"),
            ("key", "-" if key is None else f"'{one_line(key)}'"),
            ("due", "-" if due_s is None else f"{format_due(due_s)} ({due_s})"),
        ]
        for name, value in rows:
            yield f"{name:<12}{printable(value)}"
        if self.is_truncated:
            yield "request     not here: it was empty, or too large for this topic; it stands at its source"
            return
        for name, data in (("key", self.request.key), ("value", self.request.value)):
            yield f"request {name}, {_length(data)}"
            if name == "value" and self.is_cut:
                yield f"  the first of {self.decoded.value_bytes} bytes, SHA-256 {printable(self.decoded.value_sha256)}"
            yield from _indented(data, as_hex)
        yield f"request headers, {len(self.decoded.headers)}"
        for header, data in self.decoded.headers:
            yield f"  {printable(header)}, {_length(data)}"
            yield from (f"  {line}" for line in _indented(data, as_hex))


COLUMNS = ("WRITTEN", "CODE", "POSITION", "SOURCE", "TOPIC", "DUE", "RETRIED AS")
WIDTHS = (20, 21, 10, 24, 24, 20, 0)
"""Widths of the columns; longer texts move the columns after them."""


def _length(data: bytes | None) -> str:
    return "null" if data is None else f"{len(data)} bytes"


def _indented(data: bytes | None, as_hex: bool) -> Iterator[str]:
    """Bytes as lines of text if this shows all of them, else as a hexdump."""
    if not data:
        return
    text = None
    if not as_hex:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = None
    if text is not None and all(line == printable(line) for line in text.split("\n")):
        yield from (f"  {line}" for line in text.split("\n"))
        return
    for start in range(0, len(data), HEX_WIDTH):
        chunk = data[start : start + HEX_WIDTH]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in chunk)
        yield f"  {start:06x}  {chunk.hex(' '):<{3 * HEX_WIDTH}} {shown}"


class QueueTopics(NamedTuple):
    """A queue, as its dead letters name it."""

    topic: str
    """The queue's topic, with the messages."""
    returns_topic: str
    """Where its messages come back."""

    def owns(self, letter: Letter) -> bool:
        """Whether a dead letter is one of this queue's messages: given up by a receiver, or by a worker that could not
        return it.

        Truncated ones do not name their queue: they count for each queue on the topic of their message.
        """
        source = topics.parse_source(letter.decoded.source)
        return letter.summary.topic == self.returns_topic or (
            letter.is_truncated
            and letter.decoded.code in QUEUE_CODES
            and source is not None
            and source[0] in (self.topic, self.returns_topic)
        )


@dataclass(frozen=True)
class LetterFilter:
    """A selection of dead letters. Each attribute that is not empty and not None excludes letters."""

    codes: Collection[str] = ()
    topic: str | None = None
    since_s: int | None = None
    until_s: int | None = None
    partition: int | None = None
    from_offset: int | None = None
    to_offset: int | None = None
    names: Collection[str] = ()
    queue: QueueTopics | None = None

    def __contains__(self, letter: Letter) -> bool:
        return (
            (not self.codes or letter.decoded.code in self.codes)
            and (self.topic is None or letter.summary.topic == self.topic)
            and (self.since_s is None or letter.timestamp_ms >= self.since_s * 1000)
            and (self.until_s is None or letter.timestamp_ms < self.until_s * 1000)
            and (self.partition is None or letter.partition == self.partition)
            and (self.from_offset is None or letter.offset >= self.from_offset)
            and (self.to_offset is None or letter.offset < self.to_offset)
            and (not self.names or not self.names_of(letter).isdisjoint(self.names))
            and (self.queue is None or self.queue.owns(letter))
        )

    @staticmethod
    def names_of(letter: Letter) -> set[str]:
        """The names of a letter: its source and its position."""
        return {letter.decoded.source, letter.position}


_NAME_BYTES = 16


class Marks:
    """The newest marks of retried dead letters.

    One thread adds marks at a time; any may look them up meanwhile.

    Args:
        most: marks that are kept, the newest ones; None: all. A mark takes about 400 bytes.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self.is_whole = False
        """Whether the last reading came to the end of the topic."""
        self._next: dict[int, int] = {}
        self._kept: OrderedDict[bytes, tuple[str, int]] = OrderedDict()
        self._forgotten_ms: int | None = None

    def next_offset(self, partition: int) -> int:
        """The offset from which a partition must be read."""
        return self._next.get(partition, 0)

    def is_before(self, ends: Mapping[int, int]) -> bool:
        """Whether the topic can be the one that was read: none of its logs ends before what was read."""
        return all(self.next_offset(partition) <= end for partition, end in ends.items())

    def add(self, partition: int, offset: int, mark: Mark, written_ms: int) -> None:
        """Note the next mark of a partition."""
        self._next[partition] = offset + 1
        if topics.parse_source(mark.letter) is None:  # another program wrote it
            return
        name = _name(mark.letter, mark.source)
        self._kept[name] = mark.timer_id, written_ms
        self._kept.move_to_end(name)
        if self.most is not None and len(self._kept) > self.most:
            oldest = next(iter(self._kept))
            # Before it goes: who does not find it then sees that it may have been there.
            self._forgotten_ms = max(self._forgotten_ms or 0, self._kept[oldest][1])
            del self._kept[oldest]

    def of(self, letter: Letter) -> Mark | None:
        """The mark of a dead letter; None if there is none among those that were read and are kept."""
        found = self._kept.get(_name(*letter.mark_key))
        return None if found is None else Mark(*letter.mark_key, found[0])

    def may_be_forgotten(self, letter: Letter) -> bool:
        """Whether a mark of this dead letter may have been read, but not kept."""
        return self._forgotten_ms is not None and letter.timestamp_ms <= self._forgotten_ms + checks.PRODUCERS_CLOCKS_MS


def _name(letter: str, source: str) -> bytes:
    # Both are bytes of other programs and may be long.
    return hashlib.blake2b(f"{letter}\0{source}".encode(errors="surrogatepass"), digest_size=_NAME_BYTES).digest()
