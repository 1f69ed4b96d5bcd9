"""What a machine of this worker is made of."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from timers.config.settings import Settings
from timers.core import machine as core
from timers.core.horizon import Horizon, concerns
from timers.core.index import nothing_is_cold
from timers.core.progress import Progress
from timers.core.timer import TopicPartition
from timers.errors import StoreError
from timers.kafka.progress_log import progress_partition
from timers.kafka.request_reader import RequestReader
from timers.kafka.topics import Cluster
from timers.request_formats import make_index
from timers.store.rocks import RocksStore
from timers.wire import topics
from timers.wire.cold import PartitionFormat
from timers.wire.formats import RequestFormat
from timers.worker.partition_metrics import PartitionMetrics
from timers.worker.sending.outbox import KafkaOutbox
from timers.worker.sending.producer import ProducerLoop, TransactionalProducer
from timers.worker.sending.targets import Targets

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Parts:
    """What all machines of this worker share."""

    settings: Settings
    cluster: Cluster
    targets: Targets
    request_reader: RequestReader
    producers: ProducerLoop
    now_s: Callable[[], float | None]
    """The brokers' time; None if it is not known yet."""
    compute_lock: threading.Lock = field(default_factory=threading.Lock, kw_only=True)
    """Of computing: one machine at a time."""

    def outbox(self, tp: TopicPartition, stop: threading.Event, metrics: PartitionMetrics) -> KafkaOutbox:
        """What sends for a machine, until ``stop`` is set."""
        transactional_id = topics.transactional_id(self.settings.app_id, *tp)
        producer = TransactionalProducer(
            self.producers, self.settings, transactional_id, stop, self.targets.failing, metrics.heartbeat
        )
        return KafkaOutbox(
            self.settings, *tp, self.targets, self.request_reader, producer, self.compute_lock, metrics, self.now_s
        )

    def machine(
        self,
        tp: TopicPartition,
        request_format: RequestFormat,
        progress: Progress,
        store: RocksStore,
        outbox: KafkaOutbox,
        metrics: PartitionMetrics,
    ) -> core.Machine:
        """One whose progress was read and whose store is open."""
        topic, _ = tp
        horizon = self._horizon(tp, request_format, progress, store)
        is_cold = nothing_is_cold if horizon is None else horizon.is_cold
        index = make_index(request_format, store, self.settings.verdict_retention_s, is_cold)
        made = core.Machine(
            progress,
            request_format.decode,
            store,
            outbox,
            self._limits(topic),
            metrics.counters,
            index,
            horizon,
            request_format.decode_rejecting_overdue,
        )
        outbox.bind(self.cluster.topic_ids[topic], progress_partition(tp, self.cluster, self.settings))
        return made

    def _limits(self, topic: str) -> core.Limits:
        settings, partitions = self.settings, self.cluster.partitions[topic]
        return core.Limits(
            settings.chunk_timers,
            settings.chunk_bytes,
            settings.max_request_bytes,
            -(-settings.catch_up_per_s // partitions),  # rounded up: 0 would mean no bound
            partitions=partitions,
            reject_overdue=settings.schedule_overdue == "reject",
            stale_after_s=self.cluster.stale_after_s.get(topic, 0),
        )

    def _horizon(
        self, tp: TopicPartition, request_format: RequestFormat, progress: Progress, store: RocksStore
    ) -> Horizon | None:
        """Where timers may go cold, or went cold once and come back."""
        settings = self.settings
        if not request_format.allows_cold_tier or not concerns(progress, settings.hot_horizon_s):
            return None
        return Horizon(
            PartitionFormat(*tp),
            store,
            settings.hot_horizon_s,
            secrets.randbits(63) | 1,
            settings.verdict_retention_s,
            indexed=request_format.has_ids,
        )


def closer(store: RocksStore, outbox: KafkaOutbox) -> Callable[[], None]:
    """What releases a machine's store and producer at its end."""

    def close() -> None:
        outbox.close()
        try:
            store.close()
        except StoreError as error:  # no reason not to go on: what was not flushed is read again
            logger.warning("%s", error)

    return close
