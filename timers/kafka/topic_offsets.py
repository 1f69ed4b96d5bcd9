"""Where topics begin and end for committed readers, by offset and by time."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from time import monotonic, sleep
from typing import Any, Self

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from timers.config.settings import Settings
from timers.errors import TimersError
from timers.kafka import connection

TIMEOUT_S = 30.0

Places = dict[str, dict[int, int]]
"""Topic -> partition -> offset."""

_POLL_S = 0.5
_MOVING = (
    KafkaError._NOENT,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
)
"""What is said of a partition whose leader is not known just now: a new one, or one that moves."""

_log = logging.getLogger("timers.spark")
_log.addHandler(logging.NullHandler())  # librdkafka's log is not for the terminal: what matters comes as an error


class Topics:
    """A reader of topics' metadata; joins no group and commits nothing.

    Raises:
        TimersError: no broker answers or lets us in; so do its methods.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._reports = connection.Reports(settings)
        self._config: dict[str, Any] = {**connection.librdkafka(settings), "error_cb": self._reports}
        self._admin = AdminClient(self._config, logger=_log)
        try:
            found = connection.metadata(self._admin, self._reports, TIMEOUT_S)
        except KafkaException as error:
            raise self._explained(error) from error
        self._partitions = {name: sorted(topic.partitions) for name, topic in found.topics.items()}

    def existing(self, topics: Iterable[str]) -> list[str]:
        """Those of ``topics`` that are there."""
        return sorted({topic for topic in topics if topic in self._partitions})

    def all(self) -> list[str]:
        """Every topic that we may see, but for Kafka's own."""
        return sorted(topic for topic in self._partitions if not topic.startswith("__"))

    def partitions(self, topic: str) -> list[int]:
        """Partitions of a topic that exists."""
        return self._partitions[topic]

    def starts(self, topics: Iterable[str]) -> Places:
        """First offset that is still there, of every partition."""
        return self._places(topics, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def ends(self, topics: Iterable[str]) -> Places:
        """Where the log ends for committed readers: before the first open transaction."""
        return self._places(topics, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def at(self, topics: Iterable[str], time_ms: int) -> Places:
        """First offset of what was written at this time or later; the end if nothing was."""
        names = list(topics)
        ends = self.ends(names)
        found = self._places(names, OffsetSpec.for_timestamp(time_ms))
        return {
            topic: {p: min(offset, ends[topic][p]) if offset >= 0 else ends[topic][p] for p, offset in places.items()}
            for topic, places in found.items()
        }

    def _places(self, topics: Iterable[str], spec: OffsetSpec) -> Places:
        names = self.existing(topics)
        wanted = {TopicPartition(topic, p): spec for topic in names for p in self._partitions[topic]}
        places: Places = {topic: {} for topic in names}
        if not wanted:
            return places
        give_up = monotonic() + TIMEOUT_S
        while True:
            futures = self._admin.list_offsets(
                wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=TIMEOUT_S
            )
            try:
                for where, future in futures.items():
                    places[where.topic][where.partition] = future.result(TIMEOUT_S).offset
                return places
            except KafkaException as error:
                if error.args[0].code() not in _MOVING or monotonic() > give_up:
                    raise self._explained(error, where.topic) from error
                sleep(_POLL_S)
                # The client goes on asking by the leader that it knows until it hears of another one.
                with suppress(KafkaException):
                    connection.metadata(self._admin, self._reports, TIMEOUT_S)

    def whole_since_ms(self, topics: Iterable[str], as_of_ms: int) -> dict[str, int]:
        """Since when nothing was deleted from each topic: 0 if nothing ever was, as far as offsets tell.

        By the time of the first record that is left in a partition that lost others. Of a compacted topic, now: any
        record may be missing.
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
        """Which are compacted; none, where we may not look."""
        asked = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        compacted = []
        for resource, future in (self._admin.describe_configs(asked) if asked else {}).items():
            try:
                if "compact" in future.result(TIMEOUT_S)["cleanup.policy"].value:
                    compacted.append(resource.name)
            except KafkaException:
                _log.info("may not read the configuration of %s", resource.name)
        return compacted

    def _time_of(self, topic: str, partition: int, offset: int) -> int:
        """Timestamp of the first record at or after an offset, in epoch milliseconds."""
        with _Reader(self._config) as reader:
            reader.consumer.assign([TopicPartition(topic, partition, offset)])
            for _ in range(int(TIMEOUT_S)):
                message = reader.consumer.poll(1.0)
                if message is not None and message.error() is None:
                    return int(message.timestamp()[1])
        raise TimersError(f"{topic}/{partition}/{offset} cannot be read within {TIMEOUT_S:.0f} s")

    def _explained(self, error: KafkaException, topic: str = "") -> TimersError:
        reason: KafkaError = error.args[0]
        if reason.code() in connection.UNREACHABLE:
            return self._reports.refusal or TimersError(
                f"no broker answers at {self._settings.brokers}: is it running, is TIMERS_BROKERS right, and "
                f"{self._reports.hint()}"
            )
        where = f"topic {topic!r}" if topic else "the list of topics"
        return TimersError(f"{where} cannot be read: {reason.str()} ({reason.name()})")


class _Reader:
    """A consumer that is closed."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.consumer = Consumer(
            {
                **config,
                "group.id": "timers-spark",  # librdkafka wants a name; nothing is ever committed under it
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
            },
            logger=_log,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.consumer.close()
