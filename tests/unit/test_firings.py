"""Each timer's callback is accepted once, by its source: an id may be used again, and its sender chooses it."""

from __future__ import annotations

import sqlite3
from types import SimpleNamespace

import pytest

from timers.client.tokens import MappingFirings, SqlFirings, source_of
from timers.errors import SettingsError
from timers.wire.headers import TIMER_DUE, Header, identity


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
