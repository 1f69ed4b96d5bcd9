"""Reads the committed records of the topic of dead letters, up to its end or, page by page, from its end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple, Self

from confluent_kafka import Consumer, KafkaException
from tqdm import tqdm

from timers.config.settings import Settings
from timers.core import levels
from timers.dead_letters.letters import Letter, LetterFilter, Marks
from timers.errors import LogMismatch, TimersError
from timers.kafka import connection, records, topic_offsets
from timers.kafka.allowed_level import AllowedLevel
from timers.kafka.clients import reader
from timers.kafka.connection import TIMEOUT_S
from timers.kafka.records import headers_of
from timers.kafka.topic_offsets import TopicOffsets
from timers.request_formats import REQUEST_FORMATS
from timers.wire import dead_letter, topics
from timers.wire.formats import RequestRecord

_PROGRESS_AFTER_S = 2.0
_PROGRESS_EVERY_S = 0.5
_NO_END = sys.maxsize

_FETCH_WAIT_MS = 10
"""How long a broker keeps a request for records at the end of a partition. Reading waits for it in each partition."""


class Span(NamedTuple):
    """A range of offsets of one partition; empty if ``start`` is not below ``end``."""

    partition: int
    start: int
    end: int


class LetterLog:
    """A reader of the dead letters that commits nothing and joins no group.

    Args:
        shows_progress: whether long readings show a bar on stderr.
        timeout_s: how long leaders may move.
        check: called while records are read and waited for; raises an error to stop.

    Attributes:
        foreign: number of records that were read and are no dead letters.

    Raises:
        TimersError: no broker answers or accepts the login, or the topic does not exist. The methods raise it too.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        shows_progress: bool = True,
        timeout_s: float = topic_offsets.TIMEOUT_S,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._check = check
        self._shows_progress = shows_progress
        self.topic = settings.dead_letter_topic
        self.foreign = 0
        self._formats = {topic: entry.request_format for entry in REQUEST_FORMATS for topic in entry.topics(settings)}
        self._reports = connection.ErrorReports(settings)
        self._properties = {**connection.librdkafka(settings), "error_cb": self._reports, "enable.partition.eof": True}
        self._consumer = self._reader()
        self._request_consumer: Consumer | None = None  # reads requests while `_consumer` reads letters
        try:
            count = connection.partitions_of(self._consumer, self._reports, self.topic)
            if not count:
                raise TimersError(
                    f"topic {self.topic!r} does not exist at {settings.brokers}: has a worker run there, and is "
                    "TIMERS_DEAD_LETTER_TOPIC the worker's?"
                )
        except BaseException as error:
            self._consumer.close()
            if isinstance(error, KafkaException):
                raise self._user_error(error, self.topic) from error
            raise
        self._offsets = TopicOffsets(settings, timeout_s, skips_leaderless=True)

    def _reader(self) -> Consumer:
        return reader(self._properties, fetch_wait_max_ms=_FETCH_WAIT_MS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()
        if self._request_consumer is not None:
            self._request_consumer.close()

    def _bounds(self, topic: str) -> tuple[dict[int, int], dict[int, int]]:
        """First offsets and last stable offsets by partition; empty if the topic did not exist."""
        starts, ends = self._offsets.starts([topic]).get(topic, {}), self._offsets.ends([topic]).get(topic, {})
        return {partition: start for partition, start in starts.items() if partition in ends}, ends

    @property
    def missing(self) -> dict[str, str]:
        """Partitions with dead letters that :meth:`spans` left out, because their leaders do not answer -> why."""
        unknown = self._offsets.unknown.items()
        return {topics.partition_name(*place): why for place, why in unknown if place[0] == self.topic}

    def _check_known(self, topic: str, partition: int, what: str) -> None:
        if why := self._offsets.unknown.get((topic, partition)):
            raise TimersError(f"{what} cannot be read, because partition {partition} of {topic!r} is away: {why}")

    def _user_error(self, error: KafkaException, topic: str) -> TimersError:
        return self._reports.user_error(error, f"topic {topic!r} cannot be read")

    def spans(self, letter_filter: LetterFilter) -> list[Span]:
        """The offsets to read for a filter, up to the present end. For a filter of positions, only their offsets.

        Without partitions whose leaders do not answer: see :attr:`missing`.

        Raises:
            TimersError: a position of the filter is in such a partition.
        """
        starts, ends = self._bounds(self.topic)
        found = [topics.parse_source(name) for name in letter_filter.names]
        if found and all(where is not None and where[0] == self.topic for where in found):
            asked = [Span(where[1], where[2], where[2] + 1) for where in sorted(set(filter(None, found)))]
            for partition, offset, _ in asked:
                self._check_known(self.topic, partition, topics.source(self.topic, partition, offset))
        else:
            if letter_filter.since_s is not None:
                starts = self._offsets.at_time([self.topic], letter_filter.since_s * 1000)[self.topic]
            partitions = list(starts) if letter_filter.partition is None else [letter_filter.partition]
            end = _NO_END if letter_filter.to_offset is None else letter_filter.to_offset
            asked = [Span(partition, letter_filter.from_offset or 0, end) for partition in partitions]
        return [
            Span(partition, max(starts[partition], start), min(ends[partition], end))
            for partition, start, end in asked
            if partition in starts
        ]

    def read(self, letter_filter: LetterFilter, spans: Iterable[Span]) -> Iterator[Letter]:
        """The dead letters of a filter, partition by partition."""
        return (letter for _, _, letter in self.scan(letter_filter, spans) if letter is not None)

    def scan(self, letter_filter: LetterFilter, spans: Iterable[Span]) -> Iterator[tuple[int, int, Letter | None]]:
        """Partition and offset of each record, and the dead letter in it; None if the filter excludes it."""
        for message in self._messages(self.topic, spans, "reading dead letters"):
            letter = Letter.of(message, headers_of(message), self._formats)
            self.foreign += letter is None
            wanted = letter if letter is not None and letter in letter_filter else None
            yield message.partition(), message.offset(), wanted

    def read_marks(self, known: Marks, is_over: Callable[[], bool] = lambda: False) -> Marks:
        """Read the marks that are not known yet.

        Args:
            known: those that were read before.
            is_over: whether reading must end now. It ends after one more mark at the earliest.

        Returns:
            ``known`` with what was read; other marks if the topic is no longer the one that was read before.
        """
        topic = self._settings.retried_topic
        starts, ends = self._bounds(topic)
        marks = known if known.is_before(ends) else Marks(known.most)
        marks.is_whole = False
        spans = [
            Span(partition, max(start, marks.next_offset(partition)), ends[partition])
            for partition, start in starts.items()
        ]
        for message in self._messages(topic, spans, "reading what was retried"):
            mark = dead_letter.decode_mark(message.key(), message.value(), headers_of(message))
            marks.add(message.partition(), message.offset(), mark, message.timestamp()[1])
            if is_over():
                return marks
        marks.is_whole = all(unknown != topic for unknown, _ in self._offsets.unknown)
        return marks

    def _messages(self, topic: str, spans: Iterable[Span], description: str) -> Iterator[Any]:
        spans = [span for span in spans if span.start < span.end]
        on_terminal = sys.stderr.isatty()
        with tqdm(
            total=sum(span.end - span.start for span in spans),
            desc=description,
            unit=" offsets",
            disable=not self._shows_progress,
            delay=_PROGRESS_AFTER_S,
            mininterval=_PROGRESS_EVERY_S if on_terminal else 5 * _PROGRESS_AFTER_S,
            leave=False,
            dynamic_ncols=True,
        ) as bar:
            for span in spans:
                next_offset = span.start
                for message in self._read(self._consumer, topic, span):
                    bar.update(message.offset() + 1 - next_offset)
                    next_offset = message.offset() + 1
                    self._check()
                    yield message
                bar.update(span.end - next_offset)

    def _read(self, consumer: Consumer, topic: str, span: Span) -> Iterator[Any]:
        try:
            yield from records.read(consumer, topic, *span, timeout_s=TIMEOUT_S, while_waiting=self._check)
        except KafkaException as error:
            raise self._user_error(error, topic) from error

    @cached_property
    def allowed_level(self) -> int:
        """The feature level that the operator allows. If it cannot be read, the highest: it stands against nothing."""
        try:
            return AllowedLevel(self._settings).read()
        except (KafkaException, LogMismatch):
            return levels.SUPPORTED

    def original(self, letter: Letter) -> RequestRecord | None:
        """The request of a dead letter. If the letter has only a part of it, it is read from its source.

        Returns None if it is gone. A value that is too large is not read: librdkafka unpacks whole batches in memory.
        """
        if letter.is_of_receiver:
            return None if letter.is_truncated else letter.request
        place = topics.parse_source(letter.decoded.source)
        if not (letter.is_truncated or letter.is_cut) or place is None or letter.request_format is None:
            return letter.request
        if (letter.decoded.value_bytes or 0) > self._settings.max_request_bytes:
            return None
        topic, partition, offset = place
        starts, ends = self._bounds(topic)
        self._check_known(topic, partition, letter.decoded.source)
        if partition not in starts or not starts[partition] <= offset < ends[partition]:
            return None
        if self._request_consumer is None:
            self._request_consumer = self._reader()
        for message in self._read(self._request_consumer, topic, Span(partition, offset, offset + 1)):
            return RequestRecord(offset, message.key(), message.value(), headers_of(message), message.timestamp()[1])
        return None


WINDOW = 1000
"""Offsets of a partition that are read at a time."""


class LetterPage(NamedTuple):
    """Some dead letters, the newest first."""

    letters: list[Letter]
    ends: dict[int, int]
    """Partition -> the offset before which the next page reads; empty: this is the last page."""


def newest(
    log: LetterLog,
    letter_filter: LetterFilter,
    limit: int,
    ends: Mapping[int, int] | None,
    is_over: Callable[[], bool],
) -> LetterPage:
    """At most ``limit`` of the newest dead letters.

    Args:
        ends: of the page before; None for the first page.
        is_over: whether the page must end now. It may then be empty and still have a next one.
    """
    spans = log.spans(letter_filter)
    if ends is not None:
        spans = [span._replace(end=ends[span.partition]) for span in spans if span.partition in ends]
    readers = [_Backwards(log, letter_filter, span, is_over) for span in spans]
    letters: list[Letter] = []
    while len(letters) < limit:
        first = max(readers, key=_Backwards.newest_ms, default=None)
        if first is None or first.newest_ms() < 0:
            break
        letters.append(first.take())
    return LetterPage(letters, {reader.partition: reader.end for reader in readers if reader.end > reader.start})


class _Backwards:
    """The letters of one partition, the newest first."""

    def __init__(self, log: LetterLog, letter_filter: LetterFilter, span: Span, is_over: Callable[[], bool]) -> None:
        self._log = log
        self._filter = letter_filter
        self._is_over = is_over
        self.partition, self.start, self.end = span
        self._unread = self.end
        self._found: list[Letter] = []

    def newest_ms(self) -> int:
        """Time of the next letter; -1 if there is none, or if the page must end before it is found."""
        while not self._found and self._unread > self.start and not self._is_over():
            first = max(self.start, self._unread - WINDOW)
            self._found = list(self._log.read(self._filter, [Span(self.partition, first, self._unread)]))
            self._unread = first
            self._note_end()
        return max(0, self._found[-1].timestamp_ms) if self._found else -1

    def take(self) -> Letter:
        """The next letter."""
        letter = self._found.pop()
        self._note_end()
        return letter

    def _note_end(self) -> None:
        self.end = self._found[-1].offset + 1 if self._found else self._unread
