"""The index: the latest version of each timer with an id [I16].

The index is a function of the operations in the log; the last operation of each id counts::

    a record with a timer   id -> (due second, source offset, append second)
    a cancel                id -> no entry (but see :mod:`timers.core.only_if`)

So the index does not depend on when timers fired, and a replay builds the same index. A row may fire only while the
index holds its key. A row of a former version is dropped when its second is scanned. An entry at or below
``fired_through`` belongs to a timer that has fired. A cancel always removes the entry, also if it came too late,
because a replay cannot tell which came first.

Only verdicts depend on what has fired. A verdict is given once: when the record is accepted as a new one. There is one
exception, in :mod:`timers.core.only_if`: a conditional request is refused if it is readable only after the version that
it names has fired. Its offset is listed in the progress, so a replay refuses it too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from timers.core.fired import Hold, reached
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
    message_of,
    offset_of,
    version_of,
)
from timers.core.ports import Store
from timers.core.progress import NamedSnapshot, Progress
from timers.core.timer import Decoded, DueRows, Origin, Row, RowsByDue, id_bytes, id_text

MIN_SWEEP_ENTRIES = 500
"""Minimum number of entries that one sweep reads."""

MAX_SWEEP_ENTRIES = 8_000
"""The most that one reads because the one before it was worth it: about 20 ms."""


Suspect: TypeAlias = tuple[bytes, int, int]
"""(Id, offset of its latest record, second from which on it counts) of a timer that repeats and seems to stand still
(:mod:`timers.core.mending`)."""


class Swept(NamedTuple):
    """How far sweeps have come. A machine that is open for moments only goes on where the one before has ended."""

    through: bytes = b""
    """The next sweep begins above this id."""
    limit: int = MIN_SWEEP_ENTRIES
    """It reads so many entries, or as many as were written."""
    written: int = 0
    """Number of entries that were written since the last sweep."""
    forgotten: int = 0
    """Number of entries that sweeps have removed, and that a snapshot has."""
    snapshot: int | None = None
    """Number of this snapshot, the newest one at the last sweep."""
    suspects: tuple[Suspect, ...] = ()
    look_s: int = 0
    """Second of the next look at the newest entries for such timers."""

    def forgotten_since(self, snapshot: NamedSnapshot | None) -> int:
        """Returns how many entries of a snapshot were removed since it was written; 0 if it is not the newest one."""
        return self.forgotten if snapshot is not None and snapshot.number == self.snapshot else 0


class Sweeper:
    """Removes entries in many short sweeps, so that no timer waits for a long one.

    A sweep reads as many entries as were noted since the last one. So all entries are read before their number has
    doubled. It reads twice as many as the last one if most of those were over: after a storm nothing is written any
    more, and each snapshot and each takeover would pay for what is over.

    Attributes:
        swept: how far it has come.
    """

    def __init__(self, store: Store) -> None:
        self.swept = Swept()
        self._store = store

    def note_written(self, entries: int) -> None:
        """Note how many entries were written. Of occurrences of timers that repeat, an eighth: they have no new id."""
        self.swept = self.swept._replace(written=self.swept.written + entries)

    def note_named(self, snapshot: NamedSnapshot, forgotten: int) -> None:
        """Note that a snapshot is the newest one. So many of its entries were removed while it was written."""
        self.swept = self.swept._replace(
            forgotten=self.swept.forgotten_since(snapshot) + forgotten, snapshot=snapshot.number
        )

    def sweep(
        self, is_over: Callable[[Entry], bool], snapshot: NamedSnapshot | None = None
    ) -> Sequence[tuple[bytes, Entry]]:
        """Read the next entries, and remove those that are over. Call once a second.

        Args:
            snapshot: the newest one. It has the entries whose offset is below its own.

        Returns:
            The entries that it has read.
        """
        limit, forgotten = max(self.swept.limit, self.swept.written), self.swept.forgotten_since(snapshot)
        below = 0 if snapshot is None else snapshot.applied
        page = self._store.entries_after(self.swept.through, limit)
        over: Entries = {}
        for id, entry in page.entries:
            if is_over(entry):
                over[id] = None
                forgotten += offset_of(entry) < below
        was_worth_it = 2 * len(over) > len(page.entries)
        next_limit = min(2 * limit, MAX_SWEEP_ENTRIES) if was_worth_it else MIN_SWEEP_ENTRIES
        if over:
            self._store.write({}, self._store.applied, over)
        self.swept = self.swept._replace(
            through=page.through or b"",
            limit=next_limit,
            written=0,
            forgotten=forgotten,
            snapshot=snapshot and snapshot.number,
        )
        return page.entries


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

    Attributes:
        sweeper: removes the ids that are forgotten.
    """

    fires_first = False
    """Whether due timers fire before new requests are accepted: if most new requests of a topic result from firing."""

    def __init__(
        self,
        store: Store,
        retention_s: int,
        is_cold: Callable[[Entry], bool] = nothing_is_cold,
    ) -> None:
        self._store = store
        self._retention_s = retention_s
        self._is_cold = is_cold
        self.sweeper = Sweeper(store)

    @property
    def id_retention_s(self) -> int | None:
        """Seconds for which an id is remembered after its last timer; None: not bounded."""
        return self._retention_s

    def enter(self, progress: Progress) -> None:
        """Note the settings history, when the machine opens. This index does not use it."""

    def settle(self, decoded: Decoded, progress: Progress, committed: Progress) -> tuple[RowsByDue, OperationResults]:
        """Returns the rows of new records, and what :meth:`judge` says of their operations."""
        return decoded.rows, self.judge(decoded, progress, committed)

    def replay(self, decoded: Decoded, progress: Progress) -> tuple[RowsByDue, Entries]:
        """Returns rows and entries of records that are read again: the same as at the first time."""
        return decoded.rows, latest(decoded.operations)

    def judge(self, decoded: Decoded, progress: Progress, committed: Progress) -> OperationResults:
        """Returns entries and verdicts of new operations. Each one sees the effect of those before it in the log.

        A timer of this batch that is late fires together with the verdicts. Whether an id is forgotten follows from
        ``committed``: another worker that starts from the committed progress must judge alike.
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
            elif self._has_fired(entry, progress, decoded) and not self._is_cold(entry):
                verdicts.append(Verdict(id, offset, ALREADY_FIRED, due_s_of(entry)))
            else:
                held = self._held(entry, progress, decoded)
                verdicts.append(
                    Verdict(id, offset, CANCELLED if due_s is None else REPLACED, due_s_of(entry), held=held)
                )
            known[id] = entries[id] = None if due_s is None else (due_s, offset, append_s)
        self.sweeper.note_written(len(operations))
        return OperationResults(entries, verdicts)

    def remembers(self, entry: Entry, progress: Progress) -> bool:
        """Whether the latest version of an id is pending, cold, or fired and remembered."""
        return not self._is_over(entry, progress)

    def alive(self, due: list[DueRows]) -> list[DueRows]:
        """Returns those rows that are the latest version of their id, or have no id."""
        ids = [id_bytes(row[5][0]) for _, rows in due for row in rows if row[5] is not None]
        if not ids:
            return due
        next_entry = map(self._store.entries(ids).get, ids).__next__
        left: list[DueRows] = []
        for due_s, rows in due:  # a function for each row takes longer
            alive = [
                row
                for row in rows
                if row[5] is None or ((entry := next_entry()) is not None and offset_of(entry) == row[0])
            ]
            if alive:
                left.append((due_s, alive))
        return left

    def sweep(self, committed: Progress) -> Sequence[tuple[bytes, Entry]]:
        """Forget some of the ids whose retention has ended. Call once a second.

        Args:
            committed: a crash does not undo what it has fired.

        Returns:
            The entries that it has looked at.
        """
        return self.sweeper.sweep(lambda entry: self._is_over(entry, committed), committed.snapshot)

    def _has_fired(self, entry: Entry, progress: Progress, new: Decoded | None = None) -> bool:
        """Whether the timer of an entry has fired.

        Args:
            new: records that are being accepted, whose rows are not in the store yet.
        """
        return progress.is_past(key_of(entry)) and self._hold_of(entry, progress, new) is None

    def _held(self, entry: Entry, progress: Progress, new: Decoded) -> tuple[str, int, int] | None:
        """Returns what a verdict says of the hold that holds the timer of an entry."""
        hold = self._hold_of(entry, progress, new)
        return None if hold is None else (hold.reason, hold.number, hold.since_s)

    def _hold_of(self, entry: Entry, progress: Progress, new: Decoded | None = None) -> Hold | None:
        """Returns what holds the timer of an entry; arguments as of :meth:`_has_fired`."""
        key = key_of(entry)
        if not (progress.holds.may_hold(key, progress.holes) and progress.is_past(key)):
            return None
        row = row_at(key, {} if new is None else new.rows, self._store)
        return None if row is None else progress.hold_of(key, row[1])

    def _is_over(self, entry: Entry, progress: Progress) -> bool:
        key = key_of(entry)
        through = reached(progress.fired_through, progress.holes, key[1]) if progress.holes else progress.fired_through
        if not is_over(entry, through, self._retention_s) or self._is_cold(entry):
            return False
        # An entry does not name its target, so any hold may hold its timer.
        return not (progress.holds and progress.holds.may_hold(key, progress.holes))


def row_at(key: OrderKey, new: RowsByDue, store: Store) -> Row | None:
    """Returns the row with a key, from new rows that are not stored yet or from the store; None: there is none."""
    due_s, offset = key
    return next((row for row in new.get(due_s, ()) if row[0] == offset), None) or store.row(key)


def known_row(key: OrderKey, new: RowsByDue, store: Store) -> Row:
    """Returns the row of a key that the index holds."""
    row = row_at(key, new, store)
    assert row is not None, f"the index holds {key}, the store does not"
    return row


class ScheduleIndex(Index):
    """The index of schedules, whose topic may be compacted. The engine writes a tombstone for each one that fires
    [I19].

    Every tombstone ends the history of its id. Compaction treats all tombstones alike too, so a replay of the compacted
    log builds the same index. The engine writes a tombstone when a version fires. A newer version may have come before
    this tombstone, and would be deleted with the older one. So the machine that accepts such a tombstone republishes
    the newer version: it appends it again after the tombstone, in the transaction that accepts the tombstone. From then
    on only this copy is the latest version.

    Republishing ends: one copy for a tombstone, one tombstone for a firing, one firing for a version. No version of the
    id can fire until the copy is read. So all tombstones that the machine has not read are before the copy, and do not
    end it.

    Senders of schedules get no verdicts, so fired versions need not be remembered: an entry at or below
    ``fired_through`` counts as none, and its tombstone or a sweep removes it.
    """

    fires_first = True

    def __init__(self, store: Store) -> None:
        super().__init__(store, retention_s=0)

    def judge(self, decoded: Decoded, progress: Progress, committed: Progress) -> OperationResults:
        """Returns entries and superseded versions of operations. Reads the store only for tombstones of the engine."""
        entries: Entries = {}
        named_versions: list[tuple[bytes, int]] = []
        superseded: list[OrderKey] = []
        for id, offset, due_s, append_s in decoded.operations:
            if due_s is not None:
                entries[id] = (due_s, offset, append_s)
                continue
            version = decoded.fired_versions.get(offset)
            if version is not None:
                if id in entries:
                    self._note_if_superseded(entries[id], version, progress, decoded, superseded)
                else:
                    named_versions.append((id, version))
            entries[id] = None
        if named_versions:
            known = self._store.entries([id for id, _ in named_versions])
            for id, version in named_versions:
                self._note_if_superseded(known.get(id), version, progress, decoded, superseded)
        return OperationResults(entries, superseded=superseded)

    def _note_if_superseded(
        self, entry: Entry | None, version: int, progress: Progress, new: Decoded, superseded: list[OrderKey]
    ) -> None:
        """Note the entry as superseded, if the tombstone is for another version, and the entry has not fired."""
        if entry is not None and offset_of(entry) != version and not self._has_fired(entry, progress, new):
            superseded.append(key_of(entry))


class MarkerIndex(Index):
    """The index of messages that consumers of kafka-mq-go are working on. Markers say how far each message is.

    A message is delivered again when no further marker of it comes in time. Its id is its place in the queue topic::

        Start      id -> (due second, source offset, append second, key, value)
        KeepAlive  the same id with a new due second, if it was appended before the former due second began
        End        id -> no entry

    A KeepAlive does not hold the message, so the entry does. Whether a KeepAlive counts depends on append times only,
    and not on what has fired: so a replay builds the same index [I26]. A KeepAlive after an End or without a Start has
    no effect.

    When a message is delivered again, the engine appends an End in the same transaction, as the redelivery tracker
    does: the copy is a message of its own. So each entry ends, and nothing must be remembered of messages that have
    ended.
    """

    def __init__(self, store: Store, callback_topic: str) -> None:
        super().__init__(store, retention_s=0)
        self._callback_topic = callback_topic

    @property
    def id_retention_s(self) -> int | None:
        """None: an entry holds its message for as long as markers of it come."""
        return None

    def settle(self, decoded: Decoded, progress: Progress, committed: Progress) -> tuple[RowsByDue, OperationResults]:
        """Returns a row for each message that has a new due second, and the entries. There are no verdicts."""
        rows, entries = self.replay(decoded, progress)
        return rows, OperationResults(entries)

    def replay(self, decoded: Decoded, progress: Progress) -> tuple[RowsByDue, Entries]:
        """Returns the same as :meth:`settle`. A message that ends in the same batch has no row."""
        entries = self._fold(decoded)
        rows: RowsByDue = {}
        for id, entry in sorted(entries.items(), key=lambda each: each[1] or ()):
            if entry is not None and (message := message_of(entry)) is not None:
                (due_s, offset), (key, value) = key_of(entry), message
                row: Row = (offset, self._callback_topic, key, value, None, Origin(id_text(id), due_s, 0))
                rows.setdefault(due_s, []).append(row)
        return rows, entries

    def sweep(self, committed: Progress) -> Sequence[tuple[bytes, Entry]]:
        """Do nothing: the engine's End removes the entry."""
        return ()

    def _fold(self, decoded: Decoded) -> Entries:
        """Returns the entries that markers change."""
        started = {row[0]: row for rows in decoded.rows.values() for row in rows}
        known = self._store.entries(set(map(id_of, decoded.operations)))
        entries: Entries = {}
        for id, offset, due_s, append_s in decoded.operations:
            former = known.get(id)
            start = started.get(offset)
            if due_s is None:
                known[id] = entries[id] = None
            elif start is not None:
                key, value = start[2], start[3]
                assert isinstance(key, bytes), "the key of a marker is bytes"
                known[id] = entries[id] = (due_s, offset, append_s, key, value)
            elif (
                former is not None and (message := message_of(former)) and self._is_in_time(due_s_of(former), append_s)
            ):
                known[id] = entries[id] = (due_s, offset, append_s, *message)
        return entries

    def _is_in_time(self, former_due_s: int, append_s: int) -> bool:
        """Whether a KeepAlive was appended before the due second that it moves."""
        return append_s < former_due_s
