"""Dead letters: requests that could not be read or sent, whole, with a code and a sentence; and what became of them."""

from collections.abc import Sequence
from typing import NamedTuple

from timers.core.timer import Rejected
from timers.wire import headers as h

OVERHEAD_BYTES = 64 * 1024
"""Our own topics and producers allow this much more than the largest request, for keys and headers."""

CODES = (
    *("key-missing", "key-not-a-number", "key-negative", "key-in-milliseconds"),
    *("value-missing", "value-not-a-future", "value-too-large"),
    *("topic-missing", "topic-invalid", "topic-unknown", "topic-denied"),
    *("message-too-large", "target-failing", "retry-headers-missing"),
    *("id-missing", "id-too-long", "id-not-text", "due-missing"),
    "promotion-invalid",
    *("value-not-json", "field-missing", "field-repeated", "field-invalid", "countdown-invalid", "time-missing"),
    "id-not-key",
    "overdue",
)
"""Every value of ``timer-error``."""

RETRIES_EXHAUSTED = "retries-exhausted"
"""A receiver's: it could not handle a message, however often it came (:mod:`timers.client.retry`)."""

WHEN_DUE = frozenset({"topic-unknown", "topic-denied", "message-too-large", "target-failing"})
"""Those of timers that were accepted and came to their second; all others are judged on arrival."""


class DeadLetter(NamedTuple):
    """One record of the dead letter topic."""

    key: bytes | None
    value: bytes | None
    headers: list[h.Header]


def encode(rejected: Rejected, source: str, max_bytes: int) -> DeadLetter:
    """The record for ``rejected``: original key, value and headers, plus what was wrong and where it was read.

    What does not fit in ``max_bytes`` goes as a truncated dead letter with code and source: the original stays in the
    request topic."""
    ours: list[h.Header] = [
        (h.TIMER_ERROR, rejected.code.encode()),
        (h.TIMER_ERROR_MESSAGE, rejected.message.encode()),
        (h.TIMER_SOURCE, source.encode()),
    ]
    if size(rejected.key, rejected.value, rejected.headers) + size(None, None, ours) > max_bytes:
        return DeadLetter(None, None, ours)
    return DeadLetter(rejected.key, rejected.value, [*rejected.headers, *ours])


class DecodedDeadLetter(NamedTuple):
    """A dead letter, read."""

    code: str
    message: str
    source: str
    """``<topic>/<partition>/<offset>`` of the request."""
    headers: list[h.Header]
    """Of the request."""


def decode(headers: Sequence[h.Header]) -> DecodedDeadLetter | None:
    """What the headers of a record say; None if it is no dead letter. Key and value are the request's own."""
    request, ours = list(headers[:-3]), headers[-3:]
    if [name for name, _ in ours] != [h.TIMER_ERROR, h.TIMER_ERROR_MESSAGE, h.TIMER_SOURCE]:
        return None
    code, message, source = ((data or b"").decode(errors="replace") for _, data in ours)
    return DecodedDeadLetter(code, message, source, request)


def is_truncated(key: bytes | None, value: bytes | None, opened: DecodedDeadLetter) -> bool:
    """Whether a dead letter holds nothing of its request (which may have been as empty itself)."""
    return key is None and value is None and not opened.headers


class Mark(NamedTuple):
    """Says that the request of a dead letter was published again."""

    letter: str
    """``<topic>/<partition>/<offset>`` of the dead letter."""
    source: str
    """Of the request, as the letter has it."""
    timer_id: str
    """``<topic>/<partition>/<offset>`` where the request stands now: the id of its timer."""


def encode_mark(mark: Mark) -> tuple[bytes, bytes, list[h.Header]]:
    """Key, value and headers of a mark's record: the newest of a letter counts. Inverse: :func:`decode_mark`."""
    return mark.letter.encode(), mark.timer_id.encode(), [(h.TIMER_SOURCE, mark.source.encode())]


def decode_mark(key: bytes | None, value: bytes | None, headers: Sequence[h.Header]) -> Mark:
    """The mark that a record is; one that nobody wrote fits no dead letter."""
    source = next((data for name, data in headers if name == h.TIMER_SOURCE), None)
    return Mark(*((data or b"").decode(errors="replace") for data in (key, source, value)))


def size(key: bytes | None, value: bytes | None, headers: Sequence[h.Header]) -> int:
    """Upper bound of a record's bytes in a batch (16 covers the varints of a header or of the record)."""
    return (
        16 + len(key or b"") + len(value or b"") + sum(16 + 4 * len(name) + len(data or b"") for name, data in headers)
    )
