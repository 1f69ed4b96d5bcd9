"""The outbox on a broker: rows of real databases, relays that are killed, and the callbacks that arrive."""

import os
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import psycopg2
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tests.harness.constants import Constants
from tests.harness.ids import Ids
from tests.harness.postgres import PostgresServer, need_programs
from tests.harness.process import Process, clean_environment, python
from tests.harness.records import Record
from tests.harness.waiting import due_in, wait_until
from timers.cli.broker import EmbeddedBroker
from timers.client import AsyncSqlOutbox, SqlOutbox
from timers.client.outbox import DEFAULT_TABLE, schema
from timers.errors import InvalidTimerError, OutboxError, SettingsError, UnreachableError
from timers.outbox import Relaying
from timers.outbox import relay as relays
from timers.outbox.databases import Postgres, database
from timers.outbox.rows import request_of
from timers.testing import SimTimers

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    server = PostgresServer(need_programs(), max_prepared_transactions="5")
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
    """A process ``timers outbox run``, or that of another module."""

    def __init__(self, shop: Shop, ids: Ids, directory: Path, module: str = "") -> None:
        directory.mkdir(exist_ok=True)
        command = python(module, shop.url) if module else python("timers.cli.main", "outbox", "run", shop.url)
        environment = clean_environment(**ids.system.environment)
        super().__init__("the relay", command, environment, directory, directory / "relay.log")


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


# ---- what goes wrong ------------------------------------------------------------------------------------------------


def relaying(shop: Shop, ids: Ids) -> Relaying:
    return Relaying(shop.url, settings=ids.system.settings)


def sent(shop: Shop) -> None:
    wait_until(lambda: not shop.rows(), "all rows are deleted")


def requests_of(ids: Ids) -> list[Record]:
    return ids.system.reader(ids.topic).rest()


def test_what_a_killed_relay_has_sent_is_not_set_again_after_it_has_fired(
    shop: Shop, ids: Ids, tmp_path: Path, constants: Constants
) -> None:
    ids.system.worker().start().ready()
    outbox = SqlOutbox()
    with closing(shop.connect()) as connection:
        free = outbox.schedule(connection, ids.target, "k", "no id", delay=2)
        outbox.schedule(connection, ids.target, "k", "an id", delay=2, id="mine")
        outbox.schedule(connection, ids.target, "k", "moved", at=due_in(900), id="other")
        outbox.cancel(connection, "other")
        connection.commit()
    dying = Relay(shop, ids, tmp_path / "dying", module="tests.harness.dying_relay")
    with running(dying):
        assert dying.exit_code() == -signal.SIGKILL
    records = ids.fired.take(2)
    assert {record.text("timer-id") for record in records} == {free, "mine"}
    assert [row[2] is not None for row in sorted(shop.rows())].count(False) == 1, "the cancel was not begun"
    constants(relays, SETTLED_S=0.0)
    with relaying(shop, ids) as relay:
        sent(shop)
    assert (relay.counters.found, relay.counters.again) == (2, 1)
    assert len(requests_of(ids)) == 5, "only the request with the condition was sent again"
    told = [(each.id, each.verdict) for each in ids.told(3)]
    assert sorted(told) == sorted([(free, "set"), ("other", "cancelled"), (free, "exists")])
    ids.wait_past(due_in(1))
    assert ids.fired.rest() == []


def test_a_mark_that_the_log_does_not_reach_is_left_to_an_operator(
    shop: Shop, ids: Ids, tmp_path: Path, constants: Constants
) -> None:
    outbox = SqlOutbox()
    with closing(shop.connect()) as connection:
        outbox.schedule(connection, ids.target, "k", "v", at=due_in(900), id="mine")
        connection.commit()
        with running(Relay(shop, ids, tmp_path / "dying", module="tests.harness.dying_relay")) as dying:
            assert dying.exit_code() == -signal.SIGKILL
        ids.system.cluster.delete_records(ids.topic, ids.system.cluster.ends(ids.topic))
        constants(relays, SETTLED_S=0.0)
        outbox.schedule(connection, ids.target, "k", "v", at=due_in(900))
        for id in (None, "late"):
            outbox.schedule(connection, ids.target, "k", "v", at=due_in(900), id=id)
            connection.execute("UPDATE timer_outbox SET sent_ms = 9223372036854775807 WHERE number > 2")
        connection.commit()
        with relaying(shop, ids) as relay:
            wait_until(lambda: len(shop.rows()) == 3 and relay.counters.refused == 3, "the other row is sent")
    assert {"does not reach back so far, or sent_ms is in the future" in row[3] for row in shop.rows()} == {True}


def test_a_row_that_the_brokers_refuse_delays_no_other_one(
    shop: Shop, ids: Ids, caplog: pytest.LogCaptureFixture
) -> None:
    """A callback topic that does not exist may exist when the timer is due: this is said, and stops no row."""
    ids.system.configure(ids.topic, max_message_bytes="3000")
    outbox = SqlOutbox()
    with closing(shop.connect()) as connection:
        for number in range(60):
            size = 4000 if number == 30 else 100
            outbox.schedule(connection, ids.target, f"{number}", b"x" * size, at=due_in(900))
        connection.execute("INSERT INTO timer_outbox (aggregateid, payload) VALUES ('by hand', '')")
        connection.commit()
        with relaying(shop, ids) as relay:
            wait_until(lambda: len(shop.rows()) == 2, "the others are sent")
            assert (relay.counters.sent, relay.counters.refused) == (59, 2)
            assert not relay.counters.error
        by_hand, too_large = sorted(row[3] for row in shop.rows())
        assert "needs timer_topic and payload" in by_hand
        assert "is larger than the limit" in too_large
        ids.system.configure(ids.topic, max_message_bytes="100000")
        connection.execute("DELETE FROM timer_outbox WHERE aggregateid = 'by hand'")
        connection.execute("UPDATE timer_outbox SET reason = NULL, sent_ms = NULL")
        connection.commit()
        with relaying(shop, ids):
            sent(shop)
        assert not [record for record in caplog.records if "does not exist" in record.message]
        outbox.schedule(connection, "no-such-topic", "k", b"v", at=due_in(900))
        connection.commit()
        with relaying(shop, ids):
            sent(shop)
            wait_until(lambda: "topic 'no-such-topic' does not exist" in caplog.text, "it is said")
    assert len(requests_of(ids)) == 61


def test_a_transaction_that_commits_late_loses_no_row_and_delays_no_other_one(server: PostgresServer, ids: Ids) -> None:
    shop, outbox = Shop(server.new_database()), SqlOutbox()
    with relaying(shop, ids) as relay, closing(shop.connect()) as late, closing(shop.connect()) as other:
        first = outbox.schedule(late, ids.target, "k", "v", at=due_in(900))
        second = outbox.schedule(other, ids.target, "k", "v", at=due_in(900))
        other.commit()
        wait_until(lambda: relay.counters.sent == 1, "the row with the higher number is sent")
        sent(shop)
        late.commit()
        wait_until(lambda: relay.counters.sent == 2, "the late one is sent")
    assert [record.key for record in sorted(requests_of(ids), key=lambda each: each.append_ms)] == [
        second.encode(),
        first.encode(),
    ]


def test_a_row_that_another_program_holds_delays_no_other_one(server: PostgresServer, ids: Ids) -> None:
    shop, outbox = Shop(server.new_database()), SqlOutbox()
    with closing(shop.connect()) as connection, closing(shop.connect()) as holder:
        held, *_ = [outbox.schedule(connection, ids.target, "k", "v", at=due_in(900)) for _ in range(3)]
        connection.commit()
        holder.execute("SELECT FROM timer_outbox WHERE aggregateid = %s FOR UPDATE", [held])
        with relaying(shop, ids) as relay:
            wait_until(lambda: relay.counters.sent == 2, "the others are sent")
            assert [row[1] for row in shop.rows()] == [held]
            assert not relay.counters.error
            holder.rollback()
            sent(shop)
    assert len(requests_of(ids)) == 3


# ---- databases that do harm -----------------------------------------------------------------------------------------


@contextmanager
def table(shop: Shop) -> Iterator[Postgres]:
    """The table as a relay has it that sends."""
    rows = Postgres(shop.url, DEFAULT_TABLE)
    rows.connect()
    assert rows.is_first()
    yield rows
    rows.close()


def insert(connection: Any, id: str | bytes, **columns: Any) -> None:
    names = ", ".join(["aggregateid", "timer_topic", "payload", *columns])
    params = ", ".join(["%s"] * (3 + len(columns)))
    values = [id, "orders", b"v", *columns.values()]
    connection.execute(f"INSERT INTO timer_outbox ({names}) VALUES ({params})", values)


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "WIN1252", "LATIN1", "UTF8"])
def test_a_text_that_its_encoding_does_not_have_makes_one_row_wrong(server: PostgresServer, encoding: str) -> None:
    shop = Shop(server.new_database(encoding))
    with closing(shop.connect()) as connection, table(shop) as rows:
        connection.execute(f"SET client_encoding = '{encoding}'")
        connection.execute("INSERT INTO timer_outbox (aggregateid) VALUES ('good')")
        if encoding != "UTF8":  # which refuses it
            connection.execute(rb"INSERT INTO timer_outbox (aggregateid) VALUES (E'\x81')")
        connection.commit()
        first, *others = rows.waiting(0, 10)
        assert (first.aggregateid, first.type, len(others)) == ("good", "schedule", encoding != "UTF8")
        rows.refuse(first.number, "中\0")
        (reason,) = connection.execute("SELECT reason FROM timer_outbox WHERE reason IS NOT NULL").fetchone()
        assert reason in ("中", r"\u4e2d", rb"\u4e2d")


def test_settings_of_a_database_are_not_those_of_a_relay(server: PostgresServer) -> None:
    shop = Shop(server.new_database())
    with closing(shop.connect()) as connection:
        connection.autocommit = True
        name = connection.info.dbname
        wrong = dict.fromkeys(("statement_timeout", "lock_timeout", "idle_session_timeout"), "100ms")
        others = {"default_transaction_isolation": "serializable", "synchronous_commit": "off"}
        for setting, value in {**wrong, **others}.items():
            connection.execute(f"ALTER DATABASE {name} SET {setting} = '{value}'")
        with table(shop) as rows:
            rows.wait(0.2)
            insert(connection, "o-1")
            marked = rows.waiting(0, 10)
            connection.execute("BEGIN; LOCK TABLE timer_outbox")
            with ThreadPoolExecutor(1) as pool:
                marking = pool.submit(rows.mark, marked, 5)
                wait_until(lambda: holds_up(connection), "it waits for the table")
                connection.execute("SELECT pg_sleep(0.2)")
                connection.execute("COMMIT")
                assert marking.result() == {1}
            assert rows._execute("SHOW default_transaction_isolation") == [("read committed",)]
            assert rows._execute("SHOW synchronous_commit") == [("on",)], "a mark survives a crash"
            connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = 'remote_apply'")
            rows.connect()
            assert rows._execute("SHOW synchronous_commit") == [("remote_apply",)]


def holds_up(connection: Any) -> bool:
    ((waiting,),) = connection.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchall()
    return bool(waiting)


def test_a_row_that_is_too_large_is_not_read_and_delays_no_other_one(server: PostgresServer) -> None:
    shop = Shop(server.new_database())
    with closing(shop.connect()) as connection, table(shop) as rows:
        insert(connection, "o-1", headers="x" * 5_000_000, timer_key="k" * 5_000_000)
        insert(connection, "o-2")
        connection.commit()
        with closing(shop.connect()) as holder:
            holder.execute("SELECT FROM timer_outbox WHERE aggregateid = 'o-1' FOR UPDATE")
            row, small = rows.waiting(0, 10)
            assert (row.aggregateid, row.payload, row.headers, row.timer_key) == ("o-1", None, None, None)
            assert (small.aggregateid, small.payload) == ("o-2", b"v"), "also while the large one gets no reason"
            with pytest.raises(InvalidTimerError, match="the row has 10000001 bytes"):
                request_of(row, 0, 1_000_000)
            assert not rows.refuse(row.number, "too large")
            holder.rollback()  # the server may learn later that a connection was closed
        assert rows.refuse(row.number, "too large")
        assert [(row.aggregateid, row.payload) for row in rows.waiting(0, 10)] == [("o-2", b"v")]
        assert rows.waiting(0, 1, 10_000_001)[0].payload == b"v"


def test_rows_of_a_table_that_was_emptied_are_not_taken_for_others(shop: Shop) -> None:
    """Its numbers begin anew. What was sent before does not delete what is there now."""
    outbox, rows = SqlOutbox(), database(shop.url, DEFAULT_TABLE)
    with closing(shop.connect()) as connection:
        rows.connect()
        outbox.cancel(connection, "before")
        connection.commit()
        before = rows.waiting(0, 10)
        if shop.dialect == "sqlite":
            connection.executescript("DELETE FROM timer_outbox; DELETE FROM sqlite_sequence")
        else:
            connection.execute("TRUNCATE timer_outbox RESTART IDENTITY")
        outbox.cancel(connection, "after")
        connection.commit()
        assert rows.mark(before, 5) == set()
        rows.delete(before)
        assert [(row.number, row.aggregateid, row.sent_ms) for row in rows.waiting(0, 10)] == [(1, "after", None)]
        rows.close()


def test_a_number_that_a_relay_would_pass_over_is_refused(shop: Shop) -> None:
    with closing(shop.connect()) as connection:
        with pytest.raises((sqlite3.IntegrityError, psycopg.errors.CheckViolation)):
            connection.execute("INSERT INTO timer_outbox (number, aggregateid) VALUES (0, 'x')")
        connection.rollback()
        connection.execute("INSERT INTO timer_outbox (number, aggregateid) VALUES (1, 'x')")


def test_a_table_that_was_renamed_and_made_anew_is_locked_anew(server: PostgresServer) -> None:
    shop = Shop(server.new_database())
    with closing(shop.connect()) as connection, table(shop) as rows:
        connection.execute("ALTER TABLE timer_outbox RENAME TO old_outbox")
        connection.execute(schema("postgresql").replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION"))
        connection.commit()
        with table(shop):  # another relay takes the new one
            insert(connection, "o-1")
            connection.commit()
            with pytest.raises(OutboxError, match="another table has the name"):
                rows.waiting(0, 10)
            rows.connect()
            assert not rows.is_first()


def test_a_session_that_other_programs_use_too_is_refused(server: PostgresServer) -> None:
    """As a pooler gives it in transaction mode: its lock would be theirs, or be left behind."""
    shop = Shop(server.new_database())
    with closing(shop.connect()) as connection, table(shop) as rows:
        insert(connection, "o-1")
        connection.commit()
        pooled = Postgres(shop.url, DEFAULT_TABLE)
        pooled._connection = rows._connection
        with pytest.raises(OutboxError, match="pooler in session mode"):
            pooled.is_first()
        pooled.connect()
        own, rows._connection = rows._connection, pooled._connection
        with pytest.raises(OutboxError, match="pooler in session mode"):
            rows.waiting(0, 10)
        rows._connection = own


def test_a_relay_whose_brokers_do_not_answer_keeps_its_table_and_says_so(shop: Shop, ids: Ids) -> None:
    class Brokerless(relays.Relay):
        def _opened(self) -> Any:
            raise UnreachableError("no broker answers")

    rows = database(shop.url, DEFAULT_TABLE)
    with closing(rows):
        rows.connect()
        relay = Brokerless(rows, ids.system.settings)
        for _ in range(3):
            with pytest.raises(UnreachableError):
                relay._work(threading.Event())
        assert not relay.counters.is_first, "the alert TimersOutboxWaits goes by it"
        other = database(shop.url, DEFAULT_TABLE)
        with closing(other):
            other.connect()
            assert not other.is_first()


def test_a_transaction_that_is_prepared_sends_its_rows_when_it_is_committed(server: PostgresServer) -> None:
    shop = Shop(server.new_database())
    with closing(shop.connect()) as connection, table(shop) as rows:
        insert(connection, "o-1")
        with pytest.raises(psycopg.errors.FeatureNotSupported):  # as the page says: the trigger sends a notice
            connection.execute("PREPARE TRANSACTION 'shop'")
        connection.rollback()
        connection.autocommit = True
        connection.execute("DROP TRIGGER timer_outbox_notify ON timer_outbox")
        connection.execute("BEGIN")
        insert(connection, "o-2")
        connection.execute("PREPARE TRANSACTION 'shop'")
        insert(connection, "o-3")
        assert [row.aggregateid for row in rows.waiting(0, 10)] == ["o-3"]
        connection.execute("COMMIT PREPARED 'shop'")
        assert [row.aggregateid for row in rows.waiting(0, 10)] == ["o-2", "o-3"]


def test_a_second_relay_goes_on_where_the_first_one_has_ended(server: PostgresServer) -> None:
    shop = Shop(server.new_database())
    first, second = Postgres(shop.url, DEFAULT_TABLE), Postgres(shop.url, "public.timer_outbox")
    first.connect()
    second.connect()
    assert first.is_first()
    assert not second.is_first(), "the same table by another name"
    first.close()
    wait_until(second.is_first, "the server has noticed the end of the session")
    second.close()


@pytest.mark.long
def test_a_database_and_a_broker_that_are_killed_are_connected_again(
    server: PostgresServer, own_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    shop, outbox = Shop(server.new_database()), SqlOutbox()
    ids = Ids(own_broker.start(), tmp_path)
    try:
        with relaying(shop, ids) as relay:
            wait_until(lambda: relay.counters.is_first, "the relay sends")
            server.kill()
            wait_until(lambda: relay.counters.error, "the relay says so")
            server.start()
            with closing(shop.connect()) as connection:
                outbox.schedule(connection, ids.target, "k", "v", at=due_in(900))
                connection.commit()
                sent(shop)
                own_broker.kill()
                outbox.schedule(connection, ids.target, "k", "v", at=due_in(900))
                connection.commit()
                wait_until(lambda: relay.counters.error, "the relay says so")
                own_broker.start()
                sent(shop)
            wait_until(lambda: relay.counters.error is None, "all is well")
        assert {record.key for record in requests_of(ids)} != set()
    finally:
        ids.system.close()


def test_a_process_that_is_forked_leaves_the_table_to_other_relays(shop: Shop, ids: Ids) -> None:
    with ExitStack() as stack:
        with relaying(shop, ids) as first:
            wait_until(lambda: first.counters.is_first, "it sends")
            child = os.fork()
            if not child:
                time.sleep(600)
                os._exit(0)
            stack.callback(os.waitpid, child, 0)
            stack.callback(os.kill, child, signal.SIGKILL)
            SqlOutbox().schedule(connection := shop.connect(), ids.target, "k", b"v", at=due_in(900))
            connection.commit()
            connection.close()
            sent(shop)
        assert not first.counters.is_first
        with relaying(shop, ids) as second:
            wait_until(lambda: second.counters.is_first, "the next one sends")
    assert len(requests_of(ids)) == 1


# ---- connections of PostgreSQL --------------------------------------------------------------------------------------


def test_a_connection_that_commits_each_statement_is_refused_for_each_driver(server: PostgresServer) -> None:
    shop, outbox = Shop(server.new_database()), SqlOutbox()
    alone = pytest.raises(SettingsError, match="commits each statement by itself")
    for connect in (psycopg.connect, psycopg2.connect):
        with closing(connect(shop.url)) as connection:
            outbox.cancel(connection, "x")
            connection.commit()
            connection.autocommit = True
            with alone:
                outbox.cancel(connection, "x")
            connection.cursor().execute("BEGIN")
            outbox.cancel(connection, "x")
            connection.cursor().execute("ROLLBACK")
    for driver in ("psycopg", "psycopg2"):
        url = shop.url.replace("postgresql", f"postgresql+{driver}")
        engine = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT")
        with Session(engine) as session, alone:
            outbox.cancel(session, "x")
        engine.dispose()
    assert len(shop.rows()) == 2


async def test_asyncpg_says_so_too(server: PostgresServer) -> None:
    shop, outbox = Shop(server.new_database()), AsyncSqlOutbox()
    alone = pytest.raises(SettingsError, match="commits each statement by itself")
    plain = await asyncpg.connect(shop.url)
    with alone:
        await outbox.cancel(plain, "x")
    await plain.close()
    url = shop.url.replace("postgresql", "postgresql+asyncpg")
    engine = create_async_engine(url, isolation_level="AUTOCOMMIT")
    async with AsyncSession(engine) as session:
        with alone:
            await outbox.cancel(session, "x")
    await engine.dispose()
    assert shop.rows() == []


async def test_connections_of_programs_with_an_event_loop(server: PostgresServer) -> None:
    shop, outbox = Shop(server.new_database()), AsyncSqlOutbox()
    due_s = due_in(900)

    async def write(connection: Any) -> str:
        return await outbox.schedule(connection, "orders", None, b"\xff\x00", at=due_s, headers={"a": b"\xff"})

    plain = await asyncpg.connect(shop.url)
    async with plain.transaction():
        ids = [await write(plain)]
    with pytest.raises(ZeroDivisionError):
        async with plain.transaction():
            await write(plain)
            _ = 1 / 0
    await plain.close()
    async with await psycopg.AsyncConnection.connect(shop.url) as connection:
        ids.append(await write(connection))
    for driver in ("asyncpg", "psycopg"):
        engine = create_async_engine(shop.url.replace("postgresql", f"postgresql+{driver}"))
        async with AsyncSession(engine) as session, session.begin():
            ids.append(await write(session))
        await engine.dispose()
    engine_of_threads = sqlalchemy.create_engine(shop.url.replace("postgresql", "postgresql+psycopg"))
    with Session(engine_of_threads) as in_session, in_session.begin():
        ids.append(SqlOutbox().schedule(in_session, "orders", None, b"\xff\x00", at=due_s, headers={"a": b"\xff"}))
    engine_of_threads.dispose()
    rows = Postgres(shop.url, DEFAULT_TABLE)
    rows.connect()
    found = rows.waiting(0, 10)
    rows.close()
    assert [row.id for row in found] == ids
    with psycopg.connect(shop.url) as own:
        assert SimTimers(now_s=time.time()).relay(own) == ids
    assert shop.rows() == []
    assert {(row.payload, row.timer_key, row.timer_due, row.timer_if, row.headers) for row in found} == {
        (b"\xff\x00", None, due_s, "absent", '[["a", {"base64": "/w=="}]]')
    }
