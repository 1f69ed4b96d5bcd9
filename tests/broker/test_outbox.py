"""The outbox on a broker: rows of real databases, relays that are killed, and the callbacks that arrive."""

from __future__ import annotations

import signal
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.harness.ids import Ids
from tests.harness.postgres import PostgresServer, need_programs
from tests.harness.process import Process, clean_environment, python
from tests.harness.waiting import due_in, wait_until
from timers.client import SqlOutbox
from timers.client.outbox import schema

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    server = PostgresServer(need_programs())
    try:
        yield server.start()
    finally:
        server.close()


class Shop:
    """A database with a table of orders and an outbox."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.dialect = url.partition(":")[0]
        with closing(self.connect()) as connection:
            statements = schema(self.dialect)
            if isinstance(connection, sqlite3.Connection):
                connection.executescript(statements)
            else:
                connection.execute(statements)
            connection.execute("CREATE TABLE orders (id text)")
            connection.commit()

    def connect(self) -> Any:
        if self.dialect == "sqlite":
            return sqlite3.connect(self.url.removeprefix("sqlite:"), timeout=30)
        return psycopg.connect(self.url)

    def rows(self) -> list[Any]:
        with closing(self.connect()) as connection:
            return list(connection.execute("SELECT id, aggregateid, sent_ms, reason FROM timer_outbox").fetchall())


class Relay(Process):
    """A process ``timers outbox run``."""

    def __init__(self, shop: Shop, ids: Ids, directory: Path, *options: str) -> None:
        directory.mkdir(exist_ok=True)
        command = python("timers.cli.main", "outbox", "run", shop.url, *options)
        environment = clean_environment(**ids.system.environment)
        super().__init__("the relay", command, environment, directory, directory / "relay.log")


@pytest.fixture
def ids(broker_address: str, tmp_path: Path) -> Iterator[Ids]:
    ids = Ids(broker_address, tmp_path)
    yield ids
    ids.system.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    if request.param == "sqlite":
        return Shop(f"sqlite:{tmp_path / 'shop.db'}")
    server: PostgresServer = request.getfixturevalue("server")
    return Shop(server.new_database())


@contextmanager
def running(relay: Relay) -> Iterator[Relay]:
    try:
        yield relay.start()
    finally:
        relay.clean_up()


def test_each_committed_row_has_one_callback_and_no_other_one_has(shop: Shop, ids: Ids, tmp_path: Path) -> None:
    outbox = SqlOutbox()
    ids.system.worker().start()
    committed: set[str] = set()
    with running(Relay(shop, ids, tmp_path / "relay")) as relay, closing(shop.connect()) as connection:
        due_s = due_in(6)
        for number in range(200):
            id = outbox.schedule(connection, ids.target, f"o-{number}", f"{number}", at=due_s, headers={"h": "1"})
            if number % 3:
                connection.commit()
                committed.add(id)
            else:
                connection.rollback()
        records = ids.fired.take(len(committed))
        ids.wait_past(due_s)
        records += ids.fired.rest()
        assert Counter(record.text("timer-id") for record in records) == Counter(committed)
        assert {record.text("h") for record in records} == {"1"}
        wait_until(lambda: not shop.rows(), "all rows are deleted")
        relay.send(signal.SIGTERM)
        assert relay.exit_code() == 0
