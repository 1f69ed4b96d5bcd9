"""Reads requests from their log again, as they were sent, when a dead letter or ``timers get`` needs one.

A machine keeps only what firing needs. Leading zeros of the key, unknown fields of ``Future`` and ``timer-*`` headers
are not kept: that would cost memory for every timer (``docs/adr/0007``), and the log still has them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import TimeoutError as NotYet
from functools import partial
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from aiokafka import TopicPartition as KafkaTopicPartition
from aiokafka.errors import CorruptRecordException, KafkaError, LeaderNotAvailableError, OffsetOutOfRangeError

from timers.config.settings import Settings
from timers.core.ports import Lost
from timers.core.timer import CutValue, Origin, Row, TopicPartition
from timers.kafka.aiokafka_internals import fetch
from timers.kafka.aiokafka_internals.leader_client import READ_COMMITTED, READ_UNCOMMITTED, LeaderClient
from timers.request_formats import NATIVE
from timers.threads import LoopThread
from timers.wire.formats import RequestFormat, RequestRecord
from timers.wire.topics import parse_source, partition_name

FETCH_BYTES = 262_144

TIMEOUT_S = 5.0
"""After this time without an answer the brokers are considered unreachable."""

POLL_S = 0.2

_T = TypeVar("_T")


class Deleted(NamedTuple):
    """A request that its log no longer has: it was trimmed, or retention took it. All readers learn it from here."""

    begins_at: int
    """The first offset that the log still has."""


logger = logging.getLogger(__name__)

MAX_READING_S = 30.0
"""Longest time for one transaction. A dead letter without its request by then holds what the machine stored."""


class RequestReader:
    """Reads requests by their source, within bounded memory. All machines of a worker share one; it connects when it is
    first needed.

    librdkafka unpacks a batch as a whole: a gzip batch of 1 MB may take 1 GB. So these reads use the pieces of
    :mod:`timers.kafka.aiokafka_internals.fetch`, on an event loop in a thread of their own.

    Args:
        formats: the request topics and their formats. Other topics are never read.
        committed: whether to read committed records only: not needed for offsets that a committed reader has read.
        value_limit: returns the size in bytes above which no value of a partition is a request; None if not known.
    """

    def __init__(
        self,
        settings: Settings,
        formats: Mapping[str, RequestFormat],
        committed: bool = False,
        value_limit: Callable[[TopicPartition], int | None] = lambda partition: None,
    ) -> None:
        self._formats = formats
        self._isolation = READ_COMMITTED if committed else READ_UNCOMMITTED
        self._in_pieces = fetch.InPieces(value_limit)
        self._client = LeaderClient(settings, "requests", TIMEOUT_S)
        self._lock = threading.Lock()
        self._loop: LoopThread | None = None
        self._closed = False

    def find(
        self, timers: Iterable[tuple[Row, Origin]], keep_waiting: Callable[[], bool]
    ) -> dict[str, RequestRecord | None]:
        """Find the original requests of timers. Blocks: do not call it while a transaction is open.

        Args:
            timers: timers that were moved to the retry topic.

        Returns:
            The requests that :meth:`read` finds; None for those whose partition has no leader.

        Raises:
            Lost: the brokers do not answer, or ``keep_waiting`` returned False.
        """
        wanted = {origin.request: (row, origin) for row, origin in timers}
        read, leaderless = self._read(wanted, keep_waiting)
        found: dict[str, RequestRecord | None] = dict.fromkeys(leaderless)
        for source, sent in read.items():
            if not isinstance(sent, Deleted) and self.request_format(source).is_request_of(sent, *wanted[source]):
                found[source] = sent
        return found

    def request_format(self, source: str) -> RequestFormat:
        """The format of a request's topic; the native format if the topic is not a request topic any more."""
        return self._formats.get(source.rsplit("/", 2)[0], NATIVE)

    def read(self, sources: Iterable[str], keep_waiting: Callable[[], bool]) -> dict[str, RequestRecord | Deleted]:
        """Find requests. Blocks: do not call it while a transaction is open.

        Returns:
            The requests that are not larger than any allowed one, by source, also which of them are deleted.

        Raises:
            Lost: the brokers do not answer, a partition has no leader, or ``keep_waiting`` returned False.
        """
        found, leaderless = self._read(sources, keep_waiting)
        if leaderless:
            raise Lost(f"{leaderless[0].rsplit('/', 1)[0]} has no leader")
        return found

    def _read(
        self, sources: Iterable[str], keep_waiting: Callable[[], bool]
    ) -> tuple[dict[str, RequestRecord | Deleted], list[str]]:
        """The requests that are found, and the sources on partitions without a leader."""
        wanted: dict[tuple[str, int], dict[str, int]] = {}
        for source in sources:
            where = parse_source(source)
            if where is not None and where[0] in self._formats:
                wanted.setdefault(where[:2], {})[source] = where[2]
        found: dict[str, RequestRecord | Deleted] = {}
        leaderless: list[str] = []
        deadline = monotonic() + MAX_READING_S
        for tp, offsets in wanted.items():
            while not self._lock.acquire(timeout=POLL_S):
                _check(keep_waiting)
            try:
                if self._closed:
                    raise Lost("told to stop")
                read: dict[int, RequestRecord | Deleted] = {}
                reading = self._read_offsets(tp, sorted({*offsets.values()}), deadline, read)
                self._run(reading, partial(_check, keep_waiting))
                found |= {source: read[offset] for source, offset in offsets.items() if offset in read}
            except LeaderNotAvailableError:
                leaderless += offsets
            except KafkaError as error:
                raise Lost(f"{partition_name(*tp)} cannot be read for a dead letter: {error}") from error
            finally:
                self._lock.release()
        if monotonic() > deadline:
            logger.warning("reading requests for dead letters took too long; only %d were found", len(found))
        return found, leaderless

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._loop is not None:
                self._run(self._client.close(), lambda: None)
                self._loop.close()
                self._loop = None

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
        except BaseException:
            running.cancel()
            raise

    async def _read_offsets(
        self, tp: TopicPartition, offsets: list[int], until: float, found: dict[int, RequestRecord | Deleted]
    ) -> None:
        """Read on while its leader moves, or does not answer.

        Raises:
            LeaderNotAvailableError: the partition has no leader.
            KafkaError: the brokers do not answer.
        """
        deadline = monotonic() + TIMEOUT_S
        while (leader := await self._client.find_leader(*tp)) is not None:
            try:
                await self._read_from(leader, tp, offsets, until, found)
                break
            except KafkaError as error:
                if not error.retriable or monotonic() > deadline:
                    raise
            await asyncio.sleep(POLL_S)

    async def _read_from(
        self,
        leader: int,
        tp: TopicPartition,
        offsets: list[int],
        until: float,
        found: dict[int, RequestRecord | Deleted],
    ) -> None:
        low, end = await self._client.ends(leader, tp)
        found.update(dict.fromkeys((offset for offset in offsets if offset < low), Deleted(low)))
        through, wanted, place = low, {*offsets}, KafkaTopicPartition(*tp)
        for offset in offsets:
            if not through <= offset < end or monotonic() > until:
                continue
            # A bad batch ends a fetch, a part that was deleted meanwhile too: the others may be there.
            with contextlib.suppress(CorruptRecordException, OffsetOutOfRangeError):
                fetched = await self._client.fetch(leader, tp, offset, FETCH_BYTES, self._isolation)
                records = fetch.records_in(place, fetched, offset, self._in_pieces, self._isolation)
                while not records.finished:
                    for record in records.piece():
                        if record.offset in wanted and not isinstance(record.value, CutValue):
                            found[record.offset] = RequestRecord(
                                record.offset, record.key, record.value, record.headers, record.timestamp
                            )
                    await asyncio.sleep(0)
                through = records.next_fetch_offset


def _check(keep_waiting: Callable[[], bool]) -> None:
    if not keep_waiting():
        raise Lost("told to stop")
