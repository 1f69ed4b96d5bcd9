"""Encodes and decodes cold requests (records of the cold topic) and promoted copies.

A cold request has key, value and headers of the request, then::

    timer-source: <topic>/<partition>/<offset>    the request; its copy returns to this partition
    timer-due: <epoch second>
    timer-appended: <epoch milliseconds>
    timer-seal: <32 hex digits>

A promoted copy goes to the topic and partition of the request. It has key, value and headers of the request, then::

    timer-promoted: <topic>/<partition>/<offset>
    timer-seal: <32 hex digits>

The seal is an HMAC of source, key, value and headers of the request. Its secret is stored only in the progress of the
partition. So another producer can repeat a copy, which has no effect, but cannot forge or change a copy.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from timers.core.horizon import Unsealed
from timers.core.printable import quoted
from timers.core.timer import Rejected
from timers.wire import checks, dead_letter, topics
from timers.wire import headers as h
from timers.wire.checks import InvalidRequestError
from timers.wire.record import RequestRecord

MAX_APPEND_DIGITS = 18
"""Digits of the epoch milliseconds in ``timer-appended``; the number fits in 64 bits."""

SEAL_DIGITS = 32
"""32 hex digits are 128 bits."""

MAX_KEY_AND_HEADERS_BYTES = 32 * 1024
"""A request whose key and headers are larger stays hot. The engine's topics allow 64 KiB beside the value, and
the headers of a cold request and of a promoted copy must fit in it too."""


class Cold(NamedTuple):
    """The headers of a cold request, decoded."""

    source: str
    due_s: int
    append_ms: int
    seal: bytes
    headers: list[h.Header]
    """Headers of the request."""


def seal(secret: int, source: str, key: bytes | None, value: bytes | None, headers: Sequence[h.Header]) -> bytes:
    """Return the seal of a request; it proves that the machine with ``secret`` sent it, unchanged. It takes 2 µs."""
    pieces = [source.encode(), key, value]
    for name, data in headers:
        pieces += [name.encode(), data]
    return hmac.digest(secret.to_bytes(8, "big"), framed(pieces), "sha256").hex()[:SEAL_DIGITS].encode()


def framed(pieces: Iterable[bytes | None]) -> bytes:
    """Return pieces as one, each after its length, so that different lists of pieces give different bytes."""
    pack = struct.pack
    return b"".join([pack(">i", -1) if piece is None else pack(">i", len(piece)) + piece for piece in pieces])


def encode_cold(record: Any, source: str, due_s: int, secret: int) -> list[h.Header]:
    """Return the headers of a cold request. It has the request's key and value. Inverse: :func:`decode_cold`."""
    headers = list(record.headers or ())
    return [
        *headers,
        (h.TIMER_SOURCE, source.encode()),
        (h.TIMER_DUE, b"%d" % due_s),
        (h.TIMER_APPENDED, b"%d" % record.timestamp),
        (h.TIMER_SEAL, seal(secret, source, record.key, record.value, headers)),
    ]


COLD_HEADERS = (h.TIMER_SOURCE, h.TIMER_DUE, h.TIMER_APPENDED, h.TIMER_SEAL)
"""The last headers of a cold request, in order."""


def decode_cold(headers: Sequence[h.Header]) -> Cold | None:
    """Decode the headers of a record of the cold topic; None if no machine wrote the record."""
    last_headers = headers[-len(COLD_HEADERS) :]
    if tuple(name for name, _ in last_headers) != COLD_HEADERS:
        return None
    source, due, append, digits = (data or b"" for _, data in last_headers)
    if not append.isdigit() or len(append) > MAX_APPEND_DIGITS:
        return None
    try:
        return Cold(source.decode(), checks.decode_due(due), int(append), digits, list(headers[: -len(COLD_HEADERS)]))
    except ValueError:
        return None


def encode_promoted(cold: Cold) -> list[h.Header]:
    """Return the headers of a promoted copy. It has the request's key and value."""
    return [*cold.headers, (h.TIMER_PROMOTED, cold.source.encode()), (h.TIMER_SEAL, cold.seal)]


class PartitionColdFormat:
    """Implements :class:`timers.core.horizon.ColdFormat` for one partition."""

    def __init__(self, topic: str, partition: int) -> None:
        self._topic = topic
        self._partition = partition

    def is_copy(self, record: Any) -> bool:
        headers = record.headers
        return len(headers) > 1 and headers[-2][0] == h.TIMER_PROMOTED and headers[-1][0] == h.TIMER_SEAL

    def unseal(self, record: Any, secret: int) -> Unsealed | Rejected:
        try:
            return self._unseal(record, secret)
        except InvalidRequestError as error:
            return checks.rejected(record, error)

    def _unseal(self, record: Any, secret: int) -> Unsealed:
        *headers, (_, promoted), (_, seal_digits) = record.headers
        source = (promoted or b"").decode(errors="replace")
        place = topics.parse_source(source)
        if place is None or place[:2] != (self._topic, self._partition) or place[2] >= record.offset:
            raise InvalidRequestError(
                "promotion-invalid",
                f"header {h.TIMER_PROMOTED} {quoted(source[:300])} does not name an earlier record of "
                f"{self._topic}/{self._partition}",
            )
        if not hmac.compare_digest(seal(secret, source, record.key, record.value, headers), seal_digits or b""):
            raise InvalidRequestError(
                "promotion-invalid",
                f"header {h.TIMER_SEAL} is not the seal of {source}: this record is not a copy of it, or the topic or "
                "its progress was created again since",
            )
        # The condition was judged when the request was accepted, before the request went cold.
        others = [header for header in headers if header[0] != h.TIMER_IF]
        request = RequestRecord(record.offset, record.key, record.value, others, record.timestamp)
        return Unsealed(request, place[2], source)

    def fits_cold_topic(self, record: Any) -> bool:
        return dead_letter.size(record.key, None, record.headers or ()) <= MAX_KEY_AND_HEADERS_BYTES
