"""First and last offsets of topics as committed readers see them, by offset and by time."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import closing, suppress
from time import monotonic, sleep

from confluent_kafka import OFFSET_INVALID, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from timers.config.settings import Settings
from timers.errors import TimersError
from timers.kafka import connection
from timers.kafka.clients import admin_client, reader
from timers.kafka.error_codes import MOVING, code_of
from timers.kafka.records import read
from timers.kafka.topic_admin import configs

TIMEOUT_S = 30.0

Offsets = dict[str, dict[int, int]]
"""Topic -> partition -> offset."""

_POLL_S = 0.5


class TopicOffsets:
    """The topics that exist, and their offsets. Joins no group and commits nothing.

    Raises:
        TimersError: no broker answers or accepts the login. The methods raise it too.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._reports = connection.ErrorReports(settings)
        self._admin = admin_client(settings, self._reports)
        try:
            found = connection.metadata(self._admin, self._reports, TIMEOUT_S)
        except KafkaException as error:
            raise self._user_error(error) from error
        self._partitions = {name: sorted(topic.partitions) for name, topic in found.topics.items()}

    def existing(self, topics: Iterable[str]) -> list[str]:
        """Those of ``topics`` that exist, sorted."""
        return sorted({topic for topic in topics if topic in self._partitions})

    def all(self) -> list[str]:
        """Every topic that this user may describe, without Kafka's own."""
        return sorted(topic for topic in self._partitions if not topic.startswith("__"))

    def partitions(self, topic: str) -> list[int]:
        """Partitions of a topic that exists, sorted."""
        return self._partitions[topic]

    def starts(self, topics: Iterable[str]) -> Offsets:
        """First offset of each partition that retention has not deleted."""
        return self._offsets_at(topics, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def ends(self, topics: Iterable[str]) -> Offsets:
        """Last stable offset of each partition: committed readers stop before the oldest open transaction."""
        return self._offsets_at(topics, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def at_time(self, topics: Iterable[str], time_ms: int) -> Offsets:
        """Offset of the first record with this time or a later one; the end if there is none."""
        names = list(topics)
        ends = self.ends(names)
        found = self._offsets_at(names, OffsetSpec.for_timestamp(time_ms))
        return {
            topic: {p: min(offset, ends[topic][p]) if offset >= 0 else ends[topic][p] for p, offset in offsets.items()}
            for topic, offsets in found.items()
        }

    def _offsets_at(self, topics: Iterable[str], spec: OffsetSpec) -> Offsets:
        names = self.existing(topics)
        wanted = {TopicPartition(topic, p): spec for topic in names for p in self._partitions[topic]}
        offsets: Offsets = {topic: {} for topic in names}
        if not wanted:
            return offsets
        deadline = monotonic() + TIMEOUT_S
        while True:
            futures = self._admin.list_offsets(
                wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=TIMEOUT_S
            )
            try:
                for where, future in futures.items():
                    offset = future.result(TIMEOUT_S).offset
                    if offset == OFFSET_INVALID:  # librdkafka 2.16 reports so that the leader did not answer
                        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
                    offsets[where.topic][where.partition] = offset
                return offsets
            except KafkaException as error:
                if code_of(error) not in MOVING or monotonic() > deadline:
                    raise self._user_error(error, where.topic) from error
                sleep(_POLL_S)
                # The client asks the old leader until its metadata is refreshed.
                with suppress(KafkaException):
                    connection.metadata(self._admin, self._reports, TIMEOUT_S)

    def whole_since_ms(self, topics: Iterable[str], as_of_ms: int) -> dict[str, int]:
        """Time since which each topic has all records; 0 if its offsets show no deletion.

        It is the time of the first record in a partition that lost records. For a compacted topic it is ``as_of_ms``:
        any record may be missing.
        """
        names = self.existing(topics)
        since = dict.fromkeys(names, 0) | dict.fromkeys(self._compacted(names), as_of_ms)
        starts, ends = self.starts(names), self.ends(names)
        for topic in names:
            for partition, start in starts[topic].items():
                if start > 0 and since[topic] < as_of_ms:
                    first_ms = as_of_ms if start >= ends[topic][partition] else self._time_of(topic, partition, start)
                    since[topic] = max(since[topic], first_ms)
        return since

    def _compacted(self, topics: list[str]) -> list[str]:
        try:
            found = configs(self._admin, topics, TIMEOUT_S, skip_denied=True)
        except KafkaException as error:
            raise self._user_error(error) from error
        return [topic for topic, config in found.items() if "compact" in config["cleanup.policy"]]

    def _time_of(self, topic: str, partition: int, offset: int) -> int:
        """Timestamp of the first record at or after an offset, in epoch milliseconds."""
        properties = {**connection.librdkafka(self._settings), "error_cb": self._reports}
        with closing(reader(properties, enable_partition_eof=True)) as consumer:
            try:
                first = next(read(consumer, topic, partition, offset, sys.maxsize, timeout_s=TIMEOUT_S))
            except KafkaException as error:
                raise self._user_error(error, topic) from error
        return int(first.timestamp()[1])

    def _user_error(self, error: KafkaException, topic: str = "") -> TimersError:
        topics = f"topic {topic!r}" if topic else "the list of topics"
        return self._reports.user_error(error, f"{topics} cannot be read")
