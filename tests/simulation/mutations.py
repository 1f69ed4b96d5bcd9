"""The invariants of docs/design.md, broken one at a time. The simulator must find each one.

A mutation's docstring says which rule it breaks, and how a well-meaning change might.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from timers.core.delivery import Delivery
from timers.core.index import Index, latest
from timers.core.keys import MAX_OFFSET, NEVER, OrderKey
from timers.core.machine import Machine
from timers.core.operation import ALREADY_FIRED, Judged, Operation, Verdict
from timers.core.ports import Lost
from timers.core.progress import Progress
from timers.core.second_barrier import SecondBarrier
from timers.core.timer import Decoded, Fetched, Origin, Rejected, Row, RowsByDue, Tick, TopicPartition
from timers.partition import PartitionSpec
from timers.testing import SimLog, SimOutbox, SimProducer, SimStore, SimWorker
from timers.testing.outbox import PROGRESS_PARTITION, TOPIC_ID
from timers.wire import progress as progress_record
from timers.wire import topics

# ---- [I1]: what may fire is covered by the next_offset of the same transaction --------------------------------------


class CommitsAnOldNextOffset(Machine):
    """[I1]: firings are committed with the next_offset of the commit before, as if acceptance were another matter."""

    def _commit(self, after: Progress) -> None:
        super()._commit(replace(after, next_offset=self._committed.next_offset))


class ForgetsWhatTheStoreHolds(Machine):
    """[I1]: next_offset on open is the progress's alone, though the store holds, and will fire, more."""

    def __init__(self, progress: Progress, *args: Any) -> None:
        super().__init__(progress, *args)
        self.progress = replace(self.progress, next_offset=progress.next_offset)


class DropsWhatAnotherPassedOver(SimWorker):
    """[I1]: on open, rows below fired_through count as fired, also those that the one who fired had not yet read."""

    def open_store(self, spec: PartitionSpec, store: SimStore, progress: Progress) -> None:
        store.drop_through(progress.fired_through, MAX_OFFSET)


class KeepsWhatHasFired(SimWorker):
    """[I1]: a store is opened as it was left, though another worker has fired from it since."""

    def open_store(self, spec: PartitionSpec, store: SimStore, progress: Progress) -> None:
        return None


# ---- [I2]: what a batch emits is committed before the batch is stored; memory moves after the commit ----------------


class StoresBeforeCommit(Machine):
    """[I2]: a batch with late or rejected requests is stored first, and its output is committed after."""

    def _accept_new(self, records: Sequence[Any], to_offset: int) -> None:
        decoded = self._read(records, to_offset)
        late, waiting = self._split_late(decoded.rows)
        after = replace(self.progress, next_offset=to_offset)
        judged = self._judge(decoded.operations)
        self._store.write(waiting, to_offset, judged.entries)
        if late or decoded.rejected or judged.verdicts or judged.superseded:
            self._emit(late, decoded, judged, after)
        self.progress = after


class StoresLateRows(Machine):
    """[I2]: what arrives after its second is stored like everything else, and no scan ever finds it."""

    def _split_late(self, rows: RowsByDue) -> tuple[RowsByDue, RowsByDue]:
        return {}, rows


class MovesMemoryBeforeCommit(Machine):
    """[I2]: memory moves, then the commit fails, and whoever catches that goes on with the machine."""

    def _commit(self, after: Progress) -> None:
        self.progress = self._committed = after
        super()._commit(after)


class SurvivesLost(SimWorker):
    """[I5] with the above: the machine is not opened again after a failed transaction."""

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


# ---- [I3]: chunks ---------------------------------------------------------------------------------------------------


class ClaimsTheWholeSecond(Machine):
    """[I3]: fired_through becomes (second, MAX) although the scan stopped at the chunk's limit."""

    def _commit(self, after: Progress) -> None:
        if after.fired_through > self.progress.fired_through and self._tick is not None:
            after = replace(after, fired_through=(self._tick.second, MAX_OFFSET))
        super()._commit(after)


class DeletesTheWholeSecond(Machine):
    """[I3]: after a chunk all of its last second is deleted, not exactly what has fired."""

    def fire_chunk(self) -> bool:
        more = super().fire_chunk()
        due_s, offset = self.progress.fired_through
        if offset != MAX_OFFSET:
            self._store.drop_through((due_s, MAX_OFFSET), MAX_OFFSET)
        return more


class DeletesBeforeCommit(Machine):
    """[I3]: rows are deleted before the commit that fires them."""

    def _commit(self, after: Progress) -> None:
        self._store.drop_through(after.fired_through, MAX_OFFSET)
        super()._commit(after)


class ForgivingStore(SimStore):
    """A store that does not count what it deletes, so that the above goes unnoticed by the store."""

    def delete(self, through: OrderKey, count: int) -> None:
        self.drop_through(through, MAX_OFFSET)


# ---- [I4]: a replay decides as the first reading did ----------------------------------------------------------------


class ReplaysByWholeSeconds(Machine):
    """[I4]: a replay keeps only what is due after the last second fired, which may have fired in part only."""

    def _replay(self, records: Sequence[Any], to_offset: int) -> None:
        decoded = self._read(records, to_offset)
        fired_s = self.progress.fired_through[0]
        self._store.write({due_s: rows for due_s, rows in decoded.rows.items() if due_s > fired_s}, to_offset)


class ReplaysEverything(Machine):
    """[I4]: a replay stores what has fired already."""

    def _replay(self, records: Sequence[Any], to_offset: int) -> None:
        self._store.write(self._read(records, to_offset).rows, to_offset)


class EmitsAgainInReplay(Machine):
    """Section 4: a replay does not discard its outputs."""

    def _replay(self, records: Sequence[Any], to_offset: int) -> None:
        decoded = self._read(records, to_offset)
        late, waiting = self._split_late(decoded.rows)
        if (late or decoded.rejected) and self._tick is not None:
            self._emit(late, decoded, Judged({}), self.progress)
        self._store.write(waiting, to_offset)


class FiresWhileRecovering(Machine):
    """Section 4: time passes before the store holds all that was accepted: the rest is taken for late, or is lost."""

    def fire_chunk(self) -> bool:
        next_offset = self.progress.next_offset
        self.progress = replace(self.progress, next_offset=self._store.applied)
        try:
            return super().fire_chunk()
        finally:
            self.progress = replace(self.progress, next_offset=next_offset)


# ---- timers with an id ----------------------------------------------------------------------------------------------


class FiresTheDead(Index):
    """A row fires without a look whether the index still holds it."""

    def alive(self, due_s: int, rows: list[Row]) -> list[Row]:
        return rows


class ReplaysOnlyWhatWaits(Machine):
    """What is past is skipped by a replay, also as the one that took its predecessor's place."""

    def _replay(self, records: Sequence[Any], to_offset: int) -> None:
        decoded = self._read(records, to_offset)
        _, waiting = self._split_late(decoded.rows)
        kept = {row[0] for rows in waiting.values() for row in rows}
        operations = [each for each in decoded.operations if each[2] is None or each[1] in kept]
        self._store.write(waiting, to_offset, latest(operations))


class JudgesAgainInReplay(Machine):
    """A replay gives its verdicts once more."""

    def _replay(self, records: Sequence[Any], to_offset: int) -> None:
        verdicts = self._judge(self._read(records, to_offset).operations).verdicts
        if verdicts and self._tick is not None:
            self._emit({}, Decoded(), Judged({}, verdicts), self.progress)
        super()._replay(records, to_offset)


class JudgesByTheStore(Index):
    """Each record of a batch is judged by what was stored before the batch."""

    def judge(self, operations: Sequence[Operation], fired_through: OrderKey) -> Judged:
        judge = super().judge
        return Judged(latest(operations), [one for each in operations for one in judge([each], fired_through).verdicts])


class RemembersWhatItCouldNotCancel(Index):
    """A cancel that comes too late leaves the memory of the timer, as if it had not been there."""

    def judge(self, operations: Sequence[Operation], fired_through: OrderKey) -> Judged:
        judged = super().judge(operations, fired_through)
        late = {verdict.offset for verdict in judged.verdicts if verdict.verdict == ALREADY_FIRED}
        last = {each[0]: each[1] for each in operations}
        kept = {id: entry for id, entry in judged.entries.items() if entry is not None or last[id] not in late}
        return judged._replace(entries=kept)


class KeepsVerdictsToItself(SimOutbox):
    """Nobody is told."""

    def answer(self, verdicts: Sequence[Verdict]) -> None:
        return None


class SweepsByWhatIsNotCommitted(Machine):
    """Ids are forgotten by a second that a crash takes back."""

    def commit_progress(self, *, even_if_idle: bool = False) -> bool:
        if not self.recovering:
            self._index.sweep(self.progress.fired_through)
        return super().commit_progress(even_if_idle=even_if_idle)


class FiresBeforeItHasRead(SecondBarrier):
    """A second fires when it begins, although the log has unread requests."""

    def through(self, second: int) -> int | None:
        return second


class WaitsForTheFirstEndOnly(SecondBarrier):
    """Once the machine has caught up, seconds fire when they begin."""

    def through(self, second: int) -> int | None:
        return None if super().through(second) is None else second


# ---- [I5]: unknown outcomes -----------------------------------------------------------------------------------------


class TriesAgainOnAGuess(SimOutbox):
    """[I5]: a commit of unknown outcome is taken for failed, and its records are sent in a new transaction."""

    def commit(self, progress: Progress) -> None:
        try:
            super().commit(progress)
        except Lost:
            self._records.added.pop(0)  # the progress, which is added again
            self._producer.init_transactions()
            super().commit(progress)


# ---- [I7]: gaps -----------------------------------------------------------------------------------------------------


class IgnoresGaps(Machine):
    """[I7]: a fetch that was dropped on the way is not missed."""

    def accept(self, fetched: Fetched) -> None:
        super().accept(fetched._replace(from_offset=min(fetched.from_offset, self.position)))


class CountsOffsetsAsRecords(Machine):
    """Section 3: the position moves by the number of records, though offsets have holes."""

    def accept(self, fetched: Fetched) -> None:
        to_offset = min(fetched.to_offset, fetched.from_offset + len(fetched.records))
        super().accept(fetched._replace(to_offset=to_offset, records=fetched.records))


# ---- progress and fencing -------------------------------------------------------------------------------------------


class SharesTheEpoch(SimProducer):
    """A producer that joins the former owner's epoch."""

    def init_transactions(self) -> None:
        if self._log.epoch(self._transactional_id) < 0:
            super().init_transactions()
        self._epoch = self._log.epoch(self._transactional_id)


class FencesNobody(SimOutbox):
    """Section 4: a new owner does not fence the former one, as if each worker had transactional ids of its own."""

    def __init__(self, log: SimLog, settings: Any, machine: TopicPartition, *args: Any) -> None:
        super().__init__(log, settings, machine, *args)
        self._producer = SharesTheEpoch(log, topics.transactional_id(settings.app_id, *machine))


class ReadsProgressBeforeFencing(SimWorker):
    """Section 4: the new owner reads the progress first, and then fences: the former one may commit in between."""

    _all: ClassVar[list[SimWorker]] = []

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._all[:] = [worker for worker in self._all if worker.log is self.log] + [self]
        self._read_early: dict[TopicPartition, Progress] = {}

    def fence(self, outboxes: Mapping[TopicPartition, SimOutbox]) -> None:
        for machine in outboxes:
            self._read_early[machine] = super().read_progress(machine)
            for former in self._all:
                if former is not self and machine in former.runners:
                    former.step(machine)
        super().fence(outboxes)

    def read_progress(self, machine: TopicPartition) -> Progress:
        return self._read_early.pop(machine)


class ReadsProgressToTheLastStableOffset(SimWorker):
    """Section 4: progress is read as far as readers of committed records get, though more may be committed behind
    somebody else's open transaction."""

    def wait_for_the_end(self, topic: str, partition: int) -> None:
        return None


class ProgressOutsideTheTransaction(SimOutbox):
    """[P3]: the progress is written after the transaction that it speaks of, not in it."""

    def commit(self, progress: Progress) -> None:
        super().commit(replace(progress, fired_through=self._told))
        self._faults.point("between a transaction and its progress")
        key = progress_record.encode_key(*self._machine)
        value = progress_record.encode(progress, TOPIC_ID)
        self._log.append(self._settings.progress_topic, key, value, (), PROGRESS_PARTITION)
        self._told = progress.fired_through

    _told: OrderKey = NEVER


class ReadsUncommitted(SimWorker):
    """Section 3: requests are read uncommitted, Faust's default: an aborted request fires."""

    def fetch(self, machine: TopicPartition, from_offset: int, max_offsets: int) -> Fetched:
        return self.log.fetch(*machine, from_offset, max_offsets, committed=False)


# ---- time -----------------------------------------------------------------------------------------------------------


class BelievesTheTicksKey(SimWorker):
    """[P2]: the time of a tick is what its sender's clock said, not when the broker appended it."""

    def tick_of(self, key: bytes, append_ms: int) -> Tick:
        return Tick(int(key) * 1000)


class FiresASecondAhead(SimWorker):
    """[P2]: a tick is taken to prove the second it announces, not the one it was appended in."""

    def tick_of(self, key: bytes, append_ms: int) -> Tick:
        return Tick(append_ms + 1000)


class NeverHolds(Machine):
    """[I10]: a machine goes on accepting while the broker's clock stands before what has fired."""

    @property
    def may_accept(self) -> bool:
        return self.recovering or self._tick is not None


class KeepsTheTimeThatWasTakenBack(Machine):
    """[I10]: after the broker's clock went back, what came due by the time before goes on firing."""

    def observe(self, tick: Tick, end: int | None = None) -> None:
        known = self._tick
        super().observe(tick, end)
        if known is not None and known.append_ms > tick.append_ms:
            self._tick = known


# ---- bad input ------------------------------------------------------------------------------------------------------


class DropsBadRequests(Machine):
    """[P6]: a request that cannot be read is skipped without a word, as Faust does on a decode error."""

    def _read(self, records: Sequence[Any], to_offset: int) -> Decoded:
        return Decoded(super()._read(records, to_offset).rows)


class DropsWhatItPostpones(SimOutbox):
    """[P1]: what is over the catch-up rate is left for later, though the progress passes it now."""

    def postpone(self, due_s: int, rows: Sequence[Row], again_s: int) -> None:
        return None


class FiresWhatItPostpones(SimOutbox):
    """[P3]: what is over the catch-up rate is asked for anew, and fired all the same."""

    def postpone(self, due_s: int, rows: Sequence[Row], again_s: int) -> None:
        super().postpone(due_s, rows, again_s)
        self.fire(due_s, rows)


class PostponesUnderANewName(Delivery):
    """[P3]: a timer that is asked for anew loses its identity and its due second, as any request would."""

    def _origin(self, row: Row, due_s: int) -> Origin:
        return Origin(f"{self._terms.source_prefix}{row[0]}", due_s, 0)


class AnswersTwice(SimOutbox):
    """[P6]: a dead letter is written for the request and once more for its error."""

    def reject(self, rejected: Sequence[Rejected]) -> None:
        super().reject([*rejected, *rejected])
