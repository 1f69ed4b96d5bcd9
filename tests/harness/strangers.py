"""Consumers of other programs that join a group, each by a client and a protocol of its own."""

import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer

from tests.harness import kafka_version
from tests.harness.process import ROOT, Process, clean_environment
from tests.harness.waiting import DEADLINE_S, wait_until
from timers.cli.broker import jars
from timers.errors import BrokerError
from timers.kafka import group_access
from timers.kafka.aiokafka_internals.group import Member
from timers.process.config.settings import Settings
from timers.process.jars import JarSet
from timers.process.java import for_broker

CLASSIC, KIP_848, STREAMS = "classic", "consumer", "streams"

CLIENT_ID = "stranger"
"""Begins the client id of each stranger."""

STREAMS_JARS = JarSet("Kafka Streams", ROOT / "tests" / "kafka" / "streams" / "streams.toml", BrokerError)

_CONSOLE = "org.apache.kafka.tools.consumer"
_ERROR = re.compile(r"^.*(?:Exception|ERROR|Error:).*$", re.MULTILINE)
_OF_LOGGING = ("StatusLogger", "SLF4J")


class Stranger:
    """A consumer of librdkafka in a thread.

    Attributes:
        partitions: what the group has given to it.
        read: values of the records that it has got.
        errors: texts of the errors that it has got.
    """

    def __init__(self, address: str, group: str, topics: Sequence[str], protocol: str, **config: Any) -> None:
        self.partitions: set[tuple[str, int]] = set()
        self.read: list[bytes] = []
        self.errors: list[str] = []
        self._over = threading.Event()
        named = {key.replace("_", "."): value for key, value in config.items()}
        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": group,
                "client.id": CLIENT_ID,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                **named,
            }
        )
        self._consumer.subscribe([*topics])
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            record = self._consumer.poll(0.05)
            self.partitions = {(each.topic, each.partition) for each in self._consumer.assignment()}
            if record is not None and (error := record.error()) is not None:
                self.errors.append(error.str())
            elif record is not None:
                self.read.append(record.value() or b"")
        self._consumer.close()

    def has_joined(self) -> bool:
        return bool(self.partitions)

    def end(self) -> None:
        """Leave the group."""
        self._over.set()
        self._thread.join()


class JavaStranger(Process):
    """A Java program in a process. It writes the values that it gets.

    Args:
        command: class or source file, and arguments.
        more_jars: beside those of the broker.
    """

    def __init__(self, directory: Path, command: Sequence[str], jar_set: JarSet, *more_jars: JarSet) -> None:
        java = [str(for_broker()), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        class_path = os.pathsep.join(str(jar) for each in (jar_set, *more_jars) for jar in each.ensure(None))
        log_path = directory / f"{CLIENT_ID}.log"
        super().__init__("the stranger", [*java, *command], clean_environment(CLASSPATH=class_path), ROOT, log_path)

    @property
    def errors(self) -> list[str]:
        """What it says of errors."""
        return [line for line in _ERROR.findall(self.log) if not any(each in line for each in _OF_LOGGING)]

    @property
    def read(self) -> list[bytes]:
        """Values of the records that it has got, if these are lines of text."""
        return self.log.encode().splitlines()


def remove_members(directory: Path, address: str, group: str) -> None:
    """Remove all members of a group, as ``kafka-streams-application-reset.sh --force`` does."""
    tool = "org.apache.kafka.tools.StreamsResetter"
    command = [tool, "--bootstrap-server", address, "--application-id", group, "--force"]
    run = JavaStranger(directory, command, jars.KAFKA).start()
    assert run.exit_code() == 0, run.tail()


def _console(program: str, options: Sequence[str], directory: Path, address: str, group: str, topic: str) -> Any:
    command = [
        f"{_CONSOLE}.{program}",
        *("--bootstrap-server", address, "--topic", topic, "--group", group),
        *[part for each in [f"client.id={CLIENT_ID}", *options] for part in ("--consumer-property", each)],
    ]
    return JavaStranger(directory, command, jars.KAFKA).start()


def _streams(protocol: str, options: Sequence[str], directory: Path, address: str, group: str, topic: str) -> Any:
    source = str(Path(__file__).with_name("StreamsStranger.java"))
    command = [source, address, group, topic, protocol, str(directory / "state"), *options]
    return JavaStranger(directory, command, kafka_version.SHIPPED, STREAMS_JARS).start()


def _librdkafka(protocol: str, directory: Path, address: str, group: str, topic: str) -> Any:
    return Stranger(address, group, [topic], protocol)


class Kind(NamedTuple):
    """A client and its protocol."""

    join: Callable[[Path, str, str, str], Any]
    """Gets a directory for its files, the address of the brokers, group and topic."""
    is_classic: bool = False
    """Whether all brokers have the protocol; brokers before 4.0 do not have the others by default."""


KINDS = {
    "java": Kind(partial(_console, "ConsoleConsumer", [f"group.protocol={CLASSIC}"]), is_classic=True),
    "java-848": Kind(partial(_console, "ConsoleConsumer", [f"group.protocol={KIP_848}"])),
    "streams": Kind(partial(_streams, CLASSIC, []), is_classic=True),
    "streams-leaves": Kind(partial(_streams, CLASSIC, ["leaves"]), is_classic=True),
    "streams-1071": Kind(partial(_streams, STREAMS, [])),
    "share": Kind(partial(_console, "ConsoleShareConsumer", [])),
    "librdkafka": Kind(partial(_librdkafka, CLASSIC), is_classic=True),
    "librdkafka-848": Kind(partial(_librdkafka, KIP_848)),
}


def has_kind(kind: str) -> bool:
    """Whether the brokers of the chosen version let such a program join a group of its own."""
    return KINDS[kind].is_classic or not kafka_version.chosen().startswith("3.")


def named_by_brokers(settings: Settings, group: str) -> list[Member]:
    """Members of a group, as the brokers name them, that are strangers."""
    return [each for each in group_access.describe(settings, group).members if each.worker_id.startswith(CLIENT_ID)]


def _need_brokers_with(protocol: str) -> None:
    """Skip the test if the brokers of the chosen version do not have a protocol."""
    if protocol != CLASSIC and kafka_version.chosen().startswith("3."):
        pytest.skip(f"NOT TRIED: a member of {protocol}, which Kafka 3.9 has as a preview or not at all")


@contextmanager
def stranger(address: str, group: str, *topics: str, protocol: str = KIP_848, **config: Any) -> Iterator[Stranger]:
    """A consumer of librdkafka in a group, until the end of the block."""
    _need_brokers_with(protocol)
    found = Stranger(address, group, topics, protocol, **config)
    try:
        yield found
    finally:
        found.end()


@contextmanager
def with_partitions(*arguments: str, **config: Any) -> Iterator[Stranger]:
    """The same; the block begins when it has partitions."""
    with stranger(*arguments, **config) as found:
        wait_until(found.has_joined, "the stranger has partitions")
        yield found


@contextmanager
def member(kind: str, address: str, group: str, topic: str) -> Iterator[Any]:
    """A stranger of one of :data:`KINDS` in a group; the block begins when the brokers name it."""
    if not has_kind(kind):
        pytest.skip(f"NOT TRIED: {kind}, which Kafka 3.9 has as a preview or not at all")
    settings = Settings.load({"TIMERS_BROKERS": address, "TIMERS_APP_ID": group})
    with tempfile.TemporaryDirectory(prefix="stranger-") as directory:
        found = KINDS[kind].join(Path(directory), address, group, topic)
        try:
            wait_until(lambda: named_by_brokers(settings, group), f"{kind} is in the group", 2 * DEADLINE_S)
            yield found
        finally:
            found.end()
