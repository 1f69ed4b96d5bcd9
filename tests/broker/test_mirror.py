"""MirrorMaker 2 between two clusters, as docs/operations.md tells of it: its own programs, and real brokers.

And what Kafka Connect, of which it is a part, makes of headers, as docs/other-clients.md tells of it.
"""

import re
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.harness.command_line import need
from tests.harness.ids import Ids
from tests.harness.process import ROOT, Process, clean_environment
from tests.harness.system import System
from tests.harness.waiting import due_in, wait_until
from timers.cli.broker import EmbeddedBroker
from timers.client import TimersClient
from timers.process import java

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(900)]

VERSION = "4.1.1"
"""Of MirrorMaker 2."""

BUILD_S, COPY_S = 600.0, 300.0
"""MirrorMaker 2 makes topics with 80 partitions in both clusters first: beside other programs this takes 90 s."""

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


EACH_SECOND = dict.fromkeys(
    [f"A->B.{name}.interval.seconds" for name in ("emit.checkpoints", "sync.group.offsets", "refresh.groups")], "1"
)


def read_as(group: str, address: str, topic: str, count: int) -> None:
    """A receiver reads so many callbacks, commits, and ends."""
    properties = {"bootstrap.servers": address, "group.id": group, "enable.auto.commit": False}
    consumer = Consumer({**properties, "auto.offset.reset": "earliest", "isolation.level": "read_committed"})
    consumer.subscribe([topic])
    got = 0

    def has_all() -> bool:
        nonlocal got
        message = consumer.poll(1)
        if message is not None and not message.error():
            got += 1
            if got == count:
                consumer.commit(message=message, asynchronous=False)
        return got >= count

    try:
        wait_until(has_all, f"{group} has read {count}", COPY_S)
    finally:
        consumer.close()


def committed(group: str, address: str, topic: str) -> int:
    """The offset of a group; below 0: it has none."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": group})
    try:
        (found,) = consumer.committed([TopicPartition(topic, 0)], 30)
        return int(found.offset)
    finally:
        consumer.close()


def test_the_offsets_of_receivers_come_later_and_behind_what_they_have_read(
    class_path: str, clusters: tuple[str, str], tmp_path: Path
) -> None:
    """So a receiver that changes to the mirror gets callbacks again, and loses none."""
    topic, count, reads = created(clusters[0]), 100, 2
    group = f"receiver-of-{topic}"
    settings = {"A->B.sync.group.offsets.enabled": "true", "A.consumer.isolation.level": "read_committed"}
    with mirror(class_path, clusters, tmp_path, topic, {**settings, **EACH_SECOND}):
        known = -1
        for number in range(1, reads + 1):
            last = b"%d" % number
            produce(clusters[0], topic, count, last=last)
            values(clusters[1], topic, last)
            read_as(group, clusters[0], topic, count)
            before = known
            wait_until(lambda: committed(group, clusters[1], f"A.{topic}") > before, "an offset has come", COPY_S)  # noqa: B023
            known = committed(group, clusters[1], f"A.{topic}")
            # The mirror has no markers of transactions, so an offset is a number of callbacks.
            assert 0 <= known <= number * count
        assert known > 0, "not all come again"


PLAIN, CANCELLED = 20, 5
CONDITIONS = 5


def send_all(ids: Ids, due_s: int) -> int:
    """Set timers and cancel some, first without conditions, then with them. Returns the number of records."""
    with TimersClient() as client:
        for number in range(PLAIN):
            client.schedule(ids.target, None, b"", at=due_s, id=f"plain-{number}")
        for number in range(CANCELLED):
            assert client.cancel(f"plain-{number}").verdict == "cancelled"
        kept, dropped, moved = (
            client.schedule(ids.target, None, b"", at=due_s, id=name, if_absent=True)
            for name in ("kept", "dropped", "moved")
        )
        assert kept.verdict == "set"
        assert client.cancel("dropped", if_source=dropped.version).verdict == "cancelled"
        later = client.update("moved", ids.target, None, b"later", at=due_s + 5, if_source=moved.version)
        assert later.verdict == "replaced"
    return PLAIN + CANCELLED + CONDITIONS


@pytest.mark.parametrize("made_before", [False, True], ids=["made by the mirror", "made before"])
def test_a_worker_on_the_mirror_fires_all_again_and_conditions_name_records_of_the_first_cluster(
    class_path: str, clusters: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, made_before: bool
) -> None:
    ids = Ids(clusters[0], tmp_path / "first")
    mirrored = f"A.{ids.topic}"
    second = System(
        clusters[1], tmp_path / "second", TIMERS_ID_TOPIC=mirrored, TIMERS_VERDICT_TOPIC=f"verdict-of-{ids.topic}"
    )
    ids.system.use(monkeypatch)
    try:
        fired = second.reader(second.create_topic(ids.target))
        if made_before:
            second.create_own_topics()
        ids.system.worker().start().ready()
        with mirror(class_path, clusters, tmp_path, ids.topic):
            ids.set("far", due_in(86400), "")
            ids.flush()
            wait_until(lambda: second.cluster.partitions(mirrored), "the mirror has the topic", COPY_S)
            wait_until(lambda: second.end(mirrored) == 1, "the mirror copies", COPY_S)
            due_s = due_in(45)
            count = 1 + send_all(ids, due_s)
            wait_until(lambda: second.end(mirrored) == count, "all is in the mirror", COPY_S)
            second.worker().start().ready()
            plain = {f"plain-{number}" for number in range(CANCELLED, PLAIN)}
            found = {each.timer_id: each.due_s for each in ids.fired.take(len(plain) + 2, COPY_S)}
            assert found == {**dict.fromkeys([*plain, "kept"], due_s), "moved": due_s + 5}
            again = {*plain, "kept", "dropped", "moved"} if made_before else plain
            found = {each.timer_id: each.due_s for each in fired.take(len(again), COPY_S)}
            assert found == dict.fromkeys(again, due_s)
            letters = second.dead_letters().take(0 if made_before else CONDITIONS)
            assert {each.text("timer-error") for each in letters} <= {"condition-without-append-time"}
            assert fired.rest() == ids.fired.rest() == []
    finally:
        second.close()
        ids.system.close()


def test_the_page_names_the_version_that_is_tried() -> None:
    assert f"MirrorMaker 2 of Kafka {VERSION}" in (ROOT / "docs" / "operations.md").read_text()


def test_connect_guesses_the_types_of_headers_unless_they_are_text(class_path: str) -> None:
    headers = ["007", "7", "2026-11-28", "true", "[1]"]
    program = ROOT / "tests" / "foreign" / "java" / "ConnectHeaders.java"
    ran = subprocess.run(
        [str(java.for_broker()), "-cp", class_path, str(program), *headers],
        capture_output=True,
        text=True,
        check=True,
        timeout=BUILD_S,
    )
    simple = [
        "007 INT8 7",
        "7 INT8 7",
        "2026-11-28 org.apache.kafka.connect.data.Date 2026-11-28",
        "true BOOLEAN true",
        "[1] ARRAY [1]",
    ]
    as_text = [f"{header} STRING {header}" for header in headers]
    expected = [line for pair in zip(simple, as_text, strict=True) for line in pair]
    assert ran.stdout.splitlines() == [*expected, "1896091205.0 FLOAT64 1.896091205E9"]
