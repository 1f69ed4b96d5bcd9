"""Which timer a callback belongs to, and receivers that handle each one once.

A ``read_committed`` consumer gets each callback once, but it may read a record again: if it ends before it commits its
offset, or if its offset is set back. An uncommitted reader may also see a firing twice. In both cases compare
:func:`source_of`, not ``timer-id``: an id may be used again after its timer fired, and its sender chooses it::

    firings = SqlFirings(connection)                              # or MappingFirings(a_dict_or_faust_table)

    if firings.accept(message):                                   # in the consumer of the callback topic
        handle(message)                                           # once for each timer, also if it is delivered again

A process may end between accepting and handling. If that matters, use one transaction:
``SqlFirings(connection, commit=False)``, then commit your change and the accepted source together.
"""

from __future__ import annotations

import threading
from collections.abc import MutableMapping
from typing import Any

from timers.client.sql import SqlNames
from timers.client.tokens import Callback, headers_in
from timers.wire.headers import TIMER_ID, TIMER_SOURCE


def source_of(callback: Callback) -> str | None:
    """The request whose timer fired, ``<topic>/<partition>/<offset>``; None for a record that is no callback.

    It is the header ``timer-source`` of a timer with an id, else ``timer-id``. No two timers have the same one, and the
    sender of a request cannot choose it. Workers before version 0.1.0 send no ``timer-source``: then it is the id.

    Args:
        callback: the headers, or the message that carries them.
    """
    found = dict(headers_in(callback))
    source = found.get(TIMER_SOURCE) or found.get(TIMER_ID)
    return source.decode("utf-8", "backslashreplace") if isinstance(source, bytes) else source or None


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
    """Accepted sources in a table of any SQL database, through a DB-API connection (sqlite3, psycopg, ...).

    One step is one statement that inserts a source that is not there. If two receivers insert the same one at the same
    time, the key of the table lets one of them succeed. The other one gets the driver's error and must try again.
    Delete old rows when no redelivery can come any more.

    Args:
        connection: an open DB-API connection; one for each thread if the driver requires that.
        table: table, or ``schema.table``; :meth:`create_table` makes the default one.
        source_column: its key column; must be unique.
        paramstyle: the driver's ``paramstyle``: ``qmark`` (sqlite3), ``format`` or ``pyformat`` (psycopg, MySQL).
        commit: True commits after each call, and with it everything else that is open on the connection. False: you
            commit, so that the source and your own change are one transaction. A rollback forgets the source.

    Raises:
        SettingsError: a table or column name is no plain SQL identifier, or the paramstyle is unknown.
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
        super().__init__(connection, paramstyle, commit=commit, table=table, length=512, source_column=source_column)

    def accept(self, callback: Callback) -> bool:
        """Whether the callback of this timer comes for the first time. False for a record that is no callback."""
        source = source_of(callback)
        return source is not None and self.add(source)
