"""What holds of the cold tier, broken one thing at a time. Each must turn the simulator red."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from timers.core.horizon import Horizon, Unsealed
from timers.core.index import NoIndex
from timers.core.machine import Machine
from timers.core.operation import Entries, Entry, Judged
from timers.core.progress import HOT_HORIZON, Progress
from timers.core.timer import Decoded, Forwarded, Rejected
from timers.testing import SimOutbox
from timers.wire import topics
from timers.wire.cold import PartitionFormat, RequestRecord


class CountsEveryCopy(Horizon):
    """A copy is a timer, however often it comes."""

    def admit(self, decoded: Decoded) -> Entries:
        return {}


class RemembersInMemoryOnly(Horizon):
    """Which copy counted is forgotten when the machine is opened anew."""

    def __init__(self, *args: Any, **others: Any) -> None:
        super().__init__(*args, **others)
        self._seen: dict[bytes, int] = {}

    def admit(self, decoded: Decoded) -> Entries:
        if self._indexed:
            return super().admit(decoded)
        for each in list(decoded.returned):
            if self._seen.setdefault(each.key, each.offset) < each.offset:
                decoded.rows[each.due_s] = [row for row in decoded.rows[each.due_s] if row[0] != each.offset]
        decoded.rows = {due_s: rows for due_s, rows in decoded.rows.items() if rows}
        return {}


class TheLastCopyCounts(Horizon):
    """A copy takes the place of the one before, as a new version of a timer with an id would."""

    @staticmethod
    def _holds(entry: Entry | None, copy: Any) -> bool:
        return entry is not None and entry[0] == copy.due_s


class JudgesByTheHorizonOfNow(Horizon):
    """[I4]: far is what the present setting says, also in a replay."""

    def enter(self, progress: Progress) -> Progress:
        after = super().enter(progress)
        now = [
            replace(change, value=self._horizon_s) if change.name == HOT_HORIZON else change
            for change in after.settings
        ]
        self._history = replace(after, settings=tuple(now))
        return after


class BelievesAnybody(Horizon):
    """A copy needs no seal."""

    def __init__(self, format: PartitionFormat, *args: Any, **others: Any) -> None:
        super().__init__(Believing(format), *args, **others)


class Believing:
    """A format that takes what a record says for true."""

    def __init__(self, format: PartitionFormat) -> None:
        self.has_returned = format.has_returned
        self.may_leave = format.may_leave

    def unseal(self, record: Any, secret: int) -> Unsealed | Rejected:
        *headers, (_, named), _ = record.headers
        source = named.decode()
        where = topics.parse_source(source)
        assert where is not None
        return Unsealed(
            RequestRecord(record.offset, record.key, record.value, headers, record.timestamp), where[2], source
        )


class TakesFetchesWhole(Horizon):
    """A copy and a change of one id in one fetch: the copy is judged by what was before both."""

    def pieces(self, records: Sequence[Any], to_offset: int) -> Iterator[tuple[Sequence[Any], int]]:
        yield records, to_offset


class NothingIsCold(Horizon):
    """A version whose second has passed counts as fired, though it is away."""

    def is_cold(self, entry: Entry) -> bool:
        return False


class ForgetsAtOnce(Horizon):
    """Which copy counted is forgotten with the next sweep."""

    def sweep(self) -> None:
        if not self._indexed:
            page = self._store.entries_after(b"", 1000)
            self._store.write({}, self._store.applied, {key: None for key, _ in page})


class ForwardsAndKeeps(Horizon):
    """What goes cold is kept here as well."""

    def _forward_far(self, decoded: Decoded, records: Sequence[Any], seal: int) -> None:
        rows = dict(decoded.rows)
        super()._forward_far(decoded, records, seal)
        decoded.rows = rows


class ForwardsWithoutACommit(Machine):
    """[I2]: a fetch is stored, and what went cold of it is sent with the next transaction, if there is one."""

    def _emit(self, late: Any, decoded: Decoded, judged: Judged, after: Progress) -> None:
        if decoded.forwarded and not (late or decoded.rejected or judged.verdicts):
            return
        super()._emit(late, decoded, judged, after)


class ForwardsAgainInReplay(Machine):
    """Section 4: a replay sends away what it finds far."""

    def _replay(self, records: Sequence[Any], to_offset: int) -> None:
        decoded = self._read(records, to_offset)
        if decoded.forwarded and self._tick is not None:
            self._emit({}, Decoded(forwarded=decoded.forwarded), Judged({}), self.progress)
        super()._replay(records, to_offset)


class ForwardsWithoutHeaders(SimOutbox):
    """[P5]: what goes cold goes without its headers."""

    def forward(self, forwarded: Sequence[Forwarded]) -> None:
        super().forward([each._replace(record=Bare(each.record)) for each in forwarded])


class Bare:
    """A record that lost its headers."""

    headers = ()

    def __init__(self, record: Any) -> None:
        self.offset, self.key, self.value, self.timestamp = record.offset, record.key, record.value, record.timestamp


class FiresCopiesUnderANewName(Machine):
    """[P3]: a timer that comes back is called after its copy."""

    def _read(self, records: Sequence[Any], to_offset: int) -> Decoded:
        decoded = super()._read(records, to_offset)
        copies = {each.offset for each in decoded.returned}
        if isinstance(self._index, NoIndex):
            decoded.rows = {
                due_s: [(*row[:5], None) if row[0] in copies else row for row in rows]
                for due_s, rows in decoded.rows.items()
            }
        return decoded
