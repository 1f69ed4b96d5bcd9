"""Statements on a table of a DB-API connection, for receivers' tokens, sources and messages."""

from __future__ import annotations

import contextlib
import re
from typing import Any

from timers.errors import SettingsError
from timers.wire.printable import quoted

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_QUALIFIED = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?")
_PLACEHOLDERS = {"qmark": "?", "format": "%s", "pyformat": "%s"}
"""DB-API styles with positional parameters; drivers of style ``pyformat`` (psycopg) take ``%s`` with a tuple too."""


class SqlTable:
    """A table of any SQL database.

    Args:
        connection: an open DB-API connection.
        paramstyle: the driver's ``paramstyle``.
        commit: whether each statement is committed.
        table: name of the table.
        columns: argument of the caller -> name of a column.

    Attributes:
        param: placeholder of a parameter.

    Raises:
        SettingsError: a table or column name is no plain SQL identifier, or the paramstyle is unknown.
    """

    def __init__(self, connection: Any, paramstyle: str, *, commit: bool, table: str, **columns: str) -> None:
        # Identifiers cannot be parameters of a statement and become part of its text, so only plain names are allowed.
        names = [("table", table, _QUALIFIED), *((argument, name, _IDENTIFIER) for argument, name in columns.items())]
        for argument, name, pattern in names:
            if not pattern.fullmatch(name):
                raise SettingsError(
                    f"{argument}={quoted(name)} is not a plain SQL name: letters, digits and _, and no digit first"
                )
        if paramstyle not in _PLACEHOLDERS:
            raise SettingsError(f"paramstyle={quoted(paramstyle)} is not one of {', '.join(_PLACEHOLDERS)}")
        self.param = _PLACEHOLDERS[paramstyle]
        self._connection = connection
        self._commit = commit

    def run(self, statement: str, values: tuple[str, ...]) -> int:
        """Execute, commit if ``commit`` is set, and return the number of changed rows."""
        cursor = self._connection.cursor()
        try:
            cursor.execute(statement, values)
            changed = int(cursor.rowcount)
        except BaseException:
            # On a lost connection these fail too, and would hide the cause.
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


class SqlNames:
    """A table of names, each of which is added once.

    One step is one statement that inserts a name that is not there. If two receivers insert the same one at the same
    time, the key of the table lets one of them succeed, and the other one gets the driver's error.

    Args:
        connection: an open DB-API connection.
        paramstyle: the driver's ``paramstyle``.
        commit: whether each statement is committed.
        table: name of the table.
        length: maximum number of characters of a name.
        column: argument of the caller -> name of the key column; exactly one.

    Raises:
        SettingsError: a table or column name is no plain SQL identifier, or the paramstyle is unknown.
    """

    def __init__(
        self, connection: Any, paramstyle: str, *, commit: bool, table: str, length: int, **column: str
    ) -> None:
        self._table = SqlTable(connection, paramstyle, commit=commit, table=table, **column)
        (name,), param = column.values(), self._table.param
        self._create = f"CREATE TABLE IF NOT EXISTS {table} ({name} VARCHAR({length}) PRIMARY KEY)"
        self._insert = (
            f"INSERT INTO {table} ({name}) SELECT {param} "
            f"WHERE NOT EXISTS (SELECT 1 FROM {table} WHERE {name} = {param})"
        )

    def create_table(self) -> None:
        """Create the table if it does not exist."""
        self._table.run(self._create, ())

    def add(self, name: str) -> bool:
        """Return whether the name was not there, and is now."""
        return self._table.run(self._insert, (name, name)) == 1
