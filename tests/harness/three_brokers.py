"""Three brokers as one cluster. Topics have one replica unless they say otherwise, so a dead broker leaves partitions
without a leader."""

import os
import signal
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from confluent_kafka.admin import NewTopic

from tests.harness.cluster import APPEND_TIME, client_settings
from tests.harness.waiting import DEADLINE_S, wait_until
from timers.cli.broker import EmbeddedBroker
from timers.cli.broker.embedded import free_port
from timers.cli.broker.process import HOST
from timers.kafka.admin_client import AdminClient

NODES = (1, 2, 3)
NO_LEADER = -1
CONTROLLER = 1
"""The only controller: it must live."""

CONSUMER_OFFSETS, TRANSACTION_STATE = "__consumer_offsets", "__transaction_state"
"""Topics whose leaders coordinate groups and transactional ids."""

_INTERNAL = {
    # Kafka's own defaults: groups and transactions of the whole cluster survive one broker, unless a test changes it.
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
}
ONE_COORDINATOR = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
"""For a test in which the coordinators of groups and transactions are on one broker, and are lost with it."""

COORDINATING = {
    CONSUMER_OFFSETS: {"cleanup.policy": "compact"},
    TRANSACTION_STATE: {"cleanup.policy": "compact", "min.insync.replicas": "2"},
}
"""Configuration that brokers give these topics, for a test that creates them itself, with three replicas."""


class _Node(EmbeddedBroker):
    """One broker of the cluster.

    Args:
        directory: of its data.
        node: its number.
        port: for clients.
        controller_port: of the controller.
        cluster_id: of the cluster.
        properties: further properties.
    """

    def __init__(
        self,
        directory: Path,
        node: int,
        port: int,
        controller_port: int,
        cluster_id: str,
        properties: Mapping[str, str],
    ) -> None:
        client = f"PLAINTEXT://{HOST}:{port}"
        roles, listeners = "broker", client
        if node == CONTROLLER:
            roles, listeners = "broker,controller", f"{client},CONTROLLER://{HOST}:{controller_port}"
        ours = {
            "process.roles": roles,
            "node.id": str(node),
            "controller.quorum.voters": f"{CONTROLLER}@{HOST}:{controller_port}",
            "listeners": listeners,
        }
        super().__init__(directory, port, {**_INTERNAL, **properties, **ours})
        self._id_of_all = cluster_id

    def _new_cluster_id(self) -> str:
        return self._id_of_all


class ThreeBrokers:
    """A cluster of three brokers. Each may be killed or frozen, except the controller, or all may be killed.

    Attributes:
        address: of all brokers.
        brokers: by number of the node.

    Args:
        directory: of the brokers.
        properties: further properties of each broker.
    """

    def __init__(self, directory: Path, properties: Mapping[str, str] | None = None) -> None:
        ports = {node: free_port() for node in NODES}
        controller_port = free_port()
        cluster_id = uuid.uuid4().hex[:22]
        self.brokers: dict[int, EmbeddedBroker] = {
            node: _Node(directory / f"broker-{node}", node, port, controller_port, cluster_id, properties or {})
            for node, port in ports.items()
        }
        self.address = ",".join(f"{HOST}:{port}" for port in ports.values())
        self._frozen: set[int] = set()

    def start(self) -> str:
        """Start all brokers; return their address."""
        with ThreadPoolExecutor(len(NODES)) as threads:
            list(threads.map(EmbeddedBroker.start, self.brokers.values()))
        wait_until(lambda: self.alive() == set(NODES), "all brokers are in the cluster")
        return self.address

    def stop(self) -> None:
        """Stop all brokers, the controller last."""
        for node in list(self._frozen):
            self.thaw(node)
        for node in sorted(NODES, reverse=True):
            if node != CONTROLLER:
                self.brokers[node].kill()  # a clean stop of a broker would wait for the others
            self.brokers[node].stop()

    # ---- faults -------------------------------------------------------------------------------------------------

    def kill(self, node: int | None = None) -> None:
        """Kill a broker, and wait until the cluster knows that it is gone; without ``node`` kill all brokers."""
        if node is None:
            for broker in self.brokers.values():
                broker.kill()
            return
        assert node != CONTROLLER
        self.brokers[node].kill()
        wait_until(lambda: node not in self.alive(), f"the cluster knows that broker {node} is gone")

    def start_again(self, node: int) -> None:
        """Start a killed broker, and wait until it leads its partitions."""
        self.brokers[node].start()
        wait_until(lambda: node in self.alive() and not self.leaderless(), f"broker {node} leads its partitions")

    def freeze(self, node: int) -> None:
        """Stop the process of a broker: its connections stay open, and it answers nothing."""
        assert node != CONTROLLER
        os.kill(self._pid(node), signal.SIGSTOP)
        self._frozen.add(node)

    def thaw(self, node: int) -> None:
        """Let a frozen broker go on."""
        os.kill(self._pid(node), signal.SIGCONT)
        self._frozen.discard(node)

    def _pid(self, node: int) -> int:
        pid = self.brokers[node].pid
        assert pid is not None
        return pid

    # ---- state --------------------------------------------------------------------------------------------------

    def _metadata(self) -> Any:
        return AdminClient(client_settings(self.address)).list_topics(timeout=DEADLINE_S)

    def alive(self) -> set[int]:
        """The brokers that the cluster considers alive."""
        return set(self._metadata().brokers)

    def leaderless(self) -> set[tuple[str, int]]:
        """Partitions without a leader."""
        return self.led_by(NO_LEADER)

    def led_by(self, node: int) -> set[tuple[str, int]]:
        """Partitions whose leader is ``node``."""
        return {
            (name, number)
            for name, topic in self._metadata().topics.items()
            for number, partition in topic.partitions.items()
            if partition.leader == node
        }

    def create(
        self, topic: str, replicas: Sequence[int | tuple[int, ...]], config: Mapping[str, str] = APPEND_TIME
    ) -> str:
        """Create a topic whose partition i has its only replica on broker ``replicas[i]``, or replicas on these ones,
        of which the first leads."""
        admin = AdminClient(client_settings(self.address))
        assignment = [[nodes] if isinstance(nodes, int) else [*nodes] for nodes in replicas]
        leaders = [nodes[0] for nodes in assignment]
        new = NewTopic(topic, len(replicas), replica_assignment=assignment, config=dict(config))
        admin.create_topics([new])[topic].result(DEADLINE_S)

        def led() -> bool:
            found = self._metadata().topics.get(topic)
            return found is not None and [found.partitions[i].leader for i in range(len(replicas))] == leaders

        wait_until(led, f"{topic} has its leaders")
        return topic


def coordinating_partition(name: str, partitions: int) -> int:
    """Partition of such a topic whose leader coordinates a group or a transactional id: by Java's hash of the name."""
    number = 0
    for char in name:
        number = (31 * number + ord(char)) & 0xFFFFFFFF
    return abs(number - (1 << 32) if number >= 1 << 31 else number) % partitions
