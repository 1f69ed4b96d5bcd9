"""Reads and retries dead letters, and reads what the topics say of one timer, of queues and of changes. Its functions
block: threads call them.

Each topic is read for a limited time. A history says which topics were not read, or not wholly, and why.

A worker forgets a cancelled timer at once, and a fired one after some time. Then the topic of timers with ids is read
for records with this id as key.

asyncio has one pool of a few threads for all that a process does. If reads of slow brokers filled it, no timer could be
set and no password checked. So reads of each kind have threads of their own: :class:`Threads`.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from time import monotonic
from types import MappingProxyType
from typing import Any, NamedTuple, ParamSpec, TypeAlias, TypeVar

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaException, Message

from timers.console.problems import Problem
from timers.core.printable import decode_json, utc_text
from timers.core.repeating import target_of
from timers.errors import QueueError, TimersError
from timers.kafka import connection, records
from timers.kafka.clients import span_reader
from timers.kafka.connection import CALL_TIMEOUT_S
from timers.kafka.records import headers_of
from timers.kafka.request_formats import enabled_formats
from timers.kafka.topic_offsets import TopicOffsets
from timers.offline.dead_letters.letters import LetterFilter, LetterLog, LetterPage, Marks, Span, newest
from timers.offline.dead_letters.retrying import Retrier, Retry
from timers.process.clock import Clock
from timers.process.config.settings import Settings
from timers.process.http.slots import Slots
from timers.queue.inspection import Inspection, QueueStats
from timers.wire import headers as h
from timers.wire import topics, verdict
from timers.wire.dead_letter import Mark
from timers.wire.formats import RequestFormat
from timers.wire.key_partition import partition_of

MAX_WAIT_S = 5.0
"""How long a request waits for a thread before it is refused."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


_current = threading.local()


class AbandonedError(Exception):
    """The task that waited for the result of a call was cancelled."""


def check() -> None:
    """Raise AbandonedError if no task waits for the call of this thread. Long calls ask between two steps."""
    gone: threading.Event | None = getattr(_current, "gone", None)
    if gone is not None and gone.is_set():
        raise AbandonedError


class Threads:
    """A few threads for blocking calls of one kind: ``count`` calls run at the same time."""

    def __init__(self, name: str, count: int) -> None:
        self._executor = ThreadPoolExecutor(count, f"timers-console-{name}")
        self._slots = Slots(count, MAX_WAIT_S, _no_free_thread)

    async def run(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """The result of a call. If the awaiting task is cancelled, the call holds its thread until it ends or asks
        :func:`check`.

        Raises:
            Problem: no thread became free in time.
        """
        await self._slots.take()

        def give_back(running: asyncio.Future[_T]) -> None:
            self._slots.give_back()
            if not running.cancelled():
                running.exception()  # read here, or asyncio logs the failure of a call whose task was cancelled

        gone = threading.Event()

        def run() -> _T:
            _current.gone = gone
            return call(*args, **kwargs)

        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._executor, run)
        running.add_done_callback(give_back)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            gone.set()
            raise

    async def close(self) -> None:
        """Wait for the calls that run."""
        await asyncio.to_thread(self._executor.shutdown, cancel_futures=True)


def _no_free_thread() -> Problem:
    """For a request that got no thread within :data:`MAX_WAIT_S`."""
    return Problem("busy", "other requests of this kind are being answered", {"Retry-After": "5"})


MAX_PAGE_S = 5.0
MAX_RETRYING_S = 10.0
"""A page, or a retry of many, ends after this time; the next one goes on from there."""

MIN_MARKS_S = 1.0
"""Time for the marks of a page, however long the page took."""

_MAX_RETRIED_LISTED = 100
"""Letters of a retry that its answer lists."""

MAX_MARKS = 100_000
"""Newest marks of retries that are kept, in some 40 MB at most."""

Ranges: TypeAlias = Mapping[int, tuple[int, int]]
"""Partition -> the first offset to read, and the end."""


class FoundLetters(NamedTuple):
    """A page of dead letters, the newest first."""

    page: LetterPage
    marks: Mapping[tuple[str, str], Mark]
    """:attr:`Letter.mark_key` -> its mark, for those of them that were retried."""
    unsure: frozenset[str]
    """Positions of those that may have been retried: their marks are not read yet, or not kept."""
    missing: Mapping[str, str]
    """Partition that could not be read -> why."""


class RetryResult(NamedTuple):
    """What a retry did, or would do."""

    requests: int
    """Requests that it found to publish."""
    overdue: int
    """Those of them that fire at once."""
    left_out: dict[str, int]
    """Reason -> letters that are not retried."""
    published: int
    more: bool
    """Whether it ended early."""
    retried: list[dict[str, Any]]
    """The first hundred that were published."""
    missing: Mapping[str, str]
    """Partition that could not be read -> why."""
    rest: Ranges
    """What the next step must read: after a look all of it, else what this step has not read."""


class LetterBox:
    """The dead letters of an app, for the threads of a console. Keeps the marks of retries that it has read."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._marks = Marks(MAX_MARKS)
        self._lock = threading.Lock()

    def read_page(self, letter_filter: LetterFilter, limit: int, ends: Mapping[int, int] | None) -> FoundLetters:
        """A page of dead letters, and which of them were retried."""
        end_s = monotonic() + MAX_PAGE_S
        with self._log(check) as log:
            page = newest(log, letter_filter, limit, ends, lambda: monotonic() > end_s)
            try:
                marks, are_whole = self._read_marks(log, max(end_s, monotonic() + MIN_MARKS_S))
            except TimersError:  # the letters are known
                marks, are_whole = self._marks, False
        found = {letter.mark_key: mark for letter in page.letters if (mark := marks.of(letter)) is not None}
        unmarked = [letter for letter in page.letters if letter.mark_key not in found]
        unsure = [letter.position for letter in unmarked if not are_whole or marks.may_be_forgotten(letter)]
        return FoundLetters(page, found, frozenset(unsure), log.missing)

    def retry(self, letter_filter: LetterFilter, ranges: Ranges | None, *, only_look: bool) -> RetryResult:
        """Publish the requests of dead letters again, or say what that would do.

        Args:
            ranges: ``rest`` of the step before; None: all that there is. Named letters are retried in one step, all or
                none.
        """
        end_s = monotonic() + MAX_RETRYING_S
        # First: this stops any other retry, so that all its marks are read below.
        retrier = None if only_look else Retrier(self._settings)
        # A retry that has begun goes to the end of its step, even if its client is gone.
        with self._log(check if only_look else lambda: None) as log:
            marks, are_whole = self._read_marks(log, end_s)
            if not are_whole:
                why = "the marks of earlier retries are not all read yet: send the request again, reading goes on"
                raise Problem("busy", why, {"Retry-After": "1"})
            spans = log.spans(letter_filter)
            if ranges is not None:
                both = [(span, *ranges[span.partition]) for span in spans if span.partition in ranges]
                spans = [Span(span.partition, max(span.start, low), min(span.end, high)) for span, low, high in both]
            named = bool(letter_filter.names)
            plan = Retry(
                self._settings,
                log,
                letter_filter,
                spans,
                marks,
                Clock().now_s(),
                force=False,
                is_over=lambda: not named and monotonic() > end_s,
            )
            if retrier is None or named:
                plan.preview()
            published = 0
            retried: list[dict[str, Any]] = []
            for letter, source in () if retrier is None else plan.publish(retrier):
                published += 1
                if len(retried) < _MAX_RETRIED_LISTED:
                    retried.append({"position": letter.position, "retried_as": source})
        rest = {span.partition: (span.start, span.end) for span in (spans if retrier is None else plan.rest)}
        counts = plan.seen.requests, plan.seen.overdue, dict(plan.seen.left_out), published
        return RetryResult(*counts, bool(plan.rest), retried, log.missing, rest)

    def _log(self, check: Callable[[], None]) -> LetterLog:
        return LetterLog(self._settings, shows_progress=False, timeout_s=CALL_TIMEOUT_S, check=check)

    def _read_marks(self, log: LetterLog, end_s: float) -> tuple[Marks, bool]:
        """The marks, and whether all that there are were read, which may take several requests."""
        if not self._lock.acquire(timeout=max(0.0, end_s - monotonic())):
            return self._marks, False
        try:
            self._marks = log.read_marks(self._marks, lambda: monotonic() > end_s)
            return self._marks, self._marks.is_whole
        finally:
            self._lock.release()


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
        if not decoded.follows:  # these the engine has appended
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


MAX_QUEUES_S = 8.0
"""A list of queues ends after this time, and names those that it did not read."""


class FoundQueues(NamedTuple):
    """All queues."""

    stats: list[QueueStats]
    missing: dict[str, str]
    """Name of a queue that was not read -> why."""


def read_queues(settings: Settings) -> FoundQueues:
    end_s = monotonic() + MAX_QUEUES_S
    inspection = Inspection(settings)
    found, missing = [], {}
    for name in inspection.names():
        check()
        if monotonic() > end_s:
            missing[name] = "it was not read in time"
            continue
        try:
            found.append(inspection.stats(name, with_delayed=False))
        except QueueError as error:
            missing[name] = str(error)
    return FoundQueues(found, missing)


MAX_CHANGES = 200
"""Changes that are returned at once."""

SEARCHED_CHANGES = 20_000
"""Entries of the log that are looked at at once for those of one timer or user."""

_CHANGES_AT_ONCE = 200
_MAX_TEXT = 300
_NOT_TOLD = frozenset({"confirm", "wait", "dry_run"})
"""Parameters that say nothing to a reader."""
_MOMENTS = frozenset({"at", "due", "from", "to", "since", "until"})

_LAST_MS = 253_402_300_800_000
"""The end of the year 9999."""


class Change(NamedTuple):
    """An entry of the log of changes: who asked for what. It is written before the change is made, or refused."""

    at_ms: int
    user: str
    address: str
    operation: str
    """The name of a route."""
    about: str
    """What it names: an id, a topic, or a filter."""
    ids: int
    """How many timers it names."""
    only_counts: bool
    """Whether it asked what a cancel or a retry would match, and for no change."""


class Changes(NamedTuple):
    """Changes, the newest first."""

    found: list[Change]
    looked_at: int
    """Entries that were looked at."""
    older: list[int] | None
    """Where older entries end in each partition; None: there are no older ones."""


def read_changes(settings: Settings, id: str, user: str, ends: Sequence[int] | None) -> Changes:
    """The newest changes that name a timer and that a user made. Blocks.

    Args:
        id: of the timer; empty: all changes.
        user: empty: of all users.
        ends: ``older`` of what was read before; None: begin with the newest.

    Raises:
        TimersError: the topic cannot be read.
    """
    reports, topic = connection.ErrorReports(settings), settings.console_log_topic
    offsets = TopicOffsets(settings, connection.CALL_TIMEOUT_S)
    starts, whole = (each.get(topic, {}) for each in (offsets.starts([topic]), offsets.ends([topic])))
    given = dict(enumerate(ends or ()))
    first = {each: max(starts[each], min(end, given.get(each, end))) for each, end in whole.items() if each in starts}
    found: dict[int, list[tuple[int, Change]]] = {partition: [] for partition in first}
    looked_at, give_up_s = 0, monotonic() + MAX_READING_S
    with closing(span_reader(settings, reports)) as consumer, reports.explained(f"topic {topic!r} cannot be read"):
        while any(first[each] > starts[each] for each in first) and looked_at < SEARCHED_CHANGES:
            if monotonic() > give_up_s or sum(map(len, found.values())) >= MAX_CHANGES:
                break
            for partition, upto in first.items():
                first[partition] = max(starts[partition], upto - _CHANGES_AT_ONCE)
                looked_at += upto - first[partition]
                span = records.read(consumer, topic, partition, first[partition], upto, timeout_s=MAX_READING_S)
                found[partition] += _newest_first(span, id, user)
    return _page(found, first, starts, looked_at)


def _newest_first(span: Iterator[Message], id: str, user: str) -> list[tuple[int, Change]]:
    """The changes of records, and their offsets."""
    read = []
    for message in span:
        check()  # an entry may be long
        if (change := change_of(message.value(), id, user)) is not None:
            read.append((_place(message)[1], change))
    return read[::-1]


def _page(
    found: Mapping[int, list[tuple[int, Change]]], first: Mapping[int, int], starts: Mapping[int, int], looked_at: int
) -> Changes:
    """The newest of what was found, those of a partition in the order of its log, and where the rest ends."""
    of_partitions = ([(partition, *each) for each in of] for partition, of in found.items())
    merged = list(heapq.merge(*of_partitions, key=lambda each: -each[2].at_ms))
    rest = dict(first)
    for partition, offset, _ in reversed(merged[MAX_CHANGES:]):
        rest[partition] = offset + 1
    ends = [rest.get(partition, 0) for partition in range(max(rest, default=-1) + 1)]
    has_older = any(end > starts[partition] for partition, end in rest.items())
    return Changes([change for *_, change in merged[:MAX_CHANGES]], looked_at, ends if has_older else None)


def change_of(value: bytes | None, id: str, user: str) -> Change | None:
    """The change in a record; None if it is none, or does not concern this timer and this user."""
    try:
        entry = decode_json(value or b"")
        body, parameters, operation = entry["body"], entry["parameters"], str(entry["operation"])[:_MAX_TEXT]
        listed = body.get("timers", {}).get("listed", ())
        ids = [each for each in (parameters.get("id"), body.get("id")) if each] + list(entry.get("ids", ()))
        ids += [each["id"] for each in listed if "id" in each]
        if (id and id not in ids) or (user and entry["user"] != user):
            return None
        at_ms = int(entry["at_ms"])
        if not 0 <= at_ms < _LAST_MS:
            return None
        about = " ".join(_told({**parameters, **body}))[:_MAX_TEXT]
        by, address = (str(entry[name])[:_MAX_TEXT] for name in ("user", "address"))
        only_counts = bool(body.get("dry_run")) or (
            (operation == "cancelTimers" or (operation == "retryDeadLetters" and "names" not in body))
            and "confirm" not in body
        )
        return Change(at_ms, by, address, operation, about, len(ids) or len(listed), only_counts)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None  # any program with Write there may have written it


def _told(given: Mapping[str, Any]) -> Iterator[str]:
    """What a request has named, without what is recorded by its hash only."""
    for name, value in given.items():
        if name in _NOT_TOLD or value is None or (isinstance(value, dict) and "json_sha256" in value):
            continue
        if name in _MOMENTS and type(value) is int and 0 <= value < _LAST_MS // 1000:
            value = utc_text(value)
        yield f"{name}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
