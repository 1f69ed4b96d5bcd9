"""Starts Spark's Python workers with a producer that makes no transactions: the difference is what transactions cost.

For ``bench.spark`` only, as ``spark.python.daemon.module``. The producer is idempotent and sends the same records, also
those of progress. It fences no other owner, asks no leader before it sends, and sends no offsets of the group.
"""

from __future__ import annotations

import itertools
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.producer.message_accumulator import BatchBuilder

from timers.kafka import aiokafka_clients
from timers.kafka.aiokafka_internals import produce
from timers.kafka.aiokafka_internals.record_batch import RecordBatch
from timers.machines import machine_parts
from timers.machines.firing.producer import TransactionalProducer
from timers.spark.daemon import keep_archives


class IdempotentProducer(TransactionalProducer):
    """Sends the batches of a transaction without one."""

    batch, write_callbacks = RecordBatch, None  # a compiled batch is always transactional

    async def _open(self) -> None:
        self._openings = itertools.count(1)
        self._opening = 0
        producer = AIOKafkaProducer(
            **aiokafka_clients.arguments(self._settings, self._transactional_id),
            enable_idempotence=True,
            request_timeout_ms=int(produce.DELIVERY_TIMEOUT_S * 1000),
        )
        await producer.start()
        self._producer = producer

    async def _renew(self) -> None:
        if self._producer is None:
            await self._open()
        self._opening = next(self._openings)

    @property
    def opening(self) -> tuple[int, int]:
        return 0, self._opening

    async def _transact(
        self, batches: dict[tuple[str, int], list[RecordBatch]], offsets: dict[TopicPartition, int]
    ) -> bool:
        assert self._producer is not None
        produce.track_topics(self._producer, batches)
        await produce.deliver_in_time(self._producer, batches, produce.VERSION_ONE)
        return False


def without_transactions() -> None:
    """Let the engine of this process send without transactions."""
    begin = BatchBuilder.__init__

    def begin_plain(self: BatchBuilder, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **{**options, "is_transactional": 0})

    BatchBuilder.__init__ = begin_plain
    machine_parts.__dict__["TransactionalProducer"] = IdempotentProducer
    produce.transaction_error = lambda producer: None


if __name__ == "__main__":
    keep_archives()
    without_transactions()
    from pyspark import daemon

    daemon.manager()
