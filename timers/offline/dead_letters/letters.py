"""Dead letters: as a line, for a program or in full; filters; marks of those that were retried; and a reader of their
topic, up to its end or, page by page, from its end."""

from __future__ import annotations

import hashlib
import sys
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from confluent_kafka import Consumer, KafkaException
from tqdm import tqdm

from timers.core import levels
from timers.core.ports import Lost
from timers.core.printable import hexdump, is_utf8, json_value, one_line, printable, utc_text
from timers.core.timer import key_bytes
from timers.errors import LogMismatch, TimersError
from timers.kafka import connection, records, topic_offsets
from timers.kafka.clients import span_reader
from timers.kafka.connection import CALL_TIMEOUT_S
from timers.kafka.records import headers_of
from timers.kafka.request_formats import NATIVE, REQUEST_FORMATS
from timers.kafka.topic_offsets import TopicOffsets
from timers.process.config.settings import Settings
from timers.wire import checks, dead_letter, future, topics
from timers.wire.dead_letter import BATCH_UNREADABLE, QUEUE_CODES, RECEIVER_CODES, DecodedDeadLetter, Mark
from timers.wire.formats import RequestFormat, RequestRecord
from timers.wire.headers import Header

if TYPE_CHECKING:
    from timers.kafka.request_reader import RequestReader


@dataclass(frozen=True)
class Letter:
    """A record of the topic of dead letters."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    request: RequestRecord
    """The rejected request, with the letter's time; without key, value and headers in a truncated dead letter."""
    decoded: DecodedDeadLetter
    request_format: RequestFormat | None = None
    """Format of its request; None if its source is not in a request topic of this app, and no receiver wrote it."""

    @classmethod
    def of(cls, message: Any, headers: Sequence[Header], formats: Mapping[str, RequestFormat]) -> Letter | None:
        """Return the letter in a confluent-kafka message; None if it is not a dead letter."""
        decoded = dead_letter.decode(headers)
        if decoded is None:
            return None
        where, written_ms = (message.topic(), message.partition(), message.offset()), message.timestamp()[1]
        request = RequestRecord(message.offset(), message.key(), message.value(), decoded.headers, written_ms)
        source = topics.parse_source(decoded.source)
        request_format = formats.get(source[0]) if source else None
        return cls(*where, written_ms, request, decoded, NATIVE if decoded.code in RECEIVER_CODES else request_format)

    @property
    def position(self) -> str:
        """``<dead letter topic>/<partition>/<offset>``."""
        return topics.source(self.topic, self.partition, self.offset)

    @property
    def mark_key(self) -> tuple[str, str]:
        """Its position and its source, by both of which users name it."""
        return self.position, self.decoded.source

    @property
    def is_of_receiver(self) -> bool:
        """Whether a receiver of messages wrote it: then its source is a message, and not its request."""
        return self.decoded.code in RECEIVER_CODES

    @property
    def is_truncated(self) -> bool:
        """Whether it has only error headers, because the request was too large."""
        return dead_letter.is_truncated(self.request.key, self.request.value, self.decoded)

    @property
    def is_cut(self) -> bool:
        """Whether it has only the first bytes of its request's value, because the value was too large."""
        return self.decoded.value_bytes is not None and self.decoded.value_bytes > len(self.request.value or b"")

    @property
    def summary(self) -> future.RequestSummary:
        """Due second, topic and key of its request, as far as they can be read."""
        rows = {} if self.request_format is None else self.request_format.read(self.request).rows
        for due_s, (row,) in rows.items():
            return future.RequestSummary(due_s, row[1], key_bytes(row[2]))
        return future.summarize_request(self.request.key, self.request.value, self.request.headers)

    @property
    def written_at(self) -> str:
        """Time of the record as text. Other programs may have written an invalid time."""
        second = self.timestamp_ms // 1000
        return utc_text(second) if 0 <= second <= checks.MAX_DUE_S else f"{self.timestamp_ms} ms"

    def cells(self, mark: Mark | None) -> tuple[str, ...]:
        due_s, topic, _ = self.summary
        return (
            self.written_at,
            printable(self.decoded.code),
            f"{self.partition}/{self.offset}",
            printable(self.decoded.source),
            printable(topic or "-"),
            "-" if due_s is None else utc_text(due_s),
            printable(mark.timer_id) if mark else "-",
        )

    def fields(self, mark: Mark | None, *, with_request: bool = False) -> dict[str, Any]:
        """The letter for a program; ``with_request`` adds key, value and headers of the request."""
        due_s, topic, key = self.summary
        fields: dict[str, Any] = {
            "code": self.decoded.code,
            "message": self.decoded.message,
            "source": self.decoded.source,
            "topic": topic,
            "key": json_value(key),
            "due_s": due_s,
            "position": self.position,
            "timestamp_ms": self.timestamp_ms,
            "truncated": self.is_truncated,
            "value_bytes": self.decoded.value_bytes,
            "value_sha256": self.decoded.value_sha256 or None,
            "retried_as": mark.timer_id if mark else None,
        }
        if with_request:
            fields["request"] = {
                "key": json_value(self.request.key),
                "value": json_value(self.request.value),
                "headers": [[name, json_value(value)] for name, value in self.decoded.headers],
            }
        return fields

    def text(self, mark: Mark | None) -> Iterator[str]:
        """The whole letter as lines of text."""
        due_s, topic, key = self.summary
        rows = [
            ("code", self.decoded.code),
            ("message", self.decoded.message),
            ("source", self.decoded.source),
            ("position", self.position),
            ("written", self.written_at),
            ("retried as", mark.timer_id if mark else "not retried"),
            ("topic", "-" if topic is None else f"'{topic}'"),
            ("key", "-" if key is None else f"'{one_line(key)}'"),
            ("due", "-" if due_s is None else f"{utc_text(due_s)} ({due_s})"),
        ]
        for name, value in rows:
            yield f"{name:<12}{printable(value)}"
        if self.is_truncated:
            yield "request     not here: it was empty, or too large for this topic; it stands at its source"
            return
        for name, data in (("key", self.request.key), ("value", self.request.value)):
            yield f"request {name}, {_length(data)}"
            if name == "value" and self.is_cut:
                yield f"  the first of {self.decoded.value_bytes} bytes, SHA-256 {printable(self.decoded.value_sha256)}"
            yield from _indented(data)
        yield f"request headers, {len(self.decoded.headers)}"
        for header, data in self.decoded.headers:
            yield f"  {printable(header)}, {_length(data)}"
            yield from (f"  {line}" for line in _indented(data))


LETTER_COLUMNS = ("WRITTEN", "CODE", "POSITION", "SOURCE", "TOPIC", "DUE", "RETRIED AS")
LETTER_WIDTHS = (20, 21, 10, 24, 24, 20, 0)
"""Widths of the columns; longer texts move the columns after them."""


def _length(data: bytes | None) -> str:
    return "null" if data is None else f"{len(data)} bytes"


def _indented(data: bytes | None) -> Iterator[str]:
    """Bytes as lines of text if this shows all of them, else as a hexdump."""
    if not data:
        return
    lines = data.decode().split("\n") if is_utf8(data) else []
    shows_all = lines and all(line == printable(line) for line in lines)
    yield from (f"  {line}" for line in (lines if shows_all else hexdump(data)))


def full_name(name: str, dead_letter_topic: str) -> str | None:
    """A name of a dead letter as a source or a position with its topic, which may be missing; None if it is none."""
    place = topics.parse_source(name if name.count("/") > 1 else f"{dead_letter_topic}/{name}")
    return place and topics.source(*place)


class QueueTopics(NamedTuple):
    """A queue, as its dead letters name it."""

    topic: str
    """The queue's topic, with the messages."""
    returns_topic: str
    """Where its messages come back."""

    def owns(self, letter: Letter) -> bool:
        """Whether a dead letter is one of this queue's messages: given up by a receiver, or by a worker that could not
        return it.

        Truncated ones do not name their queue: they count for each queue on the topic of their message.
        """
        source = topics.parse_source(letter.decoded.source)
        return letter.summary.topic == self.returns_topic or (
            letter.is_truncated
            and letter.decoded.code in QUEUE_CODES
            and source is not None
            and source[0] in (self.topic, self.returns_topic)
        )


@dataclass(frozen=True)
class LetterFilter:
    """A selection of dead letters. Each attribute that is not empty and not None excludes letters."""

    codes: Collection[str] = ()
    topic: str | None = None
    since_s: int | None = None
    until_s: int | None = None
    names: Collection[str] = ()
    queue: QueueTopics | None = None
    contains: str = ""
    """A text in the callback's key, in the request's key, which is the timer's id, or in the sentence that says why."""

    def __contains__(self, letter: Letter) -> bool:
        return (
            (not self.codes or letter.decoded.code in self.codes)
            and (self.topic is None or letter.summary.topic == self.topic)
            and (self.since_s is None or letter.timestamp_ms >= self.since_s * 1000)
            and (self.until_s is None or letter.timestamp_ms < self.until_s * 1000)
            and (not self.names or any(name in self.names for name in letter.mark_key))
            and (self.queue is None or self.queue.owns(letter))
            and (not self.contains or self._is_in(letter))
        )

    def _is_in(self, letter: Letter) -> bool:
        part = self.contains.encode(errors="surrogatepass")
        keys = letter.request.key, letter.summary.key
        return self.contains in letter.decoded.message or any(part in (key or b"") for key in keys)


_NAME_BYTES = 16


class Marks:
    """The newest marks of retried dead letters.

    One thread adds marks at a time; any may look them up meanwhile.

    Args:
        most: marks that are kept, the newest ones; None: all. A mark takes about 400 bytes.
        spans: offsets of the dead letters whose marks are kept, disjoint; None: all. The topic has a mark of each
            letter that was ever retried.
    """

    def __init__(self, most: int | None = None, spans: Iterable[Span] | None = None) -> None:
        self.most = most
        self._spans = None if spans is None else sorted(spans)
        self.is_whole = False
        """Whether the last reading came to the end of the topic."""
        self.topic_id = b""
        """Id of the topic that was read; empty if none was."""
        self._next: dict[int, int] = {}
        self._kept: OrderedDict[bytes, tuple[str, int]] = OrderedDict()
        self._forgotten_ms: int | None = None

    def begin_again(self, topic_id: bytes) -> None:
        """Read the topic with this id from its beginning. What is known stays: what was retried was retried."""
        self.topic_id = topic_id
        self._next = {}

    def next_offset(self, partition: int) -> int:
        """The offset from which a partition must be read."""
        return self._next.get(partition, 0)

    def add(self, partition: int, offset: int, mark: Mark, written_ms: int) -> None:
        """Note the next mark of a partition."""
        self._next[partition] = offset + 1
        place = topics.parse_source(mark.letter)
        if place is None or not self._is_asked(*place[1:]):  # None: another program wrote it
            return
        name = _name(mark.letter, mark.source)
        self._kept[name] = mark.timer_id, written_ms
        self._kept.move_to_end(name)
        if self.most is not None and len(self._kept) > self.most:
            oldest = next(iter(self._kept))
            # Before it goes: who does not find it then sees that it may have been there.
            self._forgotten_ms = max(self._forgotten_ms or 0, self._kept[oldest][1])
            del self._kept[oldest]

    def _is_asked(self, partition: int, offset: int) -> bool:
        if self._spans is None:
            return True
        at = bisect_right(self._spans, (partition, offset, sys.maxsize)) - 1
        return at >= 0 and self._spans[at].partition == partition and offset < self._spans[at].end

    def of(self, letter: Letter) -> Mark | None:
        """The mark of a dead letter; None if there is none among those that were read and are kept."""
        found = self._kept.get(_name(*letter.mark_key))
        return None if found is None else Mark(*letter.mark_key, found[0])

    def may_be_forgotten(self, letter: Letter) -> bool:
        """Whether a mark of this dead letter may have been read, but not kept."""
        return (
            self._forgotten_ms is not None
            and letter.timestamp_ms <= self._forgotten_ms + checks.PRODUCER_CLOCK_ERROR_MS
        )


def _name(letter: str, source: str) -> bytes:
    # Both are bytes of other programs and may be long.
    return hashlib.blake2b(f"{letter}\0{source}".encode(errors="surrogatepass"), digest_size=_NAME_BYTES).digest()


_PROGRESS_AFTER_S = 2.0
_PROGRESS_EVERY_S = 0.5


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
        timeout_s: float = topic_offsets.OFFSETS_TIMEOUT_S,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._check = check
        self._shows_progress = shows_progress
        self.topic = settings.dead_letter_topic
        self.foreign = 0
        self._formats = {topic: entry.request_format for entry in REQUEST_FORMATS for topic in entry.topics(settings)}
        self._reports = connection.ErrorReports(settings)
        self._consumer = span_reader(settings, self._reports)
        self._request_consumer: Consumer | None = None  # reads requests while `_consumer` reads letters
        self._request_reader: RequestReader | None = None
        try:
            with self._reports.explained(f"topic {self.topic!r} cannot be read"):
                count = connection.partitions_of(self._consumer, self._reports, self.topic)
            if not count:
                raise TimersError(
                    f"topic {self.topic!r} does not exist at {settings.brokers}: has a worker run there, and is "
                    "TIMERS_DEAD_LETTER_TOPIC the worker's?"
                )
        except BaseException:
            self._consumer.close()
            raise
        self._offsets = TopicOffsets(settings, timeout_s, skips_leaderless=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()
        for reader in (self._request_consumer, self._request_reader):
            if reader is not None:
                reader.close()

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
            asked = [Span(partition, start, ends[partition]) for partition, start in starts.items()]
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
            ``known`` with what was read. If the topic was made anew, what was read of the former one stays.
        """
        topic, marks = self._settings.retried_topic, known
        starts, ends = self._bounds(topic)
        id = self._offsets.id_of(topic) if ends else b""
        if id and id != marks.topic_id:
            marks.begin_again(id)
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
        with self._reports.explained(f"topic {topic!r} cannot be read"):
            yield from records.read(consumer, topic, *span, timeout_s=CALL_TIMEOUT_S, while_waiting=self._check)

    @cached_property
    def allowed_level(self) -> int:
        """The feature level that the operator allows. If it cannot be read, the highest: it stands against nothing."""
        try:
            from timers.kafka.progress_log import allowed_level  # not at the top: a light installation has no aiokafka

            return allowed_level(self._settings)
        except (KafkaException, LogMismatch, ImportError):
            return levels.SUPPORTED

    def original(self, letter: Letter) -> RequestRecord | None:
        """The request of a dead letter. If the letter has only a part of it, it is read from its source.

        Returns None if it is gone, or its value is too large.
        """
        if letter.is_of_receiver:
            return None if letter.is_truncated else letter.request
        # The value of this letter is a batch, and its source cannot be read.
        if letter.decoded.code == BATCH_UNREADABLE:
            return None
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
        return self._read_request(letter.decoded.source, topic, Span(partition, offset, offset + 1))

    def _read_request(self, source: str, topic: str, span: Span) -> RequestRecord | None:
        """A record of a request topic, as workers read it. Without their packages librdkafka reads it, which cannot
        read each batch that they read."""
        try:
            from timers.kafka.request_reader import RequestReader  # not at the top: it needs aiokafka
        except ImportError:
            if self._request_consumer is None:
                self._request_consumer = span_reader(self._settings, self._reports)
            return next(map(records.request_of, self._read(self._request_consumer, topic, span)), None)

        def may_wait() -> bool:
            self._check()
            return True

        if self._request_reader is None:
            limit = self._settings.max_request_bytes
            self._request_reader = RequestReader(self._settings, self._formats, value_limit=lambda _: limit)
        try:
            found = self._request_reader.read([source], may_wait).get(source)
        except Lost as error:
            raise TimersError(f"topic {topic!r} cannot be read: {error}") from error
        return found if isinstance(found, RequestRecord) else None


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
    left = {span: span.end for span in spans}

    def backwards(span: Span) -> Iterator[tuple[Letter, Span, int]]:
        """The letters of a span, the newest first, each with the offset before which the others are."""
        while left[span] > span.start and not is_over():
            first = max(span.start, left[span] - WINDOW)
            found = list(log.read(letter_filter, [Span(span.partition, first, left[span])]))
            before = [first, *(letter.offset + 1 for letter in found[:-1])]
            for letter, end in zip(reversed(found), reversed(before), strict=False):
                left[span] = letter.offset + 1  # the page may be full before it
                yield letter, span, end
            left[span] = first

    newest_first = merge(*map(backwards, spans), key=lambda found: -max(0, found[0].timestamp_ms))
    letters = []
    for letter, span, end in islice(newest_first, limit):
        letters.append(letter)
        left[span] = end
    return LetterPage(letters, {span.partition: end for span, end in left.items() if end > span.start})
