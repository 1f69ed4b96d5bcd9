"""Opens the store of a machine: reads the progress, checks the log against it, and applies it to the store."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

from timers.config.settings import Settings
from timers.core.progress import PARTITIONS, Progress
from timers.core.store_validity import catch_up
from timers.core.timer import TopicPartition
from timers.kafka.progress_log import ProgressLog
from timers.kafka.topics import Cluster
from timers.store.failures import Condemnations, StoreDamaged, forget_frames
from timers.store.memory_limit import RocksMemory
from timers.store.rocks import RocksStore
from timers.wire.formats import RequestFormat

logger = logging.getLogger(__name__)

Opened: TypeAlias = tuple[Progress, RocksStore]

ANSWER_S = 5.0
"""How long one attempt waits for an answer of a broker. A few attempts run at a time, and the others wait for them."""


def open_partition(
    settings: Settings,
    cluster: Cluster,
    memory: RocksMemory,
    condemnations: Condemnations,
    formats: Mapping[str, RequestFormat],
    tp: TopicPartition,
) -> Opened:
    """Returns the progress and the store of a machine. Blocks. Call after the former owner is fenced.

    Raises:
        LogMismatch: the log and its progress do not belong together: the machine must not run [I8].
        KafkaException: the brokers do not answer.
    """
    with closing(ProgressLog(settings, cluster, ANSWER_S)) as log:
        records = log.read([tp])
        progress = log.check(tp, records.get(tp))
        indexed = formats[tp[0]].has_ids
        if indexed and not formats[tp[0]].partitions_may_increase:
            if not progress.knows(PARTITIONS):  # a new partition: the others know the former number
                records = log.read((tp[0], partition) for partition in range(cluster.partitions[tp[0]]))
            log.check_partitions(tp, records)
        first = Progress.first(log.level_of_new_machines()) if progress == Progress() else progress
        # The store is opened last: if a question after it failed, nothing would close it.
        return first, open_store(log, settings, cluster, memory, condemnations, tp, progress, indexed=indexed)


def open_store(
    log: ProgressLog,
    settings: Settings,
    cluster: Cluster,
    memory: RocksMemory,
    condemnations: Condemnations,
    tp: TopicPartition,
    progress: Progress,
    *,
    indexed: bool,
) -> RocksStore:
    """Returns the store of one machine. If it is found to be damaged, it is emptied and opened again."""
    topic, partition = tp
    path = store_path(settings, tp)
    log_id = f"cluster={cluster.cluster_id} topic={cluster.topic_ids[topic].hex()} partition={partition}"
    identity = f"{log_id} app={settings.app_id}"
    low, high = log.ends(topic, partition)
    store = RocksStore.open(path, identity, memory, condemnations, indexed=indexed)
    try:
        usable = catch_up(store, progress, indexed=indexed)
        if not usable or store.applied > high:  # the log lost records that the store holds
            store.close()
            RocksStore.wipe(path)
            store = RocksStore.open(path, identity, memory, condemnations, indexed=indexed)
        if store.applied < low:
            log.check_start(tp, low, store.applied, progress)
            store.write({}, low)
    except StoreDamaged as damage:
        forget_frames(damage)
        store.close()
        if damage.pause_s:  # the pool waits, and opens it again
            raise
        logger.error("%s", damage)
        return open_store(log, settings, cluster, memory, condemnations, tp, progress, indexed=indexed)
    except BaseException as error:
        forget_frames(error)
        store.close()
        raise
    return store


def store_path(settings: Settings, tp: TopicPartition) -> Path:
    """Returns the directory of a machine's store.

    Each part has a prefix or is a legal topic name, so no part can be ``..``.
    """
    app = quote(settings.app_id, safe="")
    return settings.data_dir / f"worker-{settings.worker_id}" / f"app-{app}" / tp[0] / str(tp[1])
