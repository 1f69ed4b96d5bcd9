"""Restores the store of a machine from a snapshot, if this takes less time than to read its log from where it ended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from time import monotonic
from typing import NamedTuple

from timers.config.settings import Settings
from timers.core.progress import NamedSnapshot, Progress
from timers.core.snapshots import Footer, Place, Unreadable, progress_from, restored, to_restore, usable
from timers.core.store_validity import is_fresh
from timers.core.timer import TopicPartition
from timers.kafka.progress_log import SNAPSHOT, ProgressLog
from timers.kafka.snapshot_log import SnapshotLog
from timers.kafka.topics import Cluster
from timers.store.database import alone
from timers.store.failures import Condemnations, forget_frames
from timers.store.memory_limit import RocksMemory
from timers.store.opening import Opened, open_store, store_path, use_beside
from timers.store.rocks import RocksStore
from timers.wire.formats import RequestFormat
from timers.wire.progress import ANY_LEVEL, decode
from timers.wire.topics import partition_name, snapshots

logger = logging.getLogger(__name__)

AGAIN = (
    "Timers that have fired since then may fire again, verdicts and dead letters may come a second time, and copies of "
    "cold timers may become dead letters"
)
"""What it means to go on from a snapshot that the progress does not name."""


PATIENCE_S = 30.0
"""A restore ends after this time without a record, and gives its place to another one. It begins again later."""


def place_of(settings: Settings, cluster: Cluster, tp: TopicPartition, request_format: RequestFormat) -> Place:
    """Returns what the footers of a machine's snapshots say."""
    topic, partition = tp
    return Place(cluster.cluster_id, settings.app_id, cluster.topic_ids[topic], partition, request_format.name)


def may_restore(opened: Opened, others: Collection[str] | None = None) -> bool:
    """Whether to call :func:`restore`: the log begins later than the store ended, or takes longer to be read than a
    snapshot; or snapshots may say that a machine without progress is not new.

    Args:
        others: the topics of snapshots of this request topic, of any app; None: not known.
    """
    progress, store, low, is_new = opened
    is_lost = is_new and (others is None or bool(others))
    return is_lost or store.applied < low or bool(to_restore(progress, store, low))


def restore(
    settings: Settings,
    cluster: Cluster,
    memory: RocksMemory,
    condemnations: Condemnations,
    formats: Mapping[str, RequestFormat],
    tp: TopicPartition,
    opened: Opened,
    check: Callable[[], None],
    others: Collection[str] | None = None,
    now_s: Callable[[], float | None] = lambda: None,
) -> Opened:
    """Returns what :func:`timers.store.opening.open_partition` did, with a store from which the log can be read on.

    It is restored beside the present one, which is deleted only after that. Blocks.

    Args:
        check: called often; may raise to stop.
        others: as those of :func:`may_restore`.
        now_s: returns the brokers' time. While it is not known, no snapshot of a compacted topic is used.

    Raises:
        LogMismatch: the log begins after the present store ended, no snapshot can be read, and no operator accepts it;
            or the progress was lost.
        Lost: the records of snapshots do not come.
    """
    indexed = formats[tp[0]].has_ids
    restoring = _Restoring((settings, cluster, memory, condemnations, tp), indexed, now_s, [opened.store])
    try:
        with closing(SnapshotLog(settings, snapshots(settings.app_id, tp[0]), tp[1], check, PATIENCE_S)) as log:
            place = place_of(settings, cluster, tp, formats[tp[0]])
            progress, store = restoring.restored(opened, place, log, others or ())
        return opened._replace(progress=progress, store=restoring.use(store))
    except BaseException as error:
        forget_frames(error)
        raise
    finally:
        for each in restoring.unused:
            each.close()


class _Restoring(NamedTuple):
    """One restore."""

    where: tuple[Settings, Cluster, RocksMemory, Condemnations, TopicPartition]
    indexed: bool
    now_s: Callable[[], float | None]
    unused: list[RocksStore]
    """The stores to close at its end: the present one comes first."""

    def restored(
        self, opened: Opened, place: Place, log: SnapshotLog, others: Collection[str]
    ) -> tuple[Progress, RocksStore]:
        """Returns the progress and the store with which the machine goes on."""
        settings, cluster, *_, tp = self.where
        progress, _, low, is_new = opened
        store = self._from(log, progress, place, opened, self._names)
        with closing(ProgressLog(settings, cluster)) as progress_log:
            if is_new:
                progress, store = self._after_loss(progress_log, log, place, opened, others)
            elif store.applied < low:
                progress, store = self._after_loss_of_names(progress_log, log, place, opened)
            if store.applied < low:
                if not is_new:
                    progress_log.check_start(tp, low, store.applied, progress)
                store.write({}, low)
        return progress, store

    def _after_loss_of_names(
        self, progress_log: ProgressLog, log: SnapshotLog, place: Place, opened: Opened
    ) -> tuple[Progress, RocksStore]:
        """The progress of a machine may have gone back: what it names was deleted, because it named newer ones."""
        tp = self.where[-1]
        found = usable(log.whole(), place, opened.progress, *progress_log.ends(*tp))
        if found:
            progress_log.mismatch(
                tp,
                f"{partition_name(*tp)} begins at offset {opened.low}, and its progress names no snapshot that can be "
                "read: the progress topic may have lost records. The newest snapshot of which all records are there is "
                f"at offset {found[0][0].applied}. {AGAIN}",
                opened.progress,
                way="from it",
                kind=SNAPSHOT,
            )
        return self._from_any(found, log, place, opened)

    def _after_loss(
        self, progress_log: ProgressLog, log: SnapshotLog, place: Place, opened: Opened, others: Collection[str]
    ) -> tuple[Progress, RocksStore]:
        """A machine without progress is new only if no snapshot says that it is not."""
        tp, low = self.where[-1], opened.low
        name, own = partition_name(*tp), snapshots(place.app, tp[0])
        found = usable(log.whole(), place, opened.progress, *progress_log.ends(*tp))
        if found:
            progress_log.mismatch(
                tp,
                f"{name} has no progress, but {own!r} has a snapshot of it at offset {found[0][0].applied}: its "
                f"progress was lost. {AGAIN}",
                opened.progress,
                way="from the snapshot",
            )
        elif log.damaged:
            progress_log.mismatch(
                tp,
                f"{name} has no progress, and the snapshots of it in {own!r} are damaged: nothing says that it is new",
                opened.progress,
                way="without what they held",
                kind=SNAPSHOT,
            )
        elif low and (other := sorted({*others} - {own})):
            progress_log.mismatch(
                tp,
                f"{name} begins at offset {low}, this app has no progress of it, and {other[0]!r} has snapshots of it: "
                "another app has read what was deleted, or this app was renamed",
                opened.progress,
                way="without what was deleted",
            )
        return self._from_any(found, log, place, opened)

    def _from_any(
        self, found: Iterable[tuple[NamedSnapshot, Footer]], log: SnapshotLog, place: Place, opened: Opened
    ) -> tuple[Progress, RocksStore]:
        """The progress and the store of the first of these snapshots that can be read."""
        for named, footer in found:
            progress = progress_from(named, footer, opened.progress)
            store = self._from(log, progress, place, opened, lambda _: True)
            if store is not opened.store or not to_restore(progress, store, opened.low):
                return progress, store
        return opened.progress, opened.store

    def _from(
        self,
        log: SnapshotLog,
        progress: Progress,
        place: Place,
        opened: Opened,
        names: Callable[[NamedSnapshot], bool],
    ) -> RocksStore:
        name, began = partition_name(*self.where[-1]), monotonic()

        def report(named: NamedSnapshot, why: Unreadable | None) -> None:
            if why is not None:
                logger.error("%s: its snapshot at offset %d cannot be read: %s", name, named.applied, why)
            else:
                seconds = monotonic() - began
                logger.info("restored %s: %d pending at offset %d, in %.2f s", name, named.rows, named.applied, seconds)

        return restored(opened.store, progress, place, opened.low, log, self._beside, self._is_fresh, names, report)

    def _is_fresh(self, store: RocksStore) -> bool:
        (topic, _), now_s = self.where[-1], self.now_s()
        stale_after_s = self.where[1].stale_after_s.get(topic, 0)
        return not stale_after_s or (now_s is not None and is_fresh(store, now_s, stale_after_s))

    def _beside(self) -> RocksStore:
        for former in self.unused[1:]:
            former.close()
        self.unused[1:] = [open_store(*self.where, indexed=self.indexed, beside=True)]
        return self.unused[1]

    def _names(self, named: NamedSnapshot) -> bool:
        settings, cluster, *_, tp = self.where
        with closing(ProgressLog(settings, cluster)) as log:
            record = log.read([tp]).get(tp)
        now = Progress() if record is None else decode(record, ANY_LEVEL)[0]
        return named in (now.snapshot, now.older_snapshot)

    def use(self, store: RocksStore) -> RocksStore:
        """Returns the store, in the place of the present one."""
        if store is self.unused[0]:
            return self.unused.pop(0)
        path = store_path(self.where[0], self.where[-1])
        with alone(path):
            for each in self.unused:
                each.close()
            use_beside(path)
            return open_store(*self.where, indexed=self.indexed)
