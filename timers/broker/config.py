"""Builds server.properties of the embedded broker, and chooses its ports."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

from timers.broker.probe import HOST, is_port_free
from timers.errors import BrokerError

KAFKA_PORT = 9092
"""The default port of Kafka clients."""

NODE_ID = 1

_FREE_PORTS = range(20_000, 32_000)
"""Below the range for outgoing connections (from 32768 on Linux, 49152 on macOS). So no client gets the broker's port
during a restart, and a client that retries cannot connect to itself."""

_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": str(NODE_ID),
    "controller.listener.names": "CONTROLLER",
    # Topics are created explicitly, with the configuration that the promises need.
    "auto.create.topics.enable": "false",
    # There is one broker, so there is one replica.
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # The default of 50 partitions each delays the first group and the first transaction.
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
    # Do not wait for further members of a new group.
    "group.initial.rebalance.delay.ms": "0",
    # After a crash the broker can rejoin only when its former session has expired: by default after 9 s.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    # Deleted records leave the disk soon: by default the broker looks every 5 minutes.
    "log.retention.check.interval.ms": "10000",
    # The default of 128 MB is too much for a heap of at most 1 GB.
    "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
}


def server_properties(*, port: int, controller_port: int, log_dir: str, extra: Mapping[str, str] | None = None) -> str:
    """Return the text of a properties file for one broker that is its own controller.

    Args:
        port: port for clients, on 127.0.0.1 only.
        controller_port: port of the controller, on 127.0.0.1 only.
        log_dir: data directory, relative to the broker's working directory.
        extra: further Kafka properties; they override the others.
    """
    properties = {
        **_SETTINGS,
        "controller.quorum.voters": f"{NODE_ID}@{HOST}:{controller_port}",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "log.dirs": log_dir,
        **(extra or {}),
    }
    return "".join(f"{_escaped(key, key=True)}={_escaped(value)}\n" for key, value in properties.items())


def _escaped(text: str, *, key: bool = False) -> str:
    """Escape text for Java's Properties: Latin-1, with escapes for other characters and for line breaks."""
    text = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    if key:
        text = "".join(f"\\{char}" if char in "=: #!" else char for char in text)
    units = text.encode("utf-16-be")
    codes = (int.from_bytes(units[i : i + 2], "big") for i in range(0, len(units), 2))
    return "".join(chr(code) if code < 0x7F else f"\\u{code:04x}" for code in codes)


def choose_port(preferred: Iterable[int]) -> int:
    """Return the first preferred port that is free, or else any free port."""
    for port in preferred:
        if is_port_free(port):
            return port
    return free_port()


def free_port() -> int:
    """Return a free port of 127.0.0.1 outside the range for outgoing connections."""
    for port in random.sample(_FREE_PORTS, 100):
        if is_port_free(port):
            return port
    raise BrokerError(
        f"no free port found on {HOST} between {_FREE_PORTS.start} and {_FREE_PORTS.stop}: "
        "is this process allowed to listen on ports?"
    )
