"""Classes that each break one rule of the cold tier. The simulator must find each one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from timers.core.horizon import Horizon, Unsealed
from timers.core.index import NoIndex
from timers.core.machine import Machine
from timers.core.operation import Entries, Entry, OperationResults
from timers.core.progress import HOT_HORIZON, Progress
from timers.core.timer import Decoded, Forwarded, Rejected
from timers.testing import SimOutbox
from timers.wire import topics
from timers.wire.cold import PartitionColdFormat
from timers.wire.formats import RequestRecord


class CountsEveryCopy(Horizon):
    """Each copy of a cold request becomes a timer, not only the first."""

    def admit(self, decoded: Decoded) -> Entries:
        return {}


class RemembersCopiesInMemoryOnly(Horizon):
    """The first copy is remembered only until the machine is closed."""

    def __init__(self, *args: Any, **others: Any) -> None:
        super().__init__(*args, **others)
        self._seen: dict[bytes, int] = {}

    def admit(self, decoded: Decoded) -> Entries:
        if self._indexed:
            return super().admit(decoded)
        for each in list(decoded.copies):
            if self._seen.setdefault(each.key, each.offset) < each.offset:
                decoded.rows[each.due_s] = [row for row in decoded.rows[each.due_s] if row[0] != each.offset]
        decoded.rows = {due_s: rows for due_s, rows in decoded.rows.items() if rows}
        return {}


class TheLastCopyCounts(Horizon):
    """A later copy replaces the first one, like a new version of a timer with an id."""

    @staticmethod
    def _holds(entry: Entry | None, copy: Any) -> bool:
        return entry is not None and entry[0] == copy.due_s


class UsesThePresentHorizon(Horizon):
    """[I4]: a replay uses the present horizon, not the one of the first read."""

    def enter(self, progress: Progress) -> Progress:
        after = super().enter(progress)
        now = [
            replace(change, value=self._horizon_s) if change.name == HOT_HORIZON else change
            for change in after.settings
        ]
        self._history = replace(after, settings=tuple(now))
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


class ForwardsAndKeeps(Horizon):
    """Requests that are forwarded to the cold tier are also kept."""

    def _forward_far(self, decoded: Decoded, records: Sequence[Any], seal: int) -> None:
        rows = dict(decoded.rows)
        super()._forward_far(decoded, records, seal)
        decoded.rows = rows


class ForwardsWithoutACommit(Machine):
    """[I2]: a fetch is stored, but its cold requests are sent only if it has other output."""

    def _emit(self, late: Any, decoded: Decoded, judged: OperationResults, after: Progress) -> None:
        if decoded.forwarded and not (late or decoded.rejected or judged.verdicts):
            return
        super()._emit(late, decoded, judged, after)


class ForwardsAgainInReplay(Machine):
    """[I15]: a replay forwards cold requests again."""

    def _replay(self, records: Sequence[Any], to_offset: int) -> None:
        decoded = self._read(records, to_offset)
        if decoded.forwarded and self._tick is not None:
            self._emit({}, Decoded(forwarded=decoded.forwarded), OperationResults({}), self.progress)
        super()._replay(records, to_offset)


class ForwardsWithoutHeaders(SimOutbox):
    """[P5]: cold requests are forwarded without their headers."""

    def forward(self, forwarded: Sequence[Forwarded]) -> None:
        super().forward([each._replace(record=WithoutHeaders(each.record)) for each in forwarded])


class WithoutHeaders:
    """A record without its headers."""

    headers = ()

    def __init__(self, record: Any) -> None:
        self.offset, self.key, self.value, self.timestamp = record.offset, record.key, record.value, record.timestamp


class FiresCopiesWithAnotherSource(Machine):
    """[P3]: the source of a promoted timer is that of its copy."""

    def _read(self, records: Sequence[Any], to_offset: int) -> Decoded:
        decoded = super()._read(records, to_offset)
        copies = {each.offset for each in decoded.copies}
        if isinstance(self._index, NoIndex):
            decoded.rows = {
                due_s: [(*row[:5], None) if row[0] in copies else row for row in rows]
                for due_s, rows in decoded.rows.items()
            }
        return decoded
