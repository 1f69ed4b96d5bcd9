"""The embedded broker: what its commands promise, also after a crash or an interruption, or if its port is taken.

Each test has a broker of its own in a directory of its own, on a free port; Kafka's jars come from the user's cache.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AclOperation, ConfigResource, NewTopic, ResourceType

from tests.harness import acls
from timers.cli.broker import EmbeddedBroker, jars
from timers.cli.broker.embedded import DATA, NODE_ID, UNFINISHED, free_port
from timers.cli.broker.process import HOST, cluster_at
from timers.errors import BrokerError
from timers.kafka.admin_client import AdminClient
from timers.process.jars import cache_dir

pytestmark = pytest.mark.broker

TIMEOUT_S = 240.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    server = EmbeddedBroker(tmp_path / "broker", port=0)
    yield server
    server.stop()


@contextmanager
def listener() -> Iterator[int]:
    """Another program that listens on a port."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((HOST, free_port()))
        other.listen()
        yield other.getsockname()[1]


def produce(address: str, topic: str, value: bytes) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": address, "acks": "all"})
    producer.produce(topic, value)
    assert producer.flush(TIMEOUT_S) == 0


def first_value(address: str, topic: str) -> bytes | None:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "test", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    message = consumer.poll(TIMEOUT_S)
    consumer.close()
    assert message is not None and message.error() is None
    return message.value()


def timers(project: Path, *arguments: str) -> subprocess.Popen[str]:
    """A ``timers`` command that runs in a project."""
    return subprocess.Popen(
        [sys.executable, "-m", "timers.cli.main", "broker", *arguments],
        cwd=project,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def answer(project: Path, *arguments: str) -> tuple[int, str]:
    """Exit code and last line of stdout."""
    process = timers(project, *arguments)
    stdout, _ = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, (stdout.splitlines() or [""])[-1]


def test_the_commands_and_their_exit_codes(tmp_path: Path) -> None:
    directory = tmp_path / ".timers" / "broker"
    directory.mkdir(parents=True)
    port = free_port()
    (directory / "port").write_text(str(port))
    try:
        assert answer(tmp_path, "status")[0] == 3
        both = [timers(tmp_path, "start") for _ in range(2)]
        results = [(process.communicate(timeout=TIMEOUT_S)[0], process.returncode) for process in both]
        assert results == [(f"{HOST}:{port}\n", 0)] * 2, "two starts at once are one"
        assert answer(tmp_path, "start") == (0, f"{HOST}:{port}"), "and a third finds it"
        assert (directory / "address").read_text() == f"{HOST}:{port}\n"
        code, line = answer(tmp_path, "status")
        assert code == 0 and line.startswith(f"running at {HOST}:{port}, process ")
        assert answer(tmp_path, "stop") == (0, "stopped")
        assert answer(tmp_path, "stop") == (0, "not running")
        assert not (directory / "address").exists()
        assert answer(tmp_path, "status")[0] == 3
        assert answer(tmp_path, "reset") == (0, "data deleted")
        assert not (directory / "data").exists()
    finally:
        EmbeddedBroker(directory).stop()


def test_a_broker_at_another_port_is_named(broker: EmbeddedBroker) -> None:
    address = broker.start()
    with pytest.raises(BrokerError, match=rf"runs at {address} already"):
        EmbeddedBroker(broker.directory, port=free_port()).start()


def test_ctrl_c_during_a_start_leaves_nothing_behind(tmp_path: Path) -> None:
    directory = tmp_path / ".timers" / "broker"
    server = EmbeddedBroker(directory)
    process = timers(tmp_path, "start")
    deadline = time.monotonic() + TIMEOUT_S
    while server.pid is None:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    pid = server.pid
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert sorted(path.name for path in directory.iterdir() if path.name in ("pid", "address")) == []


def test_a_crash_keeps_data_and_address(broker: EmbeddedBroker) -> None:
    address = broker.start()
    produce(address, "kept", b"value")
    broker.kill()
    assert broker.address is None
    assert broker.start() == address
    assert first_value(address, "kept") == b"value"


@pytest.mark.long
def test_acls_work_with_an_authorizer_in_the_properties(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "broker", port=0, properties=acls.OPEN_AUTHORIZER) as broker:
        address = broker.start()
        produce(address, "free", b"1")
        admin = AdminClient({"bootstrap.servers": address})
        admin.create_topics([NewTopic("guarded", 1)])["guarded"].result(TIMEOUT_S)
        rules = [
            *acls.acl(ResourceType.TOPIC, "guarded", AclOperation.DESCRIBE),
            *acls.acl(ResourceType.TOPIC, "guarded", AclOperation.WRITE, deny=True),
        ]
        codes: list[int] = []

        def note(error: KafkaError | None, _: Message) -> None:
            codes.append(error.code() if error else 0)

        for change in (acls.add, acls.remove):
            change(admin, rules)
            producer = Producer({"bootstrap.servers": address})  # one that was refused remembers it for a while
            producer.produce("guarded", b"1", on_delivery=note)
            producer.produce("free", b"1", on_delivery=note)
            assert producer.flush(TIMEOUT_S) == 0
        assert sorted(codes) == [0, 0, 0, KafkaError.TOPIC_AUTHORIZATION_FAILED]


def test_extra_properties_and_options_reach_the_broker_and_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_OPTS", "-Xmx400m -Dgreeting='good day'")
    extra = {"offsets.topic.num.partitions": "3", "broker.rack": 'green = 1 \\ "grün" 😀\nport=1'}
    with EmbeddedBroker(tmp_path / "a b, ü", port=0, properties=extra) as broker:
        address = broker.address
        assert address is not None
        admin = AdminClient({"bootstrap.servers": address})
        node = ConfigResource(ConfigResource.Type.BROKER, str(NODE_ID))
        found = admin.describe_configs([node])[node].result(TIMEOUT_S)
        assert {name: found[name].value for name in extra} == extra
        arguments = Path(f"/proc/{broker.pid}/cmdline").read_text().split("\0")
        assert arguments.index("-Xmx1g") < arguments.index("-Xmx400m")
        assert "-Dgreeting=good day" in arguments


def test_options_that_cannot_be_read_are_named(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_OPTS", "-Dgreeting='good day")
    with pytest.raises(BrokerError, match=r"KAFKA_OPTS=.* cannot be split"):
        broker.start()


def test_a_port_that_another_program_has_taken_is_replaced(broker: EmbeddedBroker) -> None:
    with listener() as taken:
        broker.directory.mkdir()
        (broker.directory / "port").write_text(str(taken))
        address = broker.start()
    assert address != f"{HOST}:{taken}"
    assert address == f"{HOST}:{(broker.directory / 'port').read_text().strip()}", "the new one is remembered"


def test_a_requested_port_that_is_taken_is_an_error(tmp_path: Path) -> None:
    with listener() as taken, pytest.raises(BrokerError, match=f"port {taken} .* is taken"):
        EmbeddedBroker(tmp_path / "broker", port=taken).start()


def test_a_start_repairs_old_files_of_a_crash_and_half_formatted_data(broker: EmbeddedBroker) -> None:
    """The stale process id is that of a living process, ours, which is no broker and must not be touched."""
    directory = broker.directory
    (directory / UNFINISHED).mkdir(parents=True)
    (directory / "pid").write_text(str(os.getpid()))
    (directory / "address").write_text(f"{HOST}:1")
    assert broker.pid is None and not broker.stop()
    (directory / "pid").write_text("not a number")
    address = broker.start()
    assert cluster_at(int(address.rpartition(":")[2])) == broker.cluster_id
    assert not (directory / UNFINISHED).exists()


def test_a_port_on_which_nothing_listens_has_no_broker_and_is_not_waited_for() -> None:
    assert cluster_at(free_port(), timeout_s=600) is None


def test_data_without_identity_is_not_formatted_over(broker: EmbeddedBroker) -> None:
    partition = broker.directory / DATA / "orders-0"
    partition.mkdir(parents=True)
    (partition / "00000000000000000000.log").write_bytes(b"records")
    with pytest.raises(BrokerError, match=r"the broker ended while starting.*`timers broker reset`"):
        broker.start()
    assert (partition / "00000000000000000000.log").exists()
    broker.reset()
    assert not partition.exists()


def test_a_broker_that_dies_at_start_says_why(tmp_path: Path) -> None:
    server = EmbeddedBroker(tmp_path / "broker", port=0, properties={"log.retention.bytes": "many"})
    with pytest.raises(BrokerError, match=r"log\.retention\.bytes"):
        server.start()
    assert server.pid is None


def test_jars_are_mended_and_the_network_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole cache needs no network; where one jar is broken, only that one is asked for."""
    paths = jars.KAFKA.ensure(None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache_dir().mkdir(parents=True)
    for path in paths:
        shutil.copy(path, cache_dir())
    broken = cache_dir() / next(jar.filename for jar in jars.KAFKA.locked() if jar.artifact == "argparse4j")
    broken.write_bytes(broken.read_bytes()[:1000])
    asked: list[str] = []

    class Repository:
        """Maven's repository, as far as it concerns a test."""

        def project(self, _group: str, artifact: str) -> Self:
            asked.append(artifact)
            return self

        def at_version(self, _version: str) -> Self:
            return self

        def artifact(self) -> Self:
            return self

        def resolve(self) -> Path:
            arrived = tmp_path / "arrived.jar"
            shutil.copy(next(path for path in paths if path.name == broken.name), arrived)
            return arrived

    monkeypatch.setattr("timers.process.jars.maven", lambda *_: Repository())
    jars.KAFKA.ensure(None)
    assert asked == ["argparse4j"]
    jars.KAFKA.ensure(None)
    assert asked == ["argparse4j"]
