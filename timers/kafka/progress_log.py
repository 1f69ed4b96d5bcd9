"""Reading back how far machines have come, and checking that their logs still hold what that speaks of."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from time import monotonic
from typing import Any

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaTopicPartition

from timers.config.settings import Settings
from timers.core.machine import PARTITIONS
from timers.core.progress import Progress
from timers.core.timer import TopicPartition
from timers.errors import LogMismatch
from timers.kafka.clients import librdkafka
from timers.kafka.topics import Cluster
from timers.wire import progress as progress_record

logger = logging.getLogger(__name__)

TIMEOUT_S = 25.0
"""Somebody else's open transaction can hold back the end of a progress partition: for as long as it may last, and until
the broker's reaper comes by (10 s more)."""

TAIL_RECORDS = 2_000
"""A running machine's newest progress stands near the end; only if it does not, the whole partition is read."""


def progress_partition(tp: TopicPartition, cluster: Cluster, settings: Settings) -> int:
    """Partition of the progress topic that holds a machine's records: spread, so that machines do not wait for each
    other's transactions when they read."""
    return tp[1] % cluster.partitions[settings.progress_topic]


class ProgressLog:
    """A reader of the progress topic and of the ends of request logs. Blocks: not for the event loop."""

    def __init__(self, settings: Settings, cluster: Cluster) -> None:
        self._settings = settings
        self._cluster = cluster
        common = {**librdkafka(settings), "group.id": settings.app_id, "enable.auto.commit": False}
        self._consumer = Consumer(
            {
                **common,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 50,
                "auto.offset.reset": "error",
            }
        )
        # To a committed reader a log ends before the first open transaction, be it another machine's: what was
        # committed behind that would be overlooked. So the true end is asked for, and reading waits to reach it.
        self._end_finder = Consumer({**common, "isolation.level": "read_uncommitted"})

    def close(self) -> None:
        """Close the consumers."""
        self._consumer.close()
        self._end_finder.close()

    def read(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, bytes]:
        """Newest committed progress record of each machine that has one [I14].

        Call after the machines' former owners are fenced: what they left open is then decided.

        Raises:
            KafkaException: the brokers do not answer.
        """
        wanted = {progress_record.encode_key(*tp): tp for tp in tps}
        by_partition: dict[int, dict[bytes, TopicPartition]] = {}
        for key, tp in wanted.items():
            by_partition.setdefault(progress_partition(tp, self._cluster, self._settings), {})[key] = tp
        found: dict[TopicPartition, bytes] = {}
        for partition, keys in by_partition.items():
            low, high = self.ends(self._settings.progress_topic, partition)
            records = self._read_back(partition, max(low, high - TAIL_RECORDS), high, keys)
            if len(records) < len(keys) and high - low > TAIL_RECORDS:
                records = self._read_back(partition, low, high, keys)
            found.update({keys[key]: value for key, value in records.items()})
        return found

    def ends(self, topic: str, partition: int) -> tuple[int, int]:
        """First offset and end of a log, open transactions included."""
        low, high = self._end_finder.get_watermark_offsets(KafkaTopicPartition(topic, partition), timeout=TIMEOUT_S)
        return low, high

    def _read_back(self, partition: int, start: int, end: int, keys: dict[bytes, Any]) -> dict[bytes, bytes]:
        """Newest committed value of each key between two offsets."""
        newest: dict[bytes, bytes] = {}
        if start >= end:
            return newest
        topic = self._settings.progress_topic
        self._consumer.assign([KafkaTopicPartition(topic, partition, start)])
        try:
            give_up = monotonic() + TIMEOUT_S
            while monotonic() < give_up:
                message = self._consumer.poll(TIMEOUT_S)
                if message is None:
                    break
                error = message.error()
                if error is None:
                    give_up = monotonic() + TIMEOUT_S
                    key, value = message.key(), message.value()
                    if key in keys and value is not None:
                        newest[key] = value
                elif error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                # The end is reached when nothing committed or open is left before it, markers included.
                elif (message.offset() or 0) >= end:
                    return newest
            hint = "is a transaction hanging there? docs/operations.md#a-transaction-that-nobody-ended"
            why = f"reading {topic}/{partition} up to offset {end}: {hint}"
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, why))
        finally:
            self._consumer.unassign()

    def check(self, tp: TopicPartition, record: bytes | None) -> Progress:
        """What a machine's newest progress record says, held against its log.

        Raises:
            LogMismatch: the log does not hold what the progress speaks of, or there must have been progress.
            KafkaException: the brokers do not answer.
        """
        topic, partition = tp
        _, high = self.ends(topic, partition)
        if record is not None:
            progress, topic_id = progress_record.decode(record)
            if topic_id != self._cluster.topic_ids[topic]:
                logger.warning(
                    "topic %s was deleted and created again: %s/%d starts from its beginning", topic, topic, partition
                )
                return Progress()
            if high >= progress.next_offset:
                return progress
            return self._mismatch(
                tp,
                f"{topic}/{partition} ends at offset {high}, but was accepted up to {progress.next_offset}: the log "
                "lost records (was an old copy of it restored, or an unclean leader elected?)",
                Progress(high, progress.fired_through, progress.settings),
            )
        committed = self._consumer.committed([KafkaTopicPartition(topic, partition)], timeout=TIMEOUT_S)[0].offset
        if committed == OFFSET_INVALID or committed <= 0 or high == 0:
            return Progress()
        return self._mismatch(
            tp,
            f"{topic}/{partition} has no progress in {self._settings.progress_topic!r}, but the group "
            f"{self._settings.app_id!r} committed offset {committed}: what has fired is not known",
            Progress(next_offset=committed),
        )

    def check_partitions(self, tp: TopicPartition, records: Mapping[TopicPartition, bytes]) -> None:
        """Judge the number of partitions of a topic whose timers have ids.

        Args:
            tp: to be opened.
            records: progress of all partitions of its topic.

        Raises:
            LogMismatch: it has grown since timers were accepted there.
        """
        topic = tp[0]
        count = self._cluster.partitions[topic]
        for (of, _), record in records.items():
            if of != topic:
                continue
            progress, topic_id = progress_record.decode(record)
            known = progress.setting_at(PARTITIONS, progress.next_offset, count)
            if topic_id == self._cluster.topic_ids[topic] and known != count:
                self._mismatch(
                    tp,
                    f"{topic} has {count} partitions and had {known} when its timers were accepted: an id may come by "
                    "another partition than its timer, which then could not be replaced or cancelled. This request "
                    "format stops, the others go on",
                    progress,
                )
                return

    def check_start(self, tp: TopicPartition, low: int, position: int, progress: Progress) -> None:
        """Judge a log that begins at ``low``, behind the ``position`` that should be read.

        Raises:
            LogMismatch: records in between are gone, and this app has read the log before.
        """
        topic, partition = tp
        if progress == Progress():  # a new app reads what there is
            return
        self._mismatch(
            tp,
            f"{topic}/{partition} begins at offset {low}, but must be read from {position}: records were deleted "
            "before they could be read (retention.ms or retention.bytes of the topic is too small)",
            progress,
        )

    def _mismatch(self, tp: TopicPartition, sentence: str, otherwise: Progress) -> Progress:
        name = "/".join(map(str, tp))
        if name not in self._settings.accept_loss.split(","):
            raise LogMismatch(f"{sentence}. To go on without them, start once with TIMERS_ACCEPT_LOSS={name}")
        logger.warning("%s; going on, as TIMERS_ACCEPT_LOSS says", sentence)
        return otherwise
