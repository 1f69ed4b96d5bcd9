"""Asks a port whether a Kafka broker answers there, and of which cluster.

It sends one Metadata request without a client library, which would log errors until the broker listens. Access control
does not apply to it. The answer names the broker only when it is unfenced, which means ready for clients.
"""

from __future__ import annotations

import socket
import struct

HOST = "127.0.0.1"

_METADATA, _VERSION, _CORRELATION_ID = 3, 4, 0x71E5
_CLIENT_ID = b"timers-probe"
_ANSWER_LIMIT_BYTES = 1 << 20


def cluster_at(port: int, *, timeout_s: float = 1.0) -> str | None:
    """Return the cluster id of the broker at ``127.0.0.1:port``; None if no broker is ready there."""
    header = struct.pack(">hhih", _METADATA, _VERSION, _CORRELATION_ID, len(_CLIENT_ID)) + _CLIENT_ID
    request = header + struct.pack(">i?", 0, False)  # ask for no topics, create none
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
    """Return the cluster id in a Metadata response of version 4.

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


def is_port_free(port: int) -> bool:
    """Return whether a broker can listen on ``127.0.0.1:port`` now."""
    with socket.socket() as listener:
        # Java sets this too: a port in TIME_WAIT counts as free.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError:
            return False
    # macOS allows this bind although another program listens on all addresses, whose clients it would take.
    try:
        socket.create_connection((HOST, port), timeout=0.5).close()
    except OSError:
        return True
    return False
