"""The checks that all request formats share: due second, id, callback topic and size of a request.

A check may use only the record and the settings of acceptance [I4], so that a replay gives the same result. Whether the
callback topic exists is checked when the timer fires.
"""

from __future__ import annotations

from typing import Any

from timers.core.printable import quoted
from timers.core.timer import Rejected
from timers.wire.topics import LEGAL_FORM, LEGAL_TOPIC

MAX_DUE_DIGITS = 11
"""Enough for seconds up to the year 5138, too few for the epoch milliseconds of any date after 1973."""

MAX_DUE_S = 10**MAX_DUE_DIGITS - 1

PRODUCER_CLOCK_ERROR_MS = 60_000
"""Accepted error of a producer's clock: most topics of schedules have the producer's time, not the broker's."""


MOST_REQUEST_BYTES = 64 * 1024 * 1024
"""No TIMERS_MAX_REQUEST_BYTES is larger."""


class InvalidRequestError(ValueError):
    """A request that cannot be read. ``code`` is for programs; the message is one sentence for a person."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def rejected(record: Any, error: InvalidRequestError) -> Rejected:
    """Return the rejection of ``record``, which becomes a dead letter."""
    return Rejected(record.offset, error.code, str(error), record.key, record.value, tuple(record.headers or ()))


def decode_due(digits: bytes | None, part: str = "key") -> int:
    """Return the due epoch second: a full match of ``[0-9]{1,11}``.

    Raises:
        InvalidRequestError: the due second is missing (``key-missing``, ``due-missing``) or wrong (``key-*``).
    """
    if digits is None:
        reason = f"the record has no {part}: it says the due epoch second, in digits"
        if part == "key":
            raise InvalidRequestError("key-missing", reason)
        raise InvalidRequestError("due-missing", reason)
    if digits.isdigit() and len(digits) <= MAX_DUE_DIGITS:  # on bytes, isdigit accepts ASCII digits only
        return int(digits)
    shown = quoted(digits[:40])
    if digits.isdigit() and len(digits) <= MAX_DUE_DIGITS + 3:
        seconds = -(-int(digits) // 1000)
        raise InvalidRequestError(
            "key-in-milliseconds", f"{part} {shown} is in milliseconds: in seconds it is {seconds}"
        )
    if digits[:1] == b"-" and digits[1:].isdigit():
        raise InvalidRequestError("key-negative", f"{part} {shown} is negative: a due epoch second has 1 to 11 digits")
    raise InvalidRequestError("key-not-a-number", f"{part} {shown} is not an epoch second: 1 to 11 ASCII digits")


def due_after(timestamp_ms: int, wait_ms: int, part: str, code: str, unit: str, shown: str = "") -> int:
    """Return the second in which ``part`` of a request ends, which counts from the record's timestamp; rounded up."""
    if timestamp_ms < 0:
        reason = f"the record has no timestamp, which {part} starts from: give its topic LogAppendTime"
        raise InvalidRequestError("time-missing", reason)
    due_s = -(-(timestamp_ms + wait_ms) // 1000)
    if due_s > MAX_DUE_S:
        raise InvalidRequestError(code, f"{part}{shown} ends after the year 5138: it is in {unit}")
    return due_s


def check_id(id: bytes | None, max_bytes: int) -> None:
    if not id:
        raise InvalidRequestError("id-missing", "key is missing or empty: it holds the timer's id")
    if len(id) > max_bytes:
        raise InvalidRequestError("id-too-long", f"the id has {len(id)} bytes, more than {max_bytes}")


def check_topic(topic: str, part: str) -> None:
    """Check the callback topic, which is in ``part`` of a record."""
    if not topic:
        raise InvalidRequestError(
            "topic-missing", f"{part} is empty or missing: it names the topic to send the callback to"
        )
    if LEGAL_TOPIC.fullmatch(topic) is None:
        raise InvalidRequestError("topic-invalid", f"{part} {quoted(topic[:60])} is not {LEGAL_FORM}")


def check_size(value: bytes, max_request_bytes: int) -> None:
    if len(value) > max_request_bytes:
        raise InvalidRequestError(
            "value-too-large",
            f"the value has {len(value)} bytes, more than TIMERS_MAX_REQUEST_BYTES={max_request_bytes}",
        )
