"""The table of an outbox as a relay sees it, in PostgreSQL and in SQLite.

Only one relay of a table works at a time; others wait for it to end. So rows that another relay has begun to send are
rows of a relay that has ended. PostgreSQL's advisory lock ends with its session, and a lock of a file with its process.

Each call is a transaction of its own. Rows are read as they are there, and never from a number on: a transaction may
commit after others whose rows have higher numbers.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from timers.client.outbox import NOTIFY_CHANNEL, OUTBOX_COLUMNS, checked_table
from timers.core.operation import ABSENT
from timers.core.printable import quoted
from timers.errors import OutboxError, SettingsError
from timers.outbox.rows import READ_COLUMNS, Row
from timers.process.partition_metrics import Heartbeat

if TYPE_CHECKING:
    import psycopg

_LOCK = int.from_bytes(b"timr") << 32
"""Added to the oid of the table: the advisory lock of its relay. Other programs use other numbers."""

_SQLITE_LOOK_S = 0.02
"""Time between two looks at the size and the time of change of SQLite's files, which is no query."""

_BUSY_S = 10.0

MOST_BYTES = 8_000_000
"""So many bytes of rows are read at a time, about."""


class Database(Protocol):
    """A table of rows. Each call may raise :class:`~timers.errors.OutboxError`; then :meth:`connect` begins anew.

    Attributes:
        statement: how long a statement has had no answer. Any thread may read it. No statement has a limit of time: one
            that is slow would fail again and again, and a server that is frozen would not end it.
    """

    table: str
    statement: Heartbeat

    def connect(self) -> None:
        """Connect, and close what was open before."""

    def close(self) -> None:
        """Give way to another relay."""

    def forget(self) -> None:
        """In a process that was forked: let go of what the other one works with, so that its end frees the table."""

    def is_first(self) -> bool:
        """Whether no other relay works on this table. If so, none does until :meth:`close`."""

    def waiting(self, above: int, most: int, largest_bytes: int = MOST_BYTES) -> Sequence[Row]:
        """The first rows without a reason above a number, in the order of their numbers, of about
        :data:`MOST_BYTES`. Of a row above ``largest_bytes`` the columns that are large are None: it is not read, and
        its size does not count."""

    def mark(self, rows: Sequence[Row], now_ms: int) -> set[int]:
        """Note that they are sent now. Returns the numbers of those that are there, and that no other transaction
        holds: only these may be sent. A row with the condition ``absent`` keeps its first mark: from it on workers may
        forget its timer.
        """

    def delete(self, rows: Sequence[Row]) -> None:
        """Delete rows that were sent. One that another transaction holds stays, with its mark; and so does another row
        with the number of one, in a table that was emptied or made anew."""

    def refuse(self, number: int, reason: str) -> bool:
        """Let a row stay, with the reason why it is not sent. False: another transaction holds the row, or has deleted
        it, and it has no reason yet."""

    def refused(self) -> int:
        """How many rows have a reason."""

    def wait(self, seconds: float) -> None:
        """Wait until a transaction may have committed rows, at most that long. It sends no query."""


def database(url: str, table: str) -> Database:
    """Return the database of an URL: ``postgresql://user@host/name``, or ``sqlite:`` and a path.

    Raises:
        SettingsError: it is another one, or holds a password, which other processes could see.
    """
    table = checked_table(table)
    if url.startswith("sqlite:"):
        path = url.removeprefix("sqlite:").removeprefix("///")  # as SQLAlchemy writes it: sqlite:///relative.db
        return Sqlite(Path(path), table)
    if not url.startswith(("postgresql://", "postgres://")):
        raise SettingsError(
            f"{quoted(url.rpartition('@')[2]):.100} is no database: give postgresql://user@host/name, or sqlite: "
            "and the path of a file"
        )
    if ":" in url.partition("://")[2].rpartition("@")[0] or "password=" in url:
        raise SettingsError(
            "the URL of the database holds a password, which other processes can see: write postgresql://user@host/name"
            ", and give the password in the variable PGPASSWORD or in the file ~/.pgpass"
        )
    return Postgres(url, table)


class _Statements:
    """The statements of both databases."""

    def __init__(
        self,
        table: str,
        param: str,
        is_one_of: str,
        bytes_of: str,
        large: Sequence[str],
        place: str = "",
        free: str = "",
    ) -> None:
        """Make the statements.

        Args:
            is_one_of: whether a column is in a list.
            bytes_of: size of a column.
            large: columns that may be large.
            place: further columns of what is read.
            free: leaves out rows that another transaction holds, which may last.
        """
        # Only as many rows as fit into memory; of a row that is too large alone, its size.
        size = " + ".join(f"CAST(coalesce({bytes_of.format(name)}, 0) AS bigint)" for name in large)
        first = (
            f"SELECT *, {size} AS row_bytes FROM {table} WHERE reason IS NULL AND number > {param} "
            f"ORDER BY number LIMIT {param}"
        )
        judged = f"SELECT *, row_bytes <= {param} AS fits FROM ({first}) AS first"
        # What does not fit is not read, so it takes no place: the rows behind it do not wait for its reason.
        rows_before = "ORDER BY number ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
        before = f"sum(CASE WHEN fits THEN row_bytes END) OVER ({rows_before})"
        columns = ", ".join(f"CASE WHEN fits THEN {name} END" if name in large else name for name in READ_COLUMNS)
        self.waiting = (
            f"SELECT {columns}, row_bytes{place} FROM (SELECT *, coalesce({before}, 0) AS bytes_before "
            f"FROM ({judged}) AS judged) AS summed WHERE bytes_before < {MOST_BYTES} ORDER BY number"
        )
        # Both: a table that was emptied or made anew has other rows with the same numbers.
        those = f"{is_one_of.format('number')} AND {is_one_of.format('id')}"
        self.mark = (
            f"UPDATE {table} SET sent_ms = CASE WHEN timer_if = '{ABSENT}' THEN coalesce(sent_ms, {param}) "
            f"ELSE {param} END WHERE number IN (SELECT number FROM {table} WHERE {those}{free}) "
            "RETURNING number"
        )
        self.delete = f"DELETE FROM {table} WHERE number IN (SELECT number FROM {table} WHERE {those}{free})"
        one = f"SELECT number FROM {table} WHERE number = {param}{free}"
        self.refuse = f"UPDATE {table} SET reason = {param} WHERE number IN ({one}) RETURNING number"
        self.refused = f"SELECT count(*) FROM {table} WHERE reason IS NOT NULL"


_SESSION = {
    # A session whose client has vanished holds the lock until the server notices.
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    # Else the lock would be held, and no row sent, while a client of another program holds the table.
    "lock_timeout": "10s",
    # Defaults of the role or the database are made for other programs. A relay is idle between rows, its transaction
    # may last as long as a backlog takes, and it does not repeat a transaction after a serialization failure.
    "idle_session_timeout": "0",
    "transaction_timeout": "0",
    "default_transaction_isolation": "read committed",
}
"""Settings of the relay's session, as far as the server knows them."""


class Postgres:
    """A table in PostgreSQL. Its trigger tells of each transaction that commits rows."""

    def __init__(self, url: str, table: str) -> None:
        import psycopg  # noqa: F401  if it is missing, this is found before a thread begins

        self._url, self.table = url, table
        self._sql = _Statements(
            table,
            "%s",
            "{} = ANY(%s)",
            "octet_length({})",
            ("payload", "timer_key", "timer_repeat", "timer_if", "headers"),
            f", (SELECT to_regclass('{table}')::oid::bigint), pg_backend_pid()",
            " FOR UPDATE SKIP LOCKED",
        )
        self.statement = Heartbeat()
        self._connection: psycopg.Connection[Any] | None = None
        self._place: tuple[int, int] | None = None
        """The table and the session of the lock; None: it was not taken."""

    def connect(self) -> None:
        import psycopg

        self.close()
        try:
            self._connection = psycopg.connect(
                self._url,
                autocommit=True,
                application_name="timers-outbox",
                target_session_attrs="read-write",  # if the URL has several hosts: the one that is no standby
                connect_timeout=5,
                keepalives_idle=5,
                keepalives_interval=2,
                keepalives_count=3,
                tcp_user_timeout=10_000,
            )
            self._execute("SET statement_timeout = 0")
            known = "FROM pg_settings WHERE name = ANY(%s)"
            values = "(%s::json ->> name)"
            self._execute(f"SELECT set_config(name, {values}, false) {known}", json.dumps(_SESSION), [*_SESSION])
            # A mark that a crash of the server takes back would let a row be sent twice. Only off allows this.
            commit = "'synchronous_commit'"
            self._execute(f"SELECT set_config({commit}, 'on', false) WHERE current_setting({commit}) = 'off'")
            # The server converts nothing: what it cannot convert would stop the reading of all rows.
            self._execute("SELECT set_config('client_encoding', current_setting('server_encoding'), false)")
            _read_any_text(self._connection)
        except psycopg.Error as error:
            raise OutboxError(f"the database cannot be reached: {_sentence(error)}") from error

    def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(Exception):
                self._connection.close()
            self._connection = self._place = None

    def forget(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(Exception):  # another thread may just have closed it
                os.close(self._connection.fileno())  # close() would end the session of the other process

    def is_first(self) -> bool:
        ((oid, pid, is_shared, is_first),) = self._execute(
            f"SELECT oid, pid, held, CASE WHEN NOT held THEN pg_try_advisory_lock({_LOCK} + oid) END FROM ("
            f"SELECT to_regclass('{self.table}')::oid::bigint AS oid, pg_backend_pid() AS pid, EXISTS (SELECT "
            "FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()) AS held) AS asked"
        )
        if oid is None:
            raise OutboxError(_no_table(self.table, "postgresql"))
        if (oid, pid) == self._place:  # asked again: no broker has answered since
            return True
        if is_shared:
            raise OutboxError(_SHARED)
        if is_first:
            self._place = oid, pid
            self._execute(f'LISTEN "{NOTIFY_CHANNEL}{oid}"')
        return bool(is_first)

    def waiting(self, above: int, most: int, largest_bytes: int = MOST_BYTES) -> Sequence[Row]:
        found = self._execute(self._sql.waiting, largest_bytes, above, most)
        if self._place is not None and found:
            oid, pid = found[0][-2:]
            if pid != self._place[1]:
                raise OutboxError(_SHARED)
            if oid != self._place[0]:
                raise OutboxError(f"another table has the name {self.table} now")
        return [Row(*row[:-2]) for row in found]

    def mark(self, rows: Sequence[Row], now_ms: int) -> set[int]:
        return {number for (number,) in self._execute(self._sql.mark, now_ms, now_ms, *_names(rows))}

    def delete(self, rows: Sequence[Row]) -> None:
        import psycopg

        # A deletion that a crash of the server takes back is repeated: the row is marked. So it need not wait.
        delete = f"BEGIN; SET LOCAL synchronous_commit = off; {self._sql.delete}; COMMIT"
        self._execute(delete, *_names(rows), cursor=psycopg.ClientCursor(self._open()))  # several statements

    def refuse(self, number: int, reason: str) -> bool:
        encoding = self._open().info.encoding  # which may lack characters of the reason
        held = reason.replace("\0", "").encode(encoding, "backslashreplace").decode(encoding)
        return bool(self._execute(self._sql.refuse, held, number))

    def refused(self) -> int:
        return int(self._execute(self._sql.refused)[0][0])

    def wait(self, seconds: float) -> None:
        import psycopg

        try:
            for _ in self._open().notifies(timeout=seconds, stop_after=1):
                pass
        except psycopg.Error as error:
            raise OutboxError(f"the database has ended the connection: {_sentence(error)}") from error

    def _open(self) -> psycopg.Connection[Any]:
        assert self._connection is not None, "connect comes first"
        return self._connection

    def _execute(self, statement: str, *values: Any, cursor: psycopg.Cursor[Any] | None = None) -> list[Any]:
        import psycopg

        self.statement.beat()
        try:
            cursor = (cursor or self._open().cursor()).execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []
        except psycopg.errors.UndefinedTable:
            raise OutboxError(_no_table(self.table, "postgresql")) from None
        except psycopg.Error as error:
            raise OutboxError(f"the database refuses a statement: {_sentence(error)}") from error
        finally:
            self.statement.rest()


_SHARED = (
    "the session of the database is shared with other programs, so the lock of a relay does not hold: connect it to "
    "the server, or to a pooler in session mode, which resets a session before it gives it to another program"
)


def _read_any_text(connection: psycopg.Connection[Any]) -> None:
    """A text with bytes that are none in its encoding makes one row wrong, and not the reading of all."""
    from psycopg.adapt import Buffer, Loader

    encoding = connection.info.encoding
    encoding = "utf-8" if encoding == "ascii" else encoding  # the database says that it does not know

    class AnyText(Loader):
        def load(self, data: Buffer) -> str:
            return bytes(data).decode(encoding, "surrogateescape")

    for name in ("text", "varchar"):
        connection.adapters.register_loader(name, AnyText)


def _names(rows: Sequence[Row]) -> tuple[list[int], list[str]]:
    """What tells rows from all others: their numbers, and their ids."""
    return [row.number for row in rows], [row.id for row in rows]


class Sqlite:
    """A table in a file of SQLite. The file that a relay locks is beside it."""

    def __init__(self, path: Path, table: str) -> None:
        self.path, self.table = path, table
        self._sql = _Statements(
            table, "?", "{} IN (SELECT value FROM json_each(?))", "length(CAST({} AS blob))", OUTBOX_COLUMNS
        )
        self.statement = Heartbeat()
        self._connection: sqlite3.Connection | None = None
        self._lock: int | None = None
        self._seen: tuple[object, ...] = ()
        self._file: tuple[int, int] | None = None

    def connect(self) -> None:
        self.close()
        self._file = self._identity()
        try:
            self._connection = sqlite3.connect(
                self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
            # A text that is not UTF-8 makes one row wrong, and not the reading of all.
            self._connection.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
        except sqlite3.Error as error:
            raise OutboxError(f"the database cannot be opened: {error}") from error

    def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def forget(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def is_first(self) -> bool:
        if self._lock is None:
            beside = f"{self.path.resolve()}-{self.table}"
            try:
                lock = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise OutboxError(
                    f"the file {beside}, which a relay locks, cannot be opened: {error.strerror}"
                ) from None
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                return False
            self._lock = lock
        return True

    def waiting(self, above: int, most: int, largest_bytes: int = MOST_BYTES) -> Sequence[Row]:
        if self._identity() != self._file:
            raise OutboxError(f"another file has the name {self.path} now")
        self._seen = self._files()
        return [Row(*row) for row in self._execute(self._sql.waiting, largest_bytes, above, most)]

    def mark(self, rows: Sequence[Row], now_ms: int) -> set[int]:
        return {number for (number,) in self._execute(self._sql.mark, now_ms, now_ms, *map(json.dumps, _names(rows)))}

    def delete(self, rows: Sequence[Row]) -> None:
        self._execute(self._sql.delete, *map(json.dumps, _names(rows)))

    def refuse(self, number: int, reason: str) -> bool:
        return bool(self._execute(self._sql.refuse, reason, number))

    def refused(self) -> int:
        return int(self._execute(self._sql.refused)[0][0])

    def wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._files() == self._seen and time.monotonic() < deadline:
            time.sleep(_SQLITE_LOOK_S)

    def _identity(self) -> tuple[int, int]:
        """Of the file that has the path now."""
        if not self.path.is_file():
            raise OutboxError(f"{self.path} is no file: give the path of the database of your program")
        status = self.path.stat()
        return status.st_dev, status.st_ino

    def _files(self) -> tuple[object, ...]:
        """What changes when a transaction commits: the file of the database, or its write-ahead log."""
        found: list[object] = []
        for path in (self.path, Path(f"{self.path}-wal")):
            with contextlib.suppress(OSError):
                status = path.stat()
                found += [status.st_mtime_ns, status.st_size]
        return tuple(found)

    def _execute(self, statement: str, *values: Any) -> list[Any]:
        assert self._connection is not None, "connect comes first"
        self.statement.beat()
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            if "no such table" in str(error):
                raise OutboxError(_no_table(self.table, "sqlite")) from None
            raise OutboxError(f"the database refuses a statement: {error}") from error
        finally:
            self.statement.rest()


def _no_table(table: str, dialect: str) -> str:
    return (
        f"the database has no table {table}: `timers outbox schema --dialect {dialect} --table {table}` prints the "
        "statements that make it"
    )


def _sentence(error: psycopg.Error) -> str:
    """What the database says, without the statement."""
    return " ".join((error.diag.message_primary or str(error)).split()) or type(error).__name__
