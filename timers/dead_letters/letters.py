"""One dead letter as a line, as JSON or in full, and which of them are meant. Pure: works on what a message says."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from timers.core.timer import key_bytes
from timers.wire import checks, dead_letter, future, topics
from timers.wire import headers as h
from timers.wire.dead_letter import DecodedDeadLetter, Mark
from timers.wire.formats import RequestFormat, RequestRecord
from timers.wire.headers import Header
from timers.wire.printable import json_value, one_line
from timers.wire.query import format_due

HEX_WIDTH = 16


@dataclass(frozen=True)
class Letter:
    """A dead letter as it stands in its topic."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    request: RequestRecord
    """Its request; empty in a truncated dead letter. Its time is the letter's."""
    opened: DecodedDeadLetter
    request_format: RequestFormat | None = None
    """By which its request came; None: by none of this app."""

    @classmethod
    def of(cls, message: Any, formats: Mapping[str, RequestFormat]) -> Letter | None:
        """From a confluent-kafka message without an error; None if it is no dead letter."""
        try:
            headers = message.headers() or []
        except UnicodeDecodeError:  # nothing that a worker writes
            return None
        opened = dead_letter.decode(headers)
        if opened is None:
            return None
        where, written_ms = (message.topic(), message.partition(), message.offset()), message.timestamp()[1]
        request = RequestRecord(message.offset(), message.key(), message.value(), opened.headers, written_ms)
        source = topics.parse_source(opened.source)
        return cls(*where, written_ms, request, opened, formats.get(source[0]) if source else None)

    @property
    def position(self) -> str:
        """``<dead letter topic>/<partition>/<offset>``."""
        return topics.source(self.topic, self.partition, self.offset)

    @property
    def mark_key(self) -> tuple[str, str]:
        """Key of the letter's mark: its position and its source."""
        return self.position, self.opened.source

    @property
    def is_truncated(self) -> bool:
        """Whether it holds nothing of its request."""
        return dead_letter.is_truncated(self.request.key, self.request.value, self.opened)

    @property
    def asked(self) -> future.RequestSummary:
        """What its request asks for, as far as it can be read."""
        rows = {} if self.request_format is None else self.request_format.read(self.request).rows
        for due_s, (row,) in rows.items():
            return future.RequestSummary(due_s, row[1], (key_bytes(row[2]) or b"").decode(errors="replace"))
        return future.summarize_request(self.request.key, self.request.value)

    @property
    def when(self) -> str:
        """When it was written; a record that is not a worker's may say anything."""
        second = self.timestamp_ms // 1000
        return format_due(second) if 0 <= second <= checks.MAX_DUE_S else f"{self.timestamp_ms} ms"

    def cells(self, mark: Mark | None) -> tuple[str, ...]:
        """What :data:`COLUMNS` say."""
        due_s, topic, _ = self.asked
        return (
            self.when,
            one_line(self.opened.code.encode()),
            f"{self.partition}/{self.offset}",
            one_line(self.opened.source.encode()),
            one_line(topic.encode()) if topic else "-",
            "-" if due_s is None else format_due(due_s),
            one_line(mark.timer_id.encode()) if mark else "-",
        )

    def json(self, mark: Mark | None, *, whole: bool = False) -> str:
        """Everything in one line, bytes that are not UTF-8 as ``{"base64": ...}``; the request's only if ``whole``."""
        due_s, topic, key = self.asked
        fields: dict[str, object] = {
            "code": self.opened.code,
            "message": self.opened.message,
            "source": self.opened.source,
            "topic": topic,
            "key": key,
            "due_s": due_s,
            "position": self.position,
            "timestamp_ms": self.timestamp_ms,
            "truncated": self.is_truncated,
            "retried_as": mark.timer_id if mark else None,
        }
        if whole:
            fields["request"] = {
                "key": json_value(self.request.key),
                "value": json_value(self.request.value),
                "headers": [[name, json_value(value)] for name, value in self.opened.headers],
            }
        return json.dumps(fields)

    def text(self, mark: Mark | None, *, as_hex: bool) -> Iterator[str]:
        """Everything, for a person."""
        due_s, topic, key = self.asked
        rows = [
            ("code", self.opened.code),
            ("message", self.opened.message),
            ("source", self.opened.source),
            ("position", self.position),
            ("written", self.when),
            ("retried as", mark.timer_id if mark else "not retried"),
            ("topic", "-" if topic is None else repr(topic)),
            ("key", "-" if key is None else repr(key)),
            ("due", "-" if due_s is None else f"{format_due(due_s)} ({due_s})"),
        ]
        for name, value in rows:
            yield f"{name:<12}{one_line(value.encode())}"
        if self.is_truncated:
            yield "request     not here: it was empty, or too large for this topic; it stands at its source"
            return
        for name, data in (("key", self.request.key), ("value", self.request.value)):
            yield f"request {name}, {_length(data)}"
            yield from _indented(data, as_hex)
        yield f"request headers, {len(self.opened.headers)}"
        for header, data in self.opened.headers:
            yield f"  {one_line(header.encode())}, {_length(data)}"
            yield from (f"  {line}" for line in _indented(data, as_hex))


COLUMNS = ("WRITTEN", "CODE", "POSITION", "SOURCE", "TOPIC", "DUE", "RETRIED AS")
WIDTHS = (20, 21, 10, 24, 24, 20, 0)
"""Of columns, as far as what stands there is short enough."""


def _length(data: bytes | None) -> str:
    return "null" if data is None else f"{len(data)} bytes"


def _indented(data: bytes | None, as_hex: bool) -> Iterator[str]:
    """Bytes as text if they are some, else as hexdump has them."""
    if not data:
        return
    text = None
    if not as_hex:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = None
    if text is not None and all(line.isprintable() for line in text.split("\n")):
        yield from (f"  {line}" for line in text.split("\n"))
        return
    for at in range(0, len(data), HEX_WIDTH):
        piece = data[at : at + HEX_WIDTH]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
        yield f"  {at:06x}  {piece.hex(' '):<{3 * HEX_WIDTH}} {shown}"


@dataclass(frozen=True)
class LetterFilter:
    """Which dead letters are meant. What is empty or None says nothing.

    Attributes:
        codes: one of them.
        target: where its callback should go.
        since_s: written then or later.
        until_s: written before.
        partition: of the dead letter topic.
        from_offset: in that partition, inclusive.
        to_offset: in that partition, exclusive.
        names: its source or its position is one of them.
    """

    codes: Collection[str] = ()
    target: str | None = None
    since_s: int | None = None
    until_s: int | None = None
    partition: int | None = None
    from_offset: int | None = None
    to_offset: int | None = None
    names: Collection[str] = ()

    @property
    def everything(self) -> bool:
        """Whether nothing was said."""
        return self == LetterFilter()

    def __contains__(self, letter: Letter) -> bool:
        return (
            (not self.codes or letter.opened.code in self.codes)
            and (self.target is None or letter.asked.topic == self.target)
            and (self.since_s is None or letter.timestamp_ms >= self.since_s * 1000)
            and (self.until_s is None or letter.timestamp_ms < self.until_s * 1000)
            and (self.partition is None or letter.partition == self.partition)
            and (self.from_offset is None or letter.offset >= self.from_offset)
            and (self.to_offset is None or letter.offset < self.to_offset)
            and (not self.names or not self.names_of(letter).isdisjoint(self.names))
        )

    @staticmethod
    def names_of(letter: Letter) -> set[str]:
        """By what a letter can be named."""
        return {letter.opened.source, letter.position}


class Verdict(NamedTuple):
    """What becomes of a letter that is to be retried."""

    request: RequestRecord | None
    """To be published; None: it is not."""
    kind: str = ""
    """Why not, in words that fit many."""
    reason: str = ""
    """Why not."""


def judge(
    letter: Letter, request: RequestRecord | None, mark: Mark | None, max_request_bytes: int, force: bool
) -> Verdict:
    """Whether the request of a dead letter may be published again.

    Args:
        letter: the dead letter.
        request: what it holds, or, for a truncated dead letter, what stands at its source; None if that is gone.
        mark: says that it was published again before.
        max_request_bytes: as the worker has it.
        force: publish what was published before, what is bound to be rejected again, and what would change an id.
    """
    request_format = letter.request_format
    if request_format is None:  # whatever a source says, nothing is published but to topics that timers come in by
        reason = "it does not come from a topic of requests that is set (`timers formats` shows them)"
        return Verdict(None, "not from a topic of requests", reason)
    if mark is not None and not force:
        return Verdict(None, "retried before", f"it was published again before, as {mark.timer_id}")
    if request is None:
        reason = "it holds nothing of its request, which is no longer in its topic"
        return Verdict(None, "truncated dead letters whose request is gone", reason)
    small = dead_letter.size(request.key, request.value, ()) <= max_request_bytes
    if letter.is_truncated and not request.headers and small and not force:
        reason = "its request is not large and shows no headers, so it may have more than librdkafka reads (100,000)"
        return Verdict(None, "truncated dead letters that would lose headers", reason)
    decoded = request_format.decode([request], max_request_bytes)
    if decoded.rejected and not force:
        rejected = decoded.rejected[0]
        return Verdict(None, "bound to be rejected again", f"it would be rejected again: {rejected.message}")
    if request_format.topic_is_compacted and not force:
        reason = "in a compacted topic it would erase what its id means by now; send it anew from where it comes from"
        return Verdict(None, "with an id", reason)
    if request_format.republish_unchanged or not (decoded.rows or decoded.operations):
        return Verdict(request)
    if decoded.rows and letter.opened.code in dead_letter.WHEN_DUE:
        return Verdict(request._replace(headers=_again(request.headers or (), next(iter(decoded.rows)))))
    if decoded.operations and not force:
        reason = "it has an id, and would change what that means by now; send it anew from where it comes from"
        return Verdict(None, "with an id", reason)
    return Verdict(request)


def _again(headers: Sequence[Header], due_s: int) -> list[Header]:
    """Headers of a request that had its second, and failed: what is published again keeps that."""
    said: list[Header] = [] if h.republished_due(headers) is not None else [(h.TIMER_AGAIN, b"%d" % due_s)]
    return [*headers, *said]
