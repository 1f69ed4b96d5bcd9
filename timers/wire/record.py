"""A record of a request topic, whatever its format."""

from __future__ import annotations

from typing import NamedTuple

from timers.core.timer import Headers


class RequestRecord(NamedTuple):
    """A record of a request topic, as a request format reads it."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers | None
    timestamp: int
    """Epoch milliseconds."""
    timestamp_type: int | None = None
    """None: not known."""
