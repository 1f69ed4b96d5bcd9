"""Any history of arming, cancelling and (re)delivering: a SQL store, a mapping and the simplest model agree."""

from __future__ import annotations

import sqlite3

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from timers.client.tokens import MappingTokens, SqlTokens

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
