"""The format of kafka-mq-go: markers that say how far a consumer is with each message of a queue topic.

::

    key       queue id                       keeps all markers of a queue on one partition; not read
    value     Marker (protobuf)              type START, END or KEEPALIVE, place of the message, redeliver_after_ms;
                                             START also has key and value of the message

The id of a message is ``<partition>/<offset>``, its place in the queue topic. It is delivered again
``redeliver_after_ms`` after the record's timestamp, rounded up to a whole second. See :mod:`timers.core.index`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from google.protobuf.message import DecodeError

from timers.core.timer import Decoded, Origin, Row, key_bytes
from timers.v1.marker_pb2 import Marker
from timers.wire import checks, future
from timers.wire import headers as h
from timers.wire.checks import InvalidRequestError

_ID = re.compile("[0-9]{1,10}/[0-9]{1,19}")
"""Id of a message: its partition and offset."""


def decode(records: Sequence[Any], max_request_bytes: int, callback_topic: str = "") -> Decoded:
    """Decode records of a markers topic: a Start gives a row and an operation, other markers an operation.

    Args:
        callback_topic: the queue topic, which markers do not name.
    """
    decoded = Decoded()
    for record in records:
        try:
            marker = _parse(record.value, max_request_bytes)
            id = f"{marker.message_id.partition}/{marker.message_id.offset}"
            if marker.type == Marker.END:
                decoded.operations.append((id.encode(), record.offset, None, record.timestamp // 1000))
                continue
            part, after_ms = "redeliver_after_ms", marker.redeliver_after_ms
            due_s = checks.due_after(record.timestamp, after_ms, part, "marker-invalid", "milliseconds", f"={after_ms}")
        except InvalidRequestError as error:
            decoded.rejected.append(checks.rejected(record, error))
            continue
        decoded.operations.append((id.encode(), record.offset, due_s, record.timestamp // 1000))
        if marker.type == Marker.START:
            row = (record.offset, callback_topic, marker.key, marker.value, None, Origin(id, due_s, 0))
            decoded.rows.setdefault(due_s, []).append(row)
    return decoded


def _parse(value: bytes | None, max_request_bytes: int) -> Marker:
    """Return the marker in a record's value.

    Raises:
        InvalidRequestError: there is none, or a field is missing or wrong.
    """
    if value is None:
        raise InvalidRequestError("value-missing", "the record has no value: a Marker is expected")
    checks.check_size(value, max_request_bytes)
    try:
        marker = Marker.FromString(value)
    except DecodeError:
        raise InvalidRequestError(
            "value-not-a-marker", f"the value of {len(value)} bytes is not a Marker message (timers/v1/marker.proto)"
        ) from None
    if marker.version != Marker.V1:
        raise InvalidRequestError("marker-invalid", f"version {marker.version} of a marker is not known: 0 is V1")
    if marker.type not in Marker.Type.values():
        raise InvalidRequestError("marker-invalid", f"type {marker.type} is not START (0), END (1) or KEEPALIVE (2)")
    if not marker.HasField("message_id"):
        raise InvalidRequestError("marker-invalid", "the marker has no message_id: it names the message")
    if marker.message_id.partition < 0 or marker.message_id.offset < 0:
        raise InvalidRequestError(
            "marker-invalid",
            f"message_id is partition {marker.message_id.partition}, offset {marker.message_id.offset}: both are 0 or "
            "more",
        )
    return marker


def encode_start(id: str, key: bytes, value: bytes, redeliver_after_ms: int) -> bytes:
    return _encode(id, Marker.START, key=key, value=value, redeliver_after_ms=redeliver_after_ms)


def encode_keep_alive(id: str, redeliver_after_ms: int) -> bytes:
    """Return the value of a KeepAlive marker."""
    return _encode(id, Marker.KEEPALIVE, redeliver_after_ms=redeliver_after_ms)


def encode_end(id: str) -> bytes:
    """Return the value of an End marker."""
    return _encode(id, Marker.END)


def _encode(id: str, type: Marker.Type, **fields: Any) -> bytes:
    partition, offset = id.split("/")
    message_id = Marker.MessageId(partition=int(partition), offset=int(offset))
    return Marker(type=type, message_id=message_id, **fields).SerializeToString(deterministic=True)


def end_markers(rows: Sequence[Row]) -> list[tuple[bytes | None, bytes]]:
    """Return key and value of the End markers of messages that are delivered again."""
    return [(key_bytes(row[2]), encode_end(row[5][0])) for row in rows if row[5] is not None]


def rebuild_request(row: Row, origin: Origin) -> tuple[bytes | None, bytes, list[h.Header]]:
    """Return key, value and headers of a Start marker, rebuilt from its timer. It is due at once."""
    if _ID.fullmatch(origin.timer_id) is None:  # another program has written this record to the retry topic
        return future.rebuild_request(row, origin)
    _, _, key, value, _, _ = row
    message_key = key_bytes(key) or b""
    return message_key, encode_start(origin.timer_id, message_key, value, 0), []
