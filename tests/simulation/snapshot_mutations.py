"""Mutations of the rules for snapshots [I30]: each breaks one rule, and a simulated run must find it."""

from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256

from tests.harness.memory_store import MemoryView
from tests.simulation.edits import changed
from tests.simulation.kit.worker import SimRunner
from tests.simulation.pauses import PausingWorker
from tests.simulation.snapshots import Chunk, SimSnapshots, SnapshotWorker
from timers.core.keys import decode
from timers.core.operation import key_of
from timers.core.ports import Page
from timers.core.progress import PASSED_OVER, NamedSnapshot, Progress
from timers.core.snapshots import deletable_before, replaced_before
from timers.core.timer import TopicPartition
from timers.machines.store import layout


class NamesEarly(SnapshotWorker):
    """[I30]: a snapshot is named before the brokers have all of its records."""

    def take(self, runner: SimRunner) -> Iterator[NamedSnapshot | None]:
        known: list[Chunk] = self.topics.chunks.setdefault(runner.name, [])
        view, first = [*self.view(runner)], len(known)
        number = self.numbers.getrandbits(64)
        digest = sha256(repr(tuple(view[:3])).encode()).digest()
        named = first, first + 1 + len(view) // 3, runner.store.applied, len(view), runner.store.pending, digest
        yield NamedSnapshot(self.topics.id_of(runner.name), number, *named)


class DeletesEarly(SnapshotWorker):
    """[I30]: what was older is deleted before the naming is committed."""

    def naming(self, runner: SimRunner, progress: Progress, new: NamedSnapshot) -> Progress:
        after = super().naming(runner, progress, new)
        self.topics.delete_below(runner.name, replaced_before(after))
        return after


class DeletesTheOlderOne(SnapshotWorker):
    """[I30]: the older named snapshot is deleted too."""

    def delete(self, runner: SimRunner) -> None:
        newest = runner.machine.committed.snapshot
        assert newest is not None
        self.topics.delete_below(runner.name, newest.first_offset)


class TrimsEarly(SnapshotWorker):
    """[I31]: the log is deleted by a naming that is not committed yet."""

    def naming(self, runner: SimRunner, progress: Progress, new: NamedSnapshot) -> Progress:
        after = super().naming(runner, progress, new)
        if after.settings.trims:
            self.log.delete_before(*runner.name, deletable_before(after))
        return after


class TrimsBrokenSnapshots(SnapshotWorker):
    """[I31]: it is not looked at whether the snapshots are there."""

    def are_whole(self, runner: SimRunner, progress: Progress) -> bool:
        return True


class TrimsAtOnce(SnapshotWorker):
    """[I31]: the log is deleted before it was compared with its snapshots."""

    def trim(self, runner: SimRunner) -> None:
        bound = deletable_before(runner.machine.committed)
        if bound and self.are_whole(runner, runner.machine.committed):
            self.delete_log(runner, bound)


class TrimsLater(SnapshotWorker):
    """[I31]: a worker that was taken over deletes by what it had committed, and does not look at the log."""

    def trim(self, runner: SimRunner) -> None:
        if not runner.machine.committed.settings.trims:
            super().trim(runner)
        else:
            self.log.delete_before(*runner.name, self.bound(runner))


class TrimsAnotherLog(SnapshotWorker):
    """[I31]: a log that has lost its end is deleted up to where the former one was read."""

    def delete_log(self, runner: SimRunner, before: int) -> None:
        self.log.delete_before(*runner.name, before)


class NamesWhatIsLost(SnapshotWorker):
    """[I30]: a machine that does not know yet what its log has lost names snapshots of it."""

    def has_same_log(self, runner: SimRunner) -> bool:
        return True


class AnyNumber(SimSnapshots):
    """Records of any number count, and no digest is compared."""

    def pages(self, named: NamedSnapshot) -> Iterator[Page]:
        for chunk in self._chunks[named.first_offset : named.end_offset]:
            yield chunk.items


class TakesOtherNumbers(SnapshotWorker):
    """[I30]: records of another number count."""

    def snapshots_of(self, machine: TopicPartition) -> SimSnapshots:
        return AnyNumber(self.topics, machine)


class LeavesOutRemembered(SnapshotWorker):
    """[I30]: ids of timers that have fired or were cancelled are left out."""

    def view(self, runner: SimRunner) -> MemoryView:
        view, fired = super().view(runner), runner.machine.progress.fired_through
        kept = [
            each
            for each in view
            if not layout.INDEX <= each[0] < layout.OTHER
            or each[0] == layout.INDEX
            or key_of(layout.unpack_entry(each[1])) > fired
        ]
        return replace(view, items=kept)


class LeavesOutHeld(SnapshotWorker, PausingWorker):
    """[I34]: what a pause holds is left out of a snapshot, as if it had fired."""

    def view(self, runner: SimRunner) -> MemoryView:
        view, fired = super().view(runner), runner.machine.progress.fired_through
        kept = [each for each in view if each[0] >= layout.ROWS_END or decode(each[0]) > fired]
        rows = sum(layout.row_count(value) for key, value in kept if key < layout.ROWS_END)
        return replace(view, items=kept, rows=rows)


class NamesTheCommittedOffset(SnapshotWorker):
    """[I30]: the offset of a snapshot is that of the last commit, not that of its view."""

    def view(self, runner: SimRunner) -> MemoryView:
        return replace(super().view(runner), applied=runner.machine.committed.next_offset)


class ReadsTheStore(SnapshotWorker):
    """[I30]: a snapshot is read from the store while it changes."""

    def view(self, runner: SimRunner) -> MemoryView:
        return replace(super().view(runner), items=self._items(runner))

    @staticmethod
    def _items(runner: SimRunner) -> Iterator[tuple[bytes, bytes]]:
        last = b""
        while after := [each for each in runner.store.view() if each[0] > last]:
            last = after[0][0]
            yield after[0]


class NamesAfterAnotherOwner(SnapshotWorker):
    """[I30]: a snapshot that was begun before the machine was opened again is named after it."""

    def snapshot(self, machine: TopicPartition) -> None:
        runner, kept = self.runners[machine], vars(self).setdefault("kept", {})
        vars(runner).update(kept.get(machine, {}))
        super().snapshot(machine)
        kept[machine] = {name: vars(runner).get(name) for name in ("taken", "taking")}


MUTATIONS = {
    "S4 a log that begins late is read without its snapshot": changed(
        ("(fences or not opened.is_new) and may_restore(opened, apps)", "False")
    ),
    "S4 a restored store is not used": changed(("self.stores.put(self.tp, self.unused)", "self.unused.pop(0)")),
    "I32 nothing is compared": changed(("count and missing > 0", "False")),
    "I32 stored before it is compared": changed(
        (
            "self._on_missing(missing, count.sure_to, to_offset)",
            "self._store.write({}, self.progress.next_offset, lineage=self.progress.lineage); "
            "self._on_missing(missing, count.sure_to, to_offset)",
        ),
    ),
    "I32 a compacted topic is counted": changed(("is_counted = self._store_age is None", "is_counted = True")),
    "I32 what a store has read is not counted": changed(
        ("stored is not None and stored.since == accepted.since", "False")
    ),
    "S6 a footer forgets what is passed over": changed(
        ("... and each.name != COLD_SEAL", f"... and each.name not in (COLD_SEAL, {PASSED_OVER!r})")
    ),
    "S1 A is the committed offset": changed(worker=NamesTheCommittedOffset),
    "S1 read while the store changes": changed(worker=ReadsTheStore),
    "S1 what is held is left out": changed(worker=LeavesOutHeld),
    "S2 named early": changed(worker=NamesEarly),
    "S2 deleted early": changed(worker=DeletesEarly),
    "S2 the older one is deleted": changed(worker=DeletesTheOlderOne),
    "I31 below the newest snapshot": changed(("min(newest.applied, older.applied)", "newest.applied")),
    "I31 below the committed offset": changed(("min(newest.applied, older.applied)", "progress.next_offset")),
    "I31 what is young": changed(("bound if kept_from is None else min(bound, kept_from)", "bound")),
    "I31 by an uncommitted naming": changed(worker=TrimsEarly),
    "I31 broken snapshots": changed(worker=TrimsBrokenSnapshots),
    "I31 without a comparison": changed(worker=TrimsAtOnce),
    "S3 other numbers count": changed(worker=TakesOtherNumbers),
    "S3 fired rows stay": changed(("catch_up(new, progress)", "None")),
    "S3 rows in a hole stay": changed(
        (
            "catch_up(new, progress)",
            "new.drop_through(progress.fired_through, progress.next_offset)",
        ),
    ),
    "S4 a machine goes on without what was deleted": changed(
        ("self.progress_log.check_start(self.tp, low, store.applied, progress)", "pass"),
        ("self._check_loss(found, apps)", "found = []"),
    ),
    "S6 the progress goes back to its snapshot": changed(
        ("max(progress.next_offset, footer.applied)", "footer.applied")
    ),
    "S2 offsets of a topic that was deleted count": changed(("newest.topic_id != older.topic_id", "False")),
    "S8 an old snapshot is restored": changed(
        ("store.read_through_s is not None and abs(now_s - store.read_through_s) <= stale_after_s", "True"),
    ),
    "S10 remembered ids are left out": changed(worker=LeavesOutRemembered),
    "S13 named by a later opening": changed(worker=NamesAfterAnotherOwner),
    "S14 a broken one becomes the older one": changed(
        ("progress.snapshot if newest_is_whole else progress.older_snapshot", "progress.snapshot"),
    ),
}

LOSS_MUTATIONS = {
    "I31 by a former owner": changed(worker=TrimsLater),
    "I31 another log": changed(worker=TrimsAnotherLog),
    "S10 a snapshot of what is lost is named": changed(worker=NamesWhatIsLost),
    "S10 a cut is not noted": changed(("History((*settings, *cut))", "History(settings)")),
    "S10 snapshots above a cut stay": changed(("each is not None and each.applied <= end", "each is not None")),
}
