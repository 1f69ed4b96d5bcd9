"""Reads what is pending of a partition, without its worker: a snapshot, and the log after it, in a store of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from timers.config.settings import Settings
from timers.core.keys import NEVER
from timers.core.machine import Machine
from timers.core.ports import Lost
from timers.core.progress import History, Progress
from timers.core.timer import DueRows, TopicPartition
from timers.errors import TimersError
from timers.kafka.progress_log import ProgressLog
from timers.kafka.topics import Cluster
from timers.partition import spec_of
from timers.request_formats import enabled_formats
from timers.store.failures import Condemnations
from timers.store.folding import replayed
from timers.store.memory_limit import RocksMemory
from timers.store.opening import Opened, open_store, store_path
from timers.store.restoring import may_restore, restore
from timers.store.rocks import RocksStore
from timers.wire import progress as progress_record
from timers.wire.topics import partition_name

MEMORY_BYTES = 128 * 1024 * 1024
"""Memory of the stores."""


class PendingReader:
    """Reads what is pending of the partitions of an app. It sends nothing, and no worker notices it.

    Args:
        settings: of the app.
        cluster: its topics.
        directory: for its stores. A store that is there already is read on, as that of a worker is.
        check: called often; may raise to stop.
    """

    def __init__(self, settings: Settings, cluster: Cluster, directory: Path, check: Callable[[], None]) -> None:
        self._settings = replace(settings, data_dir=directory, worker_id="export")
        self._cluster, self._check = cluster, check
        self._formats = enabled_formats(settings)
        self._memory = RocksMemory(MEMORY_BYTES)
        self._log = ProgressLog(settings, cluster)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._log.close()

    def progress(self, tps: list[TopicPartition]) -> dict[TopicPartition, Progress]:
        """Returns the committed progress of partitions.

        It is not compared with the group's copy: a worker that runs has written a newer one meanwhile.
        """
        records = self._log.read(tps, after_fence=False)
        return {tp: self._decoded(tp, records[tp]) if tp in records else Progress() for tp in tps}

    def _decoded(self, tp: TopicPartition, record: bytes) -> Progress:
        machine = progress_record.machine_name(self._settings.app_id, *tp)
        progress, topic_id = progress_record.decode(record, name=partition_name(*tp), machine=machine)
        return progress if topic_id == self._cluster.topic_ids[tp[0]] else Progress()  # the topic was made anew

    def read_up(self, tp: TopicPartition, progress: Progress) -> None:
        """Bring the store of a partition up to a progress, so that :meth:`pending` takes less time later."""
        with closing(self._store(tp, progress)) as store:
            self._replay(tp, progress, store)

    def pending(self, tp: TopicPartition, progress: Progress) -> Iterator[DueRows]:
        """Yields what is pending by a progress, in the order in which it fires."""
        with closing(self._store(tp, progress)) as store:
            machine = self._replay(tp, progress, store)
            for (due_s, _), rows in machine.waiting(NEVER):
                self._check()
                yield due_s, list(rows)

    def opening(self, tp: TopicPartition, progress: Progress) -> tuple[int, Iterator[DueRows]] | None:
        """What was pending at the older one of the named snapshots, which the log goes back to.

        Returns:
            The offset of the snapshot, and the rows; None: no snapshot is named.
        """
        named = progress.older_snapshot or progress.snapshot
        if named is None:
            return None
        below = History(each for each in progress.settings if each.from_offset < named.applied)
        return named.applied, self.pending(tp, Progress(named.applied, settings=below, snapshot=named))

    def _store(self, tp: TopicPartition, progress: Progress) -> RocksStore:
        """Returns a store that may be read on from where it ends."""
        request_format, condemnations = self._formats[tp[0]], Condemnations()
        where = self._settings, self._cluster, self._memory, condemnations
        store = open_store(*where, tp, indexed=request_format.has_ids)
        try:
            low = self._log.ends(*tp)[0]
            spec = spec_of(self._settings, tp, request_format, 0)
            is_short = store.applied < progress.next_offset and store.applied < low
            if store.applied > progress.next_offset or is_short or not spec.catch_up(store, progress):
                store.close()
                RocksStore.wipe(store_path(self._settings, tp))
                store = open_store(*where, tp, indexed=request_format.has_ids)
        except BaseException:
            store.close()
            raise
        opened = Opened(progress, store, low)
        if store.applied < progress.next_offset and may_restore(opened):
            try:
                store = restore(*where, self._formats, tp, opened, self._check).store
            except Lost as lost:
                raise TimersError(f"{partition_name(*tp)}: {lost}; use the command again") from lost
        if store.applied < low < progress.next_offset:
            store.close()
            raise TimersError(
                f"{partition_name(*tp)} begins at offset {low}, and no snapshot says what was pending there: only the "
                "store of its worker may know it"
            )
        return store

    def _replay(self, tp: TopicPartition, progress: Progress, store: RocksStore) -> Machine:
        """Returns a machine whose store holds what it holds at ``next_offset`` of the progress."""
        try:
            return replayed(self._settings, self._formats[tp[0]], tp, progress, store, self._check)
        except Lost as lost:
            raise TimersError(f"{lost}; a newer snapshot replaces them: use the command again") from lost
