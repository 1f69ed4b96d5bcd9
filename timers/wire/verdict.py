"""Encodes and decodes verdicts: the result of a cancel or update, written in the transaction that accepts it.

Key: the id. Value: JSON. Header ``timer-source``: the record of the cancel or update, by which its producer finds the
verdict. ::

    {"id": "order-17", "verdict": "cancelled", "due": 1893456000}
"""

import json
from json.encoder import encode_basestring as _quoted
from typing import NamedTuple

from timers.core.operation import Verdict


class VerdictMessage(NamedTuple):
    """A verdict as it is on the wire."""

    id: str
    verdict: str
    """``cancelled``, ``replaced``, ``already-fired`` or ``unknown``."""
    due_s: int | None
    """Due second of the timer that was cancelled or replaced or has fired; None if there is no timer."""


def encode(verdict: Verdict) -> bytes:
    """Return the value of a verdict's record. Inverse: :func:`decode`."""
    return as_json(VerdictMessage(verdict.id.decode(), verdict.verdict, verdict.due_s)).encode()


def as_json(told: VerdictMessage) -> str:
    """Return a verdict as JSON."""
    due = "null" if told.due_s is None else told.due_s
    # By hand: a JSON encoder takes 3 us for these three fields, this takes 0.6 us.
    return f'{{"id": {_quoted(told.id)}, "verdict": "{told.verdict}", "due": {due}}}'


def decode(value: bytes) -> VerdictMessage:
    """Return the verdict that a record's value holds.

    Raises:
        ValueError: the value is not a verdict.
    """
    told = json.loads(value)
    if not isinstance(told, dict) or not {"id", "verdict", "due"} <= told.keys():
        raise ValueError(f"not a verdict: {value[:80]!r}")
    return VerdictMessage(told["id"], told["verdict"], told["due"])
