"""Encodes and decodes verdicts: the answer to a cancel, a replacement or a request with a condition.

The transaction that accepts the request writes it. Key: the id. Value: JSON. Header ``timer-source``: source of the
request; its producer finds the verdict by it. ::

    {"id": "order-17", "verdict": "cancelled", "due": 1893456000}

The verdict on a request with a condition also has ``version``: the source that the next condition must name, or null if
there is no version. ::

    {"id": "order-17", "verdict": "exists", "due": 1893456000, "version": "timer-request-by-id/0/5"}

The verdict ``unknown`` has a ``hint`` if murmur2 puts the id on another partition than that of the request: the timer
may be there, if its sender has another partitioner.
"""

import json
from collections.abc import Callable
from json.encoder import encode_basestring as _quoted
from typing import Any, NamedTuple

from timers.core.operation import NO_VERSION, VERDICTS, Verdict, VerdictName
from timers.core.ports import Missed
from timers.core.printable import decode_json
from timers.core.timer import id_bytes
from timers.wire import headers as h
from timers.wire.checks import MAX_DUE_S


class VerdictMessage(NamedTuple):
    """The answer of the worker to a cancel, a replacement or a request with a condition."""

    id: str
    """Id of the timer."""
    verdict: VerdictName
    """What happened to the timer that had this id before (``docs/timers-with-an-id.md#verdicts``)."""
    due_s: int | None
    """Due second of the timer that was cancelled or replaced or has fired, or is in the way; None if there is none."""
    version: str | None = None
    """If the request had a condition: source of the latest record of the id that counts; None if there is none."""

    def fields(self) -> dict[str, Any]:
        """The verdict for users; ``version`` only if it is known."""
        known = {} if self.version is None else {"version": self.version}
        return {"id": self.id, "verdict": self.verdict, "due": self.due_s, **known}


def encode(verdict: Verdict, source: Callable[[int], str], elsewhere: int | None = None) -> bytes:
    """Return the value of a verdict's record. Inverse: :func:`decode`.

    Args:
        source: returns the source of a request from its offset.
        elsewhere: where murmur2 puts the id, if that is another partition than that of the request.
    """
    value = as_json(VerdictMessage(verdict.id.decode(), verdict.verdict, verdict.due_s))
    if verdict.version is not None:
        version = "null" if verdict.version == NO_VERSION else f'"{source(verdict.version)}"'
        value = f'{value[:-1]}, "version": {version}}}'
    if elsewhere is not None:
        value = f'{value[:-1]}, "hint": "Kafka\'s client for Java (murmur2) puts this id on partition {elsewhere}"}}'
    return value.encode()


def encode_missed(missed: Missed, source: Callable[[int], str]) -> tuple[bytes, bytes, list[h.Header]]:
    """Return key, value and headers of the record about occurrences that are not sent. It is no verdict: it has no
    ``timer-source``. ::

        {"id": "report", "missed": 3, "first": 1893456000, "last": 1893463200, "reason": "superseded"}
    """
    version = source(missed.offset).encode() if missed.version is None else missed.version
    fields = {
        "id": missed.id,
        "missed": missed.number,
        "first": missed.first_s,
        "last": missed.last_s,
        "reason": missed.reason,
    }
    return id_bytes(missed.id), json.dumps(fields).encode(), [(h.TIMER_VERSION, version)]


def as_json(message: VerdictMessage) -> str:
    """Return a verdict as JSON."""
    due = "null" if message.due_s is None else message.due_s
    # Not by a JSON encoder, which takes 3 µs for these three fields; this takes 0.6 µs.
    return f'{{"id": {_quoted(message.id)}, "verdict": "{message.verdict}", "due": {due}}}'


def decode(value: bytes) -> VerdictMessage:
    """Return the verdict that a record's value holds.

    Raises:
        ValueError: it is not one.
    """
    fields = decode_json(value)
    try:
        message = VerdictMessage(fields["id"], fields["verdict"], fields["due"], fields.get("version"))
        is_verdict = (
            isinstance(message.id, str)
            and message.verdict in VERDICTS
            and (message.due_s is None or (type(message.due_s) is int and 0 <= message.due_s <= MAX_DUE_S))
            and (message.version is None or isinstance(message.version, str))
        )
    except (LookupError, TypeError):
        is_verdict = False
    if not is_verdict:
        raise ValueError(f"not a verdict: {value[:80]!r}")
    return message
