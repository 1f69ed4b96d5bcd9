"""Reads single records of request topics by offset, within bounded memory, whatever their batches unpack to.

librdkafka unpacks a batch as a whole: a gzip batch of 1 MB may take 1 GB. So these reads use aiokafka with the pieces
of :mod:`timers.kafka.aiokafka_internals.fetch`, on an event loop in a thread of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator
from concurrent.futures import TimeoutError as NotYet
from time import monotonic
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import CorruptRecordException, KafkaTimeoutError, OffsetOutOfRangeError

from timers.config.settings import Settings
from timers.core.timer import CutValue
from timers.kafka import connection
from timers.kafka.aiokafka_internals import fetch
from timers.wire.formats import RequestRecord

MAX_GAP = 1000
"""Largest number of offsets between two wanted records that are read, not skipped: a seek takes as long (1 ms)."""

TIMEOUT_S = 5.0
"""After this time without a record the brokers are considered unreachable."""

POLL_S = 0.2

_T = TypeVar("_T")


class BoundedReader:
    """Reads records of any partition. It connects when it is first used; one thread at a time may call it.

    Args:
        settings: of the app.
        isolation: isolation level.
        value_limit: returns the size in bytes above which a value is too large to return; None: the largest possible.
    """

    def __init__(
        self, settings: Settings, isolation: str, value_limit: Callable[[tuple[str, int]], int | None]
    ) -> None:
        self._settings = settings
        self._isolation = isolation
        self._value_limit = value_limit
        self._loop: asyncio.AbstractEventLoop | None = None
        self._consumer: AIOKafkaConsumer | None = None

    def read(
        self, topic: str, partition: int, offsets: Collection[int], while_waiting: Callable[[], None], until: float
    ) -> dict[int, RequestRecord]:
        """Returns the records at these offsets that the log still has, without those that are too large or damaged.

        Args:
            topic: a topic; if it does not exist, the result is empty.
            partition: its partition.
            offsets: of the wanted records.
            while_waiting: called about five times a second; may raise to stop.
            until: monotonic time after which no more is read.

        Raises:
            LeaderNotAvailableError: the partition has no leader.
            KafkaError: the brokers do not answer, or do not allow it.
        """
        found: dict[int, RequestRecord] = {}
        self._run(self._read(TopicPartition(topic, partition), sorted(offsets), until, found), while_waiting)
        return {offset: record for offset, record in found.items() if not isinstance(record.value, CutValue)}

    def close(self) -> None:
        """Close the connections."""
        if self._loop is not None:
            if self._consumer is not None:
                self._run(self._consumer.stop(), lambda: None)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = self._consumer = None

    def _run(self, work: Coroutine[Any, Any, _T], while_waiting: Callable[[], None]) -> _T:
        """Run a coroutine on the loop's thread."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="timers-request-reader", daemon=True).start()
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            while True:
                with contextlib.suppress(NotYet):
                    return running.result(POLL_S)
                if running.done():
                    return running.result()
                while_waiting()
        except BaseException:
            running.cancel()
            raise

    async def _open_consumer(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            consumer = AIOKafkaConsumer(
                client_id=self._settings.worker_id,
                **connection.aiokafka(self._settings),
                key_deserializer=fetch.InPieces(self._value_limit),
                enable_auto_commit=False,
                auto_offset_reset="none",
                isolation_level=self._isolation,
                fetch_max_wait_ms=20,
                max_partition_fetch_bytes=262_144,
                request_timeout_ms=int(TIMEOUT_S * 1000),
            )
            try:
                await consumer.start()
            except BaseException:
                await consumer.stop()
                raise
            self._consumer = consumer
        return self._consumer

    async def _read(
        self, tp: TopicPartition, offsets: list[int], until: float, found: dict[int, RequestRecord]
    ) -> None:
        consumer = await self._open_consumer()
        if not await fetch.exists(consumer, tp):
            return
        consumer.assign([tp])
        try:
            low, end = (await consumer.beginning_offsets([tp]))[tp], (await consumer.end_offsets([tp]))[tp]
            for group in _groups([offset for offset in offsets if low <= offset < end]):
                # A bad batch ends a group, a part that was deleted meanwhile too: the others may be there.
                with contextlib.suppress(CorruptRecordException, OffsetOutOfRangeError):
                    await self._read_group(consumer, tp, group, until, found)
        finally:
            consumer.unsubscribe()

    async def _read_group(
        self,
        consumer: AIOKafkaConsumer,
        tp: TopicPartition,
        group: list[int],
        until: float,
        found: dict[int, RequestRecord],
    ) -> None:
        wanted = set(group)
        consumer.seek(tp, group[0])
        deadline = monotonic() + TIMEOUT_S
        while (position := await consumer.position(tp)) <= group[-1] and monotonic() < until:
            arrived = fetch.has_records(consumer, [tp])
            records = (await consumer.getmany(tp, timeout_ms=0 if arrived else int(POLL_S * 1000))).get(tp, ())
            for record in records:
                if record.offset in wanted:
                    found[record.offset] = RequestRecord(
                        record.offset, record.key, record.value, record.headers, record.timestamp
                    )
            if arrived or await consumer.position(tp) != position:
                deadline = monotonic() + TIMEOUT_S
            elif monotonic() > deadline:
                raise KafkaTimeoutError(f"{tp.topic}/{tp.partition} gave no record for {TIMEOUT_S:.0f} s")


def _groups(offsets: list[int]) -> Iterator[list[int]]:
    """Sorted offsets in groups that are read without a seek."""
    group: list[int] = []
    for offset in offsets:
        if group and offset > group[-1] + MAX_GAP:
            yield group
            group = []
        group.append(offset)
    if group:
        yield group
