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
from timers.errors import StoreError
from timers.kafka.progress_log import Machine, progress_partition
from timers.kafka.request_reader import Originals
from timers.kafka.topics import Cluster
from timers.request_formats import index_of
from timers.store.rocks import RocksStore
from timers.wire import topics
from timers.wire.cold import PartitionFormat
from timers.wire.formats import Door
from timers.worker.partition_metrics import Meter
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
    originals: Originals
    producers: ProducerLoop
    now_s: Callable[[], float | None]
    """The brokers' time; None if it is not known yet."""
    turn: threading.Lock = field(default_factory=threading.Lock, kw_only=True)
    """Of computing: one machine at a time."""

    def outbox(self, machine: Machine, stop: threading.Event, meter: Meter) -> KafkaOutbox:
        """What sends for a machine, until ``stop`` is set."""
        transactional_id = topics.transactional_id(self.settings.app_id, *machine)
        producer = TransactionalProducer(
            self.producers, self.settings, transactional_id, stop, self.targets.ailing, meter.pulse
        )
        return KafkaOutbox(
            self.settings, *machine, self.targets, self.originals, producer, self.turn, meter, self.now_s
        )

    def machine(
        self, machine: Machine, door: Door, progress: Progress, store: RocksStore, outbox: KafkaOutbox, meter: Meter
    ) -> core.Machine:
        """One whose progress was read and whose store is open."""
        topic, _ = machine
        horizon = self._horizon(machine, door, progress, store)
        is_cold = nothing_is_cold if horizon is None else horizon.is_cold
        index = index_of(door, store, self.settings.verdict_retention_s, is_cold)
        made = core.Machine(
            progress,
            door.decode,
            store,
            outbox,
            self._limits(topic),
            meter.tally,
            index,
            horizon,
            door.decode_rejecting,
        )
        outbox.bind(self.cluster.topic_ids[topic], progress_partition(machine, self.cluster, self.settings))
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

    def _horizon(self, machine: Machine, door: Door, progress: Progress, store: RocksStore) -> Horizon | None:
        """Where timers may go cold, or went cold once and come back."""
        settings = self.settings
        if not door.may_go_cold or not concerns(progress, settings.hot_horizon_s):
            return None
        return Horizon(
            PartitionFormat(*machine),
            store,
            settings.hot_horizon_s,
            secrets.randbits(63) | 1,
            settings.verdict_retention_s,
            indexed=door.indexed,
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
