"""Follows callback topics in a thread, and keeps what a slow reader has not taken yet, up to a limit."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Sequence

from confluent_kafka import KafkaException, TopicPartition

from timers.client.fired import CallbackRecord
from timers.config.settings import Settings
from timers.console.problems import Problem
from timers.errors import TimersError
from timers.kafka import connection
from timers.kafka.clients import reader

MAX_RECORDS = 1000
MAX_BYTES = 8 * 1024 * 1024
"""Limits of what waits for a slow reader. Above one of them the oldest records are dropped, and counted."""

_POLL_S = 0.2
_BATCH = 200


class TopicsFollower:
    """Implements :class:`timers.console.cluster.Follower` with a consumer and a thread of its own."""

    def __init__(self, settings: Settings, topics: Sequence[str]) -> None:
        self.positions: list[list[int]] = []
        self._topics = topics
        self._reports = connection.ErrorReports(settings)
        self._consumer = reader(
            {**connection.librdkafka(settings), "error_cb": self._reports, "queued.max.messages.kbytes": 4096}
        )
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        self._lock = threading.Lock()
        self.forget_all()
        self._failure: TimersError | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, name="timers-console-events", daemon=True)

    def open(self, positions: Sequence[Sequence[int]] | None) -> None:
        """Begin at these offsets, or with what comes from now on. Blocks.

        Raises:
            Problem: a topic does not exist.
            TimersError: it cannot be read.
        """
        try:
            for number, topic in enumerate(self._topics):
                count = connection.partitions_of(self._consumer, self._reports, topic)
                if not count:
                    raise Problem("not-found", f"topic {topic!r} does not exist")
                given = positions[number] if positions and number < len(positions) else ()
                offsets = [
                    given[partition] if partition < len(given) else self._end(topic, partition) if not given else 0
                    for partition in range(count)
                ]
                self.positions.append(offsets)
            self._consumer.assign(
                [
                    TopicPartition(topic, partition, offset)
                    for topic, offsets in zip(self._topics, self.positions, strict=True)
                    for partition, offset in enumerate(offsets)
                ]
            )
        except KafkaException as error:
            self._consumer.close()
            raise self._reports.user_error(error, "the topics cannot be read") from None
        except BaseException:
            self._consumer.close()
            raise
        self._thread.start()

    def _end(self, topic: str, partition: int) -> int:
        place = TopicPartition(topic, partition)
        _, end = self._consumer.get_watermark_offsets(place, timeout=connection.TIMEOUT_S, cached=False)
        return int(end)

    async def next(self, timeout_s: float) -> tuple[list[CallbackRecord], int]:
        """What has arrived, and how many records were dropped before; empty after ``timeout_s`` without a record.

        Raises:
            TimersError: the topics cannot be read any longer.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._arrived.wait()
        except TimeoutError:
            return [], 0
        with self._lock:
            self._arrived.clear()
            failure = self._failure
            records, dropped = self.take()
        if failure is not None and not records:
            raise failure
        if failure is not None:
            self._arrived.set()
        return records, dropped

    async def close(self) -> None:
        """Stop reading."""
        self._ended.set()
        await asyncio.to_thread(self._thread.join)

    def _read(self) -> None:
        while not self._ended.is_set():
            first = self._consumer.poll(_POLL_S)
            messages = [] if first is None else [first, *self._consumer.consume(_BATCH, timeout=0)]
            errors = [error for message in messages if (error := message.error()) is not None]
            failed = [error for error in errors if not error.retriable()]
            with self._lock:
                for message in messages:
                    if not message.error():
                        self.add(CallbackRecord.of(message))
                if failed:
                    self._failure = self._reports.user_error(KafkaException(failed[0]), "the topics cannot be read")
            if messages:
                self._loop.call_soon_threadsafe(self._arrived.set)
            if failed:
                break
        self._consumer.close()

    def forget_all(self) -> None:
        """Begin with nothing."""
        self._records: deque[CallbackRecord] = deque()
        self._bytes = self._dropped = 0

    def take(self) -> tuple[list[CallbackRecord], int]:
        """What waits for the reader, and how many were dropped; nothing waits after that."""
        taken = list(self._records), self._dropped
        self.forget_all()
        return taken

    def add(self, record: CallbackRecord) -> None:
        """Keep a record for the reader, and drop the oldest ones above the limits."""
        self._records.append(record)
        self._bytes += len(record.value or b"")
        while len(self._records) > MAX_RECORDS or (self._bytes > MAX_BYTES and len(self._records) > 1):
            self._bytes -= len(self._records.popleft().value or b"")
            self._dropped += 1
