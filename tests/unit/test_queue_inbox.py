"""An inbox accepts each message once, in the user's transaction."""

import sqlite3
from dataclasses import dataclass

import pytest

from timers.errors import SettingsError
from timers.queue import SqlInbox


@dataclass
class Identified:
    id: str


def test_a_message_is_accepted_once_and_a_rollback_forgets_it() -> None:
    connection = sqlite3.connect(":memory:")
    inbox = SqlInbox(connection)
    inbox.create_table()
    inbox.create_table()
    connection.commit()
    first, second = Identified("orders jobs/0/1 1700000000123"), Identified("orders jobs/0/1 1700000000999")
    assert inbox.accept(first)
    connection.rollback()
    assert inbox.accept(first)
    assert not inbox.accept(first)
    assert inbox.accept(second), "a message of a new topic of the same name"
    connection.commit()
    assert not inbox.accept(first)


def test_a_table_name_that_is_no_identifier_is_refused() -> None:
    with pytest.raises(SettingsError, match="table="):
        SqlInbox(sqlite3.connect(":memory:"), table="inbox; DROP TABLE users")
