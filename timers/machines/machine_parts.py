"""Creates the machines of a process, with their outboxes."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from timers import __version__
from timers.core import sums
from timers.core.limits import ChunkSize
from timers.core.machine import Machine
from timers.core.progress import Cuts, Progress
from timers.core.timer import TopicPartition
from timers.kafka.aiokafka_internals import callback_batch, record_starts
from timers.kafka.aiokafka_internals.producer_loop import ProducerLoop
from timers.kafka.log_lineage import AskLog
from timers.kafka.progress_rules import progress_partition
from timers.kafka.request_reader import RequestReader
from timers.machines.firing.policy import Policy, policy_of
from timers.machines.firing.producer import TransactionalProducer
from timers.machines.firing.topics import Targets
from timers.machines.firing.transaction import Transaction
from timers.machines.partition import spec_of
from timers.machines.store import one_target
from timers.machines.store.opening import Stores
from timers.machines.store.rocks import RocksStore
from timers.process.partition_metrics import PartitionMetrics
from timers.wire import occurrences, plain_requests, snapshot_entries
from timers.wire.zones import zone_data_version

_COMPILED = sums, one_target, plain_requests, occurrences, snapshot_entries, callback_batch, record_starts
IS_COMPILED = all(each.IS_COMPILED for each in _COMPILED)
"""Whether the modules that ``pyproject.toml`` lists as ``ext-modules`` were compiled (``docs/adr/0027``)."""

BUILD_LABELS = __version__, "yes" if IS_COMPILED else "no", zone_data_version()
"""The labels of :data:`timers.process.partition_metrics.BUILD`."""


@dataclass(frozen=True)
class Parts(Stores):
    """What all machines of a process share, beside their stores."""

    targets: Targets
    request_reader: RequestReader
    producers: ProducerLoop
    now_s: Callable[[], float | None]
    """Returns the brokers' time in epoch seconds; None while it is not known."""
    ask_log: AskLog
    """Asks the leaders of partitions. Blocks; not on the event loop."""
    compute_lock: threading.Lock = field(default_factory=threading.Lock, kw_only=True)
    """The compute lock: one machine at a time fills its transaction."""
    _chunks: dict[TopicPartition, ChunkSize] = field(default_factory=dict, kw_only=True)

    def producer(self, tp: TopicPartition, stop: threading.Event, metrics: PartitionMetrics) -> TransactionalProducer:
        """Returns the producer of a machine, which is not open yet; setting ``stop`` ends its waiting."""
        return TransactionalProducer(self.producers, self.settings, tp, stop, metrics)

    def outbox(self, tp: TopicPartition, producer: TransactionalProducer, metrics: PartitionMetrics) -> Policy:
        """Returns the outbox of a machine."""
        chunk = self._chunks.setdefault(tp, ChunkSize())
        parts = self.request_reader, producer, metrics.counters, chunk, self.compute_lock, self.now_s
        return policy_of(self.settings, self.targets, Transaction(self.settings, tp, self.targets, *parts))

    def expect(self, producer: TransactionalProducer, outbox: Policy, topics: Collection[str]) -> None:
        """Learn what a machine must know of the callback topics of timers that are due soon. Returns at once."""
        producer.expect(self.targets.expect(outbox.allowed(topics)))

    def machine(
        self,
        tp: TopicPartition,
        progress: Progress,
        store: RocksStore,
        outbox: Policy,
        metrics: PartitionMetrics,
        now_s: float | None = None,
    ) -> Machine:
        """Returns the machine of a partition; see :meth:`timers.machines.partition.PartitionSpec.machine`."""
        topic, _ = tp
        spec = spec_of(
            self.settings,
            tp,
            self.formats[topic],
            secrets.randbits(63) | 1,
            partitions=self.cluster.partitions[topic],
            stale_after_s=self.cluster.stale_after_s.get(topic, 0),
        )
        machine = spec.machine(progress, store, outbox, metrics.counters, now_s)
        self.bind(tp, outbox, machine.cuts)
        return machine

    def bind(self, tp: TopicPartition, outbox: Policy, cuts: Cuts) -> None:
        """Let an outbox write the progress of a machine to its place, in the log with these cuts."""
        place = progress_partition(tp, self.cluster, self.settings)
        outbox.transaction.bind(self.cluster.topic_ids[tp[0]], place, cuts, self.cluster.partitions[tp[0]])
