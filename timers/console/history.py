"""Reads what the topics say about one timer: its requests, verdicts, dead letters and its firing. Its functions block.

Each topic is read for a limited time. The history says which topics were not read, or not wholly, and why.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from time import monotonic
from typing import Any, NamedTuple

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaException, Message

from timers.clock import Clock
from timers.config.settings import Settings
from timers.console.letter_box import read_page
from timers.dead_letters.letters import LetterFilter
from timers.errors import TimersError
from timers.kafka import connection, records
from timers.kafka.clients import reader
from timers.kafka.records import headers_of
from timers.kafka.topic_offsets import TopicOffsets
from timers.request_formats import enabled_formats
from timers.wire import headers as h
from timers.wire import topics, verdict
from timers.wire.formats import RequestRecord

MAX_READING_S = 3.0
"""Time for each topic."""

MAX_RECORDS = 50_000
"""Newest records of a partition that are read."""

_MAX_LAG_MS = 3_600_000


class History(NamedTuple):
    """What happened to a timer, in the order of time."""

    events: list[dict[str, Any]]
    unread: list[dict[str, str]]
    """Topics that were not read wholly, and why."""


def read(settings: Settings, id: str, timer: dict[str, Any]) -> History:
    """The history of a timer.

    Args:
        id: as it was asked for.
        timer: what a worker says about it: at least ``source``.
    """
    history = _Reading(settings, id, timer)
    for step in (history.read_requests, history.read_verdicts, history.read_letters, history.read_firings):
        step()
    return History(sorted(history.events, key=lambda event: event["at_ms"]), history.unread)


class _Reading:
    def __init__(self, settings: Settings, id: str, timer: dict[str, Any]) -> None:
        self._settings = settings
        self._id = id.encode(errors="surrogateescape")
        self._timer = timer
        self._place = topics.parse_source(timer["source"])
        self._offsets = TopicOffsets(settings)
        self._reports = connection.ErrorReports(settings)
        self._sources = {timer["source"]}
        self._target = timer.get("topic")
        self.events: list[dict[str, Any]] = []
        self.unread: list[dict[str, str]] = []

    # ---- steps ------------------------------------------------------------------------------------------------------

    def read_requests(self) -> None:
        """The request, and for a timer with an id its other versions and cancels."""
        formats = enabled_formats(self._settings)
        if self._place is None or self._place[0] not in formats:
            return
        topic, partition, offset = self._place
        request_format = formats[topic]
        first = None if request_format.has_ids else offset
        for message in self._scan(topic, [partition], first, None if first is None else offset + 1):
            if message.offset() != offset and message.key() != self._id:
                continue
            timestamp_ms = message.timestamp()[1]
            sent = RequestRecord(
                message.offset() or 0, message.key(), message.value(), headers_of(message), timestamp_ms
            )
            decoded = request_format.read(sent)
            what = "rejected" if decoded.rejected else "set" if decoded.rows else "cancel"
            source = topics.source(topic, partition, message.offset() or 0)
            self._sources.add(source)
            for rows in decoded.rows.values() if source == self._timer["source"] else ():
                self._target = rows[0][1]  # a worker does not remember it after the firing
            self._add(timestamp_ms, what, source=source, due=next(iter(decoded.rows), None))

    def read_verdicts(self) -> None:
        """The verdicts on cancels and updates of this id."""
        if not self._settings.has_ids or self._place is None or self._place[0] == self._settings.request_topic:
            return
        for message in self._scan(self._settings.verdict_topic, None, None, None):
            if message.key() == self._id:
                try:
                    outcome = verdict.decode(message.value() or b"")
                    source = (h.last(headers_of(message), h.TIMER_SOURCE) or b"").decode()
                except ValueError:
                    self._miss(self._settings.verdict_topic, "a record with this id as key is no verdict")
                    continue
                self._add(message.timestamp()[1], outcome.verdict, source=source, due=outcome.due_s)

    def read_letters(self) -> None:
        """The dead letters of these requests, and whether they were retried."""
        try:
            page, marks = read_page(self._settings, LetterFilter(names=frozenset(self._sources)), 100, None)
        except TimersError as error:
            self._miss(self._settings.dead_letter_topic, str(error))
            return
        for letter in page.letters:
            mark = marks.get(letter.mark_key)
            about = {"source": letter.decoded.source, "code": letter.decoded.code}
            retried = {"retried_as": mark.timer_id} if mark else {}
            self._add(letter.timestamp_ms, "dead-letter", **about, **retried)
        if page.ends:
            self._miss(self._settings.dead_letter_topic, "it has more dead letters than could be read in time")

    def read_firings(self) -> None:
        """The callbacks in the hour after the due second."""
        topic, due_s = self._target, self._timer.get("due")
        if topic is None or due_s is None or due_s > Clock().now_s():
            return
        try:
            first = self._offsets.at_time([topic], due_s * 1000).get(topic)
        except TimersError as error:
            self._miss(topic, str(error))
            return
        if first is None:
            self._miss(topic, "it does not exist")
            return
        for partition, start in first.items():
            for message in self._scan(topic, [partition], start, None):
                headers, timestamp_ms = headers_of(message), message.timestamp()[1]
                named = h.last(headers, h.TIMER_SOURCE) or h.last(headers, h.TIMER_ID) or b""
                if (source := named.decode(errors="replace")) in self._sources:
                    where = topics.source(topic, partition, message.offset() or 0)
                    self._add(timestamp_ms, "fired", source=source, callback=where)
                # The time of a record that its producer has set says nothing about the next one.
                if message.timestamp()[0] == TIMESTAMP_LOG_APPEND_TIME and timestamp_ms > due_s * 1000 + _MAX_LAG_MS:
                    break

    # ---- reading ----------------------------------------------------------------------------------------------------

    def _add(self, at_ms: int, what: str, **fields: Any) -> None:
        self.events.append({"at_ms": at_ms, "what": what, **fields})

    def _miss(self, topic: str, why: str) -> None:
        self.unread.append({"topic": topic, "reason": why})

    def _scan(
        self, topic: str, partitions: Iterable[int] | None, first: int | None, end: int | None
    ) -> Iterator[Message]:
        """The newest records of partitions, or those from ``first`` to ``end``, exclusive, for a limited time."""
        give_up_s = monotonic() + MAX_READING_S
        properties = {**connection.librdkafka(self._settings), "error_cb": self._reports, "enable.partition.eof": True}
        consumer = reader(properties)
        try:
            starts, ends = self._offsets.starts([topic]).get(topic, {}), self._offsets.ends([topic]).get(topic, {})
            if not ends:
                self._miss(topic, "it does not exist")
            for partition in ends if partitions is None else partitions:
                last = ends.get(partition, 0)
                to = last if end is None else min(last, end)
                newest = max(starts.get(partition, 0), to - MAX_RECORDS if first is None else first)
                if first is None and newest > starts.get(partition, 0):
                    self._miss(topic, f"only the newest {MAX_RECORDS:,} records of partition {partition} were read")
                for message in records.read(consumer, topic, partition, newest, to, timeout_s=MAX_READING_S):
                    yield message
                    if monotonic() > give_up_s:
                        self._miss(topic, "it could not be read to its end in time")
                        return
        except KafkaException as error:
            self._miss(topic, str(self._reports.user_error(error, f"topic {topic!r} cannot be read")))
        except TimersError as error:
            self._miss(topic, str(error))
        finally:
            consumer.close()
