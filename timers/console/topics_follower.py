"""Reads callback topics for a stream of the console."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from time import monotonic

from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as Place

from timers.console.problems import Problem
from timers.errors import TimersError
from timers.kafka import connection
from timers.kafka.clients import reader
from timers.kafka.lost_brokers import LOST_BROKERS, LostBrokers
from timers.offline.fired import CallbackRecord
from timers.process.config.settings import Settings

MAX_STREAM_PARTITIONS = 256
"""Each event has an offset of each partition of its stream, from which the stream can go on."""

MAX_RECORDS = 1000
MAX_BYTES = 8 * 1024 * 1024
"""Limits of what waits for a slow reader. Above one of them the oldest records are dropped, and counted."""

OPENING_S = 15.0
"""How long the ends of all partitions are looked for."""

_POLL_S = 0.2
_BATCH = 200


class TopicsFollower:
    """Reads callback topics as their records arrive, with a consumer and a thread of its own.

    Attributes:
        positions: for each topic, the next offset of each partition.
    """

    def __init__(self, settings: Settings, topics: Sequence[str]) -> None:
        self.positions: list[list[int]] = []
        self._topics = topics
        self._properties = connection.librdkafka(settings)
        self._reports = connection.ErrorReports(settings)
        self._lost = LostBrokers()
        self._loop = asyncio.get_running_loop()
        self._arrived, self._closed = asyncio.Event(), asyncio.Event()
        self._lock = threading.Lock()
        self.forget_all()
        self._failure: TimersError | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, name="timers-console-events", daemon=True)

    def open(self, positions: Sequence[Sequence[int]] | None) -> None:
        """Begin at these offsets, or with what comes from now on. Blocks. Records that were deleted meanwhile count as
        dropped.

        Raises:
            Problem: a topic does not exist, or the topics have too many partitions, or it ends before these offsets.
            TimersError: it cannot be read.
        """
        reporting = {**self._reports.callbacks, **self._lost.properties}
        properties = {**self._properties, **reporting, "queued.max.messages.kbytes": 4096}
        # If the log was cut or the topic made anew, this stream ends with an error. The next stream checks its
        # positions and says what is missing.
        self._consumer = reader(properties, auto_offset_reset="error")
        try:
            with self._reports.explained("the topics cannot be read"):
                end_s = monotonic() + OPENING_S
                counts = self._count_partitions(end_s)
                places = []
                for number, (topic, count) in enumerate(zip(self._topics, counts, strict=True)):
                    if positions and number < len(positions):
                        given = [*positions[number], *[0] * count]
                        if any(given[count:]):
                            raise _made_anew(f"topic {topic!r} has {count} partitions")
                        begin = partial(self._begin, topic, end_s)
                        self.positions.append([begin(*place) for place in enumerate(given[:count])])
                    else:
                        self.positions.append([self._end(topic, partition, end_s) for partition in range(count)])
                    places += [Place(topic, *place) for place in enumerate(self.positions[-1])]
                self._consumer.assign(places)
        except BaseException:
            self._consumer.close()
            raise
        self._thread.start()

    def _count_partitions(self, end_s: float) -> list[int]:
        """The number of partitions of each topic."""
        counts = []
        for topic in self._topics:
            count = connection.partitions_of(self._consumer, self._reports, topic, _left_s(end_s))
            if not count:
                raise Problem("not-found", f"topic {topic!r} does not exist")
            counts.append(count)
        if sum(counts) > MAX_STREAM_PARTITIONS:
            raise Problem("parameter-invalid", f"these topics have more than {MAX_STREAM_PARTITIONS} partitions")
        return counts

    def _end(self, topic: str, partition: int, end_s: float) -> int:
        place = Place(topic, partition)
        _, end = connection.while_moving(
            lambda: self._consumer.get_watermark_offsets(place, timeout=_left_s(end_s), cached=False), _left_s(end_s)
        )
        return int(end)

    def _begin(self, topic: str, end_s: float, partition: int, given: int) -> int:
        """Where a partition begins that goes on at a given offset: later, if the log begins later now, and a broker
        says so in time."""
        if monotonic() >= end_s:
            return given
        try:
            bounds = self._consumer.get_watermark_offsets(Place(topic, partition), timeout=_left_s(end_s), cached=False)
        except KafkaException:  # such as a partition without a leader: the others go on
            return given
        low, end = map(int, bounds)
        if given > end:
            raise _made_anew(f"partition {partition} of topic {topic!r} ends at offset {end}")
        if given < low:
            self._dropped += low - given
            self._loop.call_soon_threadsafe(self._arrived.set)
        return max(low, given)

    async def next(self, timeout_s: float) -> tuple[list[CallbackRecord], int]:
        """What has arrived, and how many records were dropped before; empty after ``timeout_s`` without a record."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._arrived.wait()
        except TimeoutError:
            return [], 0
        with self._lock:
            records, dropped = self.take()
            if self._failure is None:
                self._arrived.clear()
            elif not records:
                raise self._failure
        return records, dropped

    async def close(self) -> None:
        """Stop reading, and wait until the consumer is closed."""
        self.stop()
        await self._closed.wait()

    def stop(self) -> None:
        """Stop reading soon. Thread-safe."""
        self._ended.set()

    def _read(self) -> None:
        try:
            self._poll()
        finally:
            try:
                self._consumer.close()
            finally:
                with suppress(RuntimeError):  # the loop has ended
                    self._loop.call_soon_threadsafe(self._closed.set)

    def _poll(self) -> None:
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
                elif self._lost.are_all:
                    self._failure = TimersError(f"the consumer of this stream {LOST_BROKERS}: open it again")
                is_over = self._failure is not None
            if messages or is_over:
                self._loop.call_soon_threadsafe(self._arrived.set)
            if is_over:
                break

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
        self._bytes += record.size
        while len(self._records) > MAX_RECORDS or (self._bytes > MAX_BYTES and len(self._records) > 1):
            self._bytes -= self._records.popleft().size
            self._dropped += 1


def _made_anew(state: str) -> Problem:
    why = "and this id is of a later one: the topic was deleted and made anew, or its log was cut"
    return Problem("cursor-invalid", f"{state}, {why}. Begin without the id")


def _left_s(end_s: float) -> float:
    """Seconds that one request to the brokers may take."""
    return max(0.1, min(connection.CALL_TIMEOUT_S, end_s - monotonic()))
