"""The table of an outbox as a relay sees it, in PostgreSQL and in SQLite.

Only one relay of a table works at a time; others wait for it to end. So rows that another relay has begun to send are
rows of a relay that has ended. PostgreSQL's advisory lock ends with its session, and a lock of a file with its process.

Each call is a transaction of its own. Rows are read as they are there, and never from a number on: a transaction may
commit after others whose rows have higher numbers.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from timers.client.outbox import CHANNEL, checked_table
from timers.core.operation import ABSENT
from timers.core.printable import quoted
from timers.errors import OutboxError, SettingsError
from timers.outbox.rows import READ, Row

if TYPE_CHECKING:
    import psycopg

_LOCK = int.from_bytes(b"timr") << 32
"""Added to the oid of the table: the advisory lock of its relay. Other programs use other numbers."""

_SQLITE_LOOK_S = 0.02
"""Time between two looks at the size and the time of change of SQLite's files, which is no query."""

_BUSY_S = 10.0

MOST_BYTES = 8_000_000
"""So many bytes of payloads are read at a time, about."""


class Database(Protocol):
    """A table of rows. Each call may raise :class:`~timers.errors.OutboxError`; then :meth:`connect` begins anew."""

    def connect(self) -> None:
        """Connect, and close what was open before."""

    def close(self) -> None:
        """Give way to another relay."""

    def forget(self) -> None:
        """In a process that was forked: let go of what the other one works with, so that its end frees the table."""

    def is_first(self) -> bool:
        """Whether no other relay works on this table. If so, none does until :meth:`close`."""

    table: str

    def waiting(self, above: int, most: int) -> Sequence[Row]:
        """The first rows without a reason above a number, in the order of their numbers, of about
        :data:`MOST_BYTES`."""

    def mark(self, numbers: Sequence[int], now_ms: int) -> set[int]:
        """Note that they are sent now. Returns those that are there, and that no other transaction holds: only these
        may be sent. A row with the condition ``absent`` keeps its first mark: from it on workers may forget its timer.
        """

    def delete(self, numbers: Sequence[int]) -> None:
        """Delete rows that were sent. One that another transaction holds stays, with its mark."""

    def refuse(self, number: int, reason: str) -> None:
        """Let a row stay, with the reason why it is not sent."""

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

    def __init__(self, table: str, param: str, number_is_one_of: str, payload_bytes: str, free: str = "") -> None:
        """``free`` leaves out rows that another transaction holds, which may last."""
        # Only as many rows as fit into memory; a row that is larger alone.
        first = f"SELECT * FROM {table} WHERE reason IS NULL AND number > {param} ORDER BY number LIMIT {param}"
        size = f"coalesce({payload_bytes}, 0)"
        before = f"sum({size}) OVER (ORDER BY number ROWS UNBOUNDED PRECEDING) - {size}"
        columns = ", ".join(READ)
        self.waiting = (
            f"SELECT {columns} FROM (SELECT *, {before} AS bytes_before FROM ({first}) AS first) AS summed "
            f"WHERE bytes_before < {MOST_BYTES} ORDER BY number"
        )
        self.mark = (
            f"UPDATE {table} SET sent_ms = CASE WHEN timer_if = '{ABSENT}' THEN coalesce(sent_ms, {param}) "
            f"ELSE {param} END WHERE number IN (SELECT number FROM {table} WHERE {number_is_one_of}{free}) "
            "RETURNING number"
        )
        self.delete = f"DELETE FROM {table} WHERE number IN (SELECT number FROM {table} WHERE {number_is_one_of}{free})"
        one = f"SELECT number FROM {table} WHERE number = {param}{free}"
        self.refuse = f"UPDATE {table} SET reason = {param} WHERE number IN ({one})"
        self.refused = f"SELECT count(*) FROM {table} WHERE reason IS NOT NULL"


class Postgres:
    """A table in PostgreSQL. Its trigger tells of each transaction that commits rows."""

    def __init__(self, url: str, table: str) -> None:
        import psycopg  # noqa: F401  if it is missing, this is found before a thread begins

        self._url, self.table = url, table
        self._sql = _Statements(table, "%s", "number = ANY(%s)", "octet_length(payload)", " FOR UPDATE SKIP LOCKED")
        self._connection: psycopg.Connection[Any] | None = None

    def connect(self) -> None:
        import psycopg

        self.close()
        try:
            self._connection = psycopg.connect(
                self._url,
                autocommit=True,
                application_name="timers-outbox",
                target_session_attrs="read-write",  # of several hosts the one that is no standby
                connect_timeout=5,
                # A session whose client has vanished holds the lock until the server notices.
                keepalives_idle=5,
                keepalives_interval=2,
                keepalives_count=3,
                tcp_user_timeout=10_000,
            )
            self._execute("SET tcp_keepalives_idle = 5")
            self._execute("SET tcp_keepalives_interval = 2")
            self._execute("SET tcp_keepalives_count = 3")
            # Else the lock would be held, and no row sent, while a client of another program holds the table.
            self._execute("SET lock_timeout = '10s'")
        except psycopg.Error as error:
            raise OutboxError(f"the database cannot be reached: {_sentence(error)}") from error

    def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(Exception):
                self._connection.close()
            self._connection = None

    def forget(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(Exception):  # it may just be closed
                os.close(self._connection.fileno())  # its own end would end the session of the other process

    def is_first(self) -> bool:
        ((oid, is_first),) = self._execute(
            f"SELECT oid, pg_try_advisory_lock({_LOCK} + oid) "
            f"FROM (SELECT to_regclass('{self.table}')::oid::bigint AS oid) AS asked"
        )
        if oid is None:
            raise OutboxError(_no_table(self.table, "postgresql"))
        if is_first:
            self._execute(f'LISTEN "{CHANNEL}{oid}"')
        return bool(is_first)

    def waiting(self, above: int, most: int) -> Sequence[Row]:
        return [Row(*row) for row in self._execute(self._sql.waiting, above, most)]

    def mark(self, numbers: Sequence[int], now_ms: int) -> set[int]:
        return {number for (number,) in self._execute(self._sql.mark, now_ms, now_ms, [*numbers])}

    def delete(self, numbers: Sequence[int]) -> None:
        # A deletion that a crash of the server takes back is repeated: the row is marked. So it need not wait.
        listed = ",".join(str(int(number)) for number in numbers)
        delete = self._sql.delete.replace("%s", f"'{{{listed}}}'")
        self._execute(f"BEGIN; SET LOCAL synchronous_commit = off; {delete}; COMMIT")

    def refuse(self, number: int, reason: str) -> None:
        self._execute(self._sql.refuse, reason.replace("\0", ""), number)

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

    def _execute(self, statement: str, *values: Any) -> list[Any]:
        import psycopg

        try:
            cursor = self._open().execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []
        except psycopg.errors.UndefinedTable:
            raise OutboxError(_no_table(self.table, "postgresql")) from None
        except psycopg.Error as error:
            raise OutboxError(f"the database refuses a statement: {_sentence(error)}") from error


class Sqlite:
    """A table in a file of SQLite. The file that a relay locks is beside it."""

    def __init__(self, path: Path, table: str) -> None:
        self.path, self.table = path, table
        self._sql = _Statements(
            table, "?", "number IN (SELECT value FROM json_each(?))", "length(CAST(payload AS blob))"
        )
        self._connection: sqlite3.Connection | None = None
        self._lock: int | None = None
        self._seen: tuple[object, ...] = ()

    def connect(self) -> None:
        self.close()
        if not self.path.is_file():
            raise OutboxError(f"{self.path} is no file: give the path of the database of your program")
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

    def waiting(self, above: int, most: int) -> Sequence[Row]:
        self._seen = self._files()
        return [Row(*row) for row in self._execute(self._sql.waiting, above, most)]

    def mark(self, numbers: Sequence[int], now_ms: int) -> set[int]:
        return {number for (number,) in self._execute(self._sql.mark, now_ms, now_ms, str([*numbers]))}

    def delete(self, numbers: Sequence[int]) -> None:
        self._execute(self._sql.delete, str([*numbers]))

    def refuse(self, number: int, reason: str) -> None:
        self._execute(self._sql.refuse, reason, number)

    def refused(self) -> int:
        return int(self._execute(self._sql.refused)[0][0])

    def wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._files() == self._seen and time.monotonic() < deadline:
            time.sleep(_SQLITE_LOOK_S)

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
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            if "no such table" in str(error):
                raise OutboxError(_no_table(self.table, "sqlite")) from None
            raise OutboxError(f"the database refuses a statement: {error}") from error


def _no_table(table: str, dialect: str) -> str:
    return (
        f"the database has no table {table}: `timers outbox schema --dialect {dialect} --table {table}` prints the "
        "statements that make it"
    )


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
