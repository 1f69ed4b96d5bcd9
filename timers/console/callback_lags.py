"""Reads how late the newest callbacks of a topic were. It blocks: the console calls it in a thread."""

from __future__ import annotations

from time import monotonic
from typing import NamedTuple

from confluent_kafka import KafkaException

from timers.client.fired import CallbackRecord
from timers.config.settings import Settings
from timers.errors import TimersError
from timers.kafka import connection, records
from timers.kafka.clients import reader
from timers.kafka.topic_offsets import TopicOffsets

MAX_READING_S = 3.0


class CallbackLags(NamedTuple):
    """Lags of callbacks, in the order of their due seconds."""

    lags: list[tuple[int, int]]
    """Due second and lag in milliseconds of each callback."""
    whole: bool
    """Whether all partitions were read in time."""


def read(settings: Settings, topic: str, limit: int) -> CallbackLags:
    """The lags of the newest ``limit`` records of a topic that are callbacks, in equal parts of each partition.

    Raises:
        TimersError: the topic does not exist, or cannot be read.
    """
    end_s = monotonic() + MAX_READING_S
    offsets = TopicOffsets(settings)
    if topic not in offsets.existing([topic]):
        raise TimersError(f"topic {topic!r} does not exist")
    starts, ends = offsets.starts([topic])[topic], offsets.ends([topic])[topic]
    reports = connection.ErrorReports(settings)
    consumer = reader({**connection.librdkafka(settings), "error_cb": reports, "enable.partition.eof": True})
    found: list[tuple[int, int]] = []
    try:
        for partition, end in sorted(ends.items()):
            first = max(starts.get(partition, 0), end - max(1, limit // len(ends)))
            for message in records.read(consumer, topic, partition, first, end, timeout_s=MAX_READING_S):
                record = CallbackRecord.of(message)
                if record.due_s is not None and record.lag_ms is not None:
                    found.append((record.due_s, record.lag_ms))
            if monotonic() > end_s:
                return CallbackLags(sorted(found), False)
    except KafkaException as error:
        raise reports.user_error(error, f"topic {topic!r} cannot be read") from None
    finally:
        consumer.close()
    return CallbackLags(sorted(found), True)
