"""The size of a message as a broker counts it: ``max.message.bytes`` limits a record batch, here one of one record."""

from __future__ import annotations

from collections.abc import Sequence

from timers.wire.headers import Header

BATCH_OVERHEAD_BYTES = 61
"""Header of a record batch."""


def size_alone(key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> int:
    """Bytes of a record batch (format 2) with only this record, whose time and offset are those of the batch."""
    body = 1 + 1 + 1  # attributes, time and offset
    body += _field_bytes(key) + _field_bytes(value) + _varint(len(headers))
    body += sum(_field_bytes(name.encode()) + _field_bytes(data) for name, data in headers)
    return BATCH_OVERHEAD_BYTES + _varint(body) + body


def _field_bytes(data: bytes | None) -> int:
    return 1 if data is None else _varint(len(data)) + len(data)


def _varint(number: int) -> int:
    """Bytes of the signed, zigzag-encoded varint of a number that is not negative."""
    return max(1, ((number << 1).bit_length() + 6) // 7)
