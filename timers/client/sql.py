"""Statements on a table of a DB-API connection, for receivers' tokens and sources."""

from __future__ import annotations

import re
from typing import Any

from timers.errors import SettingsError

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
                    f"{argument}={name!r} is not a plain SQL name: letters, digits and _, not starting with a digit"
                )
        if paramstyle not in _PLACEHOLDERS:
            raise SettingsError(f"paramstyle={paramstyle!r} is not one of {', '.join(_PLACEHOLDERS)}")
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
            if self._commit:
                self._connection.rollback()
            raise
        finally:
            cursor.close()
        if self._commit:
            self._connection.commit()
        return changed
