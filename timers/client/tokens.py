"""The receiver's half of a timer: accept a callback once, or cancel it.

A request in the log cannot be taken back. So the receiver keeps a token for each timer that it still wants, the same
token travels with the timer, and the callback counts only if both agree::

    timeouts = Timeouts(MappingTokens(a_dict_or_faust_table))     # or Timeouts(SqlTokens(connection))

    token = timeouts.arm("order-17")                              # 1. remember, then
    client.schedule("order-timeouts", "order-17", b"", delay=900, token=token)      # 2. schedule

    timeouts.cancel("order-17")                                   # it was paid: the callback will be refused

    if timeouts.accept("order-17", message):                      # in the consumer of order-timeouts
        expire("order-17")                                        # once, also if Kafka delivers the callback again

Accepting compares and resets in **one step**: of two deliveries, or two receivers on one SQL store, one wins. Arming a
name again replaces its token, and so cancels the timer before. Arm before you schedule: the other way round a quick
callback finds no token and is refused.

A process may die between accepting and the end of its handling. Where that matters, let both be one transaction:
``SqlTokens(connection, commit=False)``, then commit your change and the token's reset together.

The token travels in the header ``callback-token``. A receiver that sees no headers can carry it in the callback bytes:
:func:`embed` when scheduling, :func:`extract` when receiving.
"""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

from timers.errors import SettingsError
from timers.wire.headers import TOKEN

_EMBEDDED = b"callback-token:"
_TOKEN_IN_BYTES = re.compile(rb"callback-token:([A-Za-z0-9_.-]{1,200})\n")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_QUALIFIED = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?")
_PLACEHOLDERS = {"qmark": "?", "format": "%s", "pyformat": "%s"}
"""DB-API styles with positional parameters; drivers of style ``pyformat`` (psycopg) take ``%s`` with a tuple too."""


@runtime_checkable
class TokenStore(Protocol):
    """Where a receiver keeps one token for each name. Bring your own by writing these three."""

    def put(self, name: str, token: str) -> None:
        """Hold ``token`` under ``name`` instead of any other."""

    def take(self, name: str, token: str) -> bool:
        """Reset ``name`` if it holds exactly ``token``. Compare and reset must be one step. True: it was held."""

    def reset(self, name: str) -> bool:
        """Hold nothing under ``name``. True: something was held."""


class MappingTokens:
    """Tokens in any mutable mapping: a dict, a shelf, a Faust table.

    One step means under a lock of this object, so share this object, not the mapping, between threads. In a Faust agent
    there is nothing to share: agents run on one event loop, and nothing is awaited here.

    Args:
        mapping: name to token. Names that are reset are deleted from it.
    """

    def __init__(self, mapping: MutableMapping[str, str]) -> None:
        self._mapping = mapping
        self._lock = threading.Lock()

    def put(self, name: str, token: str) -> None:
        """Hold ``token`` under ``name`` instead of any other."""
        with self._lock:
            self._mapping[name] = token

    def take(self, name: str, token: str) -> bool:
        """Reset ``name`` if it holds exactly ``token``."""
        with self._lock:
            if self._mapping.get(name) != token:
                return False
            del self._mapping[name]
            return True

    def reset(self, name: str) -> bool:
        """Hold nothing under ``name``."""
        with self._lock:
            if self._mapping.get(name) is None:
                return False
            del self._mapping[name]
            return True


class SqlTokens:
    """Tokens in a column of any SQL database, through a DB-API connection (sqlite3, psycopg, ...).

    One step is one statement, ``UPDATE table SET token = NULL WHERE name = ? AND token = ?``: whichever receiver's
    changes a row wins, on any number of connections and machines. The column may be part of a table of yours::

        SqlTokens(connection, table="orders", name_column="order_id", token_column="timeout_token")

    Args:
        connection: an open DB-API connection. As the driver demands it, one for each thread.
        table: table, or ``schema.table``; :meth:`create_table` makes the default one.
        name_column: its key column; must be unique.
        token_column: its token column; text that may be NULL.
        paramstyle: the driver's ``paramstyle``: ``qmark`` (sqlite3), ``format`` or ``pyformat`` (psycopg, MySQL).
        commit: True commits the connection after each call, and with it whatever else is open on it: give it a
            connection of its own. False leaves that to you, so that the reset and your own change are one transaction;
            roll back, and the token is held again.

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
        # Identifiers cannot be parameters of a statement, so they are pasted in: nothing but plain names may pass.
        for what, name, pattern in (
            ("table", table, _QUALIFIED),
            ("name_column", name_column, _IDENTIFIER),
            ("token_column", token_column, _IDENTIFIER),
        ):
            if not pattern.fullmatch(name):
                raise SettingsError(
                    f"{what}={name!r} is not a plain SQL name: letters, digits and _, not starting with a digit"
                )
        if paramstyle not in _PLACEHOLDERS:
            raise SettingsError(f"paramstyle={paramstyle!r} is not one of {', '.join(_PLACEHOLDERS)}")
        mark = _PLACEHOLDERS[paramstyle]
        self._connection = connection
        self._commit = commit
        self._create = (
            f"CREATE TABLE IF NOT EXISTS {table} ({name_column} VARCHAR(255) PRIMARY KEY, {token_column} VARCHAR(255))"
        )
        self._insert = f"INSERT INTO {table} ({name_column}, {token_column}) VALUES ({mark}, {mark})"
        self._update = f"UPDATE {table} SET {token_column} = {mark} WHERE {name_column} = {mark}"
        self._take = (
            f"UPDATE {table} SET {token_column} = NULL WHERE {name_column} = {mark} AND {token_column} = {mark}"
        )
        self._reset = (
            f"UPDATE {table} SET {token_column} = NULL WHERE {name_column} = {mark} AND {token_column} IS NOT NULL"
        )

    def create_table(self) -> None:
        """Create the table if it does not exist; for receivers without a table of their own."""
        self._run(self._create, ())

    def put(self, name: str, token: str) -> None:
        """Hold ``token`` under ``name`` instead of any other; a name without a row gets one."""
        if self._run(self._update, (token, name)) == 0:
            try:
                self._run(self._insert, (name, token))
            except Exception:  # drivers have an IntegrityError each: did another receiver insert this name just now?
                if self._run(self._update, (token, name)) == 0:
                    raise

    def take(self, name: str, token: str) -> bool:
        """Reset ``name`` if it holds exactly ``token``."""
        return self._run(self._take, (name, token)) == 1

    def reset(self, name: str) -> bool:
        """Hold nothing under ``name``."""
        return self._run(self._reset, (name,)) == 1

    def _run(self, statement: str, values: tuple[str, ...]) -> int:
        """Execute, commit if that is ours, and return how many rows it changed."""
        cursor = self._connection.cursor()
        try:
            cursor.execute(statement, values)
            changed = int(cursor.rowcount)
        except BaseException:
            if self._commit:
                self._connection.rollback()
            raise
        finally:
            cursor.close()
        if self._commit:
            self._connection.commit()
        return changed


Callback: TypeAlias = Any
"""What a token can be found in: the token itself (str or None), headers (a mapping or pairs), or a consumer's message
or event with ``headers``, as an attribute (aiokafka, Faust) or a method (confluent-kafka)."""


class Timeouts:
    """The timers that a receiver still wants, one for each name (an order id, say).

    Args:
        store: where the tokens are: :class:`MappingTokens`, :class:`SqlTokens`, or your own.
    """

    def __init__(self, store: TokenStore) -> None:
        self._store = store

    def arm(self, name: str) -> str:
        """A new token for ``name``, remembered. Schedule with it next; an earlier timer of this name is cancelled."""
        token = new_token()
        self._store.put(name, token)
        return token

    def accept(self, name: str, callback: Callback) -> bool:
        """Whether this callback counts. True only once for each arming: the token is reset in the same step.

        Args:
            name: the name given to :meth:`arm`.
            callback: the token, the headers, or the message that carries them (see :data:`Callback`).

        Returns:
            False for a timer that was cancelled, armed anew, accepted before, or that carries no token.
        """
        token = token_of(callback)
        return token is not None and self._store.take(name, token)

    def cancel(self, name: str) -> bool:
        """Refuse the callback of ``name`` from now on. False if nothing was armed, or it has been accepted already."""
        return self._store.reset(name)


def new_token() -> str:
    """A random token of 32 hexadecimal digits, which no other timer has."""
    return uuid.uuid4().hex


def token_of(callback: Callback) -> str | None:
    """The token that a callback carries in its header ``callback-token`` (the last one, should there be several)."""
    if callback is None or isinstance(callback, str):
        return callback or None
    headers = getattr(callback, "headers", callback)
    if callable(headers):
        headers = headers()
    pairs: Iterable[tuple[str, bytes | str | None]] = headers.items() if isinstance(headers, Mapping) else headers or ()
    token: bytes | str | None = None
    for name, value in pairs:
        if name == TOKEN:
            token = value
    return token.decode("utf-8", "replace") if isinstance(token, bytes) else token


def embed(token: str, callback: bytes) -> bytes:
    """Callback bytes with ``token`` in a first line, ``callback-token:<token>``; :func:`extract` is the inverse."""
    marked = _EMBEDDED + token.encode() + b"\n"
    if not _TOKEN_IN_BYTES.fullmatch(marked):
        raise SettingsError(f"token {token!r} cannot be embedded: 1 to 200 letters, digits, '.', '_' or '-'")
    return marked + callback


def extract(callback: bytes) -> tuple[str | None, bytes]:
    """The token that :func:`embed` put into ``callback``, and the bytes as they were; without one, (None, callback)."""
    found = _TOKEN_IN_BYTES.match(callback)
    return (found[1].decode(), callback[found.end() :]) if found else (None, callback)
