"""Reading confluent-kafka messages."""

from __future__ import annotations

from typing import Any

from timers.wire.headers import Header


def headers_of(message: Any) -> list[Header]:
    """Headers of a message; empty also if librdkafka cannot read them: a name is not UTF-8, or over 100,000 headers."""
    try:
        return message.headers() or []
    except UnicodeDecodeError:
        return []
