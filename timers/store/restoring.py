"""Restores the store of a machine from a snapshot, if this takes less time than to read its log from where it ended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import closing
from time import monotonic

from timers.config.settings import Settings
from timers.core.progress import NamedSnapshot, Progress
from timers.core.snapshots import Place, Unreadable, restored, to_restore
from timers.core.timer import TopicPartition
from timers.kafka.progress_log import ProgressLog
from timers.kafka.snapshot_log import SnapshotLog
from timers.kafka.topics import Cluster
from timers.store.failures import Condemnations, forget_frames
from timers.store.memory_limit import RocksMemory
from timers.store.opening import Opened, open_beside, open_store, store_path, use_beside
from timers.store.rocks import RocksStore
from timers.wire.formats import RequestFormat
from timers.wire.progress import ANY_LEVEL, decode
from timers.wire.topics import partition_name, snapshots

logger = logging.getLogger(__name__)


def place_of(settings: Settings, cluster: Cluster, tp: TopicPartition, request_format: RequestFormat) -> Place:
    """Returns what the footers of a machine's snapshots say."""
    topic, partition = tp
    return Place(cluster.cluster_id, settings.app_id, cluster.topic_ids[topic], partition, request_format.name)


def may_restore(opened: Opened) -> bool:
    """Whether to restore a snapshot: its log begins later than the store ended, or takes longer to be read."""
    return bool(to_restore(*opened))


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
    """Returns what :func:`timers.store.opening.open_partition` did, with a store from which the log can be read on.

    It is restored beside the present one, which is deleted only after that. Blocks.

    Args:
        check: called often; may raise to stop.

    Raises:
        LogMismatch: the log begins after the present store ended, no snapshot can be read, and no operator accepts it.
    """
    progress, present, low = opened
    request_format = formats[tp[0]]
    where, indexed = (settings, cluster, memory, condemnations, tp), request_format.has_ids
    name, began = partition_name(*tp), monotonic()
    stores = [present]

    def beside() -> RocksStore:
        for former in stores[1:]:
            former.close()
        stores[1:] = [open_beside(*where, indexed=indexed)]
        return stores[1]

    def names(named: NamedSnapshot) -> bool:
        with closing(ProgressLog(settings, cluster)) as log:
            record = log.read([tp]).get(tp)
        now = Progress() if record is None else decode(record, ANY_LEVEL)[0]
        return named in (now.snapshot, now.older_snapshot)

    def report(named: NamedSnapshot, why: Unreadable | None) -> None:
        if why is not None:
            logger.error("%s: its snapshot at offset %d cannot be read: %s", name, named.applied, why)
        else:
            seconds = monotonic() - began
            logger.info("restored %s: %d pending at offset %d, in %.2f s", name, named.rows, named.applied, seconds)

    try:
        with closing(SnapshotLog(settings, snapshots(settings.app_id, tp[0]), tp[1], check)) as snapshot_log:
            place = place_of(settings, cluster, tp, request_format)
            store = restored(present, progress, place, low, snapshot_log, beside, names, report)
        if store.applied < low:
            with closing(ProgressLog(settings, cluster)) as progress_log:
                progress_log.check_start(tp, low, store.applied, progress)
            store.write({}, low)
        if store is present:
            stores.remove(present)
        else:
            for each in stores:
                each.close()
            use_beside(store_path(settings, tp))
            store = open_store(*where, indexed=indexed)
    except BaseException as error:
        forget_frames(error)
        raise
    finally:
        for each in stores:
            each.close()
    return Opened(progress, store, low)
