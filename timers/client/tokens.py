"""What receivers store: tokens, with which they accept a callback once or cancel its timer, and what they have handled.

A timer without an id cannot be cancelled in the engine. So the receiver keeps a token for each timer that it wants, the
callback carries the same token, and the receiver accepts the callback only if both are equal::

    timeouts = Timeouts(MappingTokens(a_dict_or_faust_table))     # or Timeouts(SqlTokens(connection))

    token = timeouts.arm("order-17")                              # 1. store it, then
    client.schedule("order-timeouts", "order-17", b"", delay=900, token=token)      # 2. schedule

    timeouts.cancel("order-17")                                   # it was paid: the callback will be refused

    if timeouts.accept("order-17", message):                      # in the consumer of order-timeouts
        expire("order-17")                                        # once, also if Kafka delivers the callback again

Accepting compares and resets in **one step**: of two deliveries, or two receivers with one SQL store, one succeeds.
Arming a name again replaces its token, and so cancels the earlier timer. Arm before you schedule: otherwise an early
callback finds no token and is refused.

The token is in the header ``callback-token``.

Without a token: a ``read_committed`` consumer gets each callback once, but it may read a record again: if it ends
before it commits its offset, or if its offset is set back. An uncommitted reader may also see a firing twice. In both
cases compare :func:`source_of`, not ``timer-id``: an id may be used again after its timer fired, and its sender chooses
it::

    firings = SqlFirings(connection)                              # or MappingFirings(a_dict_or_faust_table)

    if firings.accept(message):                                   # in the consumer of the callback topic
        handle(message)                                           # once for each timer, also if it is delivered again

A process may end between accepting and handling. If that matters, use one transaction: ``SqlTokens(connection,
commit=False)`` or ``SqlFirings(connection, commit=False)``, then commit your change and what was accepted together.

If the handling fails, call :meth:`Timeouts.restore` before ``client.retry_later``: the next attempt has the same token.
It has a source of its own, so firings need no such call.
"""

from __future__ import annotations

import contextlib
import re
import threading
import uuid
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

from timers.core.printable import quoted
from timers.errors import SettingsError
from timers.wire.headers import TIMER_ID, TIMER_SOURCE, TOKEN

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
QUALIFIED_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?")
MAX_TOKEN_CHARACTERS, MAX_SOURCE_CHARACTERS = 255, 512
"""What is longer is no token, and no source: no column of :class:`SqlTokens` and :class:`SqlFirings` has it."""
SQL_PLACEHOLDERS = {"qmark": "?", "format": "%s", "pyformat": "%s"}
"""DB-API styles with positional parameters; drivers of style ``pyformat`` (psycopg) take ``%s`` with a tuple too."""


class SqlTable:
    """A table of any SQL database. ``columns``: argument of the caller -> name of a column.

    Raises:
        SettingsError: a table or column name is no plain SQL identifier, or the paramstyle is unknown.
    """

    def __init__(self, connection: Any, paramstyle: str, *, commit: bool, table: str, **columns: str) -> None:
        # Identifiers cannot be parameters of a statement and become part of its text, so only plain names are allowed.
        names = [
            ("table", table, QUALIFIED_NAME),
            *((argument, name, _IDENTIFIER) for argument, name in columns.items()),
        ]
        for argument, name, pattern in names:
            if not pattern.fullmatch(name):
                raise SettingsError(
                    f"{argument}={quoted(name)} is not a plain SQL name: letters, digits and _, and no digit first"
                )
        if paramstyle not in SQL_PLACEHOLDERS:
            raise SettingsError(f"paramstyle={quoted(paramstyle)} is not one of {', '.join(SQL_PLACEHOLDERS)}")
        self.param = SQL_PLACEHOLDERS[paramstyle]
        self._connection = connection
        self._commit = commit
        self._create = ""

    def create_table(self) -> None:
        """Create the table if it does not exist; for receivers without a table of their own."""
        self._run(self._create, ())

    def _run(self, statement: str, values: tuple[str, ...]) -> int:
        """Execute, commit if ``commit`` is set, and return the number of changed rows."""
        cursor = self._connection.cursor()
        try:
            cursor.execute(statement, values)
            changed = int(cursor.rowcount)
        except BaseException:
            # On a lost connection rollback and close fail too, and their errors would hide the first one.
            if self._commit:
                with contextlib.suppress(Exception):
                    self._connection.rollback()
            with contextlib.suppress(Exception):
                cursor.close()
            raise
        cursor.close()
        if self._commit:
            self._connection.commit()
        return changed


class SqlNames(SqlTable):
    """A table of names of up to ``length`` characters. One statement adds a name, once.
    ``column``: as in :class:`SqlTable`; exactly one."""

    def __init__(
        self, connection: Any, paramstyle: str, *, commit: bool, table: str, length: int, **column: str
    ) -> None:
        super().__init__(connection, paramstyle, commit=commit, table=table, **column)
        (name,), param = column.values(), self.param
        self._create = f"CREATE TABLE IF NOT EXISTS {table} ({name} VARCHAR({length}) PRIMARY KEY)"
        self._insert = (
            f"INSERT INTO {table} ({name}) SELECT {param} "
            f"WHERE NOT EXISTS (SELECT 1 FROM {table} WHERE {name} = {param})"
        )

    def add(self, name: str) -> bool:
        """Return whether the name was not there, and is now."""
        return self._run(self._insert, (name, name)) == 1


@runtime_checkable
class TokenStore(Protocol):
    """A store of one token for each name. Your own store needs these four methods."""

    def put(self, name: str, token: str) -> None:
        """Store ``token`` for ``name``; it replaces any other."""

    def take(self, name: str, token: str) -> bool:
        """Delete the token of ``name`` if it is ``token``; return whether it was. This must be one step."""

    def reset(self, name: str) -> bool:
        """Delete the token of ``name``; return whether there was one."""

    def restore(self, name: str, token: str) -> bool:
        """Store ``token`` for ``name`` if it has none; return whether it had none. This must be one step."""


class MappingTokens:
    """Tokens in any mutable mapping: a dict, a shelf, a Faust table.

    A lock of this object makes each call one step, so share this object, not the mapping, between threads. Faust agents
    run on one event loop, and these methods do not await, so they need no sharing.

    Args:
        mapping: name to token. Names that are reset are deleted from it.
    """

    def __init__(self, mapping: MutableMapping[str, str]) -> None:
        self._mapping = mapping
        self._lock = threading.Lock()

    def put(self, name: str, token: str) -> None:
        with self._lock:
            self._mapping[name] = token

    def take(self, name: str, token: str) -> bool:
        with self._lock:
            if self._mapping.get(name) != token:
                return False
            del self._mapping[name]
            return True

    def reset(self, name: str) -> bool:
        with self._lock:
            if self._mapping.get(name) is None:
                return False
            del self._mapping[name]
            return True

    def restore(self, name: str, token: str) -> bool:
        with self._lock:
            if self._mapping.get(name) is not None:
                return False
            self._mapping[name] = token
            return True


class SqlTokens(SqlTable):
    """Tokens in a column of any SQL database, through a DB-API connection (sqlite3, psycopg, ...).

    One step is one statement, ``UPDATE table SET token = NULL WHERE name = ? AND token = ?``: the receiver whose
    statement changes a row succeeds, with any number of connections and machines. The column may be in your own table::

        SqlTokens(connection, table="orders", name_column="order_id", token_column="timeout_token")

    Args:
        connection: an open DB-API connection; one for each thread if the driver requires that.
        table: table, or ``schema.table``; :meth:`create_table` makes the default one.
        name_column: its key column; must be unique.
        token_column: its token column; text that may be NULL.
        paramstyle: the driver's ``paramstyle``: ``qmark`` (sqlite3), ``format`` or ``pyformat`` (psycopg, MySQL).
        commit: True commits after each call, and with it everything else that is open on the connection: use a
            connection for tokens only. False: you commit, so that the reset and your own change are one transaction. A
            rollback restores the token.

    Raises:
        SettingsError: a table or column name is no plain SQL identifier, or the paramstyle is unknown.
    """

    def __init__(
        self,
        connection: Any,
        *,
        table: str = "timer_tokens",
        name_column: str = "name",
        token_column: str = "token",
        paramstyle: str = "qmark",
        commit: bool = True,
    ) -> None:
        columns = {"name_column": name_column, "token_column": token_column}
        super().__init__(connection, paramstyle, commit=commit, table=table, **columns)
        param = self.param
        self._create = (
            f"CREATE TABLE IF NOT EXISTS {table} ({name_column} VARCHAR(255) PRIMARY KEY, "
            f"{token_column} VARCHAR({MAX_TOKEN_CHARACTERS}))"
        )
        self._insert = f"INSERT INTO {table} ({name_column}, {token_column}) VALUES ({param}, {param})"
        self._update = f"UPDATE {table} SET {token_column} = {param} WHERE {name_column} = {param}"
        self._take = (
            f"UPDATE {table} SET {token_column} = NULL WHERE {name_column} = {param} AND {token_column} = {param}"
        )
        self._reset = (
            f"UPDATE {table} SET {token_column} = NULL WHERE {name_column} = {param} AND {token_column} IS NOT NULL"
        )
        self._restore = f"{self._update} AND {token_column} IS NULL"

    def put(self, name: str, token: str) -> None:
        """Store ``token`` for ``name``; it replaces any other. A name without a row gets one."""
        if self._run(self._update, (token, name)) == 0:
            try:
                self._run(self._insert, (name, token))
            except Exception as cause:  # drivers differ: another receiver may have inserted this name meanwhile
                try:
                    is_there = self._run(self._update, (token, name)) > 0
                except Exception:  # in a transaction of the caller, databases refuse each statement after an error
                    raise cause from None
                if not is_there:
                    raise

    def take(self, name: str, token: str) -> bool:
        return self._can_have(name) and self._run(self._take, (name, token)) == 1

    def reset(self, name: str) -> bool:
        return self._can_have(name) and self._run(self._reset, (name,)) == 1

    def restore(self, name: str, token: str) -> bool:
        """Store ``token`` if the row of ``name`` has none. A row that was deleted stays so, and the result is False."""
        return self._can_have(name) and self._run(self._restore, (token, name)) == 1

    @staticmethod
    def _can_have(name: str) -> bool:
        """Whether a table can have the name, which may be the key of a callback: PostgreSQL refuses to look for NUL."""
        return "\0" not in name


Callback: TypeAlias = Any
"""Contains a token: the token itself (str or None), headers (a mapping or pairs), or a message or event of a consumer
with ``headers`` as an attribute (aiokafka, Faust) or a method (confluent-kafka)."""


class Timeouts:
    """The tokens of the timers that a receiver waits for, one for each name, such as an order id.

    Args:
        store: keeps the tokens: :class:`MappingTokens`, :class:`SqlTokens`, or your own.
    """

    def __init__(self, store: TokenStore) -> None:
        self._store = store

    def arm(self, name: str) -> str:
        """Return a new token, stored for ``name``; use it to schedule. An earlier timer of this name is cancelled."""
        token = new_token()
        self._store.put(name, token)
        return token

    def accept(self, name: str, callback: Callback) -> bool:
        """Whether the callback is accepted. True once for each :meth:`arm`: the same step resets the token.

        Args:
            name: the name given to :meth:`arm`.
            callback: the token, the headers, or the message that carries them (see :data:`Callback`).

        Returns:
            False if the timer was cancelled, armed again or accepted before, or has no token.
        """
        token = token_of(callback)
        return token is not None and self._store.take(name, token)

    def restore(self, name: str, callback: Callback) -> bool:
        """Let the token of an accepted callback count again, because its handling has failed.

        Call it before ``client.retry_later``: the next attempt has the same token, and would be refused otherwise. A
        rollback of :class:`SqlTokens` with ``commit=False`` does the same.

        Returns:
            False if ``name`` was armed again meanwhile: that timer counts, and this one is not to be tried again.
        """
        token = token_of(callback)
        return token is not None and self._store.restore(name, token)

    def cancel(self, name: str) -> bool:
        """Refuse the callback of ``name`` from now on. False if it was not armed, or was accepted already."""
        return self._store.reset(name)


def new_token() -> str:
    """A random token of 32 hexadecimal digits, which no other timer has."""
    return uuid.uuid4().hex


def token_of(callback: Callback) -> str | None:
    """The token in a callback's header ``callback-token``; of several headers the last one counts.

    None if it cannot be the token of a receiver: the sender of any request chooses its headers, and databases raise
    for text with NUL and for text that is too long.
    """
    token: bytes | str | None = None
    if callback is None or isinstance(callback, str):
        token = callback
    else:
        for name, value in headers_in(callback):
            if name == TOKEN:
                token = value
    text = token.decode("utf-8", "replace") if isinstance(token, bytes) else token
    return _kept(text, MAX_TOKEN_CHARACTERS)


def _kept(text: str | None, most: int) -> str | None:
    """Return a text that a column of so many characters can have; else None."""
    return text if text and "\0" not in text and len(text) <= most else None


def given_headers(message: Any) -> Any:
    """The headers of a message of any client, as the client gives them.

    In confluent-kafka ``headers`` is a method, which fails on names that are not UTF-8: see
    :func:`timers.kafka.records.headers_of`.
    """
    if not callable(message.headers):
        return message.headers
    from timers.kafka.records import headers_of  # loads confluent-kafka, which who has such a message has loaded

    return headers_of(message)


def headers_in(callback: Callback) -> Iterable[tuple[str, bytes | str | None]]:
    """The headers of a message, or the headers themselves."""
    headers = given_headers(callback) if hasattr(callback, "headers") else callback
    return headers.items() if isinstance(headers, Mapping) else headers or ()


def source_of(callback: Callback) -> str | None:
    """The request whose timer fired, ``<topic>/<partition>/<offset>``; None for a record that is no callback, whatever
    its headers are.

    It is the header ``timer-source`` of a timer with an id, else ``timer-id``. No two timers have the same one, and the
    sender of a request cannot choose it.

    Args:
        callback: the headers, or the message that carries them.
    """
    found = dict(headers_in(callback))
    source = found.get(TIMER_SOURCE) or found.get(TIMER_ID)
    text = source.decode("utf-8", "backslashreplace") if isinstance(source, bytes) else source or ""
    return _kept(text, MAX_SOURCE_CHARACTERS)


class MappingFirings:
    """Accepted sources in any mutable mapping: a dict, a shelf, a Faust table. They stay until you delete them.

    A lock of this object makes each call one step, so share this object, not the mapping, between threads.

    Args:
        mapping: source to anything.
    """

    def __init__(self, mapping: MutableMapping[str, Any]) -> None:
        self._mapping = mapping
        self._lock = threading.Lock()

    def accept(self, callback: Callback) -> bool:
        """Whether the callback of this timer comes for the first time. False for a record that is no callback."""
        source = source_of(callback)
        with self._lock:
            if source is None or source in self._mapping:
                return False
            self._mapping[source] = True
            return True


class SqlFirings(SqlNames):
    """Accepted sources in a table of any SQL database, as :class:`SqlTokens` keeps tokens.

    One step is one statement that inserts a source that is not there. If two receivers insert the same one at the same
    time, the key of the table lets one of them succeed. The other one gets the driver's error and must try again.
    Delete old rows when no redelivery can come any more. A rollback forgets the source.
    """

    def __init__(
        self,
        connection: Any,
        *,
        table: str = "timer_firings",
        source_column: str = "source",
        paramstyle: str = "qmark",
        commit: bool = True,
    ) -> None:
        super().__init__(
            connection,
            paramstyle,
            commit=commit,
            table=table,
            length=MAX_SOURCE_CHARACTERS,
            source_column=source_column,
        )

    def accept(self, callback: Callback) -> bool:
        """Whether the callback of this timer comes for the first time. False for a record that is no callback."""
        source = source_of(callback)
        return source is not None and self.add(source)


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

    Arguments are those of :class:`SqlFirings`; you commit.
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

    def accept(self, message: Any) -> bool:
        """Return whether the message comes for the first time; then it is accepted when you commit.

        Two receivers that accept one message at the same time: the key of the table lets one of them succeed, and the
        other one gets the driver's error.
        """
        return self.add(message.id)
