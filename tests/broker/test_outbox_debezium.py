"""Debezium in place of the relay: the rows of an outbox, sent by its event router as docs/outbox.md configures it."""

import os
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.docs.markdown import ALL_BLOCKS, ROOT
from tests.harness.command_line import need
from tests.harness.ids import Ids
from tests.harness.postgres import PostgresServer, need_programs
from tests.harness.process import Process, clean_environment
from tests.harness.waiting import due_in, wait_until
from timers.cli.broker.embedded import free_port
from timers.client import SqlOutbox
from timers.client.outbox import schema
from timers.process import java

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(1200)]

JARS = ROOT / "build" / "connect"
BUILD_S = 600.0
"""Maven downloads 38 MB the first time."""


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of this test alone: a slot has one name in all databases."""
    server = PostgresServer(need_programs(), wal_level="logical")
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture(scope="module")
def jars() -> str:
    """The class path of Kafka Connect with Debezium's connector."""
    command = [need("mvn"), "-q", "dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={JARS}"]
    folder = ROOT / "tests" / "harness" / "connect"
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=BUILD_S)
    assert done.returncode == 0, done.stdout
    return f"{JARS}{os.sep}*"


def block_with(word: str) -> str:
    (block,) = (each for each in ALL_BLOCKS if each.page == "docs/outbox.md" and word in each.text)
    return block.text


def properties(text: Mapping[str, object]) -> str:
    return "".join(f"{name}={value}\n" for name, value in text.items())


@contextmanager
def connect(jars: str, url: str, ids: Ids, directory: Path, store_every_s: int) -> Iterator[Process]:
    """Kafka Connect in one process, which stores in a file up to where it has read."""
    user, _, place = url.removeprefix("postgresql://").partition("@")
    host, _, name = place.partition("/")
    worker = {
        "bootstrap.servers": ids.system.address,
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "offset.storage.file.filename": directory / "offsets",
        "offset.flush.interval.ms": store_every_s * 1000,
        "listeners": f"http://127.0.0.1:{free_port()}",
    }
    connector = {
        "name": "outbox",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.hostname": host.partition(":")[0],
        "database.port": host.partition(":")[2],
        "database.user": user,
        "database.password": "none",
        "database.dbname": name,
        "topic.prefix": name,
        "table.include.list": "public.timer_outbox",
    }
    files = [directory / "worker.properties", directory / "connector.properties"]
    files[0].write_text(properties(worker))
    files[1].write_text(properties(connector) + block_with("EventRouter").replace("timer-request-by-id", ids.topic))
    program = [str(java.for_broker()), "-XX:TieredStopAtLevel=1", "-cp", jars]
    command = [*program, "org.apache.kafka.connect.cli.ConnectStandalone", *map(str, files)]
    process = Process("Kafka Connect", command, clean_environment(), directory, directory / "connect.log")
    try:
        yield process.start()
    finally:
        process.clean_up()


@pytest.mark.parametrize("store_every_s", [1, 600], ids=["it has stored a position", "it has stored none"])
def test_each_committed_row_has_one_callback(
    server: PostgresServer, ids: Ids, jars: str, tmp_path: Path, store_every_s: int
) -> None:
    """Also if Connect is killed. Texts that look like numbers stay texts, and rows may be deleted at once."""
    ids.system.worker().start()
    url, outbox = server.new_database(), SqlOutbox()
    committed: dict[str, tuple[bytes | None, bytes]] = {}
    with closing(psycopg.connect(url)) as shop:
        shop.execute(schema("postgresql").encode())
        shop.commit()
        for statement in block_with("PUBLICATION").splitlines():
            shop.execute(statement.encode())
            shop.commit()
        due_s = due_in(30)

        def write(first: int, last: int) -> None:
            for number in range(first, last):
                key, value = ("007", "true", None, "k")[number % 4], b"\xff%d" % number
                id = outbox.schedule(shop, ids.target, key, value, at=due_s)
                if number % 5 == 4:
                    shop.rollback()
                    continue
                if number % 2:
                    shop.execute("DELETE FROM timer_outbox WHERE aggregateid = %s", [id])
                shop.commit()
                committed[id] = (None if key is None else key.encode(), value)

        def are_sent() -> bool:
            seen.update((record.key or b"").decode() for record in requests.rest())
            return seen.keys() >= committed.keys()

        seen: Counter[str] = Counter()
        requests = ids.system.reader(ids.topic)
        write(0, 100)
        with connect(jars, url, ids, tmp_path, store_every_s) as process:
            wait_until(lambda: process.pid and are_sent(), "the rows are sent", 200)
            wait_until(lambda: (tmp_path / "offsets").exists() or store_every_s > 1, "a position is stored")
            write(100, 300)
            process.kill()
        write(300, 400)
        with connect(jars, url, ids, tmp_path, store_every_s) as process:
            wait_until(lambda: process.pid and are_sent(), "the others are sent", 200)
            assert ("No previous offset found" in process.log) == (store_every_s > 1)
    assert store_every_s == 1 or max(seen.values()) == 2, "some are sent twice, and change nothing"
    ids.wait_past(due_s)
    records = ids.fired.take(len(committed)) + ids.fired.rest()
    assert Counter(record.text("timer-id") for record in records) == Counter(committed.keys())
    assert {record.text("timer-id"): (record.key, record.value) for record in records} == committed
    assert {record.due_s for record in records} == {due_s}
