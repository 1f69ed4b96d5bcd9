"""The index: the latest version of each timer with an id [I16].

The index is a function of the operations in the log; the last operation of each id counts::

    a record with a timer   id -> (due second, source offset, append second)
    a cancel                id -> no entry (but see :mod:`timers.core.only_if`)

So the index does not depend on when timers fired, and a replay builds the same index. A row may fire only while the
index holds its key. A row of a former version is dropped when its second is scanned. An entry at or below
``fired_through`` belongs to a timer that has fired. A cancel always removes the entry, also if it came too late,
because a replay cannot tell which came first.

Only verdicts depend on what has fired. A verdict is given once: when the record is accepted as a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from timers.core.keys import OrderKey
from timers.core.operation import (
    ALREADY_FIRED,
    CANCELLED,
    REPLACED,
    UNKNOWN,
    Entries,
    Entry,
    Operation,
    OperationResults,
    Verdict,
    due_s_of,
    id_of,
    key_of,
    offset_of,
    version_of,
)
from timers.core.ports import Store
from timers.core.progress import Hole, Progress, reached
from timers.core.sweeping import Sweeper
from timers.core.timer import Decoded, DueRows, Row, RowsByDue, id_bytes


def nothing_is_cold(entry: Entry) -> bool:
    """Returns False: without a horizon no version is cold."""
    return False


def latest(operations: Sequence[Operation]) -> Entries:
    """Returns the entry that each id has after ``operations``. A replay needs no verdicts, so it needs only these."""
    return {id: None if due_s is None else (due_s, offset, append_s) for id, offset, due_s, append_s in operations}


def is_over(entry: Entry, fired_through: OrderKey, retention_s: int) -> bool:
    """Whether the last timer of an id fired more than ``retention_s`` ago, so that the id is forgotten.

    The time is the committed ``fired_through``, not a clock. So another worker forgets the id at the same point.
    """
    due_s, offset, append_s = version_of(entry)
    return (due_s, offset) <= fired_through and max(due_s, append_s) + retention_s <= fired_through[0]


class Index:
    """The index of one machine.

    Args:
        store: holds the entries, written in the same batch as the rows.
        retention_s: seconds for which an id is remembered after its timer has fired.
        is_cold: whether a version is cold (:mod:`timers.core.horizon`): then it has not fired, even with a low key.
        holes: of the progress.
    """

    fires_first = False
    """Whether due timers fire before new requests are accepted: if most new requests of a topic result from firing."""

    def __init__(
        self,
        store: Store,
        retention_s: int,
        is_cold: Callable[[Entry], bool] = nothing_is_cold,
        holes: Sequence[Hole] = (),
    ) -> None:
        self._store = store
        self._retention_s = retention_s
        self._is_cold = is_cold
        self._holes = holes
        self._sweeper = Sweeper(store)

    @property
    def remembered_s(self) -> int | None:
        """Seconds for which an id is remembered after its last timer; None: not bounded."""
        return self._retention_s

    def enter(self, progress: Progress) -> None:
        """Note the settings history, when the machine opens. This index does not use it."""

    def settle(
        self, decoded: Decoded, fired_through: OrderKey, committed: OrderKey
    ) -> tuple[RowsByDue, OperationResults]:
        """Returns the rows of new records, and what :meth:`judge` says of their operations."""
        return decoded.rows, self.judge(decoded, fired_through, committed)

    def replay(self, decoded: Decoded) -> tuple[RowsByDue, Entries]:
        """Returns rows and entries of records that are read again: the same as at the first time."""
        return decoded.rows, latest(decoded.operations)

    def judge(self, decoded: Decoded, fired_through: OrderKey, committed: OrderKey) -> OperationResults:
        """Returns entries and verdicts of new operations. Each one sees the effect of those before it in the log.

        A timer at or below ``fired_through`` counts as fired. A timer of this batch fires together with the verdicts.
        Whether an id is forgotten follows from ``committed``, the newest key that a commit has fired: another worker
        that starts from the committed progress must judge alike.
        """
        operations = decoded.operations
        known = self._store.entries(set(map(id_of, operations)))
        entries: Entries = {}
        verdicts: list[Verdict] = []
        for id, offset, due_s, append_s in operations:
            entry = known.get(id)
            if entry is not None and self._is_over(entry, committed):
                entry = None
            if entry is None:
                if due_s is None:
                    verdicts.append(Verdict(id, offset, UNKNOWN, None))
            elif self._has_fired(entry, fired_through) and not self._is_cold(entry):
                verdicts.append(Verdict(id, offset, ALREADY_FIRED, due_s_of(entry)))
            else:
                verdicts.append(Verdict(id, offset, CANCELLED if due_s is None else REPLACED, due_s_of(entry)))
            known[id] = entries[id] = None if due_s is None else (due_s, offset, append_s)
        self._sweeper.note_written(len(operations))
        return OperationResults(entries, verdicts)

    def find(self, id: bytes, fired_through: OrderKey) -> Entry | None:
        """Returns the latest version of an id: pending, cold, or fired and remembered."""
        entry = self._store.entries([id]).get(id)
        return None if entry is None or self._is_over(entry, fired_through) else entry

    def alive(self, due: list[DueRows]) -> list[DueRows]:
        """Returns those rows that are the latest version of their id, or have no id."""
        ids = [id_bytes(row[5][0]) for _, rows in due for row in rows if row[5] is not None]
        if not ids:
            return due
        next_entry = map(self._store.entries(ids).get, ids).__next__

        def is_alive(row: Row) -> bool:
            return row[5] is None or ((entry := next_entry()) is not None and offset_of(entry) == row[0])

        return [(due_s, alive) for due_s, rows in due if (alive := list(filter(is_alive, rows)))]

    def sweep(self, fired_through: OrderKey) -> None:
        """Forget some of the ids whose retention has ended. Call once a second."""
        self._sweeper.sweep(lambda entry: self._is_over(entry, fired_through))

    def _has_fired(self, entry: Entry, fired_through: OrderKey) -> bool:
        key = key_of(entry)
        return key <= (reached(fired_through, self._holes, key[1]) if self._holes else fired_through)

    def _is_over(self, entry: Entry, fired_through: OrderKey) -> bool:
        through = reached(fired_through, self._holes, offset_of(entry)) if self._holes else fired_through
        return is_over(entry, through, self._retention_s) and not self._is_cold(entry)
