"""Handles each message once where its effect is in an SQL database."""

from __future__ import annotations

from typing import Any, Protocol

from timers.client.sql import SqlNames


class Identified(Protocol):
    """What an inbox reads of a message."""

    @property
    def id(self) -> str: ...


class SqlInbox(SqlNames):
    """Accepted messages in a table of any SQL database, in the transaction of their effects.

    ::

        inbox = SqlInbox(connection)
        inbox.create_table()
        for message in queue.receive(100):
            if inbox.accept(message):
                connection.execute("INSERT INTO ...")
            connection.commit()
            message.ack()

    If the process is killed between the commit and the acknowledgement, the message is delivered again and is not
    accepted. Delete old rows when no delivery can come any more.

    Args:
        connection: an open DB-API connection (sqlite3, psycopg, ...). You commit.
        table: table, or ``schema.table``; :meth:`create_table` makes the default one.
        message_column: its key column; must be unique.
        paramstyle: the driver's ``paramstyle``: ``qmark`` (sqlite3), ``format`` or ``pyformat`` (psycopg, MySQL).

    Raises:
        SettingsError: a table or column name is no plain SQL identifier, or the paramstyle is unknown.
    """

    def __init__(
        self,
        connection: Any,
        *,
        table: str = "queue_inbox",
        message_column: str = "message",
        paramstyle: str = "qmark",
    ) -> None:
        super().__init__(connection, paramstyle, commit=False, table=table, length=700, message_column=message_column)

    def accept(self, message: Identified) -> bool:
        """Return whether the message comes for the first time; then it is accepted when you commit.

        Two receivers that accept one message at the same time: the key of the table lets one of them succeed, and the
        other one gets the driver's error.
        """
        return self.add(message.id)
