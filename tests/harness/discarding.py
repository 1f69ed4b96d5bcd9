"""A transaction that builds the record batches of the product, and discards them."""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from timers.core.counters import Counters
from timers.core.limits import ChunkSize
from timers.core.timer import TopicPartition
from timers.kafka.aiokafka_internals.record_batch import size_alone
from timers.machines.firing.ports import FiringSettings
from timers.machines.firing.producer import TransactionalProducer
from timers.machines.firing.transaction import Transaction
from timers.process.config.settings import Settings


class DiscardingProducer:
    """Implements :class:`timers.machines.firing.ports.Producer`."""

    throttled_s = 0.0
    batch = TransactionalProducer.batch
    write_callbacks = vars(TransactionalProducer)["write_callbacks"]  # a static method, or None
    size_alone = staticmethod(size_alone)

    def __init__(self) -> None:
        self.held_from: set[int] = set()

    def open(self) -> None: ...

    def close(self) -> None: ...

    def beat_and_may_wait(self) -> bool:
        return True

    def await_quota(self) -> None: ...

    def transact(
        self, batches: Sequence[tuple[str, int, Any]], offsets: Mapping[TopicPartition, tuple[int, str]]
    ) -> bool:
        for _, _, batch in batches:
            batch.seal()
        return bool(offsets)


class UsableTopics:
    """Implements :class:`timers.machines.firing.ports.Topics`: each topic has partitions, and takes all records."""

    def __init__(self, usable: Mapping[str, int]) -> None:
        self.usable = usable
        self.own: frozenset[str] = frozenset()
        self.max_message_bytes: dict[str, int] = {}

    def route(self, topic: str, *, retried: bool) -> int:
        return self.usable[topic]

    def wait(self, topics: Collection[str], may_wait: Callable[[], bool]) -> None: ...

    def refresh(self) -> None: ...

    def limit_now(self, topic: str) -> int | None:
        return self.max_message_bytes.get(topic)

    def partitions(self, topic: str) -> int:
        return self.usable.get(topic, 1)

    def available(self, topic: str, partition: int) -> int:
        return partition

    def was_moved(self, topic: str, partition: int) -> bool:
        return False

    def open_circuit(self, topic: str, error: BaseException) -> None: ...

    def note_worked(self, topics: Collection[str]) -> None: ...

    def note_failed(self, failed: Mapping[str, BaseException]) -> None: ...

    def note_silent(self, failure: BaseException, *, few_records: bool) -> None: ...

    def note_timestamps_refused(self, topic: str) -> None: ...


def discarding(known: UsableTopics, machine: TopicPartition = ("t", 0)) -> Transaction:
    """A transaction whose records go nowhere."""
    settings: FiringSettings = Settings(brokers="localhost:1")
    requests: Any = None
    parts = (requests, DiscardingProducer(), Counters(), ChunkSize(), threading.Lock(), lambda: None)
    return Transaction(settings, machine, known, *parts)
