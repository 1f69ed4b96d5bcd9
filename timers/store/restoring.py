"""Restores the store of a machine from a snapshot, if this takes less time than to read its log from where it ended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import closing
from time import monotonic

from timers.config.settings import Settings
from timers.core.progress import NamedSnapshot
from timers.core.snapshots import Place, Unreadable, restored, to_restore
from timers.core.timer import TopicPartition
from timers.kafka.snapshot_log import SnapshotLog
from timers.kafka.topics import Cluster
from timers.store.failures import Condemnations, forget_frames
from timers.store.memory_limit import RocksMemory
from timers.store.opening import Opened, open_store, store_path
from timers.store.rocks import RocksStore
from timers.wire.formats import RequestFormat
from timers.wire.topics import partition_name, snapshots

logger = logging.getLogger(__name__)


def place_of(settings: Settings, cluster: Cluster, tp: TopicPartition, request_format: RequestFormat) -> Place:
    """Returns what the footers of a machine's snapshots say."""
    topic, partition = tp
    return Place(cluster.cluster_id, settings.app_id, cluster.topic_ids[topic], partition, request_format.name)


def may_restore(opened: Opened, request_format: RequestFormat) -> bool:
    """Whether a snapshot is there that takes less time to restore than its log to be read.

    A store that holds what its log has lost, at its end or at its start, is kept: a restore begins with an empty one,
    and may fail. A topic that is compacted is always read from its start: how old a snapshot of it may be is not judged
    yet.
    """
    progress, store, low = opened
    is_last_copy = bool(progress.rescues) or 0 < low < store.applied
    return not is_last_copy and not request_format.topic_is_compacted and bool(to_restore(progress, store.applied))


def restore(
    settings: Settings,
    cluster: Cluster,
    memory: RocksMemory,
    condemnations: Condemnations,
    formats: Mapping[str, RequestFormat],
    tp: TopicPartition,
    opened: Opened,
    check: Callable[[], None],
) -> Opened:
    """Returns what :func:`timers.store.opening.open_partition` did, with a restored store. Blocks.

    Args:
        check: called often; may raise to stop.
    """
    progress, store, low = opened
    request_format = formats[tp[0]]
    name, began = partition_name(*tp), monotonic()
    current = store

    def emptied(store: RocksStore) -> RocksStore:
        nonlocal current
        store.close()
        RocksStore.wipe(store_path(settings, tp))
        current = open_store(settings, cluster, memory, condemnations, tp, indexed=request_format.has_ids)
        return current

    def report(named: NamedSnapshot, why: Unreadable | None) -> None:
        if why is not None:
            logger.error("%s: its snapshot at offset %d cannot be read: %s", name, named.applied, why)
        else:
            seconds = monotonic() - began
            logger.info("restored %s: %d pending at offset %d, in %.2f s", name, named.rows, named.applied, seconds)

    try:
        with closing(SnapshotLog(settings, snapshots(settings.app_id, tp[0]), tp[1], check)) as log:
            place = place_of(settings, cluster, tp, request_format)
            store = restored(store, progress, place, log, emptied, report)
        if store.applied < low:
            store.write({}, low)
    except BaseException as error:
        forget_frames(error)
        current.close()
        raise
    return Opened(progress, store, low)
