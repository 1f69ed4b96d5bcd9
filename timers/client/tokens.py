"""Tokens, with which a receiver accepts a callback once or cancels its timer.

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

A process may end between accepting and handling. If that matters, use one transaction:
``SqlTokens(connection, commit=False)``, then commit your change and the reset of the token together.

The token is in the header ``callback-token``. A receiver that sees no headers can carry it in the callback bytes:
:func:`embed` when scheduling, :func:`extract` when receiving.
"""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

from timers.client.sql import SqlTable
from timers.errors import SettingsError
from timers.wire.headers import TOKEN
from timers.wire.printable import quoted

_EMBEDDED = b"callback-token:"
_TOKEN_IN_BYTES = re.compile(rb"callback-token:([A-Za-z0-9_.-]{1,200})\n")


@runtime_checkable
class TokenStore(Protocol):
    """A store of one token for each name. Your own store needs these three methods."""

    def put(self, name: str, token: str) -> None:
        """Store ``token`` for ``name``; it replaces any other."""

    def take(self, name: str, token: str) -> bool:
        """Delete the token of ``name`` if it is ``token``; return whether it was. This must be one step."""

    def reset(self, name: str) -> bool:
        """Delete the token of ``name``; return whether there was one."""


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


class SqlTokens:
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
        self._table = SqlTable(connection, paramstyle, commit=commit, table=table, **columns)
        param = self._table.param
        self._create = (
            f"CREATE TABLE IF NOT EXISTS {table} ({name_column} VARCHAR(255) PRIMARY KEY, {token_column} VARCHAR(255))"
        )
        self._insert = f"INSERT INTO {table} ({name_column}, {token_column}) VALUES ({param}, {param})"
        self._update = f"UPDATE {table} SET {token_column} = {param} WHERE {name_column} = {param}"
        self._take = (
            f"UPDATE {table} SET {token_column} = NULL WHERE {name_column} = {param} AND {token_column} = {param}"
        )
        self._reset = (
            f"UPDATE {table} SET {token_column} = NULL WHERE {name_column} = {param} AND {token_column} IS NOT NULL"
        )

    def create_table(self) -> None:
        """Create the table if it does not exist; for receivers without a table of their own."""
        self._table.run(self._create, ())

    def put(self, name: str, token: str) -> None:
        """Store ``token`` for ``name``; it replaces any other. A name without a row gets one."""
        if self._table.run(self._update, (token, name)) == 0:
            try:
                self._table.run(self._insert, (name, token))
            except (
                Exception
            ) as cause:  # drivers differ in their error if another receiver has inserted this name meanwhile
                try:
                    is_there = self._table.run(self._update, (token, name)) > 0
                except Exception:  # in a transaction of the caller, databases refuse each statement after an error
                    raise cause from None
                if not is_there:
                    raise

    def take(self, name: str, token: str) -> bool:
        return self._table.run(self._take, (name, token)) == 1

    def reset(self, name: str) -> bool:
        return self._table.run(self._reset, (name,)) == 1


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

    def cancel(self, name: str) -> bool:
        """Refuse the callback of ``name`` from now on. False if it was not armed, or was accepted already."""
        return self._store.reset(name)


def new_token() -> str:
    """A random token of 32 hexadecimal digits, which no other timer has."""
    return uuid.uuid4().hex


def token_of(callback: Callback) -> str | None:
    """The token in a callback's header ``callback-token``; of several headers the last one counts."""
    if callback is None or isinstance(callback, str):
        return callback or None
    token: bytes | str | None = None
    for name, value in headers_in(callback):
        if name == TOKEN:
            token = value
    return token.decode("utf-8", "replace") if isinstance(token, bytes) else token


def headers_in(callback: Callback) -> Iterable[tuple[str, bytes | str | None]]:
    """The headers of a message, or the headers themselves."""
    headers = getattr(callback, "headers", callback)
    if callable(headers):
        headers = headers()
    return headers.items() if isinstance(headers, Mapping) else headers or ()


def embed(token: str, callback: bytes) -> bytes:
    """Callback bytes with ``token`` in a first line, ``callback-token:<token>``; :func:`extract` is the inverse."""
    line = _EMBEDDED + token.encode() + b"\n"
    if not _TOKEN_IN_BYTES.fullmatch(line):
        raise SettingsError(f"token {quoted(token)} cannot be embedded: 1 to 200 letters, digits, '.', '_' or '-'")
    return line + callback


def extract(callback: bytes) -> tuple[str | None, bytes]:
    """The token that :func:`embed` put into ``callback``, and the bytes as they were; without one, (None, callback)."""
    found = _TOKEN_IN_BYTES.match(callback)
    return (found[1].decode(), callback[found.end() :]) if found else (None, callback)
