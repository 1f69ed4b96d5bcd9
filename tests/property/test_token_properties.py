"""Any history of arming, cancelling and (re)delivering: a SQL store, a mapping and the simplest model agree."""

import sqlite3
from contextlib import closing
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.property.unicode_text import TEXT
from timers.client.tokens import (
    MAX_SOURCE_CHARACTERS,
    MAX_TOKEN_CHARACTERS,
    MappingTokens,
    SqlFirings,
    SqlTokens,
    Timeouts,
)

names = st.sampled_from(["a", "b"])
tokens = st.sampled_from(["t1", "t2", "t3"])


class Stores(RuleBasedStateMachine):
    """Three stores that must say the same."""

    @initialize()
    def open(self) -> None:
        self.connection = sqlite3.connect(":memory:")
        self.sql = SqlTokens(self.connection)
        self.sql.create_table()
        self.held: dict[str, str] = {}
        self.mapping = MappingTokens(self.held)
        self.model: dict[str, str] = {}

    @rule(name=names, token=tokens)
    def put(self, name: str, token: str) -> None:
        for store in (self.sql, self.mapping):
            store.put(name, token)
        self.model[name] = token

    @rule(name=names, token=tokens)
    def take(self, name: str, token: str) -> None:
        expected = self.model.get(name) == token
        if expected:
            del self.model[name]
        assert [store.take(name, token) for store in (self.sql, self.mapping)] == [expected, expected]

    @rule(name=names)
    def reset(self, name: str) -> None:
        expected = self.model.pop(name, None) is not None
        assert [store.reset(name) for store in (self.sql, self.mapping)] == [expected, expected]

    @invariant()
    def nothing_is_held_that_should_not_be(self) -> None:
        if hasattr(self, "connection"):
            rows = self.connection.execute("SELECT name, token FROM timer_tokens WHERE token IS NOT NULL")
            assert dict(rows.fetchall()) == self.held == self.model

    def teardown(self) -> None:
        if hasattr(self, "connection"):
            self.connection.close()


TestStores = Stores.TestCase


class Strict(sqlite3.Connection):
    """A database that refuses NUL, as PostgreSQL does; its tables have the lengths of their columns."""

    def cursor(self, *_: Any) -> Any:
        return super().cursor(StrictCursor)


class StrictCursor(sqlite3.Cursor):
    def execute(self, statement: str, values: Any = (), /) -> Any:
        assert not any("\0" in value for value in values)
        most = MAX_SOURCE_CHARACTERS if "source" in statement else MAX_TOKEN_CHARACTERS
        assert all(len(value) <= most for value in values)
        return super().execute(statement, values)


ANY_BYTES = st.binary() | st.sampled_from([b"a\0b", b"x" * 256, b"x" * 513, b"\xff" * 400])


@given(st.lists(st.tuples(st.sampled_from(["callback-token", "timer-source", "timer-id", "a"]), ANY_BYTES)), TEXT)
def test_nothing_of_senders_makes_the_database_of_a_receiver_raise(headers: list[tuple[str, bytes]], name: str) -> None:
    with closing(sqlite3.connect(":memory:", factory=Strict)) as connection:
        tokens, firings = SqlTokens(connection), SqlFirings(connection)
        tokens.create_table()
        firings.create_table()
        timeouts = Timeouts(tokens)
        for key in (name[:255], f"{name[:99]}\0"):
            assert not timeouts.accept(key, headers)
            assert not timeouts.restore(key, headers)
            assert not timeouts.cancel(key)
        firings.accept(headers)
        assert not firings.accept(headers)
