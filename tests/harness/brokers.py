"""Several brokers of one cluster. The first is also its controller, so it must keep running."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from timers.cli.broker import EmbeddedBroker
from timers.cli.broker.embedded import free_port
from timers.cli.broker.process import HOST

NEVER_KILLED = {"broker.session.timeout.ms": "30000"}
"""Of a broker that no test kills: that a busy machine lets it wait for some seconds is no reason to fence it."""

CLUSTER_ID = "VGltZXJzLUJyb2tlcnMtMQ"


def brokers(directory: Path, count: int, properties: Mapping[str, str] | None = None) -> list[EmbeddedBroker]:
    """Brokers with the ids 1, 2, ... and the replication factor 1, not started. Start the first one first."""
    controller, ports = free_port(), [free_port() for _ in range(count)]
    made = []
    for id, port in enumerate(ports, 1):
        client = f"PLAINTEXT://{HOST}:{port}"
        own = {
            "node.id": str(id),
            "process.roles": "broker,controller" if id == 1 else "broker",
            "controller.quorum.voters": f"1@{HOST}:{controller}",
            "listeners": f"{client},CONTROLLER://{HOST}:{controller}" if id == 1 else client,
            "advertised.listeners": client,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        }
        made.append(EmbeddedBroker(directory / f"broker-{id}", port, {**own, **(properties or {})}))
    return made


def start(broker: EmbeddedBroker, java_options: str = "") -> str:
    """Start one of :func:`brokers` with these options of Java, and return its address."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EmbeddedBroker, "_new_cluster_id", lambda _: CLUSTER_ID)
        if java_options:
            patch.setitem(os.environ, "KAFKA_OPTS", java_options)
        return broker.start()


@contextmanager
def ended(*brokers: EmbeddedBroker) -> Iterator[None]:
    """Stop brokers at the end, the controller last."""
    try:
        yield
    finally:
        for broker in reversed(brokers):
            broker.stop()
