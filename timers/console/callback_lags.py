"""Reads how late the newest callbacks of a topic were. It blocks: the console calls it in a thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import nlargest
from time import monotonic
from typing import Any, NamedTuple

from confluent_kafka import KafkaException

from timers.client.fired import CallbackRecord
from timers.config.settings import Settings
from timers.console.problems import Problem
from timers.console.threads import check
from timers.kafka import connection, records
from timers.kafka.clients import reader
from timers.kafka.topic_offsets import TopicOffsets
from timers.wire import headers as names

MAX_READING_S = 3.0

SHOWN = 100
END_MS = 253_402_300_800_000
"""The year 10000. A record with a later timestamp is no callback."""

_HEADERS = (names.TIMER_DUE, names.TIMER_ID, names.TIMER_SOURCE)


class CallbackLags(NamedTuple):
    """Lags of callbacks, in the order of their due seconds."""

    lags: list[tuple[int, int]]
    """Due second and lag in milliseconds of each callback."""
    whole: bool
    """Whether all partitions were read in time."""
    newest: Sequence[dict[str, Any]] = ()
    """The callbacks that were written last, without values and headers; the newest first."""


def read(settings: Settings, topic: str, limit: int) -> CallbackLags:
    """The lags of the newest ``limit`` records of a topic that are callbacks, in equal parts of each partition.

    Raises:
        Problem: the topic does not exist.
        TimersError: it cannot be read.
    """
    end_s = monotonic() + MAX_READING_S
    offsets = TopicOffsets(settings, connection.TIMEOUT_S, skips_leaderless=True)
    if topic not in offsets.existing([topic]):
        raise Problem("not-found", f"topic {topic!r} does not exist")
    starts, ends = offsets.starts([topic])[topic], offsets.ends([topic])[topic]
    reports = connection.ErrorReports(settings)
    consumer = reader({**connection.librdkafka(settings), "error_cb": reports, "enable.partition.eof": True})
    found: list[CallbackRecord] = []
    whole = not offsets.unknown
    try:
        for partition, end in sorted(ends.items()):
            if partition not in starts:
                continue
            first = max(starts[partition], end - max(1, limit // len(ends)))
            for message in records.read(
                consumer, topic, partition, first, end, timeout_s=MAX_READING_S, while_waiting=check
            ):
                check()
                record = CallbackRecord.of(message)
                if record.due_s is not None and record.timestamp_ms < END_MS:
                    found.append(_small(record))
            if monotonic() > end_s:
                whole = False
                break
    except KafkaException as error:
        raise reports.user_error(error, f"topic {topic!r} cannot be read") from None
    finally:
        consumer.close()
    newest = nlargest(SHOWN, found, key=lambda record: (record.timestamp_ms, record.offset))
    lags = [(record.due_s, record.lag_ms) for record in found if record.due_s is not None and record.lag_ms is not None]
    return CallbackLags(sorted(lags), whole, [_shown(record) for record in newest])


def _small(record: CallbackRecord) -> CallbackRecord:
    """The record without its value and the headers of its sender."""
    return replace(record, value=None, headers=[each for each in record.headers if each[0] in _HEADERS])


def _shown(record: CallbackRecord) -> dict[str, Any]:
    return {name: value for name, value in record.fields().items() if name not in ("value", "headers")}
