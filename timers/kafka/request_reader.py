"""Requests as they were sent, read again from their log when a dead letter needs one long after it was accepted.

What a machine keeps of a request is what firing needs: leading zeros of the key, fields that ``Future`` does not have
and ``timer-*`` headers are gone by then. Keeping all that for every timer would cost all of them (``docs/adr/0007``);
the log has it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from timers.config.settings import Settings
from timers.core.ports import Lost
from timers.core.timer import Origin, Row
from timers.kafka.clients import librdkafka
from timers.kafka.records import headers_of
from timers.request_formats import NATIVE
from timers.wire.formats import RequestFormat, RequestRecord
from timers.wire.topics import parse_source

logger = logging.getLogger(__name__)

READ_THROUGH = 1000
"""Records between two wanted ones that are read rather than skipped: a seek costs as much (about 1 ms)."""

PATIENCE_S = 5.0
"""So long without a record, and the brokers do not answer."""

LONGEST_S = 30.0
"""So long at most for one transaction; what is not found by then is dead-lettered as it was understood."""

POLL_S = 0.2

_GONE = (KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART)


class RequestReader:
    """Reads requests by their source. Shared by all machines of a worker, and opened when it is first needed.

    Args:
        settings: of the worker.
        formats: request topics; nothing else is ever read, whatever a source says.
        isolation: by default any record that is asked for is read, which is right where only offsets are asked for that
            were read as committed before.
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
        """Find the requests of timers, by where they stand. Blocks; not while a transaction is open.

        Args:
            timers: that were moved to the retry topic.
            may_wait: asked again and again, whether waiting may go on.

        Returns:
            What is still there and asks for just that timer.

        Raises:
            Lost: the brokers do not answer, or told to stop.
        """
        wanted = {origin.request: (row, origin) for row, origin in timers}
        found = {}
        for source, sent in self.read(wanted, may_wait).items():
            if self.request_format(source).is_request_of(sent, *wanted[source]):
                found[source] = sent
        return found

    def request_format(self, source: str) -> RequestFormat:
        """The request format by which a request came; if that is closed by now, the one that is always open."""
        return self._formats.get(source.rsplit("/", 2)[0], NATIVE)

    def read(self, sources: Iterable[str], may_wait: Callable[[], bool]) -> dict[str, RequestRecord]:
        """Find requests. Blocks; not while a transaction is open.

        Args:
            sources: ``<topic>/<partition>/<offset>`` each.
            may_wait: asked again and again, whether waiting may go on.

        Returns:
            What is still there, by source.

        Raises:
            Lost: the brokers do not answer, or told to stop.
        """
        wanted: dict[tuple[str, int], list[int]] = {}
        for source in sources:
            where = parse_source(source)
            if where is not None and where[0] in self._formats:
                wanted.setdefault(where[:2], []).append(where[2])
        found: dict[str, RequestRecord] = {}
        give_up = monotonic() + LONGEST_S
        for (topic, partition), offsets in wanted.items():
            while not self._lock.acquire(timeout=POLL_S):
                _check(may_wait)
            try:
                self._read(topic, partition, sorted(set(offsets)), found, give_up, may_wait)
            except KafkaException as error:
                raise Lost(f"{topic}/{partition} cannot be read for a dead letter: {error.args[0]}") from error
            finally:
                self._lock.release()
        return found

    def _read(
        self,
        topic: str,
        partition: int,
        offsets: list[int],
        found: dict[str, RequestRecord],
        give_up: float,
        may_wait: Callable[[], bool],
    ) -> None:
        consumer = self._opened()
        consumer.assign([TopicPartition(topic, partition, offsets[0])])
        try:
            index, heard_at = 0, monotonic()
            while index < len(offsets):
                message = consumer.poll(POLL_S)
                now = monotonic()
                if message is None:
                    _check(may_wait)
                    if now - heard_at > PATIENCE_S:
                        raise Lost(f"{topic}/{partition} cannot be read for a dead letter: no answer")
                    continue
                heard_at = now
                error = message.error()
                if error is not None:
                    if error.code() == KafkaError._AUTO_OFFSET_RESET:  # retention took it: go on where the log begins
                        low, _ = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=PATIENCE_S)
                        index = next((i for i, offset in enumerate(offsets) if offset >= low), len(offsets))
                        if index < len(offsets):
                            consumer.assign([TopicPartition(topic, partition, offsets[index])])
                        continue
                    if error.code() == KafkaError._PARTITION_EOF or error.code() in _GONE:
                        break
                    raise Lost(f"{topic}/{partition} cannot be read for a dead letter: {error.str()}")
                if now > give_up:
                    logger.warning("%s/%d: reading original requests of dead letters took too long", topic, partition)
                    break
                offset: Any = message.offset()
                while index < len(offsets) and offsets[index] < offset:
                    index += 1
                if index < len(offsets) and offsets[index] == offset:
                    sent = RequestRecord(
                        offset, message.key(), message.value(), headers_of(message), message.timestamp()[1]
                    )
                    found[f"{topic}/{partition}/{offset}"] = sent
                    index += 1
                if index < len(offsets) and offsets[index] > offset + READ_THROUGH:
                    consumer.seek(TopicPartition(topic, partition, offsets[index]))
        finally:
            consumer.unassign()

    def _opened(self) -> Consumer:
        if self._closed:
            raise Lost("told to stop")
        if self._consumer is None:
            self._consumer = Consumer(
                {
                    **librdkafka(self._settings),
                    "group.id": self._settings.app_id,  # nothing is committed under it
                    "enable.auto.commit": False,
                    "isolation.level": self._isolation,
                    "auto.offset.reset": "error",
                    "enable.partition.eof": True,
                    "fetch.wait.max.ms": 20,
                    "fetch.message.max.bytes": 262_144,
                    "queued.max.messages.kbytes": 8192,
                }
            )
        return self._consumer

    def close(self) -> None:
        """Let go of the brokers."""
        with self._lock:
            self._closed = True
            if self._consumer is not None:
                self._consumer.close()
                self._consumer = None


def _check(may_wait: Callable[[], bool]) -> None:
    if not may_wait():
        raise Lost("told to stop")
