"""The feature level that the operator allows: a record on the progress topic, which `timers levels --raise` writes.

Workers read it only while a machine of theirs could be raised, so it costs nothing in between.
"""

from __future__ import annotations

import logging
from time import monotonic, sleep

from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as KafkaTopicPartition

from timers.config.settings import Settings
from timers.core import levels
from timers.kafka import connection
from timers.kafka.clients import librdkafka, reader
from timers.kafka.records import read, write
from timers.wire import progress

logger = logging.getLogger(__name__)

PARTITION = 0
"""Partition of the progress topic with the record."""

TIMEOUT_S = 10.0

ANSWER_S = 3.0
NEW_APP_S = 30.0
POLL_S = 0.2


class AllowedLevel:
    """Reads the allowed level. Not thread-safe; its methods block."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._level = levels.FIRST
        self._position = 0

    def read(self) -> int:
        """Returns the allowed level; each call reads only the records that are new since the last one.

        Raises:
            KafkaException: the brokers do not answer.
            LogMismatch: the record cannot be read.
        """
        topic = self._settings.progress_topic
        # The right to read as the app's group is among the least rights of a worker; nothing is committed.
        consumer = reader(librdkafka(self._settings), group_id=self._settings.app_id, enable_partition_eof=True)
        try:
            low, high = consumer.get_watermark_offsets(KafkaTopicPartition(topic, PARTITION), timeout=TIMEOUT_S)
            if self._position > high:  # the topic was deleted and created again
                self._level, self._position = levels.FIRST, 0
            start = max(low, self._position)
            newest: bytes | None = None  # only this one counts: it may replace one that cannot be read
            for message in read(consumer, topic, PARTITION, start, high, timeout_s=TIMEOUT_S):
                if message.key() == progress.APP_KEY:
                    newest = message.value() or newest
            if newest is not None:
                self._level = progress.decode_number(progress.ALLOWED_LEVEL, newest, levels.FIRST)
            self._position = high
        finally:
            consumer.close()
        return self._level


def allow_in_new_app(settings: Settings, partitions: int) -> None:
    """Allow the level that this version raises to, if the app has no progress yet. Blocks. Call it before joining.

    Brokers may need some seconds until they know topics that were created a moment ago.

    Args:
        settings: of the app.
        partitions: number of partitions of its progress topic.
    """
    if levels.RAISED_TO == levels.FIRST:
        return
    deadline = monotonic() + NEW_APP_S
    while True:
        try:
            if _is_new(settings, partitions):
                allow(settings, levels.RAISED_TO)
            return
        except KafkaException as error:
            if monotonic() > deadline:
                logger.warning(
                    "whether the app is new is not known (%s); `timers levels` shows its feature level", error
                )
                return
        sleep(POLL_S)


def _is_new(settings: Settings, partitions: int) -> bool:
    """Whether no partition of the progress topic has a record. Partitions without a leader do not hide the others."""
    consumer = reader(librdkafka(settings), isolation_level="read_uncommitted")
    unknown: KafkaException | None = None
    try:
        for partition in range(partitions):
            place = KafkaTopicPartition(settings.progress_topic, partition)
            try:
                if consumer.get_watermark_offsets(place, timeout=ANSWER_S)[1]:
                    return False
            except KafkaException as error:
                unknown = error
    finally:
        consumer.close()
    if unknown is not None:
        raise unknown
    return True


def allow(settings: Settings, level: int) -> None:
    """Allow machines to be raised to ``level``. Blocks.

    Raises:
        KafkaException: the brokers do not answer, or refuse the record.
    """
    record = progress.APP_KEY, progress.encode_number(progress.ALLOWED_LEVEL, level)
    write(connection.librdkafka(settings), settings.progress_topic, PARTITION, [record], TIMEOUT_S)
