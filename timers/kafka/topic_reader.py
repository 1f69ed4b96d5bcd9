"""A reader that follows one topic: all partitions, committed records only, without a consumer group."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Self

from confluent_kafka import OFFSET_BEGINNING, KafkaException, Message, TopicPartition

from timers.config.settings import Settings
from timers.errors import TimersError
from timers.kafka import connection
from timers.kafka.clients import reader
from timers.kafka.error_codes import MOVING, NO_TOPIC, code_of

logger = logging.getLogger(__name__)

_POLL_S = 0.1
_TOPIC_CHECK_S = 10.0
"""Time between two searches for new partitions."""


class TopicReader:
    """A ``read_committed`` reader of one topic that commits nothing and joins no group.

    Args:
        settings: where the brokers are, and how to log in.
        topic: the topic to read; it need not exist yet.
        from_beginning: start with the oldest record, instead of the first one after :meth:`assign_partitions`.
        since_ms: start with the first record of this time, in epoch milliseconds, or of a later one.
    """

    def __init__(
        self, settings: Settings, topic: str, *, from_beginning: bool = False, since_ms: int | None = None
    ) -> None:
        self._reports = connection.ErrorReports(settings)
        self._topic = topic
        self._from_beginning = from_beginning
        self._since_ms = since_ms
        self._partitions = 0
        self._consumer = reader({**connection.librdkafka(settings), "error_cb": self._reports})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def assign_partitions(self) -> bool:
        """Assign the topic's partitions, also those added since the last call. False while the topic does not exist.

        After the return no later record is missed: reading starts at the present end of the log, and partitions that
        are added later are read from their beginning.

        Raises:
            TimersError: no broker answers or accepts the login, or the topic may not be read.
        """
        try:
            count = connection.partitions_of(self._consumer, self._reports, self._topic)
            first = self._partitions == 0 and not self._from_beginning
            added = [
                TopicPartition(self._topic, partition, self._start(partition) if first else OFFSET_BEGINNING)
                for partition in range(self._partitions, count)
            ]
        except KafkaException as error:
            if code_of(error) in NO_TOPIC | MOVING:
                return False
            raise self._user_error(error) from error
        if added:
            self._consumer.incremental_assign(added)
            self._partitions += len(added)
        return self._partitions > 0

    def _start(self, partition: int) -> int:
        if self._since_ms is not None:
            wanted = [TopicPartition(self._topic, partition, self._since_ms)]
            (found,) = self._consumer.offsets_for_times(wanted, timeout=connection.TIMEOUT_S)
            if found.error is not None:
                raise KafkaException(found.error)
            if found.offset >= 0:
                return int(found.offset)
        place = TopicPartition(self._topic, partition)
        _, end = self._consumer.get_watermark_offsets(place, timeout=connection.TIMEOUT_S, cached=False)
        return int(end)

    def __iter__(self) -> Iterator[Message | None]:
        """Records as they arrive, without end; None after each 0.1 s without a record, so that the caller can act.

        Raises:
            TimersError: the topic does not exist any more, or may not be read.
        """
        check_at = time.monotonic() + _TOPIC_CHECK_S
        while True:
            message = self._consumer.poll(_POLL_S)
            if message is None:
                yield None
            elif (error := message.error()) is None:
                yield message
            elif error.code() in NO_TOPIC or not error.retriable():
                raise self._user_error(KafkaException(error))
            if time.monotonic() > check_at:
                check_at = time.monotonic() + _TOPIC_CHECK_S
                self._look_for_partitions()

    def _look_for_partitions(self) -> None:
        try:
            self.assign_partitions()
        except TimersError:  # librdkafka reconnects by itself
            logger.info("cannot look for new partitions of %s", self._topic, exc_info=True)

    def _user_error(self, error: KafkaException) -> TimersError:
        return self._reports.user_error(error, f"topic {self._topic!r} cannot be read")
