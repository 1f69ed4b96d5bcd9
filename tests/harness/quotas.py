"""Client quotas of a broker. The clients that this project uses have no call for them."""

import socket
import struct

ALTER_CLIENT_QUOTAS = 49
TIMEOUT_S = 30.0

PRODUCER_BYTES_PER_S = "producer_byte_rate"
PARTITIONS_PER_S = "controller_mutation_rate"
"""Partitions that are created or deleted; the mean of some seconds, so some more may be made at once."""


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def set_quota(address: str, name: str, value: float | None) -> None:
    """Set a quota of all users together that log in without a name; None removes it.

    Args:
        address: host and port of a broker.
        name: such as :data:`PRODUCER_BYTES_PER_S`.
        value: the quota.
    """
    default_user = struct.pack(">i", 1) + _text("user") + struct.pack(">h", -1)
    operation = struct.pack(">i", 1) + _text(name) + struct.pack(">d?", value or 0.0, value is None)
    body = struct.pack(">i", 1) + default_user + operation + b"\0"
    request = struct.pack(">hhi", ALTER_CLIENT_QUOTAS, 0, 1) + _text("quotas") + body
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        with connection.makefile("rb") as answer:
            (size,) = struct.unpack(">i", answer.read(4))
            _, _, entries, code = struct.unpack_from(">iiih", answer.read(size))
    assert (entries, code) == (1, 0), f"the broker refused the quota with code {code}"
