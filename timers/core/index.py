"""Timers with an id: the index stands beside the rows and knows the latest version of each id [I16].

It is the fold of all operations of the log, the last one of each id::

    a record with a timer   id -> (due second, source offset, append second)
    a cancel                id -> nothing

So it does not depend on when anything fired, and a replay comes to the same index by the same fold. A row may fire only
while the index still holds its key; one whose id has moved on is dead, and is dropped when its second is scanned. An
entry at or below ``fired_through`` is the memory of a timer that has fired. A cancel ends the history of its id in
every case, also when it came too late: a replay cannot tell what came first.

Only a verdict depends on what has fired, and a verdict is given once, by whoever accepts the record first.
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
    Judged,
    Operation,
    Verdict,
)
from timers.core.ports import Store
from timers.core.timer import Row, id_bytes

SWEEP = 500
"""Least entries looked at in one sweep."""


def nothing_is_cold(entry: Entry) -> bool:
    """Where nothing goes cold."""
    return False


def latest(operations: Sequence[Operation]) -> Entries:
    """What operations leave behind of each id: the whole of what a replay does."""
    return {id: None if due_s is None else (due_s, offset, append_s) for id, offset, due_s, append_s in operations}


def is_over(entry: Entry, fired_through: OrderKey, retention_s: int) -> bool:
    """Whether an id's last timer has fired so long ago that it is no longer remembered.

    By the second that has fired, not by a clock: so a replay, and another worker, forget it at the same point.
    """
    due_s, offset, append_s = entry
    return (due_s, offset) <= fired_through and max(due_s, append_s) + retention_s <= fired_through[0]


class Index:
    """The index of one machine.

    Args:
        store: holds the entries, written in the same batch as the rows.
        retention_s: how long an id is remembered after its timer has fired.
        is_cold: whether a version waits elsewhere (:mod:`timers.core.horizon`): it has not fired, whatever its key.
    """

    fires_first = False
    """Whether what is due goes before what there is to read: most of that is what comes of firing."""

    def __init__(self, store: Store, retention_s: int, is_cold: Callable[[Entry], bool] = nothing_is_cold) -> None:
        self._store = store
        self._retention_s = retention_s
        self._is_cold = is_cold
        self._cursor = b""
        self._written = 0

    def judge(self, operations: Sequence[Operation], fired_through: OrderKey) -> Judged:
        """Decide new operations in the order of the log, each against what those before it left.

        A timer at or below ``fired_through`` counts as fired, also one in this batch: it fires with the verdicts.
        """
        known = self._store.entries({operation[0] for operation in operations})
        entries: Entries = {}
        verdicts: list[Verdict] = []
        for id, offset, due_s, append_s in operations:
            entry = known.get(id)
            if entry is not None and self._is_over(entry, fired_through):
                entry = None
            if entry is None:
                if due_s is None:
                    verdicts.append(Verdict(id, offset, UNKNOWN, None))
            elif entry[:2] <= fired_through and not self._is_cold(entry):
                verdicts.append(Verdict(id, offset, ALREADY_FIRED, entry[0]))
            else:
                verdicts.append(Verdict(id, offset, CANCELLED if due_s is None else REPLACED, entry[0]))
            after = None if due_s is None else (due_s, offset, append_s)
            known[id] = entries[id] = after
        self._written += len(operations)
        return Judged(entries, verdicts)

    def find(self, id: bytes, fired_through: OrderKey) -> Entry | None:
        """The latest version of an id: waiting, cold, or remembered."""
        entry = self._store.entries([id]).get(id)
        return None if entry is None or self._is_over(entry, fired_through) else entry

    def alive(self, due_s: int, rows: list[Row]) -> list[Row]:
        """Those of one due second that are still the latest of their id, or have none."""
        ids = [id_bytes(row[5][0]) for row in rows if row[5] is not None]
        if not ids:
            return rows
        known, each = self._store.entries(ids), iter(ids)
        return [row for row in rows if row[5] is None or _key_of(known.get(next(each))) == (due_s, row[0])]

    def sweep(self, fired_through: OrderKey) -> None:
        """Forget some of what is over for good. Called once a second: each time a few, in turns, so that nothing waits.

        As many are looked at as have come since, so a round ends before the ids have doubled.
        """
        limit, self._written = max(SWEEP, self._written), 0
        page = self._store.entries_after(self._cursor, limit)
        self._cursor = page[-1][0] if len(page) == limit else b""
        over: Entries = {id: None for id, entry in page if self._is_over(entry, fired_through)}
        if over:
            self._store.write({}, self._store.applied, over)

    def _is_over(self, entry: Entry, fired_through: OrderKey) -> bool:
        return is_over(entry, fired_through, self._retention_s) and not self._is_cold(entry)


def _key_of(entry: Entry | None) -> OrderKey | None:
    return None if entry is None else entry[:2]
