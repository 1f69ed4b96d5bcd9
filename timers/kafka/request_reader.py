"""Reads requests from their log again, as they were sent, when a dead letter or ``timers get`` needs one.

A machine keeps only what firing needs. Leading zeros of the key, unknown fields of ``Future`` and ``timer-*`` headers
are not kept: that would cost memory for every timer (``docs/adr/0007``), and the log still has them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from time import monotonic

from aiokafka.errors import KafkaError, LeaderNotAvailableError

from timers.config.settings import Settings
from timers.core.ports import Lost
from timers.core.timer import Origin, Row, TopicPartition
from timers.kafka.bounded_reader import POLL_S, BoundedReader
from timers.request_formats import NATIVE
from timers.wire.formats import RequestFormat, RequestRecord
from timers.wire.topics import parse_source

logger = logging.getLogger(__name__)

MAX_READING_S = 30.0
"""Longest time for one transaction. A dead letter without its request by then holds what the machine stored."""


class RequestReader:
    """Reads requests by their source. All machines of a worker share one; it connects when it is first needed.

    Args:
        formats: the request topics and their formats. Other topics are never read.
        isolation: ``read_uncommitted`` is enough for offsets that a committed reader has already read.
        value_limit: returns the size in bytes above which no value of a partition is a request; None if not known.
    """

    def __init__(
        self,
        settings: Settings,
        formats: Mapping[str, RequestFormat],
        isolation: str = "read_uncommitted",
        value_limit: Callable[[TopicPartition], int | None] = lambda partition: None,
    ) -> None:
        self._formats = formats
        self._lock = threading.Lock()
        self._reader = BoundedReader(settings, isolation, value_limit)
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
            if self.request_format(source).is_request_of(sent, *wanted[source]):
                found[source] = sent
        return found

    def request_format(self, source: str) -> RequestFormat:
        """The format of a request's topic; the native format if the topic is not a request topic any more."""
        return self._formats.get(source.rsplit("/", 2)[0], NATIVE)

    def read(self, sources: Iterable[str], keep_waiting: Callable[[], bool]) -> dict[str, RequestRecord]:
        """Find requests. Blocks: do not call it while a transaction is open.

        Returns:
            The requests that the log still has and that are not larger than any allowed one, by source.

        Raises:
            Lost: the brokers do not answer, a partition has no leader, or ``keep_waiting`` returned False.
        """
        found, leaderless = self._read(sources, keep_waiting)
        if leaderless:
            raise Lost(f"{leaderless[0].rsplit('/', 1)[0]} has no leader")
        return found

    def _read(
        self, sources: Iterable[str], keep_waiting: Callable[[], bool]
    ) -> tuple[dict[str, RequestRecord], list[str]]:
        """The requests that are found, and the sources on partitions without a leader."""
        wanted: dict[tuple[str, int], dict[str, int]] = {}
        for source in sources:
            where = parse_source(source)
            if where is not None and where[0] in self._formats:
                wanted.setdefault(where[:2], {})[source] = where[2]
        found: dict[str, RequestRecord] = {}
        leaderless: list[str] = []
        deadline = monotonic() + MAX_READING_S
        for (topic, partition), offsets in wanted.items():
            while not self._lock.acquire(timeout=POLL_S):
                _check(keep_waiting)
            try:
                if self._closed:
                    raise Lost("told to stop")
                asked, check = set(offsets.values()), partial(_check, keep_waiting)
                read = self._reader.read(topic, partition, asked, check, deadline)
                found |= {source: read[offset] for source, offset in offsets.items() if offset in read}
            except LeaderNotAvailableError:
                leaderless += offsets
            except KafkaError as error:
                raise Lost(f"{topic}/{partition} cannot be read for a dead letter: {error}") from error
            finally:
                self._lock.release()
        if monotonic() > deadline:
            logger.warning("reading requests for dead letters took too long; only %d were found", len(found))
        return found, leaderless

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._reader.close()


def _check(keep_waiting: Callable[[], bool]) -> None:
    if not keep_waiting():
        raise Lost("told to stop")
