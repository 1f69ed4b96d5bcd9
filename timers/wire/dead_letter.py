"""Encodes and decodes dead letters, and marks: records that say which dead letters were published again."""

from collections.abc import Sequence
from typing import NamedTuple

from timers.core.timer import Rejected
from timers.wire import headers as h

OVERHEAD_BYTES = 64 * 1024
"""The engine's topics and producers allow so many bytes more than the largest request, for keys and headers."""

CODES = (
    *("key-missing", "key-not-a-number", "key-negative", "key-in-milliseconds"),
    *("value-missing", "value-not-a-future", "value-too-large"),
    *("topic-missing", "topic-invalid", "topic-unknown", "topic-denied"),
    *("message-too-large", "message-refused", "target-failing", "retry-headers-missing"),
    *("id-missing", "id-too-long", "id-not-text", "due-missing"),
    "promotion-invalid",
    *("value-not-json", "field-missing", "field-repeated", "field-invalid", "countdown-invalid", "time-missing"),
    "id-not-key",
    "overdue",
)
"""Every value of ``timer-error``."""

RETRIES_EXHAUSTED = "retries-exhausted"
"""Code of a dead letter that a receiver writes after its last attempt (:mod:`timers.client.retry`)."""

CODES_WHEN_DUE = frozenset({"topic-unknown", "topic-denied", "message-too-large", "message-refused", "target-failing"})
"""Codes of checks that run when the timer is due. All other checks run on arrival."""


class DeadLetter(NamedTuple):
    """One record of the dead letter topic."""

    key: bytes | None
    value: bytes | None
    headers: list[h.Header]


def encode(rejected: Rejected, source: str, max_bytes: int) -> DeadLetter:
    """Return the dead letter of ``rejected``: key, value and headers of the request, then the headers of the error.

    If it has more than ``max_bytes``, the dead letter is truncated: it has only the headers of the error.
    """
    error_headers: list[h.Header] = [
        (h.TIMER_ERROR, rejected.code.encode()),
        (h.TIMER_ERROR_MESSAGE, rejected.message.encode()),
        (h.TIMER_SOURCE, source.encode()),
    ]
    if size(rejected.key, rejected.value, rejected.headers) + size(None, None, error_headers) > max_bytes:
        return DeadLetter(None, None, error_headers)
    return DeadLetter(rejected.key, rejected.value, [*rejected.headers, *error_headers])


class DecodedDeadLetter(NamedTuple):
    """The headers of a dead letter, decoded."""

    code: str
    message: str
    source: str
    """``<topic>/<partition>/<offset>`` of the request."""
    headers: list[h.Header]
    """Headers of the request."""


def decode(headers: Sequence[h.Header]) -> DecodedDeadLetter | None:
    """Decode the headers of a record; None if it is not a dead letter. Key and value are those of the request."""
    request_headers, error_headers = list(headers[:-3]), headers[-3:]
    if [name for name, _ in error_headers] != [h.TIMER_ERROR, h.TIMER_ERROR_MESSAGE, h.TIMER_SOURCE]:
        return None
    code, message, source = ((data or b"").decode(errors="replace") for _, data in error_headers)
    return DecodedDeadLetter(code, message, source, request_headers)


def is_truncated(key: bytes | None, value: bytes | None, decoded: DecodedDeadLetter) -> bool:
    """Return whether a dead letter has no key, value or headers of its request. For an empty request it is True too."""
    return key is None and value is None and not decoded.headers


class Mark(NamedTuple):
    """A record which says that the request of a dead letter was published again."""

    letter: str
    """``<topic>/<partition>/<offset>`` of the dead letter."""
    source: str
    """Source of the request, as the dead letter names it."""
    timer_id: str
    """``<topic>/<partition>/<offset>`` of the new request."""


def encode_mark(mark: Mark) -> tuple[bytes, bytes, list[h.Header]]:
    """Return key, value and headers of a mark. The newest one of a dead letter counts. Inverse: :func:`decode_mark`."""
    return mark.letter.encode(), mark.timer_id.encode(), [(h.TIMER_SOURCE, mark.source.encode())]


def decode_mark(key: bytes | None, value: bytes | None, headers: Sequence[h.Header]) -> Mark:
    """Return the mark in a record. Any other record gives a mark that names no dead letter."""
    return Mark(*((data or b"").decode(errors="replace") for data in (key, h.last(headers, h.TIMER_SOURCE), value)))


def size(key: bytes | None, value: bytes | None, headers: Sequence[h.Header]) -> int:
    """Return an upper bound of a record's bytes in a batch. 16 bytes cover the varints of the record or of a header."""
    return (
        16 + len(key or b"") + len(value or b"") + sum(16 + 4 * len(name) + len(data or b"") for name, data in headers)
    )
