"""Records of callback topics, and what has fired in the last time on all of them that this login may read."""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from itertools import count
from operator import itemgetter
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import Message

from timers.core.printable import json_value, one_line
from timers.errors import TimersError
from timers.kafka.clients import librdkafka, reader
from timers.kafka.records import headers_of, read_all
from timers.kafka.topic_offsets import TopicOffsets
from timers.process.config.settings import Settings
from timers.wire import headers as h
from timers.wire import topics as names
from timers.wire.headers import Header

K = TypeVar("K", bound=Hashable)

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

BUDGET = 2 * MOST
"""Records that are read of all topics together: about 20 microseconds each."""

FIRED_READ_S = 30.0
"""After this time, the topics that are left are left out."""

SILENT_S = 2.0
"""After this time without a record, the rest is left out."""

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
    within_s: float = FIRED_READ_S,
    check: Callable[[], None] = lambda: None,
) -> PastFirings:
    """Returns the newest firings since a time. Blocks.

    All partitions are read at once, backwards: first the newest records of each topic, then older ones of those that
    have callbacks. A topic with few records is read before one with many.

    Args:
        may_see: whether the user may see the callbacks of a topic.
        within_s: after this time, what is left is left out.
        check: called between two reads; what it raises ends the reading.

    Raises:
        TimersError: no broker answers or accepts the login.
    """
    end_s = monotonic() + within_s
    offsets = TopicOffsets(settings, skips_leaderless=True)
    spans, left_out = _spans(offsets, callback_topics(settings, offsets, may_see), since_ms)
    look = _Look(spans, left_out)
    with closing(reader(librdkafka(settings), enable_partition_eof=True, fetch_wait_max_ms=10)) as consumer:
        budget = BUDGET
        while places := look.next_round(budget):
            budget -= sum(map(len, places.values()))
            with closing(read_all(consumer, places, timeout_s=SILENT_S, while_waiting=check)) as messages:
                is_in_time = look.take(messages, end_s)
            if not is_in_time:
                look.leave_out(places, f"it was not read within {within_s:.0f} s")
                break
            look.leave_out(places, "it was silent")
    return look.found()


class _Look:
    """What was read, and what is still to be read: topic -> partition -> its older records."""

    def __init__(self, spans: dict[str, dict[int, range]], left_out: dict[str, str]) -> None:
        self._unread = spans
        self._left_out = left_out
        self._left = dict.fromkeys(spans, MOST)
        self._newest: list[tuple[int, int, CallbackRecord]] = []
        self._numbers = count()
        self._begins: dict[str, float] = dict.fromkeys(spans, math.inf)
        """Topic -> the oldest callback that was read of it; at first each topic, later those with callbacks."""

    def next_round(self, budget: int) -> dict[tuple[str, int], range]:
        """Returns the offsets to read next: the newest ones that were not read, equally many of each topic and of each
        of its partitions.

        The first round reads all topics. A later one reads half of them: those whose oldest callback that was read is
        newest, since the callbacks before it are newer than those of the other topics.
        """
        is_first = not self._newest
        sizes = {topic: min(sum(map(len, self._unread[topic].values())), self._left[topic]) for topic in self._begins}
        turn = sorted((topic for topic, records in sizes.items() if records), key=self._begins.__getitem__)
        turn = turn if is_first else turn[len(turn) // 2 :]
        places = {}
        for topic, share in _shares({topic: sizes[topic] for topic in turn}, min(budget, MOST)).items():
            of = self._unread[topic]
            self._left[topic] -= share
            for partition, records in _shares({each: len(span) for each, span in of.items()}, share).items():
                stop = of[partition].stop
                places[topic, partition] = range(stop - records, stop)
                of[partition] = range(of[partition].start, stop - records)
        if is_first:
            self._begins = {}
        return places

    def take(self, messages: Iterable[Message], end_s: float) -> bool:
        """Keep the newest firings. False if the time is over."""
        for message in messages:
            topic = message.topic() or ""
            if (error := message.error()) is not None:
                self._left_out[topic] = f"it cannot be read ({error.str()})"
                continue
            if monotonic() > end_s:
                return False
            record = CallbackRecord.of(message)
            if record.due_s is None or h.last(record.headers, h.TIMER_FIRED) is None:
                continue  # no callback; a request of a timer with an id has a due second, too
            self._begins[topic] = min(self._begins.get(topic, math.inf), record.timestamp_ms)
            heapq.heappush(self._newest, (record.timestamp_ms, next(self._numbers), record.cut(KEPT_BYTES)))
            if len(self._newest) > MOST:
                oldest = heapq.heappop(self._newest)[2]
                self._left_out[oldest.topic] = f"it has older firings than the newest {MOST:,} of all topics"
        return True

    def leave_out(self, places: Iterable[tuple[str, int]], why: str) -> None:
        """Note that the rest of these partitions is not read."""
        for topic, _ in places:
            self._left_out.setdefault(topic, why)

    def found(self) -> PastFirings:
        """What was read, and of each topic what was not."""
        for topic, of in self._unread.items():
            if any(of.values()):
                newest = f"only its newest {MOST - self._left[topic]:,} records were read"
                self._left_out.setdefault(topic, f"{newest}, about as many of each partition")
        return PastFirings([record for *_, record in sorted(self._newest, reverse=True)], self._left_out)


def _shares(counts: Mapping[K, int], most: int) -> dict[K, int]:
    """How many of each are taken, if ``most`` are: about as many, and what small ones leave is for the others."""
    shares, left = {}, most
    for done, (each, records) in enumerate(sorted(counts.items(), key=itemgetter(1))):
        shares[each] = min(records, left // (len(counts) - done))
        left -= shares[each]
    return {each: share for each, share in shares.items() if share}


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
    """The offsets since then of each partition that has some, and what is left out already."""
    firsts, ends, left_out = {}, {}, {}
    try:
        # In this order: a transaction that commits between the two would show what fired before that time.
        ends, firsts = offsets.ends(topics), offsets.at_time(topics, since_ms)
    except TimersError:  # ask topic by topic: one topic may be the reason
        for topic in topics:
            try:
                ends |= offsets.ends([topic])
                firsts |= offsets.at_time([topic], since_ms)
            except TimersError as error:
                left_out[topic] = str(error)
    spans: dict[str, dict[int, range]] = {}
    for topic, of in ends.items():
        began = firsts.get(topic, {})
        found = {partition: range(began.get(partition, end), end) for partition, end in of.items()}
        if found := {partition: span for partition, span in found.items() if span}:
            spans[topic] = found
    return spans, left_out
