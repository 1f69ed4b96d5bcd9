"""MirrorMaker 2 between two clusters, as docs/operations.md tells of it: its own programs, and real brokers."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.harness.command_line import need
from tests.harness.process import Process, clean_environment
from tests.harness.waiting import wait_until
from timers.cli.broker import EmbeddedBroker
from timers.process import java

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(900)]

VERSION = "4.1.1"
"""Of MirrorMaker 2."""

BUILD_S, COPY_S = 600.0, 120.0
COMMITTED, ABORTED = 200, 100
LAST = b"last"

POM = f"""
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>mirror</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.apache.kafka</groupId><artifactId>connect-mirror</artifactId><version>{VERSION}</version>
  </dependency></dependencies>
</project>
"""
CLASS_PATH = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath"


@pytest.fixture(scope="module")
def class_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    need("mvn")
    directory = tmp_path_factory.mktemp("mirror")
    (directory / "pom.xml").write_text(POM)
    command = ["mvn", "--quiet", "--batch-mode", CLASS_PATH, "-Dmdep.outputFile=class-path"]
    build = Process("mvn", command, clean_environment(), directory, directory / "mvn.log")
    build.start()
    try:
        assert build.exit_code(BUILD_S) == 0, build.tail()
    finally:
        build.clean_up()
    return (directory / "class-path").read_text().strip()


@pytest.fixture
def clusters(broker_address: str, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The addresses of the cluster that is mirrored, and of the other one. Each test has other names of topics."""
    second = EmbeddedBroker(tmp_path / "second", 0)
    try:
        yield broker_address, second.start()
    finally:
        second.stop()


@contextmanager
def mirror(
    class_path: str, clusters: tuple[str, str], directory: Path, topic: str, settings: Mapping[str, str] | None = None
) -> Iterator[Process]:
    """MirrorMaker 2, from the cluster A to the cluster B."""
    lines = {
        "clusters": "A, B",
        "A.bootstrap.servers": clusters[0],
        "B.bootstrap.servers": clusters[1],
        "A->B.enabled": "true",
        "B->A.enabled": "false",
        "A->B.topics": topic,
        "replication.factor": "1",
        **{
            f"{name}.replication.factor": "1"
            for name in ("checkpoints.topic", "heartbeats.topic", "offset-syncs.topic")
        },
        **{f"{name}.storage.replication.factor": "1" for name in ("offset", "status", "config")},
        **(settings or {}),
    }
    file = directory / "mirror.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    command = [str(java.for_broker()), "-cp", class_path, "org.apache.kafka.connect.mirror.MirrorMaker", str(file)]
    process = Process("mirror", command, clean_environment(), directory, directory / "mirror.log")
    process.start()
    try:
        yield process
    finally:
        process.clean_up()


def created(address: str) -> str:
    """A topic of one partition, so that its last record is the last one in the mirror, too."""
    topic = f"callbacks-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    return topic


def produce(address: str, topic: str, count: int, *, committed: bool = True, last: bytes = b"callback") -> None:
    """One transaction."""
    producer = Producer({"bootstrap.servers": address, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(count):
        producer.produce(topic, last if number == count - 1 else b"callback")
    producer.flush(30)
    if committed:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)


def ends(address: str, topic: str) -> dict[int, int]:
    """Partition -> its next offset."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "ends"})
    try:
        numbers = consumer.list_topics(topic, 30).topics[topic].partitions
        return {each: consumer.get_watermark_offsets(TopicPartition(topic, each), 30)[1] for each in numbers}
    finally:
        consumer.close()


def values(address: str, topic: str, last: bytes) -> list[bytes]:
    """What a receiver with read_committed gets from the mirror, up to the last record."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(f"A.{topic}", 0, 0)])
    found: list[bytes] = []

    def is_last() -> bool:
        message = consumer.poll(1)
        if message is not None and not message.error():
            found.append(message.value() or b"")
        return found[-1:] == [last]

    try:
        wait_until(is_last, f"{last!r} is in the mirror", COPY_S)
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize(("isolation", "expected"), [(None, COMMITTED + ABORTED), ("read_committed", COMMITTED)])
def test_a_mirror_that_reads_uncommitted_makes_aborted_callbacks_real(
    class_path: str, clusters: tuple[str, str], tmp_path: Path, isolation: str | None, expected: int
) -> None:
    topic = created(clusters[0])
    produce(clusters[0], topic, COMMITTED - 1)
    produce(clusters[0], topic, ABORTED, committed=False)
    produce(clusters[0], topic, 1, last=LAST)
    settings = {"A.consumer.isolation.level": isolation} if isolation else {}
    with mirror(class_path, clusters, tmp_path, topic, settings):
        assert len(values(clusters[1], topic, LAST)) == expected


def test_a_mirror_that_paused_for_longer_than_trimming_lacks_records_and_says_nothing(
    class_path: str, clusters: tuple[str, str], tmp_path: Path
) -> None:
    topic, copied, kept = created(clusters[0]), 100, 60
    produce(clusters[0], topic, copied, last=b"copied")
    with mirror(class_path, clusters, tmp_path, topic):
        assert len(values(clusters[1], topic, b"copied")) == copied
        offsets = "mm2-offsets.A.internal"
        wait_until(lambda: any(ends(clusters[1], offsets).values()), "the mirror has stored its offset", COPY_S)
    produce(clusters[0], topic, 110, last=LAST)
    (high,) = ends(clusters[0], topic).values()
    start = TopicPartition(topic, 0, high - 1 - kept)  # a marker ends the transaction
    admin = AdminClient({"bootstrap.servers": clusters[0]})
    admin.delete_records([start])[TopicPartition(topic, 0)].result(30)
    with mirror(class_path, clusters, tmp_path, topic) as process:
        assert len(values(clusters[1], topic, LAST)) == copied + kept
        assert not re.search(rf"(WARN|ERROR).*{topic}", process.log)
