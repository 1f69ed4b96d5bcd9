"""Classes that each break one rule of docs/design.md. The simulator must find each one.

The docstring names the rule, and says what the class does wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from timers.core.delivery import Delivery
from timers.core.keys import MAX_OFFSET, OrderKey
from timers.core.machine import Machine
from timers.core.operation import OperationResults
from timers.core.ports import Lost
from timers.core.progress import Progress
from timers.core.timer import Decoded, Fetched, Origin, Rejected, Row, RowsByDue, Tick, TopicPartition
from timers.partition import PartitionSpec
from timers.testing import SimOutbox, SimStore, SimWorker
from timers.testing.faults import Unforeseen

# ---- [I1]: a transaction that fires a timer commits a next_offset above it ------------------------------------------


class CommitsAnOldNextOffset(Machine):
    """[I1]: firings are committed with the next_offset of the previous commit."""

    def _commit(self, after: Progress, timers: int = 0) -> None:
        super()._commit(replace(after, next_offset=self._committed.next_offset))


class IgnoresTheStoreOnOpening(Machine):
    """[I1]: on opening, next_offset is that of the progress, although the store holds later requests."""

    def __init__(self, progress: Progress, *args: Any) -> None:
        super().__init__(progress, *args)
        self.progress = replace(self.progress, next_offset=progress.next_offset)


class DropsWhatFormerOwnerHadNotRead(SimWorker):
    """[I1]: on opening, rows up to fired_through are dropped, also those that the former owner had not read."""

    def open_store(self, spec: PartitionSpec, store: SimStore, progress: Progress) -> None:
        store.drop_through(progress.fired_through, MAX_OFFSET)


class KeepsFiredRowsOnOpening(SimWorker):
    """[I1]: a store is opened unchanged, although another worker has fired some of its timers."""

    def open_store(self, spec: PartitionSpec, store: SimStore, progress: Progress) -> None:
        return None


# ---- [I2]: commit a batch's output, then store the batch; change memory after the commit -----------------------------


class StoresBeforeCommit(Machine):
    """[I2]: a batch with late or rejected requests is stored before its output is committed."""

    def _accept_new(self, records: Sequence[Any], to_offset: int) -> None:
        decoded = self._read(records, to_offset)
        late, waiting = self._split_late(decoded.rows)
        after = replace(self.progress, next_offset=to_offset)
        _, judged = self._settle(decoded)
        self._store.write(waiting, to_offset, judged.entries)
        if late or decoded.rejected or judged.verdicts or judged.superseded:
            self._emit(late, decoded, judged, after)
        self.progress = after


class StoresLateRows(Machine):
    """[I2]: late requests are stored like others, and no scan ever finds them."""

    def _split_late(self, rows: RowsByDue) -> tuple[RowsByDue, RowsByDue]:
        return {}, rows


class ChangesMemoryBeforeCommit(Machine):
    """[I2]: the progress in memory changes before the commit; after a failed commit the machine is still used."""

    def _commit(self, after: Progress, timers: int = 0) -> None:
        self.progress = self._committed = after
        super()._commit(after, timers)


class ContinuesAfterFailure(SimWorker):
    """[I5]: the machine is not opened again after a failed transaction."""

    def step(self, machine: TopicPartition) -> None:
        step = self.runners[machine].step

        def step_and_go_on() -> None:
            try:
                step()
            except Lost:
                self.runners[machine].machine._outbox._producer._begun = False  # type: ignore[attr-defined]

        self.runners[machine].step = step_and_go_on  # type: ignore[method-assign]
        try:
            super().step(machine)
        finally:
            if machine in self.runners:
                vars(self.runners[machine]).pop("step", None)


class ContinuesAfterAnUnforeseenFailure(SimWorker):
    """[I5]: a machine goes on with its memory after an exception that no code expects."""

    def fail(self, machine: TopicPartition, error: Unforeseen) -> None:
        self.runners[machine].machine._outbox._producer._begun = False  # type: ignore[attr-defined]


# ---- [I3]: chunks ---------------------------------------------------------------------------------------------------


class CommitsTheWholeSecond(Machine):
    """[I3]: fired_through becomes (second, MAX_OFFSET), although the scan stopped at the limit of the chunk."""

    def _commit(self, after: Progress, timers: int = 0) -> None:
        if after.fired_through > self.progress.fired_through and self._tick is not None:
            after = replace(after, fired_through=(self._tick.second, MAX_OFFSET))
        super()._commit(after, timers)


class DeletesTheWholeSecond(Machine):
    """[I3]: after a chunk, all rows of its last second are deleted, also those that have not fired."""

    def fire_chunk(self) -> bool:
        more = super().fire_chunk()
        due_s, offset = self.progress.fired_through
        if offset != MAX_OFFSET:
            self._store.drop_through((due_s, MAX_OFFSET), MAX_OFFSET)
        return more


class DeletesBeforeCommit(Machine):
    """[I3]: rows are deleted before the commit that fires them."""

    def _commit(self, after: Progress, timers: int = 0) -> None:
        self._store.drop_through(after.fired_through, MAX_OFFSET)
        super()._commit(after, timers)


class StoreWithoutDeleteCheck(SimStore):
    """A store that does not check how many rows it deletes, so that it does not find ``DeletesBeforeCommit``."""

    def delete(self, through: OrderKey, count: int, rest: Sequence[Row] = ()) -> None:
        self.drop_through(through, MAX_OFFSET)


# ---- [I4]: a replay decides as the first read did -------------------------------------------------------------------


class ReplaysByWholeSeconds(Machine):
    """[I4]: a replay drops all timers of the last fired second, although some of them may not have fired."""

    def _replay(self, records: Sequence[Any], to_offset: int) -> None:
        decoded = self._read(records, to_offset)
        fired_s = self.progress.fired_through[0]
        self._store.write({due_s: rows for due_s, rows in decoded.rows.items() if due_s > fired_s}, to_offset)


class ReplaysEverything(Machine):
    """[I4]: a replay stores timers that have already fired."""

    def _replay(self, records: Sequence[Any], to_offset: int) -> None:
        self._store.write(self._read(records, to_offset).rows, to_offset)


class EmitsAgainInReplay(Machine):
    """[I15]: a replay does not discard its output."""

    def _replay(self, records: Sequence[Any], to_offset: int) -> None:
        decoded = self._read(records, to_offset)
        late, waiting = self._split_late(decoded.rows)
        if (late or decoded.rejected) and self._tick is not None:
            self._emit(late, decoded, OperationResults({}), self.progress)
        self._store.write(waiting, to_offset)


class FiresWhileRecovering(Machine):
    """[I15]: timers fire before the store holds all accepted requests: the others count as late, or are lost."""

    def fire_chunk(self) -> bool:
        next_offset = self.progress.next_offset
        self.progress = replace(self.progress, next_offset=self._store.applied)
        try:
            return super().fire_chunk()
        finally:
            self.progress = replace(self.progress, next_offset=next_offset)


# ---- [I5]: unknown outcomes -----------------------------------------------------------------------------------------


class RepeatsUnknownCommit(SimOutbox):
    """[I5]: a commit of unknown outcome counts as failed: its records are sent in a new transaction."""

    def commit(self, progress: Progress) -> None:
        try:
            super().commit(progress)
        except Lost:
            self._records.added.pop(0)  # the progress, which is added again
            self._producer.init_transactions()
            super().commit(progress)


# ---- [I7]: gaps -----------------------------------------------------------------------------------------------------


class IgnoresGaps(Machine):
    """[I7]: the machine does not notice that a fetch was lost."""

    def accept(self, fetched: Fetched) -> None:
        super().accept(fetched._replace(from_offset=min(fetched.from_offset, self.position)))


class CountsOffsetsAsRecords(Machine):
    """[I13]: the position moves by the number of records, although offsets have holes."""

    def accept(self, fetched: Fetched) -> None:
        to_offset = min(fetched.to_offset, fetched.from_offset + len(fetched.records))
        super().accept(fetched._replace(to_offset=to_offset, records=fetched.records))


# ---- time -----------------------------------------------------------------------------------------------------------


class UsesTheSendersClock(SimWorker):
    """[P2]: the time of a tick is that of its sender's clock, not its append time."""

    def tick_of(self, key: bytes, append_ms: int) -> Tick:
        return Tick(int(key) * 1000)


class FiresOneSecondEarly(SimWorker):
    """[P2]: a tick counts for the second after its append time."""

    def tick_of(self, key: bytes, append_ms: int) -> Tick:
        return Tick(append_ms + 1000)


class AcceptsWhileTheClockIsBehind(Machine):
    """[I10]: a machine accepts requests while the broker's clock is behind ``fired_through``."""

    @property
    def may_accept(self) -> bool:
        return self.recovering or self._tick is not None


class FiresByTheFormerTime(Machine):
    """[I10]: after the broker's clock went back, the machine fires by the former time."""

    def observe(self, tick: Tick, end: int | None = None) -> None:
        known = self._tick
        super().observe(tick, end)
        if known is not None and known.append_ms > tick.append_ms:
            self._tick = known


# ---- bad input ------------------------------------------------------------------------------------------------------


class DropsBadRequests(Machine):
    """[P6]: a request that cannot be read is skipped without a dead letter, as Faust does on a decode error."""

    def _read(self, records: Sequence[Any], to_offset: int) -> Decoded:
        return Decoded(super()._read(records, to_offset).rows)


class DropsPostponed(SimOutbox):
    """[P1]: timers above the catch-up limit are not written to the retry topic, although the progress passes them."""

    def postpone(self, due_s: int, rows: Sequence[Row], again_s: int) -> None:
        return None


class FiresPostponed(SimOutbox):
    """[P3]: timers above the catch-up limit are written to the retry topic and also fired."""

    def postpone(self, due_s: int, rows: Sequence[Row], again_s: int) -> None:
        super().postpone(due_s, rows, again_s)
        self.fire(due_s, rows)


class PostponesWithAnotherSource(Delivery):
    """[P3]: a timer from the retry topic loses its source and its due second."""

    def _origin(self, row: Row, due_s: int) -> Origin:
        return Origin(self._output.source(row[0]), due_s, 0)


class WritesTwoDeadLetters(SimOutbox):
    """[P6]: two dead letters are written for one request."""

    def reject(self, rejected: Sequence[Rejected]) -> None:
        super().reject([*rejected, *rejected])
