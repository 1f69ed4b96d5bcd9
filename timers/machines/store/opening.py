"""Opens the store of a machine: reads the progress, checks the log against it, and applies it to the store.

The store is restored from a snapshot, if this takes less time than to read its log from where it ended.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic
from typing import NamedTuple
from urllib.parse import quote
from uuid import uuid4

from timers.core.lineage import Answer
from timers.core.progress import PARTITION_COUNT, NamedSnapshot, Progress
from timers.core.rescue import Cut, StoreUse, decide_use, held
from timers.core.snapshots import (
    Footer,
    Place,
    Unreadable,
    bytes_of_snapshot,
    progress_from,
    restored,
    to_restore,
    usable,
)
from timers.core.store_validity import catch_up, is_fresh
from timers.core.timer import TopicPartition
from timers.errors import StoreError
from timers.kafka.log_lineage import AskLog
from timers.kafka.progress_log import ProgressLog
from timers.kafka.progress_rules import SNAPSHOT_SUFFIX
from timers.kafka.snapshot_log import SnapshotLog
from timers.kafka.topics import Cluster
from timers.machines.store.database import Database, alone
from timers.machines.store.failures import Condemnations, StoreDamaged, forget_frames
from timers.machines.store.memory_limit import RocksMemory
from timers.machines.store.rocks import RocksStore
from timers.process.config.settings import Settings
from timers.process.counted import counted
from timers.wire.formats import RequestFormat
from timers.wire.progress import ANY_LEVEL, decode, topic_id_of
from timers.wire.topics import partition_name, snapshots

logger = logging.getLogger(__name__)


class Opened(NamedTuple):
    """A machine can be made of these."""

    progress: Progress
    store: RocksStore
    low: int
    """The first offset of the log."""
    is_new: bool = False
    """Whether the machine has no progress in this log: it is new, or its progress was lost."""


OPENING_ANSWER_S = 5.0
"""How long one attempt waits for an answer of a broker. A few attempts run at a time, and the others wait for them."""

ROOM_BYTES = 64 * 1024 * 1024
"""Must stay free on the disk beside a copy of a store that is not needed: for the writes of the other stores."""

VERIFIED_SUFFIX = ".verified"
"""End of the name of the directory in which a log is compared with its snapshots."""

ROOM_SUFFIX = ".room"
"""End of the name of a file that says how many bytes a copy takes. Who makes the copy holds its lock."""

PATIENCE_S = 30.0
"""A restore ends after this time without a record, and gives its place to another one. It begins again later."""


@dataclass(frozen=True)
class Stores:
    """The stores of an app's machines on this disk."""

    settings: Settings
    cluster: Cluster
    memory: RocksMemory
    condemnations: Condemnations
    formats: Mapping[str, RequestFormat]
    committed: Mapping[TopicPartition, int] = field(default_factory=dict, kw_only=True)
    """Machine that this process has closed -> offset up to which it had committed. What its store holds above it was
    perhaps read by a machine that was fenced [I29]."""

    def indexed(self, tp: TopicPartition) -> bool:
        """Whether the store of a machine has an index of ids."""
        return self.formats[tp[0]].has_ids

    def place_of(self, tp: TopicPartition) -> Place:
        """Returns what the footers of a machine's snapshots say."""
        topic, partition = tp
        topic_id, name = self.cluster.topic_ids[topic], self.formats[topic].name
        return Place(self.cluster.cluster_id, self.settings.app_id, topic_id, partition, name)

    def open(self, tp: TopicPartition, *, beside: bool = False) -> RocksStore:
        """Returns the store of a machine. It is emptied first if it belongs to another log or app.

        Args:
            beside: return an empty store beside that of the machine; see :func:`use_beside`.
        """
        path = store_path(self.settings, tp)
        if beside:
            path = _beside(path)
        with alone(path):
            if beside:
                shutil.rmtree(path, ignore_errors=True)
            else:
                _use_restored(path)  # a process may have been killed in use_beside()
            store = self._opened(path, tp, self.condemnations)
            if not beside:  # who makes a copy beside it has it open meanwhile: the process was killed
                shutil.rmtree(_beside(path), ignore_errors=True)
            return store

    def emptied(self, tp: TopicPartition, store: RocksStore) -> RocksStore:
        """Returns the store of a machine, which was open as ``store``, emptied."""
        path = store_path(self.settings, tp)
        with alone(path):
            store.close()
            Database.wipe(path)
            return self.open(tp)

    def copy(self, tp: TopicPartition, store: RocksStore) -> RocksStore:
        """Returns an open copy of the store of a machine. Condemn it before it is closed: then it is deleted.

        Raises:
            StoreInUse: another process has a copy open.
        """
        path = store_path(self.settings, tp)
        path, unseen = path.with_name(f"{path.name}.copy"), Condemnations()
        with alone(path):
            if path.exists():
                self._opened(path, tp, unseen).close()  # else a process was killed while it had the store open
                Database.wipe(path)
            store.copy(path)
            return self._opened(path, tp, unseen)

    def put(self, tp: TopicPartition, stores: Iterable[RocksStore]) -> RocksStore:
        """Returns the store of a machine, which is now the one that was opened beside it. It closes ``stores``, which
        are both of them."""
        path = store_path(self.settings, tp)
        with alone(path):
            for each in stores:
                each.close()
            use_beside(path)
            return self.open(tp)

    def room_beside(
        self, tp: TopicPartition, named: Iterable[NamedSnapshot], *, must: bool
    ) -> AbstractContextManager[str]:
        """Keeps room for a store beside that of a machine: see :func:`room_for`."""
        return room_for(self.settings, _beside(store_path(self.settings, tp)), named, must=must)

    def progress_log(self, ask: AskLog | None = None) -> ProgressLog:
        """Returns a reader of the progress of machines; close it.

        Args:
            ask: asks over connections that others share, and each question for :data:`OPENING_ANSWER_S` only.
        """
        if ask is None:
            return ProgressLog(self.settings, self.cluster)
        return ProgressLog(self.settings, self.cluster, OPENING_ANSWER_S, ask.leaders)

    def snapshot_log(self, tp: TopicPartition, check: Callable[[], None]) -> SnapshotLog:
        """Returns a reader of the snapshots of a machine; close it. ``check`` is called often, and may raise."""
        return SnapshotLog(self.settings, snapshots(self.settings.app_id, tp[0]), tp[1], check, PATIENCE_S)

    def _opened(self, path: Path, tp: TopicPartition, condemnations: Condemnations) -> RocksStore:
        topic, partition = tp
        log_id = f"cluster={self.cluster.cluster_id} topic={self.cluster.topic_ids[topic].hex()} partition={partition}"
        identity = f"{log_id} app={self.settings.app_id}"
        return RocksStore.open(path, identity, self.memory, condemnations, indexed=self.indexed(tp))


def close_store(store: RocksStore) -> None:
    """Close a store. An error is logged."""
    try:
        store.close()
    except StoreError as error:  # not fatal: requests that were not flushed are read again
        logger.warning("%s", error)
    except Exception:  # a bug in one store must not stop other partitions
        logger.exception("a store did not close")


@contextmanager
def closed_if_it_fails(held: RocksStore) -> Iterator[None]:
    """A block that owns a store: if it raises, the store is closed."""
    try:
        yield
    except BaseException as error:
        forget_frames(error)  # frames of the traceback may keep the store's files open
        close_store(held)
        raise


def open_partition(
    stores: Stores, tp: TopicPartition, ask: AskLog, compacted: str | None = None, *, after_fence: bool = True
) -> Opened:
    """Returns the progress and the store of a machine. Blocks.

    Args:
        ask: asks the leaders.
        compacted: why the topic is compacted now, in a sentence; None: it is not, or must be.
        after_fence: the former owner is fenced. If not, it may commit meanwhile, so the store may only be read ahead.

    Raises:
        LogMismatch: the log and its progress do not belong together: the machine must not run [I8].
        KafkaException: the brokers do not answer.
    """
    cluster = stores.cluster
    with closing(stores.progress_log(ask)) as log:
        records, progress, ends = log.read_one(tp, after_fence=after_fence)
        is_new = tp not in records or topic_id_of(records[tp]) != cluster.topic_ids[tp[0]]
        if stores.indexed(tp) and not stores.formats[tp[0]].partitions_may_increase:
            # A new partition: the progress of the other partitions has the former number.
            if not progress.knows(PARTITION_COUNT):
                others = ((tp[0], partition) for partition in range(cluster.partitions[tp[0]]))
                records = log.read(others, after_fence=False, only_some=True)  # a new app opens hundreds
            log.check_partitions(tp, records)
        first = Progress.first(log.level_of_new_machines()) if progress == Progress() else None
        # The store is opened last: if a question after it failed, nothing would close it.
        opened = Opening(log, stores, tp, ends, ask, compacted).open(progress)._replace(is_new=is_new)
        return opened if first is None else opened._replace(progress=first)


class Opening(NamedTuple):
    """Opens the store of one machine, and decides whether it and the log are those of the progress."""

    log: ProgressLog
    stores: Stores
    tp: TopicPartition
    ends: tuple[int, int]
    ask: AskLog
    compacted: str | None = None

    def open(self, progress: Progress) -> Opened:
        """Returns the progress with which the machine goes on, and its store.

        If the store is found to be damaged, it is emptied and opened again.
        """
        store = self.stores.open(self.tp)
        try:
            with closed_if_it_fails(store):
                return self._judged(progress, store)
        except StoreDamaged as damage:
            if damage.pause_s:  # the pool waits, and opens it again
                raise
            logger.error("%s", damage)
        return self.open(progress)

    def _judged(self, progress: Progress, store: RocksStore) -> Opened:
        low, high = self.ends
        lineages = progress.lineage, store.lineage
        answers: Sequence[Answer] = (None, None)
        if any(each.end for each in lineages):
            answers = self.ask.compare(self.tp, lineages)
        progress, use = decide_use(progress, store, answers, low, high, partial(self._accept, store))
        if use is StoreUse.RESCUE:
            return Opened(progress, store, low)
        usable = use is not StoreUse.EMPTY and catch_up(store, progress, indexed=self.stores.indexed(self.tp))
        applied = store.applied if usable else 0
        # Before the store is emptied: no other store may hold the requests that the log lacks.
        owned = min(applied, self.stores.committed.get(self.tp, applied))
        checked = self.log.check_doubt(self.tp, progress, owned, self.compacted)
        if checked.doubt != progress.doubt:
            checked = checked.without_doubt(store.lineage, applied)
        progress = checked
        if not usable:
            store = self.stores.emptied(self.tp, store)
        return Opened(progress, store, low)

    def _accept(self, store: RocksStore, progress: Progress, cut: Cut) -> Progress:
        timers, cancels = held(progress, store, cut)
        holds = "This worker's store holds nothing of them"
        if timers or cancels:
            holds = (
                f"This worker's store still holds {counted(timers, 'timer')} and {counted(cancels, 'cancel')} of them, "
                "which become dead letters when the loss is accepted"
            )
        return self.log.accept_cut(self.tp, progress, cut, holds)


def use_beside(path: Path) -> None:
    """Put the store beside the one at ``path``, which is whole now, in its place. Both are closed, and this thread is
    :func:`alone` with the path since then."""
    _beside(path).rename(_restored(path))
    _use_restored(path)


def _use_restored(path: Path) -> None:
    if _restored(path).exists():
        Database.wipe(path)
        _restored(path).rename(path)


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.restoring")


def _restored(path: Path) -> Path:
    return path.with_name(f"{path.name}.restored")


def store_path(settings: Settings, tp: TopicPartition) -> Path:
    """Returns the directory of a machine's store."""
    return _stores_path(settings) / tp[0] / str(tp[1])


def stored_partitions(settings: Settings, topics: Iterable[str]) -> list[TopicPartition]:
    """Returns the partitions of these topics that have a store on this worker's disk, the last one used at the end.

    A store that was restored, and not yet put in the place of the former one, is one.
    """
    found = {
        (topic, int(name)): _used_at(each)
        for topic in topics
        for each in (_stores_path(settings) / topic).glob("*")
        if (name := each.name.removesuffix(".restored")).isascii() and name.isdigit()
    }
    return sorted(found, key=lambda tp: (found[tp], tp))


def delete_copies(settings: Settings) -> None:
    """Delete what former processes of this worker have left of restores, comparisons and reads of copies: each may be
    as large as a store, and no later one reads it. Call it before a store is opened in this process."""
    for kind in (".restoring", VERIFIED_SUFFIX, ".copy"):
        for path in _stores_path(settings).glob(f"*/*{kind}"):
            with suppress(OSError, StoreError), ExitStack() as stack:
                stack.enter_context(alone(path))
                for lock in (*path.glob("LOCK"), *path.glob("*/LOCK")):  # a process that is ending may have it open
                    fcntl.lockf(stack.enter_context(lock.open("r+b")), fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)


@contextmanager
def room_for(settings: Settings, path: Path, named: Iterable[NamedSnapshot], *, must: bool = False) -> Iterator[str]:
    """A block that copies snapshots to ``path``. Yields why the disk has no room for them, in a sentence; empty: it has
    room. Other copies of this worker, or of executors on this machine, leave free what the block has not written yet.

    What fills a disk stops all partitions of a worker, so a copy that is not needed is not begun.

    Args:
        must: the copy is made also without room, so that others must not count on it.
    """
    needed, why, notes = sum(map(bytes_of_snapshot, named)), "", _stores_path(settings)
    with ExitStack() as stack:
        with alone(notes / "copies"):
            free = shutil.disk_usage(notes).free - _awaited(notes)
            if free < needed + ROOM_BYTES:
                why = f"it needs {needed + ROOM_BYTES:,} bytes on the disk of {path}, which has {max(0, free):,} free"
            if must or not why:
                try:
                    note = notes / f"{uuid4().hex}{ROOM_SUFFIX}"
                    file = stack.enter_context(note.open("xb", buffering=0))
                    stack.callback(note.unlink, missing_ok=True)
                    file.write(f"{needed} ".encode() + os.fsencode(path.absolute()))
                    fcntl.flock(file, fcntl.LOCK_EX)  # it ends with the process, however that ends
                except OSError as error:
                    why = why or str(error)
        yield why


def _awaited(notes: Path) -> int:
    """Bytes that the copies that are made now have not written yet. Called :func:`alone`."""
    awaited = 0
    for note in notes.glob(f"*{ROOM_SUFFIX}"):
        with suppress(FileNotFoundError), note.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                needed, path = file.read().split(b" ", 1)
                awaited += max(0, int(needed) - _size(Path(os.fsdecode(path))))
            else:
                note.unlink(missing_ok=True)  # its process was killed
    return awaited


def _size(directory: Path) -> int:
    """Bytes of the disk that the files of a directory have."""
    size = 0
    for file in directory.rglob("*"):
        with suppress(FileNotFoundError):  # RocksDB deletes files meanwhile
            size += 512 * file.stat().st_blocks
    return size


def _used_at(store: Path) -> float:
    """When a file of a store was written last, in epoch seconds."""
    times = [0.0]
    for file in store.glob("*"):
        with suppress(FileNotFoundError):  # a former process that is ending may delete it now
            times.append(file.stat().st_mtime)
    return max(times)


def _stores_path(settings: Settings) -> Path:
    """The directory of all stores. Each part has a prefix or is a legal topic name, so no part can be ``..``."""
    return settings.data_dir / f"worker-{settings.worker_id}" / f"app-{quote(settings.app_id, safe='')}"


AGAIN = (
    "Timers that have fired since then may fire again, verdicts and dead letters may come a second time, and copies of "
    "cold timers may become dead letters"
)
"""What it means to go on from a snapshot that the progress does not name."""


def may_restore(opened: Opened, apps: Collection[str] = ()) -> bool:
    """Whether to call :func:`restore`: the log begins later than the store ended, or takes longer to be read than a
    snapshot; or snapshots may say that a machine without progress is not new.

    Args:
        apps: those that have a topic for snapshots of this request topic, as far as they may be seen.
    """
    progress, store, low, is_new = opened
    return (is_new and bool(apps)) or store.applied < low or bool(to_restore(progress, store, low))


def restore(
    stores: Stores,
    tp: TopicPartition,
    opened: Opened,
    check: Callable[[], None],
    apps: Collection[str] = (),
    now_s: Callable[[], float | None] = lambda: None,
) -> Opened:
    """Returns what :func:`open_partition` did, with a store from which the log can be read on.

    It is restored beside the present one, which is deleted only after that. Blocks.

    Args:
        check: called often; may raise to stop.
        apps: as those of :func:`may_restore`.
        now_s: returns the brokers' time. While it is not known, no snapshot of a compacted topic is used.

    Raises:
        LogMismatch: the log begins after the present store ended, no snapshot can be read, and no operator accepts it;
            or the progress was lost.
        Lost: the records of snapshots do not come.
    """
    unused = [opened.store]
    try:
        with ExitStack() as until_end:
            log = until_end.enter_context(closing(stores.snapshot_log(tp, check)))
            progress_log = until_end.enter_context(closing(stores.progress_log()))
            place = stores.place_of(tp)
            restoring = _Restoring(stores, tp, place, opened, log, progress_log, now_s, unused, until_end)
            progress, store = restoring.restored(apps)
        return opened._replace(progress=progress, store=restoring.use(store))
    except BaseException as error:
        forget_frames(error)
        raise
    finally:
        for each in unused:
            if each is not opened.store:
                with suppress(OSError):
                    each.discard()  # else a half copy keeps a disk full
            close_store(each)


class _Restoring(NamedTuple):
    """One restore."""

    stores: Stores
    tp: TopicPartition
    place: Place
    opened: Opened
    log: SnapshotLog
    progress_log: ProgressLog
    now_s: Callable[[], float | None]
    unused: list[RocksStore]
    """The stores to close at its end: the present one comes first."""
    until_end: ExitStack

    def restored(self, apps: Collection[str]) -> tuple[Progress, RocksStore]:
        """Returns the progress and the store with which the machine goes on."""
        progress, store, low, is_new = self.opened
        # Room on the disk is not asked for if the store is empty: to read its log would fill as much as the copy does.
        store = self._from(progress, self._names, must=store.applied < max(low, 1))
        if is_new or store.applied < low:
            found = usable(self.log.whole(), self.place, progress, *self.progress_log.ends(*self.tp))
            self._check_loss(found, apps)
            progress, store = self._from_any(found)
        if store.applied < low:
            if not is_new:
                self.progress_log.check_start(self.tp, low, store.applied, progress)
            store.write({}, low)
        return progress, store

    def _check_loss(self, found: Sequence[tuple[NamedSnapshot, Footer]], apps: Collection[str]) -> None:
        """A machine without progress is new only if no snapshot says that it is not. The progress of another one may
        have gone back: what it names was deleted, because it named newer ones.

        Args:
            found: the snapshots that can be used, the newest first.

        Raises:
            LogMismatch: the loss was not accepted.
        """
        low, is_new = self.opened.low, self.opened.is_new
        name, own = partition_name(*self.tp), snapshots(self.place.app, self.tp[0])
        kind = ""
        if found and is_new:
            sentence = (
                f"has no progress, but {own!r} has a snapshot of it at offset {found[0][0].applied}: its progress was "
                f"lost. {AGAIN}"
            )
            way = "from the snapshot"
        elif found:
            sentence = (
                f"begins at offset {low}, and its progress names no snapshot that can be read: the progress topic may "
                "have lost records. The newest snapshot of which all records are there is at offset "
                f"{found[0][0].applied}. {AGAIN}"
            )
            way, kind = "from it", SNAPSHOT_SUFFIX
        elif is_new and self.log.damaged:
            sentence = f"has no progress, and the snapshots of it in {own!r} are damaged: nothing says that it is new"
            way, kind = "without what they held", SNAPSHOT_SUFFIX
        elif is_new and low and (others := sorted({*apps} - {self.place.app})):
            sentence = (
                f"begins at offset {low}, this app has no progress of it, and {snapshots(others[0], self.tp[0])!r} has "
                "snapshots of it: another app has read what was deleted, or this app was renamed"
            )
            way = "without what was deleted"
        else:
            return
        self.progress_log.mismatch(self.tp, f"{name} {sentence}", self.opened.progress, way, kind)

    def _from_any(self, found: Iterable[tuple[NamedSnapshot, Footer]]) -> tuple[Progress, RocksStore]:
        """The progress and the store of the first of these snapshots that can be read."""
        opened = self.opened
        for named, footer in found:
            progress = progress_from(named, footer, opened.progress)
            store = self._from(progress, lambda _: True, must=True)
            if store is not opened.store or not to_restore(progress, store, opened.low):
                return progress, store
        return opened.progress, opened.store

    def _from(self, progress: Progress, names: Callable[[NamedSnapshot], bool], *, must: bool) -> RocksStore:
        """The store of the first named snapshot that can be read. The present one, if there is none; or if the disk has
        no room for the other one, which would only be quicker."""
        name, began = partition_name(*self.tp), monotonic()

        def report(named: NamedSnapshot, why: Unreadable | None) -> None:
            if why is not None:
                logger.error("%s: its snapshot at offset %d cannot be read: %s", name, named.applied, why)
            else:
                seconds = monotonic() - began
                logger.info("restored %s: %d pending at offset %d, in %.2f s", name, named.rows, named.applied, seconds)

        present, low = self.opened.store, self.opened.low
        how = self.log, self._beside, self._is_fresh, names, report
        named = to_restore(progress, present, low)[:1]
        why = self.until_end.enter_context(self.stores.room_beside(self.tp, named, must=must))
        try:
            if must or not (named and why):
                return restored(present, progress, self.place, low, *how)
        except StoreError as error:
            if must:
                raise
            why = str(error)
        logger.warning("%s: its log is read on, although a restore is quicker: %s", name, why)
        return present

    def _is_fresh(self, store: RocksStore) -> bool:
        now_s, stale_after_s = self.now_s(), self.stores.cluster.stale_after_s.get(self.tp[0], 0)
        return not stale_after_s or (now_s is not None and is_fresh(store, now_s, stale_after_s))

    def _beside(self) -> RocksStore:
        for former in self.unused[1:]:
            former.close()
        self.unused[1:] = [self.stores.open(self.tp, beside=True)]
        return self.unused[1]

    def _names(self, named: NamedSnapshot) -> bool:
        record = self.progress_log.read([self.tp]).get(self.tp)
        now = Progress() if record is None else decode(record, ANY_LEVEL)[0]
        return named in (now.snapshot, now.older_snapshot)

    def use(self, store: RocksStore) -> RocksStore:
        """Returns the store, in the place of the present one."""
        if store is self.unused[0]:
            return self.unused.pop(0)
        present = self.stores.put(self.tp, self.unused)
        self.unused.clear()
        return present
