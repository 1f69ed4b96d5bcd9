"""Records of callback topics, and what has fired in the last time on all of them that this login may read."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from itertools import count
from operator import itemgetter
from time import monotonic
from typing import Any, NamedTuple

from confluent_kafka import KafkaException

from timers.core.printable import json_value, one_line
from timers.errors import TimersError
from timers.kafka.clients import librdkafka, reader
from timers.kafka.records import headers_of, read
from timers.kafka.topic_offsets import TopicOffsets
from timers.process.config.settings import Settings
from timers.wire import headers as h
from timers.wire import topics as names
from timers.wire.headers import Header

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_VALUE_BYTES = 200
"""Bytes of a value that a line shows."""

_OWN = frozenset({h.TIMER_ID, h.TIMER_SOURCE, h.TIMER_DUE, h.TIMER_FIRED})

_HEADER_BYTES = 200
"""What Python needs for a header beside its name and its value. A record of 1 MB may have 500,000 empty headers."""


@dataclass(frozen=True)
class CallbackRecord:
    """A record of a callback topic.

    Attributes:
        timestamp_ms: the broker's append time on topics with LogAppendTime, else the time its producer gave it.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]

    @classmethod
    def of(cls, message: Any) -> CallbackRecord:
        """Convert a confluent-kafka message without an error."""
        place, written_ms = (message.topic(), message.partition(), message.offset()), message.timestamp()[1]
        return cls(*place, written_ms, message.key(), message.value(), headers_of(message))

    def cut(self, most: int) -> CallbackRecord:
        """The record with at most so many bytes of its key and of its value, and with headers of the engine alone."""
        headers = [(name, value[:most] if value else value) for name, value in self.headers if name in _OWN]
        return replace(self, key=self.key and self.key[:most], value=self.value and self.value[:most], headers=headers)

    @property
    def size(self) -> int:
        """About how many bytes of memory the record takes."""
        headers = sum(_HEADER_BYTES + len(name) + len(value or b"") for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + headers

    @property
    def due_s(self) -> int | None:
        """The due second; None if the record is not a callback of a timer."""
        due = h.last(self.headers, h.TIMER_DUE)
        return int(due) if due is not None and re.fullmatch(rb"[0-9]{1,11}", due) else None

    @property
    def lag_ms(self) -> int | None:
        """Milliseconds from the start of the due second to the record's timestamp; None without a due second."""
        return None if self.due_s is None else self.timestamp_ms - self.due_s * 1000

    def line(self) -> str:
        """``fired topic=T key=K due=S lag_ms=N``; for a record without a timer, its offset and time."""
        where = f"topic={self.topic} key={one_line(self.key)}"
        if self.due_s is None:
            return f"record {where} partition={self.partition} offset={self.offset} timestamp_ms={self.timestamp_ms}"
        return f"fired {where} due={self.due_s} lag_ms={self.lag_ms}"

    def long_line(self) -> str:
        """The line, followed by ``at=TIME value=V``: the timestamp as RFC 3339 in UTC, and the first 200 bytes."""
        try:
            at = (_EPOCH + timedelta(milliseconds=self.timestamp_ms)).isoformat(timespec="milliseconds")[:-6] + "Z"
        except OverflowError:
            at = "after-9999"
        value = one_line(self.value and self.value[:_MAX_VALUE_BYTES])
        rest = f" ... ({len(self.value):,} bytes)" if self.value and len(self.value) > _MAX_VALUE_BYTES else ""
        return f"{self.line()} at={at} value={value}{rest}"

    def fields(self) -> dict[str, Any]:
        """The record for a program."""
        timer_id = h.last(self.headers, h.TIMER_ID)
        source = h.last(self.headers, h.TIMER_SOURCE) or timer_id
        return {
            "topic": self.topic,
            "key": json_value(self.key),
            "due_s": self.due_s,
            "lag_ms": self.lag_ms,
            "timer_id": json_value(timer_id),
            "source": None if self.due_s is None else json_value(source),
            "value": json_value(self.value),
            "headers": [[name, json_value(value)] for name, value in self.headers],
            "partition": self.partition,
            "offset": self.offset,
            "timestamp_ms": self.timestamp_ms,
        }


MOST = 10_000
"""Firings that are returned, and records of one topic that are read: the newest ones."""

SILENT_S = 2.0
"""After this time without a record, the rest of a partition is left out."""

KEPT_BYTES = 200
"""Bytes that are kept of a key and of a value: 10,000 records of 1 MB would take all memory."""


class PastFirings(NamedTuple):
    """What has fired."""

    records: list[CallbackRecord]
    """The newest first; keys and values are cut."""
    left_out: dict[str, str]
    """Topic -> what of it is not among them, and why."""


def read_past_firings(
    settings: Settings,
    since_ms: int,
    may_see: Callable[[str], bool] = lambda topic: True,
    within_s: float = 30.0,
    check: Callable[[], None] = lambda: None,
) -> PastFirings:
    """Returns the newest firings since a time. Blocks. A topic with few records is read before one with many.

    Args:
        since_ms: epoch milliseconds.
        may_see: whether the user may see the callbacks of a topic.
        within_s: after this time, the topics that are left are left out.
        check: called between two reads; what it raises ends the reading.

    Raises:
        TimersError: no broker answers or accepts the login.
    """
    end_s = monotonic() + within_s
    offsets = TopicOffsets(settings, skips_leaderless=True)
    spans, left_out = _spans(offsets, callback_topics(settings, offsets, may_see), since_ms)
    newest: list[tuple[int, int, CallbackRecord]] = []
    numbers = count()
    not_in_time = f"it was not read within {within_s:.0f} s"
    with closing(reader(librdkafka(settings), enable_partition_eof=True)) as consumer:
        for topic in sorted(spans, key=lambda topic: sum(map(len, spans[topic].values()))):
            try:
                for partition, span in spans[topic].items():
                    if monotonic() > end_s:
                        left_out[topic] = not_in_time
                        break
                    bounds = span.start, span.stop
                    for message in read(consumer, topic, partition, *bounds, timeout_s=SILENT_S, while_waiting=check):
                        check()
                        if monotonic() > end_s:
                            left_out[topic] = not_in_time
                            break
                        record = CallbackRecord.of(message).cut(KEPT_BYTES)
                        if record.due_s is None or h.last(record.headers, h.TIMER_FIRED) is None:
                            continue  # no callback; a request of a timer with an id has a due second, too
                        heapq.heappush(newest, (record.timestamp_ms, next(numbers), record))
                        if len(newest) > MOST:
                            oldest = heapq.heappop(newest)[2]
                            left_out[oldest.topic] = f"it has older firings than the newest {MOST:,} of all topics"
            except KafkaException as error:
                left_out[topic] = f"it cannot be read ({error.args[0].str()})"
    return PastFirings([record for *_, record in sorted(newest, reverse=True)], left_out)


def callback_topics(settings: Settings, offsets: TopicOffsets, may_see: Callable[[str], bool]) -> list[str]:
    """Returns the topics that may be callback topics, and that a user may see."""
    own, internal = settings.own_topics, names.WORKERS_ONLY
    return [
        topic
        for topic in offsets.all()
        if topic not in own and not any(fnmatchcase(topic, pattern) for pattern in internal) and may_see(topic)
    ]


def _spans(
    offsets: TopicOffsets, topics: Sequence[str], since_ms: int
) -> tuple[dict[str, dict[int, range]], dict[str, str]]:
    """The offsets to read of each partition with records since then, and what is left out already."""
    firsts, ends, left_out = {}, {}, {}
    try:
        firsts, ends = offsets.at_time(topics, since_ms), offsets.ends(topics)
    except TimersError:  # one topic may be the reason
        for topic in topics:
            try:
                firsts |= offsets.at_time([topic], since_ms)
                ends |= offsets.ends([topic])
            except TimersError as error:
                left_out[topic] = str(error)
    spans: dict[str, dict[int, range]] = {}
    for topic, of in ends.items():
        began = firsts.get(topic, {})
        counts = {partition: end - began[partition] for partition, end in of.items() if began.get(partition, end) < end}
        left = MOST
        for done, (partition, records) in enumerate(sorted(counts.items(), key=itemgetter(1))):
            share = min(records, left // (len(counts) - done))  # what small partitions leave is for the others
            left -= share
            spans.setdefault(topic, {})[partition] = range(of[partition] - share, of[partition])
        if sum(counts.values()) > MOST:
            left_out[topic] = f"only its newest {MOST:,} records were read, about as many of each partition"
    return spans, left_out
