"""Hot and cold: what is due far ahead waits elsewhere, and comes back when its time is near [I18].

A request due further than the horizon beyond its append time is not stored. It is forwarded to the cold topic, in the
transaction that accepts it, and whoever keeps it there writes it back to its own partition ahead of time: *promotes*
it. The promoted record is a copy that says which request it is.

Both are decided when a record is accepted, by what stands in it and in the history of settings [I4], so a replay
decides alike. A copy is a row of its own place in the log: its order key is (due second, *its own* offset), and only
its identity is the request's. So all that holds of offsets and of ``fired_through`` holds of it.

Which copy counts is a fold of the log as well, and so survives a lost disk:

    without ids   the first copy of a request counts. Which one that was is remembered until a while after its due
                  second, and after itself, by the append times in the log: no copy may be written later than that
    with ids      a copy counts if the index holds its request; it then takes the request's place there. So a second
                  copy, or one of a version that was replaced or cancelled while it was cold, finds nothing

A copy is believed by its seal alone, made with a key that is drawn once for each partition and known to its progress
only. So nobody who may write requests can take a timer's identity, or change what it says while it is away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from timers.core.operation import Entries, Entry
from timers.core.ports import Store
from timers.core.progress import Progress
from timers.core.timer import Decoded, Forwarded, Origin, Rejected, Returned, RowsByDue

HOT_HORIZON = "TIMERS_HOT_HORIZON_S"
"""Name, in the progress history, of how far ahead a timer may be due and be kept hot; 0: however far."""

SEAL = "cold-seal"
"""Name, in the progress history, of the key of a partition's seals. Drawn when the partition first has a horizon."""

SWEEP = 500
"""Least memories looked at in one sweep."""


def is_far(due_s: int, append_s: int, horizon_s: int) -> bool:
    """Whether a request goes cold: it is due further than the horizon beyond the second it was appended in."""
    return 0 < horizon_s < due_s - append_s


class Unsealed(NamedTuple):
    """A promoted record whose seal is good."""

    record: Any
    """The request as it was sent, at the offset and time of the copy."""
    original: int
    """Offset of the request."""
    source: str
    """``<topic>/<partition>/<offset>`` of the request."""


class ColdFormat(Protocol):
    """How records of one partition go cold and come back. Pure."""

    def has_returned(self, record: Any) -> bool:
        """Whether a record says that it is a promoted copy."""

    def unseal(self, record: Any, seal: int) -> Unsealed | Rejected:
        """The request that a copy stands for; or why it is none of this partition."""

    def may_leave(self, record: Any) -> bool:
        """Whether a request is small enough to go there and back."""


class Horizon:
    """What one machine needs to let timers go cold and take them back. A machine that never had a horizon has none.

    Args:
        format: of its partition.
        store: of the machine.
        horizon_s: how far ahead is hot from now on; 0: however far.
        new_seal: key for its seals, if it has none yet; of 63 bits, and not to be guessed.
        retention_s: how long after the due second, and after the copy that counted, another may be written.
        indexed: its timers have ids.
    """

    def __init__(
        self, format: ColdFormat, store: Store, horizon_s: int, new_seal: int, retention_s: int, *, indexed: bool
    ) -> None:
        self._format = format
        self._store = store
        self._horizon_s = horizon_s
        self._new_seal = new_seal
        self._retention_s = retention_s
        self._indexed = indexed
        self._history = Progress()
        self._cursor = b""
        self._written = 0
        self._read_s = self._committed_s = 0

    def enter(self, progress: Progress) -> Progress:
        """Note the horizon in the history, for everything that is not yet accepted."""
        if not progress.setting_at(SEAL, progress.next_offset, 0):
            progress = progress.with_setting(SEAL, self._new_seal)
        self._history = progress.with_setting(HOT_HORIZON, self._horizon_s)
        return self._history

    def is_cold(self, entry: Entry) -> bool:
        """Whether the version in the index went cold and has not come back."""
        due_s, offset, append_s = entry
        return is_far(due_s, append_s, self._history.setting_at(HOT_HORIZON, offset, 0))

    # ---- reading ------------------------------------------------------------------------------------------------

    def read(self, records: Sequence[Any], decode: Callable[[Sequence[Any], int], Decoded], max_bytes: int) -> Decoded:
        """Decode records among which no setting changes. What goes cold is no row, what comes back is one.

        With nothing far or promoted among them this costs 0.1 us a record.
        """
        self._read_s = max(self._read_s, records[-1].timestamp // 1000)
        seal = self._history.setting_at(SEAL, records[0].offset, 0)
        if not seal:
            return decode(records, max_bytes)
        returned = [record for record in records if record.headers and self._format.has_returned(record)]
        if not returned:
            decoded = decode(records, max_bytes)
            self._let_go(decoded, records, seal)
            return decoded
        copies = {record.offset for record in returned}
        others = [record for record in records if record.offset not in copies]
        decoded = decode(others, max_bytes) if others else Decoded()
        self._let_go(decoded, others, seal)
        for record in returned:
            self._take_back(decoded, record, decode, seal)
        for due_s in {each.due_s for each in decoded.returned}:
            decoded.rows[due_s].sort(key=lambda row: row[0])
        decoded.rejected.sort(key=lambda rejected: rejected.offset)
        return decoded

    def _let_go(self, decoded: Decoded, records: Sequence[Any], seal: int) -> None:
        """Turn rows that are far into records to forward."""
        if not decoded.rows:
            return
        horizon_s = self._history.setting_at(HOT_HORIZON, records[0].offset, 0)
        oldest_s = min([record.timestamp for record in records]) // 1000
        far = [due_s for due_s in decoded.rows if is_far(due_s, oldest_s, horizon_s)]
        if not far:
            return
        by_offset = {record.offset: record for record in records}
        too_large = set()
        for due_s in far:
            rows = decoded.rows.pop(due_s)
            stay = []
            for row in rows:
                record = by_offset[row[0]]
                if not is_far(due_s, record.timestamp // 1000, horizon_s):
                    stay.append(row)
                elif not self._format.may_leave(record):
                    stay.append(row)
                    too_large.add(row[0])
                else:
                    decoded.forwarded.append(Forwarded(record, due_s, seal))
            if stay:
                decoded.rows[due_s] = stay
        decoded.forwarded.sort(key=lambda forwarded: forwarded.record.offset)
        if too_large:
            decoded.operations = [
                (id, offset, due_s, due_s if offset in too_large and due_s is not None else append_s)
                for id, offset, due_s, append_s in decoded.operations
            ]

    def _take_back(
        self, decoded: Decoded, record: Any, decode: Callable[[Sequence[Any], int], Decoded], seal: int
    ) -> None:
        """Turn a promoted copy into a row."""
        opened = self._format.unseal(record, seal)
        if isinstance(opened, Rejected):
            decoded.rejected.append(opened)
            return
        # It was accepted once: a limit that has come down since must not refuse it now.
        alone = decode([opened.record], len(record.value or b""))
        decoded.rejected += alone.rejected
        for due_s, (row,) in alone.rows.items():
            timer_id = opened.source if row[5] is None else row[5][0]
            own = (*row[:5], Origin(timer_id, due_s, 0, opened.source))
            decoded.rows.setdefault(due_s, []).append(own)
            key = timer_id.encode() if self._indexed else _key_of(opened.original)
            decoded.returned.append(Returned(key, row[0], opened.original, due_s, record.timestamp // 1000))

    # ---- which copy counts --------------------------------------------------------------------------------------

    def admit(self, decoded: Decoded) -> Entries:
        """Drop the rows of copies that do not count.

        Returns:
            What to remember of the others; written with the batch.
        """
        known = self._store.entries({each.key for each in decoded.returned})
        entries: Entries = {}
        for each in decoded.returned:
            entry = known.get(each.key)
            counts = self._holds(entry, each) if self._indexed else entry is None or entry[1] >= each.offset
            if counts:
                # Not before its due second: so it does not look cold, however early it comes back.
                after = (each.due_s, each.offset, max(each.due_s, each.append_s))
                known[each.key] = entries[each.key] = after
            else:
                _drop(decoded.rows, each)
                decoded.ignored += 1
        self._written += len(entries)
        return entries

    def find_returned(self, original: int) -> Entry | None:
        """The copy of a request without an id that counted, as long as it is remembered."""
        key = _key_of(original)
        return self._store.entries([key]).get(key)

    @staticmethod
    def _holds(entry: Entry | None, copy: Returned) -> bool:
        return entry is not None and entry[:2] == (copy.due_s, copy.original)

    def pieces(self, records: Sequence[Any], to_offset: int) -> Iterator[tuple[Sequence[Any], int]]:
        """Cut a fetch so that no id has both a copy and a change in one piece: which came first then needs no thought.

        Yields:
            Records, and the offset that they reach to.
        """
        if not self._indexed or not any(record.headers and self._format.has_returned(record) for record in records):
            yield records, to_offset
            return
        start = 0
        copies: set[Any] = set()
        changes: set[Any] = set()
        for at, record in enumerate(records):
            returned = bool(record.headers) and self._format.has_returned(record)
            mine, others = (copies, changes) if returned else (changes, copies)
            if record.key in others:
                yield records[start:at], record.offset
                start = at
                mine.clear()
                others.clear()
            mine.add(record.key)
        yield records[start:], to_offset

    def commit(self) -> None:
        """All that was read is committed: it is never read anew by a store that remembers what came behind it."""
        self._committed_s = self._read_s

    def sweep(self) -> None:
        """Forget some of the copies after which no other may come; where timers have ids, the index does so.

        By the append times of what was read, not by what has fired or by a clock: a second copy may wait in the log
        for long until it is read.
        """
        if self._indexed:
            return
        limit, self._written = max(SWEEP, self._written), 0
        page = self._store.entries_after(self._cursor, limit)
        self._cursor = page[-1][0] if len(page) == limit else b""
        over: Entries = {key: None for key, entry in page if entry[2] + self._retention_s < self._committed_s}
        if over:
            self._store.write({}, self._store.applied, over)


def concerns(progress: Progress, horizon_s: int) -> bool:
    """Whether a machine needs a horizon: timers may go cold from now on, or did so once and may come back."""
    return horizon_s > 0 or progress.setting_at(SEAL, progress.next_offset, 0) > 0


def _key_of(original: int) -> bytes:
    """What the copy of a request without an id is remembered by."""
    return original.to_bytes(8, "big")


def _drop(rows: RowsByDue, copy: Returned) -> None:
    left = [row for row in rows[copy.due_s] if row[0] != copy.offset]
    if left:
        rows[copy.due_s] = left
    else:
        del rows[copy.due_s]
