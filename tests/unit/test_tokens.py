"""Tokens: each store accepts a token once."""

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from timers.client.tokens import (
    MappingFirings,
    MappingTokens,
    SqlFirings,
    SqlTokens,
    Timeouts,
    TokenStore,
    source_of,
    token_of,
)
from timers.errors import SettingsError
from timers.wire.headers import TIMER_DUE, Header, identity


@pytest.fixture(params=["mapping", "sql"])
def store(request: pytest.FixtureRequest, connection: sqlite3.Connection) -> TokenStore:
    if request.param == "mapping":
        return MappingTokens({})
    tokens = SqlTokens(connection)
    tokens.create_table()
    return tokens


@pytest.fixture
def timeouts(store: TokenStore) -> Timeouts:
    return Timeouts(store)


# --- what every store does --------------------------------------------------------------------------------------------


def test_a_callback_is_accepted_once(timeouts: Timeouts) -> None:
    token = timeouts.arm("order-1")
    assert timeouts.accept("order-1", token)
    assert not timeouts.accept("order-1", token), "Kafka delivered it again"


def test_a_cancelled_timer_is_refused(timeouts: Timeouts) -> None:
    token = timeouts.arm("order-1")
    assert timeouts.cancel("order-1")
    assert not timeouts.accept("order-1", token)
    assert not timeouts.cancel("order-1"), "nothing was armed any more"


def test_a_callback_whose_handling_failed_is_accepted_again(timeouts: Timeouts) -> None:
    token = timeouts.arm("order-1")
    assert timeouts.accept("order-1", token)
    assert timeouts.restore("order-1", token)
    assert not timeouts.restore("order-1", token), "it counts already"
    assert timeouts.accept("order-1", token) and not timeouts.accept("order-1", token)
    newer = timeouts.arm("order-1")
    assert not timeouts.restore("order-1", token), "the newer timer counts"
    assert not timeouts.accept("order-1", token) and timeouts.accept("order-1", newer)
    assert not timeouts.restore("order-1", None), "it was no timer with a token"


def test_arming_again_refuses_the_previous_timer(timeouts: Timeouts) -> None:
    first, second = timeouts.arm("order-1"), timeouts.arm("order-1")
    assert first != second
    assert not timeouts.accept("order-1", first)
    assert timeouts.accept("order-1", second)


def test_a_name_can_be_armed_again_after_it_was_accepted(timeouts: Timeouts) -> None:
    timeouts.accept("order-1", timeouts.arm("order-1"))
    assert timeouts.accept("order-1", timeouts.arm("order-1"))


def test_names_have_separate_tokens(timeouts: Timeouts) -> None:
    one, two = timeouts.arm("order-1"), timeouts.arm("order-2")
    assert not timeouts.accept("order-2", one)
    assert timeouts.accept("order-1", one)
    assert timeouts.accept("order-2", two)


def test_a_callback_without_a_token_is_refused(timeouts: Timeouts) -> None:
    timeouts.arm("order-1")
    without_token: list[Any] = [None, "", [], {}, [("other", b"x")], [("callback-token", None)]]
    for nothing in without_token:
        assert not timeouts.accept("order-1", nothing)
    assert not timeouts.accept("never-armed", "x")


# --- how the token is sent -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "callback",
    [
        "t1",
        [("callback-token", b"t1")],
        [("callback-token", b"old"), ("a", b"b"), ("callback-token", b"t1")],
        {"callback-token": b"t1"},
        SimpleNamespace(headers=[("callback-token", b"t1")]),
        SimpleNamespace(headers={"callback-token": "t1"}),
        SimpleNamespace(headers=lambda: [("callback-token", b"t1")]),
    ],
    ids=["token", "pairs", "the last of several", "mapping", "aiokafka", "faust", "confluent-kafka"],
)
def test_a_token_is_found_in_the_headers_of_each_client(callback: object) -> None:
    assert token_of(callback) == "t1"


@pytest.mark.parametrize("callback", [SimpleNamespace(headers=None), SimpleNamespace(headers=lambda: None), None])
def test_a_message_may_have_no_headers(callback: object) -> None:
    assert token_of(callback) is None


# --- SQL --------------------------------------------------------------------------------------------------------------


def test_one_of_two_concurrent_receivers_on_one_database_accepts(tmp_path: Path) -> None:
    path = tmp_path / "tokens.db"
    rounds, receivers = 50, 2
    with sqlite3.connect(path) as setup:
        SqlTokens(setup).create_table()
        armed = Timeouts(SqlTokens(setup))
        tokens = {f"order-{number}": armed.arm(f"order-{number}") for number in range(rounds)}
    start = threading.Barrier(receivers)

    def receive() -> list[bool]:
        connection = sqlite3.connect(path, timeout=30)
        try:
            timeouts = Timeouts(SqlTokens(connection))
            accepted = []
            for name, token in tokens.items():
                start.wait(30)
                accepted.append(timeouts.accept(name, token))
            return accepted
        finally:
            connection.close()

    with ThreadPoolExecutor(receivers) as pool:
        results = [running.result(60) for running in [pool.submit(receive) for _ in range(receivers)]]
    assert [sum(verdicts) for verdicts in zip(*results, strict=True)] == [1] * rounds


def test_one_of_two_concurrent_threads_on_one_mapping_accepts() -> None:
    timeouts = Timeouts(MappingTokens({}))
    rounds, receivers = 200, 2
    tokens = [timeouts.arm(str(number)) for number in range(rounds)]
    start = threading.Barrier(receivers)

    def receive() -> list[bool]:
        start.wait(30)
        return [timeouts.accept(str(number), token) for number, token in enumerate(tokens)]

    with ThreadPoolExecutor(receivers) as pool:
        results = [running.result(60) for running in [pool.submit(receive) for _ in range(receivers)]]
    assert [sum(verdicts) for verdicts in zip(*results, strict=True)] == [1] * rounds


def test_the_column_may_be_in_a_table_of_the_receiver(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE orders (order_id TEXT PRIMARY KEY, state TEXT, timeout_token TEXT)")
    connection.execute("INSERT INTO orders VALUES ('o-1', 'placed', NULL)")
    tokens = SqlTokens(connection, table="main.orders", name_column="order_id", token_column="timeout_token")
    timeouts = Timeouts(tokens)
    assert timeouts.accept("o-1", timeouts.arm("o-1"))
    assert connection.execute("SELECT * FROM orders").fetchall() == [("o-1", "placed", None)]


def test_a_rolled_back_acceptance_does_not_count(connection: sqlite3.Connection) -> None:
    SqlTokens(connection).create_table()
    timeouts = Timeouts(SqlTokens(connection, commit=False))
    token = timeouts.arm("order-1")
    connection.commit()
    assert timeouts.accept("order-1", token)
    connection.rollback()  # the handling failed
    assert timeouts.accept("order-1", token), "the redelivered callback finds its token again"
    connection.commit()
    assert not timeouts.accept("order-1", token)


def test_committed_tokens_remain_after_the_connection_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "tokens.db"
    before = sqlite3.connect(path)
    tokens = SqlTokens(before)
    tokens.create_table()
    token = Timeouts(tokens).arm("order-1")
    before.close()
    after = sqlite3.connect(path)
    assert Timeouts(SqlTokens(after)).accept("order-1", token)
    after.close()


@pytest.mark.parametrize(
    "names",
    [
        {"table": "tokens; DROP TABLE orders"},
        {"table": "a.b.c"},
        {"table": ""},
        {"name_column": "name = name OR 1"},
        {"token_column": "a.b"},
        {"token_column": "1st"},
    ],
)
def test_only_plain_identifiers_go_into_statements(connection: sqlite3.Connection, names: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="is not a plain SQL name"):
        SqlTokens(connection, **names)  # type: ignore[arg-type]


def test_a_wrong_paramstyle_is_named(connection: sqlite3.Connection) -> None:
    with pytest.raises(SettingsError, match="paramstyle='numeric' is not one of qmark, format, pyformat"):
        SqlTokens(connection, paramstyle="numeric")


def test_names_are_parameters_of_statements(connection: sqlite3.Connection) -> None:
    tokens = SqlTokens(connection)
    tokens.create_table()
    timeouts = Timeouts(tokens)
    evil = "x' OR '1'='1"
    token = timeouts.arm("order-1")
    assert not timeouts.accept(evil, token)
    assert not timeouts.cancel(evil)
    assert timeouts.accept("order-1", token)


class AbortedConnection:
    """A connection as that of PostgreSQL: after an error it refuses each statement until the rollback.

    Args:
        fails: word of the statement that fails first.
        is_lost: whether the rollback fails, too.
    """

    def __init__(self, connection: sqlite3.Connection, fails: str, *, is_lost: bool = False) -> None:
        self._connection, self._fails, self._is_lost = connection, fails, is_lost
        self._is_aborted = False

    def cursor(self) -> Any:
        cursor, owner = self._connection.cursor(), self

        class Cursor:
            rowcount = 0

            def execute(self, statement: str, values: tuple[str, ...]) -> None:
                if owner._is_aborted:
                    raise RuntimeError(
                        "current transaction is aborted, commands ignored until end of transaction block"
                    )
                if owner._fails in statement:
                    owner._is_aborted = True
                    raise ValueError("value too long for type character varying(255)")
                cursor.execute(statement, values)
                self.rowcount = cursor.rowcount

            def close(self) -> None:
                cursor.close()
                if owner._is_aborted:
                    raise RuntimeError("the cursor has an unread result")

        return Cursor()

    def rollback(self) -> None:
        if self._is_lost:
            raise RuntimeError("the connection is lost")
        self._is_aborted = False
        self._connection.rollback()

    def commit(self) -> None:
        self._connection.commit()


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("commit", [False, True])
@pytest.mark.parametrize("fails", ["INSERT", "UPDATE"])
def test_a_later_statement_does_not_hide_the_cause_of_an_error(
    connection: sqlite3.Connection, fails: str, commit: bool, is_lost: bool
) -> None:
    SqlTokens(connection).create_table()
    timeouts = Timeouts(SqlTokens(AbortedConnection(connection, fails, is_lost=is_lost), commit=commit))
    with pytest.raises(ValueError, match="value too long"):
        timeouts.arm("order-17")
    aborted: Any = timeouts._store._connection  # type: ignore[attr-defined]
    assert aborted._is_aborted is (is_lost or not commit), "it was rolled back, although the cursor could not be closed"


# ---- callbacks that are accepted by their source ---------------------------------------------------------------------


@pytest.fixture(params=["mapping", "sql"])
def firings(request: pytest.FixtureRequest, connection: sqlite3.Connection) -> MappingFirings | SqlFirings:
    if request.param == "mapping":
        return MappingFirings({})
    found = SqlFirings(connection)
    found.create_table()
    return found


def callback(id: bytes, source: bytes) -> list[Header]:
    return [("trace", b"1"), *identity(id, source), (TIMER_DUE, b"7")]


def test_an_id_that_is_used_again_is_accepted_again(firings: MappingFirings | SqlFirings) -> None:
    first, second = callback(b"order-17", b"timer-request-by-id/0/3"), callback(b"order-17", b"timer-request-by-id/0/9")
    assert firings.accept(first)
    assert not firings.accept(first), "Kafka delivered it again"
    assert firings.accept(second)
    assert not firings.accept(second)
    assert not firings.accept(first)


def test_an_id_that_looks_like_a_source_does_not_suppress_that_timer(firings: MappingFirings | SqlFirings) -> None:
    native = callback(b"timer-request/0/17", b"timer-request/0/17")
    hostile = callback(b"timer-request/0/17", b"timer-request-by-id/0/2")
    assert firings.accept(hostile)
    assert firings.accept(native)
    assert not firings.accept(native)


def test_a_record_without_a_timer_is_refused(firings: MappingFirings | SqlFirings) -> None:
    assert not firings.accept([])
    assert not firings.accept([("timer-id", None)])


def test_the_source_is_found_in_messages_of_every_client() -> None:
    sent = callback(b"order-17", b"t/0/3")
    assert source_of(sent) == source_of(dict(sent)) == "t/0/3"
    assert source_of(SimpleNamespace(headers=sent)) == source_of(SimpleNamespace(headers=lambda: sent)) == "t/0/3"
    assert source_of(SimpleNamespace(headers=lambda: None)) is None


def test_the_callback_of_an_older_worker_has_its_id() -> None:
    assert source_of([("timer-id", b"order-17")]) == "order-17"
    assert source_of([("timer-id", b"\xff")]) != source_of([("timer-id", b"\xfe")])


def test_a_rollback_forgets_the_source(connection: sqlite3.Connection) -> None:
    firings = SqlFirings(connection, commit=False)
    firings.create_table()
    connection.commit()
    sent = callback(b"a", b"t/0/3")
    assert firings.accept(sent)
    connection.rollback()
    assert firings.accept(sent)


def test_names_are_checked() -> None:
    with pytest.raises(SettingsError, match="source_column="):
        SqlFirings(None, source_column="a; drop")
