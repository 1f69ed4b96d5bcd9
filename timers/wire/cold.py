"""Requests that go cold, and how they come back: the records of the cold topic, and promoted copies.

A cold request is the request, whole: key, value and headers as they were sent, then::

    timer-source: <topic>/<partition>/<offset>    where it stands, and where it comes back to
    timer-due: <epoch second>
    timer-appended: <epoch milliseconds>
    timer-seal: <32 hex digits>

A promoted copy goes to the same topic and partition: key, value and headers as they were sent, then::

    timer-promoted: <topic>/<partition>/<offset>
    timer-seal: <32 hex digits>

The seal is an HMAC over the source and all that was sent, with a key that only the partition's progress holds. So a
copy can be repeated by whoever has seen one, which changes nothing, and neither made nor altered by anybody else.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from timers.core.horizon import Unsealed
from timers.core.timer import Rejected
from timers.wire import checks, dead_letter, topics
from timers.wire import headers as h
from timers.wire.checks import InvalidRequestError
from timers.wire.formats import RequestRecord

SEAL_DIGITS = 32
"""128 bits."""

MAX_BESIDES_BYTES = 32 * 1024
"""A request whose key and headers are larger stays hot. Our topics allow 64 KiB beside the value, so that a producer
may use all of it, and what we add must still fit on both ways."""


class Cold(NamedTuple):
    """What the headers of a cold request say."""

    source: str
    due_s: int
    append_ms: int
    seal: bytes
    headers: list[h.Header]
    """Of the request."""


def seal(secret: int, source: str, key: bytes | None, value: bytes | None, headers: Sequence[h.Header]) -> bytes:
    """What proves that a request was sent away by the machine that holds ``secret``, as it is: 2 us."""
    pieces = [source.encode(), key, value]
    for name, data in headers:
        pieces += [name.encode(), data]
    framed = b"".join(
        struct.pack(">i", -1) if piece is None else struct.pack(">i", len(piece)) + piece for piece in pieces
    )
    return hmac.digest(secret.to_bytes(8, "big"), framed, "sha256").hex()[:SEAL_DIGITS].encode()


def encode_cold(record: Any, source: str, due_s: int, secret: int) -> list[h.Header]:
    """Headers of a cold request; key and value are the request's own. Inverse: :func:`decode_cold`."""
    headers = list(record.headers or ())
    return [
        *headers,
        (h.TIMER_SOURCE, source.encode()),
        (h.TIMER_DUE, b"%d" % due_s),
        (h.TIMER_APPENDED, b"%d" % record.timestamp),
        (h.TIMER_SEAL, seal(secret, source, record.key, record.value, headers)),
    ]


COLD_HEADERS = (h.TIMER_SOURCE, h.TIMER_DUE, h.TIMER_APPENDED, h.TIMER_SEAL)
"""The last headers of a cold request, in their order."""


def decode_cold(headers: Sequence[h.Header]) -> Cold | None:
    """What the headers of a record of the cold topic say; None if no machine wrote it."""
    ours = headers[-len(COLD_HEADERS) :]
    if tuple(name for name, _ in ours) != COLD_HEADERS:
        return None
    source, due, append, proof = (data or b"" for _, data in ours)
    try:
        return Cold(source.decode(), int(due), int(append), proof, list(headers[: -len(COLD_HEADERS)]))
    except ValueError:
        return None


def encode_promoted(cold: Cold) -> list[h.Header]:
    """Headers of a copy; key and value are the request's own."""
    return [*cold.headers, (h.TIMER_PROMOTED, cold.source.encode()), (h.TIMER_SEAL, cold.seal)]


class PartitionFormat:
    """Implements :class:`timers.core.horizon.ColdFormat` for one partition."""

    def __init__(self, topic: str, partition: int) -> None:
        self._topic = topic
        self._partition = partition

    def has_returned(self, record: Any) -> bool:
        """Whether a record says that it is a copy."""
        headers = record.headers
        return len(headers) > 1 and headers[-2][0] == h.TIMER_PROMOTED and headers[-1][0] == h.TIMER_SEAL

    def unseal(self, record: Any, secret: int) -> Unsealed | Rejected:
        """The request that a copy stands for."""
        try:
            return self._unseal(record, secret)
        except InvalidRequestError as error:
            return checks.rejected(record, error)

    def _unseal(self, record: Any, secret: int) -> Unsealed:
        *headers, (_, named), (_, proof) = record.headers
        source = (named or b"").decode(errors="replace")
        where = topics.parse_source(source)
        if where is None or where[:2] != (self._topic, self._partition) or where[2] >= record.offset:
            raise InvalidRequestError(
                "promotion-invalid",
                f"header {h.TIMER_PROMOTED} {source[:300]!r} names no record of {self._topic}/{self._partition} before "
                "this one",
            )
        if not hmac.compare_digest(seal(secret, source, record.key, record.value, headers), proof or b""):
            raise InvalidRequestError(
                "promotion-invalid",
                f"header {h.TIMER_SEAL} is not the one that {source} was sent away with: this is no copy of it, or the "
                "topic or its progress was made anew since",
            )
        sent = RequestRecord(record.offset, record.key, record.value, headers, record.timestamp)
        return Unsealed(sent, where[2], source)

    def may_leave(self, record: Any) -> bool:
        """Whether there is room for what is added."""
        return dead_letter.size(record.key, None, record.headers or ()) <= MAX_BESIDES_BYTES
