"""Follow a topic: each record as it is committed, from all partitions, without a consumer group."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from timers.config.settings import Settings
from timers.errors import TimersError
from timers.kafka import connection

TIMEOUT_S = 10.0
_IDLE_S = 0.1
_TOPIC_CHECK_S = 10.0
GONE = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
COMING_UP = (KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION)
"""What brokers say of a topic that was created just now."""

quiet_log = logging.getLogger("timers.cli")
quiet_log.addHandler(logging.NullHandler())  # librdkafka's log is not for the terminal: what matters comes as an error


def consumer(settings: Settings, reports: connection.Reports, **more: Any) -> Consumer:
    """A ``read_committed`` consumer that commits nothing and joins no group: give it its partitions."""
    config: dict[str, Any] = {
        **connection.librdkafka(settings),
        "error_cb": reports,
        "group.id": "timers-watch",  # librdkafka wants a name; nothing is ever committed under it
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 100,
        **{name.replace("_", "."): value for name, value in more.items()},
    }
    return Consumer(config, logger=quiet_log)


def partitions_of(reader: Consumer, reports: connection.Reports, topic: str) -> int:
    """How many partitions a topic has.

    Raises:
        KafkaException: no broker answers, or the topic is not there to be read.
        TimersError: the brokers do not let us in.
    """
    found = connection.metadata(reader, reports, TIMEOUT_S, topic).topics[topic]
    if found.error is not None:
        raise KafkaException(found.error)
    return len(found.partitions)


def no_answer(settings: Settings, reports: connection.Reports, way_out: str) -> TimersError:
    """What it means that no broker answers: what one said of us before, if it did."""
    return reports.refusal or TimersError(
        f"no broker answers at {settings.brokers}: is it running, is TIMERS_BROKERS right, and {reports.hint()} "
        f"({way_out}.)"
    )


def explained(error: KafkaException, settings: Settings, reports: connection.Reports, topic: str) -> TimersError:
    """What it means that ``topic`` cannot be read."""
    reason: KafkaError = error.args[0]
    if reason.code() in connection.UNREACHABLE:
        return no_answer(settings, reports, "timers broker start runs one here")
    if reason.code() in GONE:
        return TimersError(f"topic {topic!r} is gone from {settings.brokers}")
    return TimersError(f"topic {topic!r} cannot be read: {reason.str()} ({reason.name()})")


class Tail:
    """A reader of one topic, ``read_committed``, that commits nothing and joins no group.

    Args:
        settings: where the brokers are, and how to log in.
        topic: what to read; it need not exist yet.
        from_beginning: start with the oldest record. Else with the first one after :meth:`opened`.
    """

    def __init__(self, settings: Settings, topic: str, *, from_beginning: bool = False) -> None:
        self._settings = settings
        self._reports = connection.Reports(settings)
        self._topic = topic
        self._from_beginning = from_beginning
        self._partitions = 0
        self._consumer = consumer(settings, self._reports)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()

    def opened(self) -> bool:
        """Take up the topic's partitions, also those that were added since. False while it is not there to be read.

        From the return on, no later record is missed: the start is the end of the log as the broker says it now, and
        partitions that are found later are read whole.

        Raises:
            TimersError: no broker answers or lets us in, or the topic may not be read.
        """
        try:
            count = partitions_of(self._consumer, self._reports, self._topic)
            first = self._partitions == 0 and not self._from_beginning
            added = [
                TopicPartition(self._topic, partition, self._end(partition) if first else OFFSET_BEGINNING)
                for partition in range(self._partitions, count)
            ]
        except KafkaException as error:
            if error.args[0].code() in (*GONE, *COMING_UP):
                return False
            raise explained(error, self._settings, self._reports, self._topic) from error
        if added:
            self._consumer.incremental_assign(added)
            self._partitions += len(added)
        return self._partitions > 0

    def _end(self, partition: int) -> int:
        where = TopicPartition(self._topic, partition)
        _, high = self._consumer.get_watermark_offsets(where, timeout=TIMEOUT_S, cached=False)
        return int(high)

    def __iter__(self) -> Iterator[Message | None]:
        """Records as they arrive, for ever; None now and then while there is none, so that callers may do other things.

        Raises:
            TimersError: the topic is gone or may not be read.
        """
        check_at = time.monotonic() + _TOPIC_CHECK_S
        while True:
            message = self._consumer.poll(_IDLE_S)
            if message is None:
                yield None
            elif (error := message.error()) is None:
                yield message
            elif error.code() in GONE or not error.retriable():
                raise explained(KafkaException(error), self._settings, self._reports, self._topic)
            if time.monotonic() > check_at:
                check_at = time.monotonic() + _TOPIC_CHECK_S
                self._look_for_partitions()

    def _look_for_partitions(self) -> None:
        try:
            self.opened()
        except TimersError:  # a broker that is away for a while: librdkafka goes on trying, and so do we
            quiet_log.info("cannot look for new partitions of %s", self._topic, exc_info=True)
