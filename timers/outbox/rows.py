"""A row of the outbox, and the request that it asks for. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from timers.client.outbox import CANCEL, OUTBOX_COLUMNS, SCHEDULE, is_of_callback
from timers.client.request import sent_headers
from timers.client.timer_lines import headers_cell, headers_of
from timers.core.operation import ABSENT
from timers.core.printable import quoted
from timers.errors import InvalidTimerError
from timers.wire import headers as h
from timers.wire.formats import LOG_APPEND_TIME, future_by_id
from timers.wire.headers import Header
from timers.wire.record import RequestRecord

READ_COLUMNS = ("number", *OUTBOX_COLUMNS, "CAST(created_ms AS bigint)", "CAST(sent_ms AS bigint)")
"""What a relay reads: the fields of :class:`Row`. SQLite holds any type in any column."""


class Row(NamedTuple):
    """A row that waits. A program of any language may have written it."""

    number: int
    id: str
    aggregateid: str
    type: str
    payload: bytes | None
    timer_topic: str | None
    timer_key: str | None
    timer_due: int | None
    timer_repeat: str | None
    timer_if: str | None
    headers: str | None
    created_ms: int
    sent_ms: int | None
    """When a relay began to send it, by the relay's clock; None: none has."""
    row_bytes: int = 0
    """Size of its columns, as far as it is known. A row above :func:`largest_bytes` is not read."""

    @property
    def key(self) -> bytes:
        """The key of its request."""
        id: object = self.aggregateid  # SQLite holds any type in any column
        return id.encode(errors="surrogateescape") if isinstance(id, str) else b""

    @property
    def is_harmless_twice(self) -> bool:
        """Whether a second request changes nothing while workers remember the timer."""
        return self.timer_if == ABSENT


class Request(NamedTuple):
    """The record on the topic of requests with an id."""

    key: bytes
    value: bytes | None
    headers: list[Header]


def largest_bytes(max_request_bytes: int) -> int:
    """The largest row that may be a request: the rest of it are headers, of which brokers take about 1 MB."""
    return max(8_000_000, 2 * max_request_bytes)


def request_of(row: Row, now_ms: int, max_request_bytes: int) -> Request:
    """Return the request of a row, which a worker would accept.

    Args:
        max_request_bytes: as ``TIMERS_MAX_REQUEST_BYTES``.

    Raises:
        InvalidTimerError: it would become a dead letter; the sentence is that of the dead letter.
    """
    if row.row_bytes > largest_bytes(max_request_bytes):
        raise InvalidTimerError(
            f"the row has {row.row_bytes} bytes, and may have {largest_bytes(max_request_bytes)}, twice "
            "TIMERS_MAX_REQUEST_BYTES or 8000000: send a reference instead of the data"
        )
    if row.type not in (SCHEDULE, CANCEL):
        raise InvalidTimerError(f"type is {quoted(row.type):.100}: write {SCHEDULE} or {CANCEL}")
    is_cancel = row.type == CANCEL
    given: list[tuple[str, str | int | None]] = [
        (h.TIMER_TOPIC, row.timer_topic),
        (h.TIMER_KEY, row.timer_key),
        (h.TIMER_DUE, row.timer_due),
        (h.TIMER_REPEAT, row.timer_repeat),
        (h.TIMER_IF, row.timer_if),
    ]
    own = [(name, str(value).encode()) for name, value in given if value is not None]
    value: object = row.payload
    if isinstance(value, str):  # of SQLite
        value = value.encode()
    if not isinstance(value, bytes | None):
        raise InvalidTimerError(f"payload is of type {type(value).__name__}: write bytes or a text")
    if is_cancel and (row.payload is not None or any(name != h.TIMER_IF for name, _ in own)):
        raise InvalidTimerError(f"a row of type {CANCEL} has no payload, and of the columns timer_* only timer_if")
    if not is_cancel and (row.payload is None or row.timer_topic is None):
        raise InvalidTimerError(f"a row of type {SCHEDULE} needs timer_topic and payload, which may be empty")
    headers = [*_callback_headers(row.headers), *own, (h.TIMER_ROW, names_of(row)[0].encode())]
    request = Request(row.key, value, headers)
    record = RequestRecord(0, request.key, request.value, tuple(headers), now_ms, LOG_APPEND_TIME)
    decoded = future_by_id.decode([record], max_request_bytes, repeats=True)
    for rejected in decoded.rejected:
        raise InvalidTimerError(f"{rejected.message} ({rejected.code})")
    return request


def names_of(row: Row) -> tuple[str, str]:
    """Return what the request of a row calls it: with its number, as programs may give several rows one id; and as
    former relays did."""
    return f"{row.number}/{row.id}", row.id


def is_request_of(record: Request, row: Row, max_request_bytes: int) -> bool:
    """Whether a record that is named after a row is its request. If a former relay has named it, by the id alone, it
    may be that of another row with the same id, also of one that is deleted: then key, value and headers decide.

    False for a row that is no request. A producer may have added headers.
    """
    if row_of(record.headers) == names_of(row)[0]:
        return True
    try:
        request = request_of(row, row.sent_ms or 0, max_request_bytes)
    except Exception:  # any program may write any row: the relay gives it a reason when it is about to send it
        return False
    own = [header for header in request.headers if header[0] != h.TIMER_ROW]
    return record[:2] == request[:2] and all(header in record.headers for header in own)


def row_of(headers: Sequence[Header]) -> str | None:
    """Return the name of the row that a request came from; None: from none."""
    content = h.last(headers, h.TIMER_ROW)
    return None if content is None else content.decode("utf-8", "replace")


def _callback_headers(text: str | None) -> list[Header]:
    """The headers of the callback; of those of the engine only the key, if it is no text."""
    data = [] if text is None else sent_headers(headers_of(headers_cell(text)))
    return [(name, value) for name, value in data if name == h.TIMER_KEY or is_of_callback(name)]
