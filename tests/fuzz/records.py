"""Builds records from a fuzzer's bytes: sound ones, damaged ones and random bytes.

Purely random bytes would seldom pass the first check of a decoder. So most records are made sound and then damaged.
"""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.fuzz.draw import Draw
from timers.core.levels import FIRST_LEVEL
from timers.v1.progress_pb2 import Progress
from timers.wire import future, headers, progress
from timers.wire.formats import countdown


class Record(NamedTuple):
    """A record as a consumer delivers it."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Any


class TimedRecord(NamedTuple):
    """A record with its append time, for the request formats that read it."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Any
    timestamp: int
    timestamp_type: int = 1


def digits(draw: Draw) -> bytes:
    sign = draw.pick([b"", b"-", b"0", b"+", b" "])
    return sign + str(draw.number(2**53)).encode()[: draw.number(16) or 16]


def request_key(draw: Draw) -> bytes | None:
    kind = draw.number(4)
    if kind == 0:
        return draw.pick([b"7", b"07", b"1800000000", b"1800000000000", b"-1", None])
    if kind == 1:
        return draw.blob(20)
    return draw.damaged(digits(draw)) if kind == 2 else digits(draw)


def future_bytes(draw: Draw) -> bytes:
    topic = draw.pick(["t", "orders", "..", "", "no spaces", "x" * 250]) if draw.number(3) else draw.text(20)
    return future.encode(topic, draw.text(20), draw.blob(220))


def request_value(draw: Draw) -> bytes | None:
    kind = draw.number(4)
    if kind == 0:
        return draw.pick([b"", None])
    if kind == 1:
        return draw.blob(60)
    return draw.damaged(future_bytes(draw)) if kind == 2 else future_bytes(draw)


_NAMES = (
    headers.DEPTH,
    headers.TIMER_ID,
    headers.TIMER_DUE,
    headers.TIMER_ATTEMPT,
    headers.TIMER_ERROR,
    headers.TIMER_AGAIN,
    headers.TOKEN,
    countdown.CALLER,
    "trace",
)


def _one_header(draw: Draw) -> tuple[str, bytes | None]:
    name = draw.text(20) if draw.number(1) else draw.pick(_NAMES)
    return name, draw.pick([None, draw.blob(20), digits(draw)])


def request_headers(draw: Draw) -> list[tuple[str, bytes | None]] | None:
    return draw.many(5, _one_header) or draw.pick([None, []])


def retry_headers(draw: Draw) -> list[tuple[str, bytes | None]] | None:
    if draw.number(7) == 0:
        return request_headers(draw)
    ours = [
        (headers.TIMER_ID, draw.pick([b"timer-request/0/7", draw.blob(20)])),
        (headers.TIMER_DUE, draw.pick([b"1800000000", digits(draw), draw.blob(12)])),
        (headers.TIMER_ATTEMPT, draw.pick([b"1", digits(draw), draw.blob(12), "²".encode()])),
    ]
    return [*(request_headers(draw) or ()), *ours]


def countdown_headers(draw: Draw) -> list[tuple[str, bytes | None]] | None:
    if draw.number(2):
        return request_headers(draw)
    former_due = draw.pick([b"1800000000", b"-5", b"1800000000000", digits(draw)])
    return [*(request_headers(draw) or ()), (headers.TIMER_AGAIN, former_due)]


def records(draw: Draw, headers_of: Callable[[Draw], Any]) -> list[Record]:
    drawn = draw.many(8, lambda draw: (request_key(draw), request_value(draw), headers_of(draw)))
    return [Record(3 * index, *one) for index, one in enumerate(drawn)]


def damaged_requests(draw: Draw) -> list[Record]:
    """Records for the request topic; some of them are sound."""
    return records(draw, request_headers)


def json_text(draw: Draw, depth: int = 3) -> str:
    """A JSON text, or one that is nearly JSON."""
    kind = draw.number(6 if depth else 3)
    if kind == 0:
        return draw.pick(["null", "true", "1.10", "-0", "1e400", "NaN", '"\\ud800"', "[" * 101 + "]" * 101, "01"])
    if kind == 1:
        return f"{draw.number(10**12)}.{draw.number(10**6)}e{draw.pick(['', '+', '-'])}{draw.number(20)}"
    if kind in (2, 3):
        return json.dumps(draw.text(30), ensure_ascii=bool(draw.number(1)))
    if kind == 4:
        return "[" + ",".join(draw.many(3, lambda draw: json_text(draw, depth - 1))) + "]"
    return "{" + ", ".join(draw.many(3, lambda draw: f"{json.dumps(draw.text(3))}:{json_text(draw, depth - 1)}")) + "}"


def countdown_bytes(draw: Draw) -> bytes:
    fields = {
        "topic": draw.pick(['"T"', '"orders"', '""', '"no spaces"', json_text(draw)]),
        "message": json_text(draw),
        "countdown": draw.pick(["120", "0.5", "1e-3", "-1", "99999999999", json_text(draw, 0)]),
        "id": draw.pick(["null", '"k"', '"k"', '""', json.dumps("x" * 600), json_text(draw)]),
        "cancel": draw.pick(["null", "false", "false", "true", "1"]),
    }
    names = [name for name in fields if draw.number(15)] + draw.many(1, lambda draw: draw.pick(list(fields)))
    return ("{" + ", ".join(f'"{name}": {fields[name]}' for name in names) + "}").encode()


def progress_bytes(draw: Draw) -> bytes:
    message = Progress(topic_id=b"i" * 16, next_offset=draw.number(2**63 - 1))
    message.version = FIRST_LEVEL if draw.number(7) else draw.number(300)
    if draw.number(1):
        message.fired_due_s, message.fired_offset = draw.number(2**63), draw.number(2**63)
    for _ in range(draw.number(3)):
        value = draw.pick(["1000", draw.text(20)])
        message.settings.add(name=draw.text(20), from_offset=draw.number(2**63 - 1), value=value)
    for _ in range(draw.number(3)):
        message.lineage.epochs.add(epoch=draw.number(2**31 - 1), first_offset=draw.number(2**63 - 1))
    if draw.number(1):
        message.lineage.batch.base_offset, message.lineage.batch.crc = draw.number(2**63 - 1), draw.number(2**32 - 1)
    if not draw.number(7):
        message.rescues.add(from_offset=draw.number(2**63 - 1), through=draw.blob(20))
        message.doubt.worker = draw.text(20)
    return progress.with_checksum(message)


def letter_headers(draw: Draw) -> list[tuple[str, bytes | None]]:
    ours: list[tuple[str, bytes | None]] = [
        (headers.TIMER_ERROR, draw.pick([b"topic-unknown", draw.blob(12), None])),
        (headers.TIMER_ERROR_MESSAGE, draw.pick([None, draw.blob(30)])),
        (headers.TIMER_SOURCE, draw.pick([b"timer-request/0/7", draw.blob(20), None])),
    ]
    kept = ours if draw.number(3) else ours[: draw.number(3)]
    return [*(request_headers(draw) or () if draw.number(1) else ()), *kept]


class _Name(str):
    """A header name of any bytes: Kafka requires UTF-8, but no broker checks it."""

    __slots__ = ("raw",)
    raw: bytes

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return self.raw


def header_name(raw: bytes) -> _Name:
    name = _Name("name")
    name.raw = raw
    return name
