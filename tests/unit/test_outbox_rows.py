"""The outbox without brokers: what is written into a transaction, and which request a relay makes of a row."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import aiosqlite
import django
import pytest
import sqlalchemy
from django.conf import settings as django_settings
from django.db import connection as django_connection
from django.db import transaction
from opentelemetry import context, trace
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from timers.client import AsyncSqlOutbox, Repeat, SqlOutbox
from timers.client.outbox import OUTBOX_COLUMNS, schema
from timers.errors import InvalidTimerError, OutboxError, SettingsError, TimersError
from timers.outbox.databases import Database, Postgres, Sqlite, database
from timers.outbox.rows import READ_COLUMNS, Request, Row, request_of, row_of
from timers.wire.formats import future_by_id
from timers.wire.headers import TIMER_TRACE
from timers.wire.record import RequestRecord

NOW_MS = 1_900_000_000_000
DUE_S = 1_900_000_100
LIMIT = 1_048_576


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(schema("sqlite"))
    return path


@pytest.fixture
def connection(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path)) as connection:
        yield connection


@pytest.fixture
def rows(path: Path) -> Iterator[Sqlite]:
    rows = Sqlite(path, "timer_outbox")
    rows.connect()
    yield rows
    rows.close()


def only(rows: Database) -> Row:
    (row,) = rows.waiting(0, 10)
    return row


def accepted(row: Row) -> tuple[Request, Any]:
    """The request of a row, and what a worker reads in it."""
    request = request_of(row, NOW_MS, LIMIT)
    record = RequestRecord(0, request.key, request.value, tuple(request.headers), NOW_MS, 1)
    decoded = future_by_id.decode([record], LIMIT, repeats=True)
    assert not decoded.rejected
    return request, decoded


# ---- what is written ------------------------------------------------------------------------------------------------


def test_a_row_becomes_the_request_that_a_client_would_send(connection: sqlite3.Connection, rows: Sqlite) -> None:
    headers: list[tuple[str, str | bytes | None]] = [("a", "1"), ("a", b"\xff\x00"), ("n", None)]
    id = SqlOutbox().schedule(connection, "orders", "o-1", b"\x00\xff", at=DUE_S, headers=headers, token="t")
    connection.commit()
    row = only(rows)
    assert row.id == row.aggregateid == id
    request, decoded = accepted(row)
    ((_, topic, key, value, callback_headers, origin),) = decoded.rows[DUE_S]
    assert (topic, key, value, origin.timer_id) == ("orders", b"o-1", b"\x00\xff", id)
    assert list(callback_headers) == [("a", b"1"), ("a", b"\xff\x00"), ("n", None), ("callback-token", b"t")]
    assert decoded.conditions == {0: "absent"}, "a second request changes nothing"
    assert row_of(request.headers) == f"1/{id}"


@pytest.mark.parametrize("key", [None, "", "k", b"k", b"\xff", "nul\0nul", "grüße"])
def test_each_key_arrives(connection: sqlite3.Connection, rows: Sqlite, key: str | bytes | None) -> None:
    SqlOutbox().schedule(connection, "orders", key, "v", at=DUE_S)
    connection.commit()
    _, decoded = accepted(only(rows))
    ((_, _, found, _, _, _),) = decoded.rows[DUE_S]
    as_bytes = [each.encode() if isinstance(each, str) else each for each in (key, found)]
    assert as_bytes[0] == as_bytes[1]


def test_an_id_of_the_caller_is_replaced_unless_he_says_otherwise(connection: sqlite3.Connection, rows: Sqlite) -> None:
    outbox = SqlOutbox()
    assert outbox.schedule(connection, "orders", "k", "v", at=DUE_S, id="o/1") == "o/1"
    outbox.schedule(connection, "orders", "k", "v", at=DUE_S, id="o/1", if_absent=True)
    assert outbox.cancel(connection, "o/1") == "o/1"
    connection.commit()
    found = rows.waiting(0, 10)
    assert [(row.aggregateid, row.type, row.timer_if) for row in found] == [
        ("o/1", "schedule", None),
        ("o/1", "schedule", "absent"),
        ("o/1", "cancel", None),
    ]
    assert len({row.id for row in found}) == 3
    request, decoded = accepted(found[2])
    assert request.value is None
    assert decoded.operations == [(b"o/1", 0, None, NOW_MS // 1000)]


def test_a_timer_that_repeats(connection: sqlite3.Connection, rows: Sqlite) -> None:
    SqlOutbox().schedule(connection, "reports", "k", "v", id="daily", repeat=Repeat.cron("0 9 * * *", zone="UTC"))
    SqlOutbox().schedule(connection, "reports", "k", "v", repeat=Repeat.every(900))
    connection.commit()
    for row in rows.waiting(0, 10):
        _, decoded = accepted(row)
        assert decoded.definitions.keys() == {0}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"topic": "no topic"}, "callback topic"),
        ({"at": 5}, "before the year 2002"),
        ({"delay": -1, "at": None}, "is negative"),
        ({"value": 5}, "callback value is of type int"),
        ({"value": b"x" * 1_100_000}, "TIMERS_MAX_REQUEST_BYTES"),
        ({"headers": {"timer-due": "1"}}, "is reserved"),
        ({"id": ""}, "key is missing or empty"),
        ({"id": "x" * 513}, "513 bytes"),
        ({"id": "nul\0"}, "NUL"),
    ],
)
def test_what_cannot_be_a_timer_is_refused_in_the_transaction(
    connection: sqlite3.Connection, rows: Sqlite, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidTimerError, match=said):
        SqlOutbox().schedule(connection, **{"topic": "orders", "key": "k", "value": "v", "at": DUE_S, **arguments})
    with pytest.raises(InvalidTimerError):
        SqlOutbox().cancel(connection, "")
    connection.commit()
    assert not rows.waiting(0, 1)


@pytest.mark.parametrize("repeat", [None, Repeat.every(900)])
def test_the_trace_of_the_sender_is_sent(connection: sqlite3.Connection, rows: Sqlite, repeat: Repeat | None) -> None:
    known = trace.SpanContext(0x1BF7651916CD43DD8448EB211C80319C, 0xC7AD6B7169203331, False, trace.TraceFlags(1))
    token = context.attach(trace.set_span_in_context(trace.NonRecordingSpan(known)))
    try:
        at = DUE_S if repeat is None else None
        SqlOutbox().schedule(connection, "orders", "k", "v", at=at, repeat=repeat)
    finally:
        context.detach(token)
    connection.commit()
    request, _ = accepted(only(rows))
    prefix = "" if repeat is None else TIMER_TRACE
    assert dict(request.headers)[f"{prefix}traceparent"] == b"00-1bf7651916cd43dd8448eb211c80319c-c7ad6b7169203331-01"


# ---- connections of other kinds -------------------------------------------------------------------------------------


def test_a_session_of_sqlalchemy(path: Path, rows: Sqlite) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")
    with Session(engine) as session, session.begin():
        id = SqlOutbox().schedule(session, "orders", "k", b"\xff", at=DUE_S)
    with engine.connect() as connection:
        SqlOutbox().schedule(connection, "orders", "k", "v", at=DUE_S)
        connection.rollback()
    engine.dispose()
    row = only(rows)
    assert (row.id, row.payload) == (id, b"\xff")


async def test_connections_of_a_program_with_an_event_loop(path: Path, rows: Sqlite) -> None:
    outbox = AsyncSqlOutbox()
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    async with AsyncSession(engine) as session, session.begin():
        first = await outbox.schedule(session, "orders", "k", "v", at=DUE_S)
    await engine.dispose()
    async with aiosqlite.connect(path) as connection:
        await outbox.cancel(connection, first)
        await connection.commit()
    assert [(row.aggregateid, row.type) for row in rows.waiting(0, 10)] == [(first, "schedule"), (first, "cancel")]


def test_a_connection_of_an_unknown_driver_is_named() -> None:
    class Wrapper:
        def __init__(self) -> None:
            self.said: list[tuple[str, Any]] = []

        def cursor(self) -> Any:
            return self

        def execute(self, statement: str, values: Any) -> None:
            self.said.append((statement, values))

        def close(self) -> None:
            """As a cursor."""

    wrapper = Wrapper()
    with pytest.raises(SettingsError, match="Wrapper, whose placeholders are not known"):
        SqlOutbox().cancel(wrapper, "x")
    SqlOutbox(paramstyle="format").cancel(wrapper, "x")
    ((statement, values),) = wrapper.said
    assert statement.count("%s") == len(OUTBOX_COLUMNS) == len(values)
    with pytest.raises(SettingsError, match="paramstyle='numeric'"):
        SqlOutbox(paramstyle="numeric")


@pytest.mark.parametrize("table", ["a b", "x;--", "1a", "a.b.c"])
def test_a_table_is_a_plain_name(table: str) -> None:
    for make in (lambda: SqlOutbox(table=table), lambda: schema("sqlite", table), lambda: database("sqlite:x", table)):
        with pytest.raises(SettingsError, match="not a plain SQL name"):
            make()


ALONE = "commits each statement by itself"


def test_a_connection_that_commits_each_statement_is_refused(path: Path, rows: Sqlite) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        with pytest.raises(SettingsError, match=ALONE):
            SqlOutbox().cancel(connection, "x")
        connection.execute("BEGIN IMMEDIATE")
        SqlOutbox().cancel(connection, "x")
        connection.execute("ROLLBACK")
    assert not rows.waiting(0, 1)


async def test_sqlalchemy_says_so_of_its_connections_and_sessions(path: Path, rows: Sqlite) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{path}", isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(SettingsError, match=ALONE):
        SqlOutbox().cancel(connection, "x")
    with Session(engine) as session, pytest.raises(SettingsError, match=ALONE):
        SqlOutbox().cancel(session, "x")
    engine.dispose()
    started = create_async_engine(f"sqlite+aiosqlite:///{path}", isolation_level="AUTOCOMMIT")
    async with AsyncSession(started) as several:
        with pytest.raises(SettingsError, match=ALONE):
            await AsyncSqlOutbox().cancel(several, "x")
    async with started.connect() as one:
        with pytest.raises(SettingsError, match=ALONE):
            await AsyncSqlOutbox().cancel(one, "x")
    await started.dispose()
    async with aiosqlite.connect(path, isolation_level=None) as own:
        with pytest.raises(SettingsError, match=ALONE):
            await AsyncSqlOutbox().cancel(own, "x")
    assert not rows.waiting(0, 1)


def test_django_says_whether_a_block_is_atomic(path: Path, rows: Sqlite) -> None:
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path)}
    django_settings.configure(DATABASES={"default": database})
    django.setup()
    with pytest.raises(SettingsError, match=ALONE):
        SqlOutbox().cancel(django_connection, "x")
    with transaction.atomic():
        id = SqlOutbox().schedule(django_connection, "orders", "50%", b"v", at=DUE_S)
    with transaction.atomic():
        SqlOutbox().cancel(django_connection, id)
        transaction.set_rollback(True)
    django_connection.close()
    row = only(rows)
    assert (row.id, row.timer_key, row.payload) == (id, "50%", b"v")


async def test_a_connection_of_the_other_kind_is_named(path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    async with AsyncSession(engine) as session:
        with pytest.raises(SettingsError, match="AsyncSqlOutbox"):
            SqlOutbox().cancel(session, "x")
    await engine.dispose()


# ---- rows of other programs -----------------------------------------------------------------------------------------

ROW = Row(1, "r", "o-1", "schedule", b"v", "orders", None, DUE_S, None, None, None, 0, None)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"type": "delete"}, "write schedule or cancel"),
        ({"type": "cancel"}, "a row of type cancel has no payload"),
        ({"payload": None}, "needs timer_topic and payload"),
        ({"timer_topic": None}, "needs timer_topic and payload"),
        ({"timer_topic": "no topic"}, "topic-invalid"),
        ({"timer_due": None}, "due-missing"),
        ({"timer_due": DUE_S * 1000}, "key-in-milliseconds"),
        ({"timer_due": -5}, "key-negative"),
        ({"timer_if": "always"}, "condition-invalid"),
        ({"timer_due": None, "timer_repeat": "every=never"}, "repeat-invalid"),
        ({"aggregateid": ""}, "id-missing"),
        ({"aggregateid": "x" * 513}, "id-too-long"),
        ({"payload": b"x" * (LIMIT + 1)}, "value-too-large"),
        ({"headers": "{"}, "headers is no JSON"),
        ({"headers": "[" * 100_000}, "headers is no JSON"),
        ({"headers": '{}, "topic": "other"'}, "headers is no JSON"),
        ({"row_bytes": 8_000_001}, "the row has 8000001 bytes, and may have 8000000"),
        ({"headers": "5"}, "headers is not"),
        ({"headers": '{"a": 5}'}, "header 'a'"),
        ({"headers": '[[1, "x"]]'}, "header name 1"),
        ({"headers": r'{"a": "\ud800"}'}, "UTF-8 cannot carry"),
        ({"headers": r'{"\ud800": "a"}'}, "header name"),
        ({"payload": 5}, "payload is of type int"),
        ({"aggregateid": b"x"}, "id-missing"),
        ({"aggregateid": "\udcff"}, "id-not-text"),
    ],
)
def test_a_row_that_is_no_timer_has_the_sentence_of_a_dead_letter(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidTimerError, match=said):
        request_of(ROW._replace(**changes), NOW_MS, LIMIT)


def test_a_row_cannot_forge_headers_of_the_engine() -> None:
    forged = json.dumps([["timer-follows", "1"], ["timer-row", "other"], ["timer-due", "1"], ["ok", "1"]])
    request, decoded = accepted(ROW._replace(headers=forged))
    assert [name for name, _ in request.headers] == ["ok", "timer-topic", "timer-due", "timer-row"]
    assert row_of(request.headers) == "1/r"
    assert decoded.rows.keys() == {DUE_S}


# ---- the database ---------------------------------------------------------------------------------------------------


def test_a_row_that_sql_has_written_has_its_defaults(connection: sqlite3.Connection, rows: Sqlite) -> None:
    connection.execute(
        "INSERT INTO timer_outbox (aggregateid, timer_topic, timer_due, payload) VALUES ('o', 'orders', ?, x'ff')",
        [DUE_S],
    )
    connection.commit()
    row = only(rows)
    assert row._fields[len(READ_COLUMNS) :] == ("row_bytes",)
    assert len(row.id) == 32
    assert row.created_ms > 1_700_000_000_000
    accepted(row)


def test_a_look_reads_as_much_as_fits_into_memory(connection: sqlite3.Connection, rows: Sqlite) -> None:
    outbox = SqlOutbox()
    for size in (900_000, 10, 900_000):
        outbox.schedule(connection, "orders", "k", b"x" * size, at=DUE_S)
    connection.execute("UPDATE timer_outbox SET payload = zeroblob(9000000) WHERE number = 1")
    connection.commit()
    large, *others = rows.waiting(0, 10)
    assert (large.number, large.payload, large.row_bytes > 9_000_000) == (1, None, True)
    assert [row.number for row in others] == [2, 3], "what is not read fills no memory"
    (read,) = rows.waiting(0, 10, 10_000_000)
    assert len(read.payload or b"") == 9_000_000
    assert [row.number for row in rows.waiting(1, 10)] == [2, 3]
    assert [row.number for row in rows.waiting(1, 1)] == [2]


def test_the_first_mark_of_a_row_that_workers_may_forget_stays(connection: sqlite3.Connection, rows: Sqlite) -> None:
    SqlOutbox().schedule(connection, "orders", "k", "v", at=DUE_S)
    SqlOutbox().cancel(connection, "x")
    connection.commit()
    for now_ms in (5, 7):
        rows.mark(rows.waiting(0, 10), now_ms)
    assert [row.sent_ms for row in rows.waiting(0, 10)] == [5, 7]


def test_a_text_that_is_not_utf8_makes_one_row_wrong(connection: sqlite3.Connection, rows: Sqlite) -> None:
    connection.execute(
        "INSERT INTO timer_outbox (aggregateid, payload, timer_topic) VALUES (CAST(x'ff' AS text), '', 't')"
    )
    connection.commit()
    with pytest.raises(InvalidTimerError, match="id-not-text"):
        request_of(only(rows), NOW_MS, LIMIT)


def test_rows_are_marked_refused_and_deleted(connection: sqlite3.Connection, rows: Sqlite) -> None:
    ids = [SqlOutbox().schedule(connection, "orders", "k", "v", at=DUE_S) for _ in range(3)]
    connection.commit()
    first, second, third = rows.waiting(0, 10)
    rows.mark([first, second], 5)
    rows.refuse(third.number, "no")
    assert rows.refused() == 1
    assert [(row.id, row.sent_ms) for row in rows.waiting(0, 10)] == [(ids[0], 5), (ids[1], 5)]
    rows.delete([first])
    assert [row.id for row in rows.waiting(0, 10)] == [ids[1]]


def test_another_file_with_the_name_is_noticed(path: Path, rows: Sqlite) -> None:
    path.rename(path.with_suffix(".old"))
    with pytest.raises(OutboxError, match="is no file"):
        rows.waiting(0, 10)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(schema("sqlite"))
    with pytest.raises(OutboxError, match="another file has the name"):
        rows.waiting(0, 10)
    rows.connect()
    assert not rows.waiting(0, 10)


def test_one_relay_works_on_a_table(path: Path, rows: Sqlite) -> None:
    other = Sqlite(path, "timer_outbox")
    other.connect()
    assert rows.is_first()
    assert rows.is_first()
    assert not other.is_first()
    rows.close()
    assert other.is_first()
    other.close()


def test_a_commit_ends_the_wait(connection: sqlite3.Connection, rows: Sqlite) -> None:
    assert not rows.waiting(0, 1)
    SqlOutbox().schedule(connection, "orders", "k", "v", at=DUE_S)
    connection.commit()
    rows.wait(3600)
    assert rows.waiting(0, 1)


def test_a_table_or_a_file_that_is_missing_is_named(tmp_path: Path, rows: Sqlite) -> None:
    with pytest.raises(OutboxError, match="is no file"):
        Sqlite(tmp_path / "other.db", "timer_outbox").connect()
    (tmp_path / "empty.db").touch()
    empty = Sqlite(tmp_path / "empty.db", "shop_timers")
    empty.connect()
    with pytest.raises(OutboxError, match="timers outbox schema --dialect sqlite --table shop"):
        empty.waiting(0, 1)
    empty.close()


def test_urls() -> None:
    assert isinstance(database("postgresql://u@h/db", "t"), Postgres)
    for url, path in (("sqlite:a/b.db", "a/b.db"), ("sqlite:/a.db", "/a.db"), ("sqlite:////a.db", "/a.db")):
        found = database(url, "t")
        assert isinstance(found, Sqlite)
        assert str(found.path) == path
    for wrong, said in (
        ("mysql://h/db", "is no database"),
        ("postgresql://u:secret@h/db", "PGPASSWORD"),
        ("postgresql://u@h/db?password=secret", "PGPASSWORD"),
    ):
        with pytest.raises(TimersError, match=said) as error:
            database(wrong, "t")
        assert "secret" not in str(error.value)
