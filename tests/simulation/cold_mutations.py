"""Classes that each break one rule of the cold tier. The simulator must find each one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tests.simulation.edits import changed
from timers.core.horizon import Horizon, Unsealed
from timers.core.operation import Entries, Entry
from timers.core.progress import HOT_HORIZON, History, Progress
from timers.core.timer import Decoded, Rejected
from timers.wire import topics
from timers.wire.cold import PartitionColdFormat
from timers.wire.formats import RequestRecord


class CountsEveryCopy(Horizon):
    """Each copy of a cold request becomes a timer, not only the first."""

    def admit_copies(self, decoded: Decoded) -> Entries:
        return {}


class RemembersCopiesInMemoryOnly(Horizon):
    """The first copy is remembered only until the machine is closed."""

    def __init__(self, *args: Any, **others: Any) -> None:
        super().__init__(*args, **others)
        self._seen: dict[bytes, int] = {}

    def admit_copies(self, decoded: Decoded) -> Entries:
        if self._indexed:
            return super().admit_copies(decoded)
        for each in list(decoded.copies):
            if self._seen.setdefault(each.key, each.offset) < each.offset:
                decoded.rows[each.due_s] = [row for row in decoded.rows[each.due_s] if row[0] != each.offset]
        decoded.rows = {due_s: rows for due_s, rows in decoded.rows.items() if rows}
        return {}


class UsesThePresentHorizon(Horizon):
    """[I4]: a replay uses the present horizon, not the one of the first read."""

    def with_horizon(self, progress: Progress) -> Progress:
        after = super().with_horizon(progress)
        now = [
            replace(change, value=self._horizon_s) if change.name == HOT_HORIZON else change
            for change in after.settings
        ]
        self._history = replace(after, settings=History(now))
        return after


class ChecksNoSeal(Horizon):
    """A copy needs no seal."""

    def __init__(self, format: PartitionColdFormat, *args: Any, **others: Any) -> None:
        super().__init__(FormatWithoutSealCheck(format), *args, **others)


class FormatWithoutSealCheck:
    """A format that does not check the seal of a copy."""

    def __init__(self, format: PartitionColdFormat) -> None:
        self.is_copy = format.is_copy
        self.fits_cold_topic = format.fits_cold_topic

    def unseal(self, record: Any, secret: int) -> Unsealed | Rejected:
        *headers, (_, named), _ = record.headers
        source = named.decode()
        where = topics.parse_source(source)
        assert where is not None
        return Unsealed(
            RequestRecord(record.offset, record.key, record.value, headers, record.timestamp), where[2], source
        )


class DoesNotSplitFetches(Horizon):
    """A copy in the same fetch as a change of its id is judged by the index before that change."""

    def pieces(self, records: Sequence[Any], to_offset: int) -> Iterator[tuple[Sequence[Any], int]]:
        yield records, to_offset


class ColdCountsAsFired(Horizon):
    """A cold version whose second has passed counts as fired."""

    def is_cold(self, entry: Entry) -> bool:
        return False


class ForgetsCopiesAtTheNextSweep(Horizon):
    """The first copy is remembered only until the next sweep."""

    def sweep(self) -> None:
        if not self._indexed:
            page = self._store.entries_after(b"", 1000).entries
            self._store.write({}, self._store.applied, {key: None for key, _ in page})


CHANGED = {
    "cold: the last copy counts": changed(
        (
            "entry is not None and key_of(entry) == (each.due_s, each.original)",
            "entry is not None and key_of(entry)[0] == each.due_s",
        ),
    ),
    "cold: forwarded requests are kept": changed(
        ("decoded.rows.pop(due_s)", "decoded.rows[due_s]"),
        ("decoded.rows[due_s] = hot", "pass"),
    ),
    "cold: forwarded without a commit": changed(
        (
            "late or decoded.rejected or decoded.forwarded or judged.verdicts or judged.superseded",
            "late or decoded.rejected or judged.verdicts or judged.superseded",
        ),
    ),
    "cold: forwarded again in a replay": changed(
        (
            "rows, entries = ... if self._index is None else ...",
            """
rows, entries = ... if self._index is None else ...
if decoded.forwarded and self._tick is not None:
    self._outbox.begin(self._tick)
    self._outbox.commit(self.progress, Output(forwarded=decoded.forwarded))
""",
        ),
    ),
    "cold: a promoted timer has another source": changed(
        (
            "Origin(timer_id, due_s, 0, request.source)",
            "Origin(timer_id, due_s, 0, request.source) if self._indexed else None",
        ),
    ),
    "cold: forwarded without headers": changed(
        (
            "cold.encode_cold(record, ..., due_s, secret)",
            "cold.encode_cold(type('', (), {'headers': (), 'offset': record.offset, 'key': record.key, "
            "'value': record.value, 'timestamp': record.timestamp}), ..., due_s, secret)",
        ),
    ),
}
