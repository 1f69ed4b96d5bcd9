"""Reads requests from their log again, as they were sent, when a dead letter or ``timers get`` needs one.

A machine keeps only what firing needs. Leading zeros of the key, unknown fields of ``Future`` and ``timer-*`` headers
are not kept: that would cost memory for every timer (``docs/adr/0007``), and the log still has them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from time import monotonic
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from timers.config.settings import Settings
from timers.core.ports import Lost
from timers.core.timer import Origin, Row
from timers.kafka.clients import librdkafka, reader
from timers.kafka.error_codes import NO_TOPIC, code_of
from timers.kafka.records import headers_of, read
from timers.request_formats import NATIVE
from timers.wire.formats import RequestFormat, RequestRecord
from timers.wire.topics import parse_source

logger = logging.getLogger(__name__)

MAX_GAP = 1000
"""Largest number of offsets between two wanted records that are read, not skipped: a seek takes as long (1 ms)."""

TIMEOUT_S = 5.0
"""After this time without a record the brokers are considered unreachable."""

MAX_READING_S = 30.0
"""Longest time for one transaction. A dead letter without its request by then holds what the machine stored."""

POLL_S = 0.2


class RequestReader:
    """Reads requests by their source. All machines of a worker share one; it connects when it is first needed.

    Args:
        formats: the request topics and their formats. Other topics are never read.
        isolation: ``read_uncommitted`` is enough for offsets that a committed reader has already read.
    """

    def __init__(
        self, settings: Settings, formats: Mapping[str, RequestFormat], isolation: str = "read_uncommitted"
    ) -> None:
        self._settings = settings
        self._formats = formats
        self._isolation = isolation
        self._lock = threading.Lock()
        self._consumer: Consumer | None = None
        self._closed = False

    def find(self, timers: Iterable[tuple[Row, Origin]], may_wait: Callable[[], bool]) -> dict[str, RequestRecord]:
        """Find the original requests of timers. Blocks: do not call it while a transaction is open.

        Args:
            timers: timers that were moved to the retry topic.

        Raises:
            Lost: the brokers do not answer, or ``may_wait`` returned False.
        """
        wanted = {origin.request: (row, origin) for row, origin in timers}
        found = {}
        for source, sent in self.read(wanted, may_wait).items():
            if self.request_format(source).is_request_of(sent, *wanted[source]):
                found[source] = sent
        return found

    def request_format(self, source: str) -> RequestFormat:
        """The format of a request's topic; the native format if the topic is not a request topic any more."""
        return self._formats.get(source.rsplit("/", 2)[0], NATIVE)

    def read(self, sources: Iterable[str], may_wait: Callable[[], bool]) -> dict[str, RequestRecord]:
        """Find requests. Blocks: do not call it while a transaction is open.

        Returns:
            The requests that the log still has, by source.

        Raises:
            Lost: the brokers do not answer, or ``may_wait`` returned False.
        """
        wanted: dict[tuple[str, int], list[int]] = {}
        for source in sources:
            where = parse_source(source)
            if where is not None and where[0] in self._formats:
                wanted.setdefault(where[:2], []).append(where[2])
        found: dict[str, RequestRecord] = {}
        deadline = monotonic() + MAX_READING_S
        for (topic, partition), offsets in wanted.items():
            while not self._lock.acquire(timeout=POLL_S):
                _check(may_wait)
            try:
                for message in self._read(topic, partition, sorted(set(offsets)), may_wait):
                    offset: Any = message.offset()
                    found[f"{topic}/{partition}/{offset}"] = RequestRecord(
                        offset, message.key(), message.value(), headers_of(message), message.timestamp()[1]
                    )
                    if monotonic() > deadline:
                        logger.warning("%s/%d: reading requests for dead letters took too long", topic, partition)
                        break
            except KafkaException as error:
                if code_of(error) not in NO_TOPIC:
                    raise Lost(f"{topic}/{partition} cannot be read for a dead letter: {error.args[0]}") from error
            finally:
                self._lock.release()
        return found

    def _read(self, topic: str, partition: int, offsets: list[int], may_wait: Callable[[], bool]) -> Iterator[Message]:
        """The records of these sorted offsets that the log still has."""
        consumer = self._open_consumer()
        low, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=TIMEOUT_S, cached=False)
        stop_waiting = partial(_check, may_wait)
        for group in _groups([offset for offset in offsets if low <= offset < end]):
            for message in read(
                consumer, topic, partition, group[0], group[-1] + 1, timeout_s=TIMEOUT_S, while_waiting=stop_waiting
            ):
                if message.offset() in group:
                    yield message

    def _open_consumer(self) -> Consumer:
        if self._closed:
            raise Lost("told to stop")
        if self._consumer is None:
            self._consumer = reader(
                librdkafka(self._settings),
                group_id=self._settings.app_id,
                isolation_level=self._isolation,
                auto_offset_reset="error",
                enable_partition_eof=True,
                fetch_wait_max_ms=20,
                fetch_message_max_bytes=262_144,
                queued_max_messages_kbytes=8192,
            )
        return self._consumer

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._consumer is not None:
                self._consumer.close()
                self._consumer = None


def _check(may_wait: Callable[[], bool]) -> None:
    if not may_wait():
        raise Lost("told to stop")


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
