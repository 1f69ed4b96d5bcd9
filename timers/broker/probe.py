"""Ask a port whether a Kafka broker answers there, and of which cluster.

One Metadata request by hand: it needs no client library, logs nothing while nobody listens, and is not subject to
access control. The broker names itself in its answer only once it is unfenced, that is, ready for clients.
"""

from __future__ import annotations

import socket
import struct

HOST = "127.0.0.1"

_METADATA, _VERSION, _CORRELATION_ID = 3, 4, 0x71E5
_CLIENT_ID = b"timers-probe"
_ANSWER_LIMIT_BYTES = 1 << 20


def cluster_at(port: int, *, timeout_s: float = 1.0) -> str | None:
    """Id of the cluster whose broker answers at ``127.0.0.1:port``; None when no broker is ready there."""
    header = struct.pack(">hhih", _METADATA, _VERSION, _CORRELATION_ID, len(_CLIENT_ID)) + _CLIENT_ID
    request = header + struct.pack(">i?", 0, False)  # no topics; create none
    try:
        with socket.create_connection((HOST, port), timeout=timeout_s) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            with connection.makefile("rb") as answer:
                (size,) = struct.unpack(">i", answer.read(4))
                if not 0 < size <= _ANSWER_LIMIT_BYTES:
                    return None
                return _cluster_id(answer.read(size))
    except (OSError, struct.error, UnicodeDecodeError):
        return None


def _cluster_id(answer: bytes) -> str | None:
    """Read a Metadata response, version 4, as far as the cluster's id.

    ``correlation id, throttle ms, brokers [node id, host, port, rack], cluster id, ...``; strings are an int16 length
    (-1 for null) and UTF-8.
    """
    correlation_id, _throttle_ms, brokers = struct.unpack_from(">iii", answer)
    if correlation_id != _CORRELATION_ID or brokers < 1:
        return None
    position = 12
    for _ in range(brokers):
        position = _after_string(answer, position + 4)
        position = _after_string(answer, position + 4)
    end = _after_string(answer, position)
    return answer[position + 2 : end].decode()


def _after_string(answer: bytes, position: int) -> int:
    (length,) = struct.unpack_from(">h", answer, position)
    return position + 2 + max(0, int(length))


def is_free(port: int) -> bool:
    """Whether a broker could listen on ``127.0.0.1:port`` now."""
    with socket.socket() as listener:
        # As Java does: a port whose last owner has just gone is free.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError:
            return False
    # On macOS one may bind beside a listener on all addresses, and would take its clients away.
    try:
        socket.create_connection((HOST, port), timeout=0.5).close()
    except OSError:
        return True
    return False
