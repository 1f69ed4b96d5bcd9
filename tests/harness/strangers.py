"""Consumers of other programs that join a group, each by a client and a protocol of its own."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer

from tests.harness import kafka_version
from tests.harness.waiting import DEADLINE_S, wait_until
from timers.cli.broker import jars
from timers.kafka.aiokafka_internals import group_access
from timers.kafka.aiokafka_internals.group import STABLE
from timers.process.config.settings import Settings
from timers.process.java import for_broker

CLASSIC, KIP_848 = "classic", "consumer"

_CONSOLE = "org.apache.kafka.tools.consumer"


class Stranger:
    """A consumer of librdkafka in a thread.

    Attributes:
        partitions: what the group has given to it.
        read: number of records that it has got.
        errors: texts of the errors that it has got.
    """

    def __init__(self, address: str, group: str, topics: list[str], protocol: str, **config: Any) -> None:
        self.partitions: set[tuple[str, int]] = set()
        self.read = 0
        self.errors: list[str] = []
        self._over = threading.Event()
        named = {key.replace("_", "."): value for key, value in config.items()}
        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": group,
                "client.id": "stranger",
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                **named,
            }
        )
        self._consumer.subscribe(topics)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            record = self._consumer.poll(0.05)
            self.partitions = {(each.topic, each.partition) for each in self._consumer.assignment()}
            if record is not None and (error := record.error()) is not None:
                self.errors.append(error.str())
            elif record is not None:
                self.read += 1
        self._consumer.close()

    def has_joined(self) -> bool:
        return bool(self.partitions)

    def close(self) -> None:
        """Leave the group."""
        self._over.set()
        self._thread.join()


def _need_brokers_with(protocol: str) -> None:
    """Skip the test if the brokers of the chosen version do not have a protocol."""
    if protocol != CLASSIC and kafka_version.chosen().startswith("3."):
        pytest.skip(f"NOT TRIED: a member of {protocol}, which Kafka 3.9 has as a preview or not at all")


@contextmanager
def stranger(address: str, group: str, *topics: str, protocol: str = KIP_848, **config: Any) -> Iterator[Stranger]:
    """A consumer of librdkafka in a group, until the end of the block."""
    _need_brokers_with(protocol)
    found = Stranger(address, group, [*topics], protocol, **config)
    try:
        yield found
    finally:
        found.close()


@contextmanager
def with_partitions(*arguments: str, **config: Any) -> Iterator[Stranger]:
    """The same; the block begins when it has partitions."""
    with stranger(*arguments, **config) as found:
        wait_until(found.has_joined, "the stranger has partitions")
        yield found


@contextmanager
def java(address: str, group: str, topic: str, *, shares: bool = False, protocol: str = CLASSIC) -> Iterator[None]:
    """Kafka's console consumer in a group, or its share consumer; the block begins when it is a member."""
    _need_brokers_with("share" if shares else protocol)
    program = f"{_CONSOLE}.{'ConsoleShareConsumer' if shares else 'ConsoleConsumer'}"
    options = [] if shares else [f"group.protocol={protocol}"]
    command = [
        str(for_broker()),
        "-XX:TieredStopAtLevel=1",
        program,
        *("--bootstrap-server", address, "--topic", topic, "--group", group),
        *[part for each in ["client.id=stranger", *options] for part in ("--consumer-property", each)],
    ]
    environment = {**os.environ, "CLASSPATH": os.pathsep.join(map(str, jars.KAFKA.ensure(None)))}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        settings = Settings.load({"TIMERS_BROKERS": address, "TIMERS_APP_ID": group})
        wait_until(lambda: _is_member(settings), "the Java program is in the group", 2 * DEADLINE_S)
        yield
    finally:
        process.terminate()
        process.wait(2 * DEADLINE_S)


def _is_member(settings: Settings) -> bool:
    group = group_access.describe(settings)
    return group.state == STABLE and any(not each.is_ours for each in group.members)
