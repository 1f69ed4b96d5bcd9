"""Reads requests from their log again, as they were sent, when a dead letter or ``timers get`` needs one.

A machine keeps only what firing needs. Leading zeros of the key, unknown fields of ``Future`` and ``timer-*`` headers
are not kept: that would cost memory for every timer (``docs/adr/0007``), and the log still has them.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as NotYet
from functools import partial
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as KafkaTopicPartition
from aiokafka.errors import (
    CorruptRecordException,
    KafkaError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    OffsetOutOfRangeError,
)

from timers.core.ports import Deleted, Lost
from timers.core.timer import CutValue, Fetched, Origin, Row, TopicPartition
from timers.kafka import aiokafka_clients
from timers.kafka.aiokafka_internals import fetch
from timers.kafka.aiokafka_internals.batch_pieces import UnreadableBatch
from timers.kafka.request_formats import NATIVE
from timers.process.config.settings import Settings
from timers.process.threads import LoopThread
from timers.wire.formats import RequestFormat, RequestRecord
from timers.wire.topics import parse_source, partition_name

MAX_GAP = 1000
"""Largest number of offsets between two wanted records that are read, not skipped: a seek takes as long (1 ms)."""

TIMEOUT_S = 5.0
"""After this time without a record the brokers are considered unreachable."""

SILENT_S = 30.0
"""The same for a range that is read in the background."""

POLL_S = 0.2

_T = TypeVar("_T")


class DeletedRequest(NamedTuple):
    """A request that its log no longer has: it was trimmed, or retention took it. All readers learn it from here."""

    begins_at: int
    """The first offset that the log still has."""
    ends_at: int = 0
    """The offset after its last one."""


logger = logging.getLogger(__name__)

MAX_READING_S = 30.0
"""Longest time for one transaction. A dead letter without its request by then holds what the machine stored."""


class RequestReader:
    """Reads requests by their source, within bounded memory. All machines of a worker share one; it connects when it is
    first needed.

    librdkafka unpacks a batch as a whole: a gzip batch of 1 MB may take 1 GB. So these reads use aiokafka with the
    pieces of :mod:`timers.kafka.aiokafka_internals.fetch`, on an event loop in a thread of their own.

    Args:
        formats: the request topics and their formats. Other topics are never read.
        isolation: ``read_uncommitted`` is enough for offsets that a committed reader has already read.
        value_limit: returns the size in bytes above which no value of a partition is a request; None if not known.
        on_unreadable: called with each batch that cannot be read; returns whether it is passed over. It may raise.
    """

    def __init__(
        self,
        settings: Settings,
        formats: Mapping[str, RequestFormat],
        isolation: str = "read_uncommitted",
        value_limit: Callable[[TopicPartition], int | None] = lambda partition: None,
        on_unreadable: Callable[[KafkaTopicPartition, UnreadableBatch], bool] = lambda partition, batch: True,
    ) -> None:
        self._settings = settings
        self._formats = formats
        self._isolation = isolation
        self._value_limit = value_limit
        self._on_unreadable = on_unreadable
        self._lock = threading.Lock()
        self._loop: LoopThread | None = None
        self._consumer: AIOKafkaConsumer | None = None
        self._closed = False

    def find(
        self, timers: Iterable[tuple[Row, Origin]], may_wait: Callable[[], bool]
    ) -> dict[str, RequestRecord | None]:
        """Find the original requests of timers. Blocks: do not call it while a transaction is open.

        Args:
            timers: timers that were moved to the retry topic.

        Returns:
            The requests that :meth:`read` finds; None for those whose partition has no leader.

        Raises:
            Lost: the brokers do not answer, or ``may_wait`` returned False.
        """
        wanted = {origin.request: (row, origin) for row, origin in timers}
        read, leaderless = self._read(wanted, may_wait)
        found: dict[str, RequestRecord | None] = dict.fromkeys(leaderless)
        for source, sent in read.items():
            if not isinstance(sent, DeletedRequest) and self.request_format(source).is_request_of(
                sent, *wanted[source]
            ):
                found[source] = sent
        return found

    def read_again(self, sources: Iterable[str], may_wait: Callable[[], bool]) -> dict[str, RequestRecord | Deleted]:
        """Find requests, as :meth:`read`, for a machine. A ``read_committed`` reader would see another end."""
        read = self.read(sources, may_wait).items()
        return {source: Deleted(sent.ends_at) if isinstance(sent, DeletedRequest) else sent for source, sent in read}

    def request_format(self, source: str) -> RequestFormat:
        """The format of a request's topic; the native format if the topic is not a request topic any more."""
        return self._formats.get(source.rsplit("/", 2)[0], NATIVE)

    def read(self, sources: Iterable[str], may_wait: Callable[[], bool]) -> dict[str, RequestRecord | DeletedRequest]:
        """Find requests. Blocks: do not call it while a transaction is open.

        Returns:
            The requests that are not larger than any allowed one, by source, also which of them are deleted.

        Raises:
            Lost: the brokers do not answer, a partition has no leader, or ``may_wait`` returned False.
        """
        found, leaderless = self._read(sources, may_wait)
        if leaderless:
            raise Lost(f"{leaderless[0].rsplit('/', 1)[0]} has no leader")
        return found

    def _read(
        self, sources: Iterable[str], may_wait: Callable[[], bool]
    ) -> tuple[dict[str, RequestRecord | DeletedRequest], list[str]]:
        """The requests that are found, and the sources on partitions without a leader."""
        wanted: dict[tuple[str, int], dict[str, int]] = {}
        for source in sources:
            where = parse_source(source)
            if where is not None and where[0] in self._formats:
                wanted.setdefault(where[:2], {})[source] = where[2]
        found: dict[str, RequestRecord | DeletedRequest] = {}
        leaderless: list[str] = []
        deadline = monotonic() + MAX_READING_S
        for (topic, partition), offsets in wanted.items():
            while not self._lock.acquire(timeout=POLL_S):
                _check(may_wait)
            try:
                if self._closed:
                    raise Lost("told to stop")
                read: dict[int, RequestRecord | DeletedRequest] = {}
                places = KafkaTopicPartition(topic, partition), sorted({*offsets.values()})
                self._run(self._read_offsets(*places, deadline, read), partial(_check, may_wait))
                found |= {source: read[offset] for source, offset in offsets.items() if offset in read}
            except LeaderNotAvailableError:
                leaderless += offsets
            except KafkaError as error:
                raise Lost(f"{partition_name(topic, partition)} cannot be read for a dead letter: {error}") from error
            finally:
                self._lock.release()
        if monotonic() > deadline:
            logger.warning("reading requests for dead letters took too long; only %d were found", len(found))
        return found, leaderless

    def fetches(self, tp: TopicPartition, start: int, end: int, check: Callable[[], None]) -> Iterator[Fetched]:
        """Yield the records of a range of offsets, as a worker reads them. Blocks. Only for a reader of one's own.

        Args:
            start: first offset.
            end: offset after the last one.
            check: called often; may raise to stop.

        Raises:
            UnreadableBatch: a batch cannot be read, and ``on_unreadable`` raises. All records before it were yielded.
            Lost: the log begins after ``start``, cannot be read, or gives no record for :data:`SILENT_S`.
        """
        place, deadline = KafkaTopicPartition(*tp), monotonic() + SILENT_S
        consumer = None
        while start < end:
            try:
                consumer = consumer or self._run(self._assigned(place, start), check)
                records = self._run(_fetched(consumer, place), check)
            except OffsetOutOfRangeError:
                raise Lost(f"{partition_name(*tp)} begins after offset {start}: records were deleted") from None
            except UnreadableBatch:
                raise
            except KafkaError as error:
                raise Lost(f"{partition_name(*tp)} cannot be read: {error}") from error
            to_offset = min(fetch.positions(consumer)[place], end)
            if to_offset > start or records:
                yield Fetched(start, to_offset, [record for record in records if record.offset < end])
                start, deadline = to_offset, monotonic() + SILENT_S
            elif monotonic() > deadline:
                raise Lost(f"{partition_name(*tp)} gave no record for {SILENT_S:.0f} s")

    async def _assigned(self, tp: KafkaTopicPartition, start: int) -> AIOKafkaConsumer:
        consumer = await self._open_consumer()
        consumer.assign([tp])
        consumer.seek(tp, start)
        return consumer

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._loop is not None:
                try:
                    if self._consumer is not None:
                        self._run(fetch.stop(self._consumer), lambda: None)
                finally:
                    self._loop.close()
                    self._loop = self._consumer = None

    def _run(self, work: Coroutine[Any, Any, _T], while_waiting: Callable[[], None]) -> _T:
        """Run a coroutine on the loop's thread. ``while_waiting``, called five times a second, may raise to stop."""
        if self._loop is None:
            self._loop = LoopThread("timers-request-reader")
        running = self._loop.submit(work)
        try:
            while True:
                with contextlib.suppress(NotYet):
                    return running.result(POLL_S)
                if running.done():
                    return running.result()
                while_waiting()
        except CancelledError:  # of the loop, which close() has ended
            raise Lost("told to stop") from None
        except BaseException:
            running.cancel()
            raise

    async def _open_consumer(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            fetch.install()
            consumer = AIOKafkaConsumer(
                client_id=self._settings.worker_id,
                **aiokafka_clients.arguments(self._settings),
                key_deserializer=fetch.InPieces(self._value_limit, on_unreadable=self._on_unreadable),
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
                await fetch.stop(consumer)
                raise
            self._consumer = consumer
        return self._consumer

    async def _read_offsets(
        self,
        tp: KafkaTopicPartition,
        offsets: list[int],
        until: float,
        found: dict[int, RequestRecord | DeletedRequest],
    ) -> None:
        consumer = await self._open_consumer()
        if not await fetch.exists(consumer, tp):
            return
        consumer.assign([tp])
        try:
            low, end = (await consumer.beginning_offsets([tp]))[tp], (await consumer.end_offsets([tp]))[tp]
            found.update(dict.fromkeys((offset for offset in offsets if offset < low), DeletedRequest(low, end)))
            for group in _groups([offset for offset in offsets if low <= offset < end]):
                # A batch that cannot be read, or a part that was deleted meanwhile, ends one group: the other groups
                # may be readable.
                with contextlib.suppress(CorruptRecordException, OffsetOutOfRangeError):
                    await self._read_group(consumer, tp, group, until, found)
        finally:
            consumer.unsubscribe()

    async def _read_group(
        self,
        consumer: AIOKafkaConsumer,
        tp: KafkaTopicPartition,
        group: list[int],
        until: float,
        found: dict[int, RequestRecord | DeletedRequest],
    ) -> None:
        wanted = set(group)
        consumer.seek(tp, group[0])
        deadline = monotonic() + TIMEOUT_S
        while (position := await consumer.position(tp)) <= group[-1] and monotonic() < until:
            arrived = fetch.has_records(consumer, [tp])
            records = (await consumer.getmany(tp, timeout_ms=0 if arrived else int(POLL_S * 1000))).get(tp, ())
            for record in records:
                if record.offset in wanted and not isinstance(record.value, CutValue):
                    found[record.offset] = RequestRecord(
                        record.offset, record.key, record.value, record.headers, record.timestamp
                    )
            if arrived or await consumer.position(tp) != position:
                deadline = monotonic() + TIMEOUT_S
            elif monotonic() > deadline:
                raise KafkaTimeoutError(f"{partition_name(*tp)} gave no record for {TIMEOUT_S:.0f} s")


async def _fetched(consumer: AIOKafkaConsumer, tp: KafkaTopicPartition) -> Sequence[Any]:
    """Records that have arrived; none after a while without one."""
    timeout_ms = 0 if fetch.has_records(consumer, [tp]) else int(POLL_S * 1000)
    found: Sequence[Any] = (await consumer.getmany(tp, timeout_ms=timeout_ms)).get(tp, ())
    return found


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


def _check(may_wait: Callable[[], bool]) -> None:
    if not may_wait():
        raise Lost("told to stop")
