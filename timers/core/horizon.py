"""Hot and cold: a request that is due far ahead waits in the cold tier, and comes back before its due second [I18].

A request that is due further than the horizon after its append time is not stored. The machine forwards it to the cold
topic, in the transaction that accepts it. The cold tier *promotes* it in time: it writes a copy to the request's own
partition, and the copy names the request.

Both decisions are made when a record is accepted, from the record and the settings history [I4]. So a replay decides
the same. A copy is a row at its own offset: its order key is (due second, *offset of the copy*), and only its
``timer-id`` is the request's. So all rules for offsets and for ``fired_through`` hold for it.

Which copy counts is a function of the log as well, and survives a lost disk:

    without ids   the first copy of a request counts. The store remembers it until no other copy may come: until the
                  retention after its due second and after its own append time has passed, by append times in the log
    with ids      a copy counts if the index holds its request; it then takes the request's place there. So a second
                  copy is ignored, and so is a copy of a version that was replaced or cancelled while it was cold

A copy is valid only with a correct seal. The key of the seals is drawn once for each partition and is only in its
progress. So a producer of requests cannot take the identity of a timer, or change a timer while it is cold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from timers.core.operation import Entries, Entry
from timers.core.ports import Decoder, Store
from timers.core.progress import HOT_HORIZON, SEAL, Progress
from timers.core.sweeping import Sweeper
from timers.core.timer import Decoded, Forwarded, Origin, Rejected, Returned, RowsByDue


def is_far(due_s: int, append_s: int, horizon_s: int) -> bool:
    """Whether a request goes cold: it is due more than ``horizon_s`` after the second in which it was appended."""
    return 0 < horizon_s < due_s - append_s


class Unsealed(NamedTuple):
    """A promoted copy with a correct seal."""

    record: Any
    """The request as it was sent, with the offset and time of the copy."""
    original: int
    """Offset of the request."""
    source: str
    """``<topic>/<partition>/<offset>`` of the request."""


class ColdFormat(Protocol):
    """How requests of one partition go cold and come back. Pure."""

    def has_returned(self, record: Any) -> bool:
        """Whether a record claims to be a promoted copy."""

    def unseal(self, record: Any, seal: int) -> Unsealed | Rejected:
        """Returns the request of a copy, or the reason why it is not a copy of this partition."""

    def may_leave(self, record: Any) -> bool:
        """Whether a request is small enough to go to the cold topic and come back."""


class Horizon:
    """Lets the timers of one machine go cold, and takes them back.

    Args:
        format: of the partition.
        store: of the machine.
        horizon_s: the horizon in seconds for new requests; 0: no timer goes cold.
        new_seal: key for the seals, if the partition has none yet: 63 random bits.
        retention_s: seconds after the due second, and after the first copy, in which another copy may be written.
        indexed: whether the timers have ids.
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
        self._sweeper = Sweeper(store)
        self._read_s = self._committed_s = 0

    def enter(self, progress: Progress) -> Progress:
        """Returns ``progress`` with the horizon in its history, for all requests that are not yet accepted."""
        if not progress.setting_at(SEAL, progress.next_offset, 0):
            progress = progress.with_setting(SEAL, self._new_seal)
        self._history = progress.with_setting(HOT_HORIZON, self._horizon_s)
        return self._history

    def is_cold(self, entry: Entry) -> bool:
        """Whether a version in the index is cold: it was forwarded and has not come back."""
        due_s, offset, append_s = entry
        return is_far(due_s, append_s, self._history.setting_at(HOT_HORIZON, offset, 0))

    # ---- reading ------------------------------------------------------------------------------------------------

    def read(self, records: Sequence[Any], decode: Decoder, max_bytes: int) -> Decoded:
        """Decode records among which no setting changes. Forwarded requests have no row, promoted copies have one.

        Without such records this costs 0.1 us for each record.
        """
        self._read_s = max(self._read_s, records[-1].timestamp // 1000)
        seal = self._history.setting_at(SEAL, records[0].offset, 0)
        if not seal:
            return decode(records, max_bytes)
        returned = [record for record in records if record.headers and self._format.has_returned(record)]
        if not returned:
            decoded = decode(records, max_bytes)
            self._forward_far(decoded, records, seal)
            return decoded
        copies = {record.offset for record in returned}
        others = [record for record in records if record.offset not in copies]
        decoded = decode(others, max_bytes) if others else Decoded()
        self._forward_far(decoded, others, seal)
        for record in returned:
            self._add_copy(decoded, record, decode, seal)
        for due_s in {each.due_s for each in decoded.returned}:
            decoded.rows[due_s].sort(key=lambda row: row[0])
        decoded.rejected.sort(key=lambda rejected: rejected.offset)
        return decoded

    def _forward_far(self, decoded: Decoded, records: Sequence[Any], seal: int) -> None:
        """Replace the rows of far requests by records to forward."""
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

    def _add_copy(self, decoded: Decoded, record: Any, decode: Decoder, seal: int) -> None:
        """Add the row of a promoted copy."""
        opened = self._format.unseal(record, seal)
        if isinstance(opened, Rejected):
            decoded.rejected.append(opened)
            return
        # The request was accepted before: a size limit that was lowered since then must not reject it.
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
            The entries of the others, to be written with the batch.
        """
        if not decoded.returned:
            return {}
        known = self._store.entries({each.key for each in decoded.returned})
        entries: Entries = {}
        for each in decoded.returned:
            entry = known.get(each.key)
            counts = self._holds(entry, each) if self._indexed else entry is None or entry[1] >= each.offset
            if counts:
                # The append second is at least the due second, so that the entry never counts as far.
                after = (each.due_s, each.offset, max(each.due_s, each.append_s))
                known[each.key] = entries[each.key] = after
            else:
                _drop(decoded.rows, each)
                decoded.ignored += 1
        self._sweeper.note_written(len(entries))
        return entries

    def find_returned(self, original: int) -> Entry | None:
        """Returns the copy that counted of a request without an id, as long as it is remembered."""
        if self._indexed:
            return None
        key = _key_of(original)
        return self._store.entries([key]).get(key)

    @staticmethod
    def _holds(entry: Entry | None, copy: Returned) -> bool:
        return entry is not None and entry[:2] == (copy.due_s, copy.original)

    def pieces(self, records: Sequence[Any], to_offset: int) -> Iterator[tuple[Sequence[Any], int]]:
        """Cut a fetch so that no piece has both a copy and another operation of one id: then their order is known.

        Yields:
            Records, and the end of their range of offsets.
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
        """Note that all records read so far are committed: only a store without later entries reads them again."""
        self._committed_s = self._read_s

    def sweep(self) -> None:
        """Forget some of the copies after which no other copy may come. Call once a second.

        The append times of the log are the time here: a second copy may be in the log for long before it is read.
        Where timers have ids, the index is swept instead.
        """
        if not self._indexed:
            self._sweeper.sweep(lambda entry: entry[2] + self._retention_s < self._committed_s)


class NoHorizon(Horizon):
    """The horizon of a machine that never had one: no timer goes cold, and no copy comes back."""

    def __init__(self) -> None:
        pass

    def enter(self, progress: Progress) -> Progress:
        """Returns ``progress``."""
        return progress

    def is_cold(self, entry: Entry) -> bool:
        """Returns False."""
        return False

    def read(self, records: Sequence[Any], decode: Decoder, max_bytes: int) -> Decoded:
        """Decode records. A record that claims to be a copy is an ordinary request."""
        return decode(records, max_bytes)

    def admit(self, decoded: Decoded) -> Entries:
        """Returns no entries: there are no copies."""
        return {}

    def find_returned(self, original: int) -> Entry | None:
        """Returns None."""
        return None

    def pieces(self, records: Sequence[Any], to_offset: int) -> Iterator[tuple[Sequence[Any], int]]:
        """Yields the fetch as a whole."""
        yield records, to_offset

    def commit(self) -> None:
        """Note nothing."""

    def sweep(self) -> None:
        """Forget nothing."""


def concerns(progress: Progress, horizon_s: int) -> bool:
    """Whether a machine needs a horizon: timers may go cold from now on, or went cold before and may come back."""
    return horizon_s > 0 or progress.setting_at(SEAL, progress.next_offset, 0) > 0


def _key_of(original: int) -> bytes:
    """Returns the key of a request without an id among the entries of copies."""
    return original.to_bytes(8, "big")


def _drop(rows: RowsByDue, copy: Returned) -> None:
    left = [row for row in rows[copy.due_s] if row[0] != copy.offset]
    if left:
        rows[copy.due_s] = left
    else:
        del rows[copy.due_s]
