"""Reads what the topics say of one timer. Its functions block: threads call them.

Each topic is read for a limited time. A history says which topics were not read, or not wholly, and why.

A worker forgets a cancelled timer at once, and a fired one after some time. Then the topic of timers with ids is read
for records with this id as key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from time import monotonic
from types import MappingProxyType
from typing import Any, NamedTuple

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaException, Message

from timers.console.letter_box import LetterBox
from timers.console.threads import check
from timers.core.repeating import target_of
from timers.errors import TimersError
from timers.kafka import connection, records
from timers.kafka.clients import span_reader
from timers.kafka.records import headers_of
from timers.kafka.request_formats import enabled_formats
from timers.kafka.topic_offsets import TopicOffsets
from timers.offline.dead_letters.letters import LetterFilter
from timers.process.clock import Clock
from timers.process.config.settings import Settings
from timers.wire import headers as h
from timers.wire import topics, verdict
from timers.wire.formats import RequestFormat
from timers.wire.key_partition import partition_of

MAX_READING_S = 3.0
"""Time for all partitions of a topic together."""

MAX_RECORDS = 50_000
"""Newest records of a partition that are read."""

_MAX_LAG_MS = 3_600_000


class History(NamedTuple):
    """What happened to a timer, in the order of time."""

    events: list[dict[str, Any]]
    unread: list[dict[str, str]]
    """Topics that were not read wholly, and why."""
    targets: Mapping[str, str] = MappingProxyType({})
    """Source of each version that was read -> where it calls back."""


def read(settings: Settings, letters: LetterBox, id: str, timer: dict[str, Any] | None) -> History:
    """The history of a timer.

    Args:
        id: as it was asked for.
        timer: what a worker says about it: at least ``source``; None: no worker knows it.

    Raises:
        TimersError: no broker answers; or no worker knows the timer, and its requests cannot be read.
    """
    history = _Reading(settings, letters, id, timer)
    history.read_requests()
    if history.has_requests or timer is not None:
        for step in (history.read_verdicts, history.read_letters, history.read_firing):
            step()
    elif history.failure is not None:
        raise history.failure
    if timer is not None and "held" in timer:
        history.add(1000 * max(timer["due"], timer["held"]["since"]), "held", held=timer["held"])
    events = sorted(history.events, key=lambda event: event["at_ms"])
    return History(events, history.unread, history.targets)


class _Reading:
    def __init__(self, settings: Settings, letters: LetterBox, id: str, timer: dict[str, Any] | None) -> None:
        self._settings = settings
        self._letters = letters
        self._id = id.encode(errors="surrogateescape")
        self._offsets = TopicOffsets(settings, connection.CALL_TIMEOUT_S, skips_leaderless=True)
        self._reports = connection.ErrorReports(settings)
        # Of the latest version. A worker does not remember all of it after the firing.
        self._source: str | None = timer["source"] if timer else None
        self._due_s: int | None = timer.get("due") if timer else None
        self._target: str | None = timer.get("topic") if timer else None
        self._is_known = timer is not None
        self._key = b""
        self._sources = {self._source} if self._source else set()
        self._has_id = timer is None
        self._repeats = False
        self.has_requests = False
        self.targets: dict[str, str] = {}
        self.failure: TimersError | None = None
        self.events: list[dict[str, Any]] = []
        self.unread: list[dict[str, str]] = []

    # ---- steps ------------------------------------------------------------------------------------------------------

    def read_requests(self) -> None:
        """The request, and for a timer with an id its other versions and cancels."""
        formats = enabled_formats(self._settings)
        if self._source is None:
            if self._settings.id_topic:  # only the name of an id is known
                topic = self._settings.id_topic
                partitions = self._offsets.partitions(topic) if self._offsets.existing([topic]) else []
                self._read_versions(topic, _likely_first(partitions, self._id), formats[topic])
            return
        place = topics.parse_source(self._source)
        if place is None or place[0] not in formats:
            return
        topic, partition, offset = place
        request_format = formats[topic]
        self._has_id = request_format.has_ids
        if self._has_id:
            self._read_versions(topic, [partition], request_format)
            return
        for message in self._scan(topic, {partition: offset}, offset + 1, says_begin=True):
            self._add_request(topic, message, request_format)

    def _read_versions(self, topic: str, partitions: Sequence[int], request_format: RequestFormat) -> None:
        """Read partitions until one has had versions: all of an id are on one."""
        latest = self._source or ""
        scanned = self._scan(topic, dict.fromkeys(partitions), enough=lambda: self.has_requests, says_begin=True)
        for message in scanned:
            if message.key() == self._id or topics.is_named(latest, {topics.source(topic, *_place(message))}):
                self._add_request(topic, message, request_format)

    def _add_request(self, topic: str, message: Message, request_format: RequestFormat) -> None:
        (partition, offset), timestamp_ms = _place(message), message.timestamp()[1]
        source = topics.source(topic, partition, offset)
        if self._source is not None and topics.is_named(self._source, {source}):
            source = self._source  # a worker knows its cut, a reader does not
        decoded = request_format.read(records.request_of(message))
        is_set = decoded.rows or decoded.definitions
        what = "rejected" if decoded.rejected else "set" if is_set else "cancel"
        self.has_requests = True
        self._sources.add(source)
        self._repeats |= bool(decoded.definitions or decoded.follows)
        for definition in decoded.definitions.values():
            self.targets[source] = definition.row[1]
            self.add(timestamp_ms, what, source=source, repeat=definition.rule.decode(errors="replace"))
            return
        for due_s, (row,) in decoded.rows.items():
            target, key = target_of(row), row[2]
            self.targets[source] = target
            if not self._is_known or source == self._source:
                self._source, self._due_s, self._target = source, due_s, target
                self._key = key.encode() if isinstance(key, str) else key or b""
        if not decoded.follows:  # occurrences that follow another one were appended by the engine
            self.add(timestamp_ms, what, source=source, due=next(iter(decoded.rows), None))

    def read_verdicts(self) -> None:
        """The verdicts on cancels and updates of this id."""
        if not (self._settings.has_ids and self._has_id):
            return
        for message in self._scan(self._settings.verdict_topic):
            if message.key() == self._id:
                headers = headers_of(message)
                if (missed := verdict.missed_of(message.value() or b"", headers)) is not None:
                    self.add(message.timestamp()[1], "missed", **missed)
                    continue
                try:
                    outcome = verdict.decode(message.value() or b"")
                    source = (h.last(headers, h.TIMER_SOURCE) or b"").decode()
                except ValueError:
                    self._miss(self._settings.verdict_topic, "a record with this id as key is no verdict")
                    continue
                if topics.is_named(source, self._sources):
                    self._sources.add(source)
                self.add(
                    message.timestamp()[1],
                    outcome.verdict,
                    source=source,
                    due=outcome.due_s,
                    verdict=True,
                    **({"held": outcome.held} if outcome.held else {}),
                )

    def read_letters(self) -> None:
        """The dead letters of these requests, and whether they were retried."""
        try:
            found = self._letters.read_page(LetterFilter(names=self._names()), 100, None)
        except TimersError as error:
            self._miss(self._settings.dead_letter_topic, str(error))
            return
        for letter in found.page.letters:
            mark = found.marks.get(letter.mark_key)
            about = {"source": letter.decoded.source, "code": letter.decoded.code}
            retried = {"retried_as": mark.timer_id} if mark else {}
            self.add(letter.timestamp_ms, "dead-letter", **about, **retried)
        for partition, why in found.missing.items():
            self._miss(self._settings.dead_letter_topic, f"{partition}: {why}")
        if found.page.ends:
            self._miss(self._settings.dead_letter_topic, "it has more dead letters than could be read in time")
        if found.unsure:
            self._miss(self._settings.retried_topic, "it has more marks of retries than could be read in time")

    def _names(self) -> frozenset[str]:
        """The sources of the requests, each with the number of each cut that is known of one of them."""
        parts = [source.partition("~") for source in self._sources]
        return frozenset(self._sources) | frozenset(
            place + mark + number for place, *_ in parts for _, mark, number in parts
        )

    def read_firing(self) -> None:
        """The callback of the latest version, in the hour after its due second; those of the last hour of a timer that
        repeats."""
        topic, due_s, now_s = self._target, self._due_s, Clock().now_s()
        if self._repeats and due_s is not None:
            due_s = min(due_s, int(now_s) - _MAX_LAG_MS // 1000)
        if topic is None or due_s is None or due_s > now_s:
            return
        try:
            first = self._offsets.at_time([topic], due_s * 1000).get(topic)
        except TimersError as error:
            self._miss(topic, str(error))
            return
        if first is None:
            self._miss(topic, "it does not exist")
            return
        firsts = {partition: first[partition] for partition in _likely_first(sorted(first), self._key)}
        for message in self._scan(topic, firsts, until_ms=due_s * 1000 + _MAX_LAG_MS):
            headers, timestamp_ms = headers_of(message), message.timestamp()[1]
            named = h.last(headers, h.TIMER_SOURCE) or h.last(headers, h.TIMER_ID) or b""
            source = named.decode(errors="replace")
            if topics.is_named(source, self._sources):
                self.add(timestamp_ms, "fired", source=source, callback=topics.source(topic, *_place(message)))
                if source == self._source and not self._repeats:
                    return

    # ---- reading ----------------------------------------------------------------------------------------------------

    def add(self, at_ms: int, what: str, **fields: Any) -> None:
        """Add an event."""
        self.events.append({"at_ms": at_ms, "what": what, **fields})

    def _miss(self, topic: str, why: str) -> None:
        self.unread.append({"topic": topic, "reason": why})

    def _fail(self, topic: str, error: TimersError) -> None:
        self.failure = error
        self._miss(topic, str(error))

    def _scan(
        self,
        topic: str,
        firsts: Mapping[int, int | None] | None = None,
        end: int | None = None,
        until_ms: int | None = None,
        enough: Callable[[], bool] = lambda: False,
        says_begin: bool = False,
    ) -> Iterator[Message]:
        """Records of a topic, partition by partition, for a limited time.

        Args:
            firsts: partition -> offset of the first record; None: its newest records. Without it, all partitions.
            end: offset before which reading ends.
            until_ms: time after which no record of a partition is wanted, if the brokers set their times.
            enough: whether reading ends before the next partition.
            says_begin: whether records that were deleted are missing in the history.
        """
        give_up_s = monotonic() + MAX_READING_S
        consumer = span_reader(self._settings, self._reports)
        try:
            starts, ends = self._offsets.starts([topic]).get(topic, {}), self._offsets.ends([topic]).get(topic, {})
            away = [number for name, number in self._offsets.unknown if name == topic]
            for partition in away:
                self._fail(topic, TimersError(f"the leader of partition {partition} does not answer"))
            if not ends and not away:
                self._miss(topic, "it does not exist")
            for partition, first in (dict.fromkeys(ends) if firsts is None else firsts).items():
                if enough():
                    break
                last, start = ends.get(partition, 0), starts.get(partition, 0)
                to = last if end is None else min(last, end)
                newest = max(start, to - MAX_RECORDS if first is None else first)
                if says_begin and start > (first or 0):
                    self._miss(topic, f"partition {partition} begins at offset {start:,}: older requests are deleted")
                if first is None and newest > start:
                    self._miss(topic, f"only the newest {MAX_RECORDS:,} records of partition {partition} were read")
                for message in records.read(
                    consumer, topic, partition, newest, to, timeout_s=MAX_READING_S, while_waiting=check
                ):
                    check()
                    kind, timestamp_ms = message.timestamp()
                    if until_ms is not None and kind == TIMESTAMP_LOG_APPEND_TIME and timestamp_ms > until_ms:
                        break
                    yield message
                    if monotonic() > give_up_s:
                        self._miss(topic, "it could not be read to its end in time")
                        return
        except KafkaException as error:
            self._fail(topic, self._reports.user_error(error, f"topic {topic!r} cannot be read"))
        except TimersError as error:
            self._fail(topic, error)
        finally:
            consumer.close()


def _place(message: Message) -> tuple[int, int]:
    return message.partition() or 0, message.offset() or 0


def _likely_first(partitions: Sequence[int], key: bytes) -> list[int]:
    """Partitions, the one first to which Java's producer would send this key."""
    likely = partition_of(key, len(partitions)) if partitions else 0
    return sorted(partitions, key=lambda each: each != likely)
