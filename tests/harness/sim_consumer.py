"""A consumer of confluent-kafka whose brokers give the answers that a test has planned."""

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, TypeAlias

from confluent_kafka import KafkaError, KafkaException, TopicPartition

Event: TypeAlias = tuple[int, int | None]
"""Offset, and an error code or None for a record."""


class SimConsumer:
    """Notes what it is told, and returns planned events one by one. One thread may use it.

    Args:
        codes: of the errors that come before answers.
        events: what it reads; None: nothing at this time.

    Attributes:
        bounds: of each partition.
        assigned: the partitions that it reads; ``added``: those that came later.
        asked_s: how long it may wait for each answer about a partition.
        sent: commits that are not answered.
        made: commits that were answered at once.
        failures: errors of the next commits.
    """

    def __init__(self, *codes: int, events: Sequence[Event | None] = (), bounds: tuple[int, int] = (0, 7)) -> None:
        self.codes, self.events, self.bounds = list(codes), list(events), bounds
        self.assigned: list[TopicPartition] = []
        self.added: list[TopicPartition] = []
        self.asked_s: list[float] = []
        self.sent: list[list[TopicPartition]] = []
        self.made: list[list[TopicPartition]] = []
        self.failures: list[KafkaException] = []
        self.closed = threading.Event()
        self._thread = threading.get_ident()

    def fail(self) -> None:
        """Raise the next error, if there is one."""
        if self.codes:
            raise KafkaException(KafkaError(self.codes.pop(0)))

    def get_watermark_offsets(self, place: Any, timeout: float = -1, cached: bool = False) -> tuple[int, int]:
        self.asked_s.append(timeout)
        self.fail()
        return self.bounds

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.assigned = partitions

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        self.added += partitions

    def unassign(self) -> None:
        self.assigned = []

    def poll(self, timeout: float) -> Any:
        event = self.events.pop(0) if self.events else None
        if event is None:
            return None
        offset, code = event
        return SimpleNamespace(offset=lambda: offset, error=lambda: None if code is None else KafkaError(code))

    def consume(self, count: int, timeout: float) -> list[Any]:
        return []

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> list[TopicPartition] | None:
        assert threading.get_ident() == self._thread, "confluent-kafka would wait for the other thread"
        if self.failures:
            raise self.failures.pop(0)
        (self.sent if asynchronous else self.made).append(offsets)
        return None if asynchronous else offsets

    def close(self) -> None:
        self.closed.set()
