"""Encodes and decodes dead letters, and marks: records that say which dead letters were published again."""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from timers.core.timer import CUT_VALUE_BYTES, CutValue, Rejected
from timers.wire import headers as h

OVERHEAD_BYTES = 64 * 1024
"""The engine's topics and producers allow this number of bytes above the largest request, for keys and headers."""

VALUE_TOO_LARGE = "value-too-large"
LEVEL_TOO_LOW = "level-too-low"

OVERDUE = "overdue"
"""Code of a schedule that was due before it was written, if the settings reject such schedules."""

LOST_FROM_LOG = "lost-from-log"
"""Code of what only a store holds after its log has lost it (:mod:`timers.core.rescue`)."""

REPEAT_LOST = "repeat-lost"
"""Code of a timer that repeats and has ended, because its next occurrence is lost (:mod:`timers.core.mending`)."""

BATCH_UNREADABLE = "batch-unreadable"
"""Code of a record batch that no consumer can read (:mod:`timers.core.passed_over`). Its value is the batch."""

LOST_REASON = "the request log lost this record after it was accepted (docs/operations.md#a-lost-log)"
"""Reason in these dead letters."""

REPEAT_GONE = (
    "the timer {} has ended: the request log lost its next occurrence, and the record that sets it is deleted. Set it "
    "again (docs/operations.md#a-lost-log)"
)
REPEAT_TOO_LARGE = (
    "the timer {} has ended: its next occurrence makes a batch of {} bytes, more than the {} that fit in {}. Raise "
    "max.message.bytes of this topic, then set the timer again, or retry this dead letter with --force"
)
"""Reasons in dead letters with the code :data:`REPEAT_LOST`."""

CODES = (
    *("key-missing", "key-not-a-number", "key-negative", "key-in-milliseconds"),
    *("value-missing", "value-not-a-future", VALUE_TOO_LARGE),
    *("topic-missing", "topic-invalid", LEVEL_TOO_LOW, "topic-unknown", "topic-denied"),
    *("message-too-large", "message-refused", "target-failing", LOST_FROM_LOG, "retry-headers-missing"),
    *("id-missing", "id-too-long", "id-not-text", "due-missing"),
    *("condition-invalid", "condition-without-id", "condition-without-append-time"),
    *("repeat-invalid", "repeat-over", "repeat-without-append-time", REPEAT_LOST),
    "promotion-invalid",
    *("value-not-json", "field-missing", "field-repeated", "field-invalid", "countdown-invalid", "time-missing"),
    "id-not-key",
    OVERDUE,
    *("value-not-a-marker", "marker-invalid"),
    BATCH_UNREADABLE,
)
"""Every value of ``timer-error``."""

RETRIES_EXHAUSTED = "retries-exhausted"
"""Code of a dead letter that a receiver writes after its last attempt (:mod:`timers.client.retry`)."""

REJECTED, ATTEMPTS_EXHAUSTED, CRASHED, UNSIGNED = "rejected", "attempts-exhausted", "crashed", "unsigned"

QUEUE_CODES = (REJECTED, ATTEMPTS_EXHAUSTED, CRASHED, UNSIGNED)
"""Codes of a queue's dead letters (:mod:`timers.queue`)."""

NAMED_ONLY_CODES = frozenset({CRASHED, UNSIGNED})
"""Codes of messages that may do harm when they come again: they ended two processes, or the queue did not sign them.
They are put back only if the code or the dead letter is named."""

RECEIVER_CODES = frozenset({RETRIES_EXHAUSTED, *QUEUE_CODES})
"""Codes of dead letters that receivers write. Their source is a message of any topic, and they contain a request of the
format ``future`` which sends the message again."""

MAX_LENGTH_DIGITS = 10
"""Digits of the length of a record, which has less than 2 GiB."""

_OF_CUT_VALUE = h.TIMER_VALUE_BYTES, h.TIMER_VALUE_SHA256

ACCEPTED_CODES = frozenset(
    {
        *("topic-unknown", "topic-denied", "message-too-large", "message-refused", "target-failing", LOST_FROM_LOG),
        *(REPEAT_LOST, BATCH_UNREADABLE),
    }
)
"""Codes of requests that were accepted, or cannot be read at all. All other checks run on arrival."""


class DeadLetter(NamedTuple):
    """One record of the dead letter topic."""

    key: bytes | None
    value: bytes | None
    headers: list[h.Header]


def encode(rejected: Rejected, source: str, max_bytes: int) -> DeadLetter:
    """Return the dead letter of ``rejected``: key, value and headers of the request, then the headers of the error.

    Of a value that is too large it has only the first bytes, its length and its hash; of a batch, as many bytes as fit.
    If it still has more than ``max_bytes``, the dead letter is truncated: it has only the headers of the error.
    """
    value, headers = rejected.value, rejected.headers
    error_headers: list[h.Header] = []
    kept = CUT_VALUE_BYTES if rejected.code == VALUE_TOO_LARGE or isinstance(value, CutValue) else None
    if rejected.code == BATCH_UNREADABLE and value is not None and len(value) + OVERHEAD_BYTES > max_bytes:
        kept = max(0, max_bytes - OVERHEAD_BYTES)
    if value is not None and kept is not None:
        sha256 = value.sha256 if isinstance(value, CutValue) else hashlib.sha256(value).digest()
        error_headers = [(h.TIMER_VALUE_BYTES, b"%d" % len(value)), (h.TIMER_VALUE_SHA256, sha256.hex().encode())]
        value = value[:kept]
    while not error_headers and tuple(name for name, _ in headers[-2:]) == _OF_CUT_VALUE:
        headers = headers[:-2]  # the request's, which would say that its value is cut: the sender copied a dead letter
    error_headers += [
        (h.TIMER_ERROR, rejected.code.encode()),
        (h.TIMER_ERROR_MESSAGE, rejected.message.encode()),
        (h.TIMER_SOURCE, source.encode()),
    ]
    if size(rejected.key, value, headers) + size(None, None, error_headers) > max_bytes:
        return DeadLetter(None, None, error_headers)
    return DeadLetter(rejected.key, value, [*headers, *error_headers])


class DecodedDeadLetter(NamedTuple):
    """The headers of a dead letter, decoded."""

    code: str
    message: str
    source: str
    """``<topic>/<partition>/<offset>`` of the request."""
    headers: list[h.Header]
    """Headers of the request."""
    value_bytes: int | None
    """Length of the request's value, if the letter may have only the first bytes of it."""
    value_sha256: str
    """Hash of that value."""


def decode(headers: Sequence[h.Header]) -> DecodedDeadLetter | None:
    """Decode the headers of a record; None if it is not a dead letter. Key and value are those of the request."""
    request_headers, error_headers = list(headers[:-3]), headers[-3:]
    if [name for name, _ in error_headers] != [h.TIMER_ERROR, h.TIMER_ERROR_MESSAGE, h.TIMER_SOURCE]:
        return None
    code, message, source = ((data or b"").decode(errors="replace") for _, data in error_headers)
    value_bytes, value_sha256 = None, ""
    if tuple(name for name, _ in request_headers[-2:]) == _OF_CUT_VALUE:
        (_, length), (_, digits) = request_headers[-2:]
        if length and length.isdigit() and len(length) <= MAX_LENGTH_DIGITS:
            value_bytes, value_sha256 = int(length), (digits or b"").decode(errors="replace")
            del request_headers[-2:]
    return DecodedDeadLetter(code, message, source, request_headers, value_bytes, value_sha256)


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
