"""Classes that each break one rule of progress: fencing, reading it to its end, its second witness, and what it passes
over.

The simulator must find each one.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from tests.simulation.edits import changed
from tests.simulation.kit import SimLog, SimProducer, SimWorker
from tests.simulation.kit.log import SimRecord
from tests.simulation.kit.next_level import LEVEL
from tests.simulation.kit.outbox import PROGRESS_PARTITION, TOPIC_ID, SimTransactions
from tests.simulation.kit.worker import SimRunner
from timers.core.keys import NOTHING_FIRED, OrderKey
from timers.core.timer import CutValue, Fetched, TopicPartition
from timers.machines.firing.policy import Policy
from timers.wire import progress as progress_record
from timers.wire import topics

# ---- progress and fencing -------------------------------------------------------------------------------------------


class UsesTheFormerEpoch(SimProducer):
    """A producer that uses the former owner's epoch."""

    def init_transactions(self) -> None:
        if self._log.epoch(self._transactional_id) < 0:
            super().init_transactions()
        self._epoch = self._log.epoch(self._transactional_id)


class DoesNotFence(SimTransactions):
    """[I14]: a new owner does not fence the former one."""

    def __init__(self, log: SimLog, settings: Any, machine: TopicPartition, *more: Any) -> None:
        super().__init__(log, settings, machine, *more)
        self.producer = UsesTheFormerEpoch(log, topics.transactional_id(settings.app_id, *machine))


class FormerOwnerCommitsLate(SimWorker):
    """The former owner of a machine commits just before it is fenced."""

    _all: ClassVar[list[SimWorker]] = []

    def __init__(self, *args: Any, **others: Any) -> None:
        super().__init__(*args, **others)
        self._all[:] = [worker for worker in self._all if worker.log is self.log] + [self]

    def fence(self, machine: TopicPartition, policy: Policy) -> None:
        for former in self._all:
            if former is not self and machine in former.runners:
                former.step(machine)
        super().fence(machine, policy)


class ReadsProgressToLastStableOffset(SimWorker):
    """[I14]: progress is read up to the last stable offset, although committed progress may be after the open
    transaction of another producer."""

    def newest_record(self, key: bytes) -> SimRecord | None:
        records = self.log.fetch(self.settings.progress_topic, PROGRESS_PARTITION, 0).records
        return next((record for record in reversed(records) if record.key == key), None)


class BelievesAbortedProgress(SimWorker):
    """[I14]: the newest record of a machine counts, although its transaction was aborted."""

    def newest_record(self, key: bytes) -> SimRecord | None:
        records = self.log.fetch(self.settings.progress_topic, PROGRESS_PARTITION, 0, committed=False).records
        return next((record for record in reversed(records) if record.key == key), None)


class ProgressOutsideTheTransaction(SimTransactions):
    """[P3]: the progress is written after its transaction, not in it."""

    def transact(self, batches: Sequence[Any], offsets: Any) -> bool:
        topic = self._settings.progress_topic
        for batch in [each for name, _, each in batches if name == topic]:
            ((append_ms, key, value, headers),) = batch.records
            progress = progress_record.decode(value, LEVEL)[0]
            name = progress_record.machine_name(self._settings.app_id, *self._machine)
            told = progress_record.encode(replace(progress, fired_through=self._told), TOPIC_ID, name)
            batch.records = [(append_ms, key, told, headers)]
            super().transact(batches, offsets)
            self._faults.point("between a transaction and its progress")
            self._log.append(topic, key, value, (), PROGRESS_PARTITION)
            self._told = progress.fired_through
        return bool(offsets)

    _told: OrderKey = NOTHING_FIRED


class ReadsUncommitted(SimWorker):
    """[I13]: requests are read uncommitted, Faust's default: an aborted request fires."""

    def fetch(self, machine: TopicPartition, from_offset: int, max_offsets: int) -> Fetched:
        return self.log.fetch(*machine, from_offset, max_offsets, committed=False)


class MemoryDecides(SimWorker):
    """[I23]: a consumer with little memory reports allowed values as too large."""

    def value_limit(self, machine: TopicPartition) -> int:
        return 30

    def cut(self, record: SimRecord) -> SimRecord:
        return replace(record, value=CutValue.of(record.value or b"", 1_000_000, b""))


# ---- records that are passed over ------------------------------------------------------------------------------------


class PassesOverAsAnotherPartition(SimWorker):
    """[I4]: a range of any partition of the worker is passed over in all of them."""

    def passes_over(self, runner: SimRunner, offset: int) -> bool:
        ranges = (each.machine.progress.settings for each in self.runners.values())
        return any(each.passes_over(offset, offset + 1) for each in ranges)


PASS_OVER = "return machine.commit_change(change, Output(rejected=[letter]), in_replay=True)"
RANGE_ALONE = "machine.commit_change(change, in_replay=True)"
LETTER_ALONE = "machine.commit_change(lambda now: now, Output(rejected=[letter]), in_replay=True)"

OPENED = "opened = open_partition(stores, tp, ask, compacted, after_fence=fences)"
SEEN = "seen is not None and (known := progress or Progress()).is_behind(seen)"

CHANGED = {
    "[I8] a witness of progress is ignored": changed((SEEN, "False")),
    "[I8] an older witness replaces the progress": changed(
        (SEEN, "seen is not None and (known := progress or Progress()) is not None"),
        (
            "known.at_least(seen)",
            "replace(known, next_offset=seen.next_offset, fired_through=seen.fired_through)",
        ),
    ),
    "[I14] progress is read before fencing": changed(
        ("port.fence()", "None"),
        (OPENED, f"{OPENED}; fences and port.fence()"),
        worker=FormerOwnerCommitsLate,
    ),
    "passed over: a replay takes what can be read now": changed(
        ("records = self.progress.settings.left_of(records)", "pass")
    ),
    "passed over: the dead letter is committed first": changed((PASS_OVER, f"{LETTER_ALONE}; return {RANGE_ALONE}")),
    "passed over: the range is committed first": changed((PASS_OVER, f"{RANGE_ALONE}; return {LETTER_ALONE}")),
    "passed over: the reader goes on before the commit": changed(
        (PASS_OVER, f"machine.progress = change(machine.progress); return {LETTER_ALONE}")
    ),
    "[I8] a witness is sent with new requests only": changed(
        (
            "... and new != self._sent",
            "... and (self._sent is None or new.next_offset != self._sent.next_offset)",
        ),
        (
            "... and self._committed != self._sent",
            "... and self._committed is not None and self._committed.next_offset != self._sent.next_offset",
        ),
    ),
}
