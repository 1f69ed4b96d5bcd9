"""Sends requests that are due far ahead to the cold tier, and accepts their copies before the due second [I18].

A request that is due further than the horizon after its append time is not stored. The machine forwards it to the cold
topic, in the transaction that accepts it. The cold tier *promotes* it in time: it writes a copy to the request's own
partition, and the copy names the request.

A machine decides about both when it accepts a record, from the record and the settings history [I4]. So a replay
decides the same. A copy is a row at its own offset: its order key is (due second, *offset of the copy*). Only its
``timer-id`` is that of the request. So all rules for offsets and for ``fired_through`` are valid for it.

Which copy counts is a function of the log too, so a lost disk does not change it:

    without ids   the first copy of a request counts. The store remembers it until no other copy can come: for the
                  retention, after its due second and after its own append time, by append times in the log
    with ids      a copy counts if the index holds its request; it then takes the request's place there. So a second
                  copy is ignored, and so is a copy of a version that was replaced or cancelled while it was cold

A copy is valid only with a correct seal. The key of the seals is a random number, chosen once for each partition, and
is only in its progress. So a producer of requests cannot take the identity of a timer, or change a cold timer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from timers.core.index import Sweeper
from timers.core.operation import Entries, Entry, Version, append_s_of, key_of, offset_of, version_of
from timers.core.ports import Decoder, Store
from timers.core.progress import COLD_SEAL, HOT_HORIZON, Progress
from timers.core.timer import Decoded, Forwarded, Origin, PromotedCopy, Rejected, RowsByDue


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
    """The format of cold requests and promoted copies of one partition. Pure."""

    def is_copy(self, record: Any) -> bool:
        """Whether a record has the headers of a promoted copy. Its seal is not checked."""

    def unseal(self, record: Any, seal: int) -> Unsealed | Rejected:
        """Returns the request of a promoted copy, or its rejection if the copy is not valid in this partition."""

    def fits_cold_topic(self, record: Any) -> bool:
        """Whether a request is small enough for the cold topic, and its copy for the request topic."""


class Horizon:
    """Sends timers of one machine to the cold tier, and accepts their promoted copies.

    Args:
        horizon_s: the horizon in seconds for new requests; 0: no timer goes cold.
        new_seal_key: secret for the seals, if the partition has none yet: 63 random bits.
        retention_s: seconds after the due second, and after the first copy, in which another copy may be written.
    """

    def __init__(
        self, format: ColdFormat, store: Store, horizon_s: int, new_seal_key: int, retention_s: int, *, indexed: bool
    ) -> None:
        self._format = format
        self._store = store
        self._horizon_s = horizon_s
        self._new_seal_key = new_seal_key
        self._retention_s = retention_s
        self._indexed = indexed
        self._history = Progress()
        self.sweeper = Sweeper(store)
        self._newest_append_s = self._committed_append_s = 0

    def with_horizon(self, progress: Progress) -> Progress:
        """Returns ``progress`` with horizon and seal in its settings history, for requests that are accepted later."""
        if not progress.setting_at(COLD_SEAL, progress.next_offset, 0):
            progress = progress.with_setting(COLD_SEAL, self._new_seal_key)
        self._history = progress.with_setting(HOT_HORIZON, self._horizon_s)
        return self._history

    def is_cold(self, entry: Entry) -> bool:
        """Whether a version in the index is cold: it was forwarded and has not come back."""
        due_s, offset, append_s = version_of(entry)
        return is_far(due_s, append_s, self._history.setting_at(HOT_HORIZON, offset, 0))

    # ---- reading ------------------------------------------------------------------------------------------------

    def read(
        self, records: Sequence[Any], decode: Decoder, max_bytes: int, decoder_at: Callable[[int], Decoder]
    ) -> Decoded:
        """Decode records for which the settings are the same. Forwarded requests have no row, promoted copies have one.

        If there are no such records, this takes 0.1 µs for each record.

        Args:
            decoder_at: returns the decoder for an offset: a copy is read as its request was.
        """
        self._newest_append_s = max(self._newest_append_s, records[-1].timestamp // 1000)
        seal = self._history.setting_at(COLD_SEAL, records[0].offset, 0)
        if not seal:
            return decode(records, max_bytes)
        copies = [record for record in records if record.headers and self._format.is_copy(record)]
        if not copies:
            decoded = decode(records, max_bytes)
            self._forward_far(decoded, records, seal)
            return decoded
        offsets = {record.offset for record in copies}
        others = [record for record in records if record.offset not in offsets]
        decoded = decode(others, max_bytes) if others else Decoded()
        self._forward_far(decoded, others, seal)
        for record in copies:
            self._add_copy(decoded, record, decoder_at, seal)
        for due_s in {each.due_s for each in decoded.copies}:
            decoded.rows[due_s].sort(key=lambda row: row[0])
        decoded.rejected.sort(key=lambda rejected: rejected.offset)
        return decoded

    def _forward_far(self, decoded: Decoded, records: Sequence[Any], seal: int) -> None:
        """Replace the rows of requests beyond the horizon by records to forward."""
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
            hot = []
            for row in rows:
                record = by_offset[row[0]]
                if row[0] in decoded.follows or not is_far(due_s, record.timestamp // 1000, horizon_s):
                    hot.append(row)
                elif not self._format.fits_cold_topic(record):
                    hot.append(row)
                    too_large.add(row[0])
                else:
                    decoded.forwarded.append(Forwarded(record, due_s, seal))
            if hot:
                decoded.rows[due_s] = hot
        decoded.forwarded.sort(key=lambda forwarded: forwarded.record.offset)
        if too_large:
            decoded.operations = [
                (id, offset, due_s, due_s if offset in too_large and due_s is not None else append_s)
                for id, offset, due_s, append_s in decoded.operations
            ]

    def _add_copy(self, decoded: Decoded, record: Any, decoder_at: Callable[[int], Decoder], seal: int) -> None:
        """Add the row of a promoted copy."""
        request = self._format.unseal(record, seal)
        if isinstance(request, Rejected):
            decoded.rejected.append(request)
            return
        # No size limit: the request was accepted before, and the limit may be lower now.
        found = decoder_at(request.original)([request.record], len(record.value or b""))
        decoded.rejected += found.rejected
        for due_s, (row,) in found.rows.items():
            timer_id = request.source if row[5] is None else row[5][0]
            row_of_copy = (*row[:5], Origin(timer_id, due_s, 0, request.source))
            decoded.rows.setdefault(due_s, []).append(row_of_copy)
            key = timer_id.encode() if self._indexed else _id_of_request(request.original)
            decoded.copies.append(PromotedCopy(key, row[0], request.original, due_s, record.timestamp // 1000))

    # ---- which copy counts --------------------------------------------------------------------------------------

    def admit_copies(self, decoded: Decoded) -> Entries:
        """Drop the rows of promoted copies that do not count. Returns the index entries of the others."""
        if not decoded.copies:
            return {}
        known = self._store.entries({each.key for each in decoded.copies})
        entries: Entries = {}
        for each in decoded.copies:
            entry = known.get(each.key)
            if self._indexed:
                counts = entry is not None and key_of(entry) == (each.due_s, each.original)
            else:
                counts = entry is None or offset_of(entry) >= each.offset
            if counts:
                # The append second of the entry is its due second or later, so the entry never counts as cold.
                copy: Version = (each.due_s, each.offset, max(each.due_s, each.append_s))
                # A condition may name the source of the request.
                known[each.key] = entries[each.key] = (*copy, each.original) if self._indexed else copy
            else:
                _drop(decoded.rows, each)
                decoded.ignored += 1
        self.sweeper.note_written(len(entries))
        return entries

    def find_copy(self, original: int) -> Entry | None:
        """Returns the copy that counts for a request without an id; None if there is none, or it is forgotten."""
        if self._indexed:
            return None
        key = _id_of_request(original)
        return self._store.entries([key]).get(key)

    def pieces(self, records: Sequence[Any], to_offset: int) -> Iterator[tuple[Sequence[Any], int]]:
        """Cut a fetch into pieces. No piece has both a copy and another operation of one id, so their order is kept.

        Yields:
            Records, and the end of their range of offsets.
        """
        if not self._indexed or not any(record.headers and self._format.is_copy(record) for record in records):
            yield records, to_offset
            return
        start = 0
        copies: set[Any] = set()
        changes: set[Any] = set()
        for index, record in enumerate(records):
            is_copy = bool(record.headers) and self._format.is_copy(record)
            same_kind, others = (copies, changes) if is_copy else (changes, copies)
            if record.key in others:
                yield records[start:index], record.offset
                start = index
                same_kind.clear()
                others.clear()
            same_kind.add(record.key)
        yield records[start:], to_offset

    def note_committed(self) -> None:
        """Note that all records read so far are committed. Only a machine whose store lacks them reads them again."""
        self._committed_append_s = self._newest_append_s

    def sweep(self) -> None:
        """Forget some of the copies after which no other copy can come. Call once a second.

        Time is the append time in the log, because a second copy may be in the log for long before it is read.
        If timers have ids, the index is swept instead.
        """
        if not self._indexed:
            self.sweeper.sweep(lambda entry: append_s_of(entry) + self._retention_s < self._committed_append_s)


def needs_horizon(progress: Progress, horizon_s: int) -> bool:
    """Whether a machine needs a horizon: timers may go cold from now on, or went cold earlier and may come back."""
    return horizon_s > 0 or progress.setting_at(COLD_SEAL, progress.next_offset, 0) > 0


def _id_of_request(original: int) -> bytes:
    """Returns the key of a request without an id among the entries of copies."""
    return original.to_bytes(8, "big")


def _drop(rows: RowsByDue, copy: PromotedCopy) -> None:
    others = [row for row in rows[copy.due_s] if row[0] != copy.offset]
    if others:
        rows[copy.due_s] = others
    else:
        del rows[copy.due_s]
