"""The relay: sends the rows of an outbox as requests for timers, and deletes them.

One look at the table is: read the first rows, mark them as begun, send their requests, wait for the acknowledgements,
delete them. Of the rows of one timer a look sends the first only. What happens to a row:

=================================  ==========================================================================
its request                        the row
=================================  ==========================================================================
is acknowledged                    is deleted
would become a dead letter         stays with the reason, and is not read again
is refused by the brokers          is sent once more, alone, because brokers refuse a batch as a whole. If it is
                                   refused again, it stays with the reason
has no answer                      stays marked. Its partition rests: others go on, and one row tries it from time
                                   to time
=================================  ==========================================================================

A marked row may have been sent. If its request has ``timer-if: absent``, a second one changes nothing until
``TIMERS_VERDICT_RETENTION_S`` after its timer was due, so it is sent again at once. For another row, or after half of
this time or ten minutes, the log is asked (:class:`Search`), :data:`SETTLED_S` after this relay has first
seen the mark: a relay sends a row at most ``SEND_S / 2`` after its mark, and its producer gives up after
:data:`SEND_S`. Rows of the same timer wait for it. If the log does not reach back so far, or this relay has seen that
the topic got partitions since the mark, the row stays with a reason: an operator decides.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaException

from timers.client.config import ID_PARTITIONER, Connection
from timers.client.publish import Publisher
from timers.errors import InvalidTimerError, OutboxError, PublishError, TimersError
from timers.kafka import connection, topic_admin
from timers.kafka.clients import reader
from timers.kafka.error_codes import UNREADABLE, code_of
from timers.kafka.records import headers_of, read
from timers.kafka.topic_offsets import TopicOffsets
from timers.outbox import databases
from timers.outbox.databases import Database
from timers.outbox.rows import Request, Row, is_request_of, largest_bytes, names_of, request_of, row_of
from timers.process.clock import Clock
from timers.process.config.settings import Settings
from timers.wire.key_partition import partition_of

logger = logging.getLogger(__name__)

POLL_S = 1.05
"""Longest time between two looks. With :data:`COUNT_EVERY_S` it makes less than one query a second."""

COUNT_EVERY_S = 60.0
"""Seconds between two counts of the refused rows."""

SEND_S = 10.0
"""A request that has no answer after this time was not sent, or never will be: the producer gives up."""

SETTLED_S = 2 * SEND_S
"""So long after its mark was seen, a row is looked for in the log."""

RETRY_S = 1.0
"""Pause after an error of the database or the brokers."""

UNREADY_S, UNLIVE_S = 30.0, 1800.0
"""A relay is not ready, or must be started again, if the database has not answered a statement for this time. A relay
that is started again begins the same statement: one that is merely slow must come to its end."""

_PATIENCE_S = 1.0
"""A partition without an answer after this time rests."""

_HARMLESS_S = 600.0
"""So long after its mark, at most, a row with ``timer-if: absent`` is sent again without a look into the log: workers
may remember ids for less time than this process knows."""

_MOST_ROWS = 2000
_MOST_ALONE = 50
"""Rows that a look sends alone."""

_MOST_TOPICS = 100
"""Callback topics of which a relay says that they do not exist: any program may write any row."""

_SHOWN = 300
"""Characters of a reason."""


@dataclass
class Counters:
    """What a relay has done, for metrics."""

    sent: int = 0
    """Rows whose requests the brokers have acknowledged."""
    found: int = 0
    """Marked rows whose requests were in the log."""
    again: int = 0
    """Marked rows that were sent again."""
    refused: int = 0
    """Rows in the table that have a reason."""
    oldest_ms: int | None = None
    """When the oldest row that waits was written, as of the last look; None: none waits."""
    is_first: bool = False
    """Whether this relay sends, and no other one."""
    error: str | None = "it has not connected yet"
    """Why it does not work now."""


class _InFlight(NamedTuple):
    """A request that was given to the producer."""

    row: Row
    request: Request
    partition: int
    is_alone: bool


class Relay:
    """Sends the rows of one table."""

    def __init__(self, rows: Database, settings: Settings, clock: Clock | None = None) -> None:
        self.counters = Counters()
        self.table = rows.table
        self._rows = rows
        self._settings = settings
        self._kafka = replace(Connection.of(settings).for_ids(), timeout_s=SEND_S)
        self._clock = clock or Clock()
        self._publisher: Publisher | None = None
        self._has_failed = False
        """Whether the producer is to be made anew."""
        self._count_at = 0.0
        self._answers: SimpleQueue[tuple[_InFlight, str | TimersError]] = SimpleQueue()
        self._in_flight: dict[int, _InFlight] = {}
        """By the number of the row."""
        self._taken: list[Row] = []
        """Rows that are not deleted yet."""
        self._alone: deque[_InFlight] = deque()
        """Refused in a batch: they are sent alone."""
        self._resting: dict[int, float] = {}
        """Partition -> until when it rests, by the monotonic clock; infinite: until an answer."""
        self._doubtful: set[int] = set()
        """Partitions that get one row until it is taken."""
        self._floor, self._floor_until = 0, 0.0
        """While a partition rests or rows settle, rows up to this number are passed over, until then."""
        self._partitions = 0
        """Partitions of the topic at the last look."""
        self._recounted_ms = -1
        """When another number was found than before."""
        self._passed: set[str] = set()
        """Ids of timers of which rows are passed over: their later rows wait, too."""
        self._targets: dict[str, bool] = {}
        """Callback topic -> whether it was looked for."""
        self._seen: dict[int, float] = {}
        """Number of a marked row whose request is not harmless twice -> when it was first seen."""
        self._search: Search | None = None
        """For such rows. It goes on at the next look."""
        self._search_from = 0.0
        """When another one may begin, after an error."""
        self._not_sent: set[int] = set()
        """Numbers of the rows that it has not found."""

    def silence(self, limit_s: float) -> list[str]:
        """A sentence if the database has not answered a statement for so many seconds. Any thread may ask."""
        silent_s = self._rows.statement.silent_s
        return [f"the database has not answered a statement for {silent_s:.0f} s"] if silent_s > limit_s else []

    def unready(self) -> list[str]:
        """Why it does not work now. Any thread may ask."""
        return [*([self.counters.error] if self.counters.error else []), *self.silence(UNREADY_S)]

    def run(self, stop: threading.Event) -> None:
        """Send rows until ``stop`` is set. Errors of the database and the brokers are logged, and it goes on."""
        is_connected = False
        try:
            while not stop.is_set():
                try:
                    if not is_connected:
                        self._rows.connect()
                        is_connected = True
                    self._work(stop)
                except TimersError as error:
                    self._note(error)
                    if isinstance(error, OutboxError):
                        is_connected = self.counters.is_first = False
                        self.counters.oldest_ms = None
                        self._seen.clear()
                        self._search = None
                        self._not_sent.clear()
                        self._alone.clear()  # another relay may deal with them now
                    stop.wait(RETRY_S)
        except Exception as error:
            self.counters.error = f"the relay has ended, because of an error in this program: {error!r}"
            raise
        finally:
            self.counters.is_first = False
            self._rows.close()
            if self._publisher is not None:
                self._publisher.close()

    def _work(self, stop: threading.Event) -> None:
        """Look at the table, or wait for the end of another relay."""
        if not self.counters.is_first:
            if not self._rows.is_first():
                self.counters.error, self.counters.refused = None, 0
                stop.wait(POLL_S)
                return
            self._opened()  # connect now, so that the first row does not wait for it
            self.counters.is_first = True
            logger.info("this relay sends the rows")
        if time.monotonic() >= self._count_at:
            self.counters.refused = self._rows.refused()
            self._count_at = time.monotonic() + COUNT_EVERY_S
        is_idle = not self.look()
        if not self._resting:
            self.counters.error = None
        if is_idle:
            self._warn_of_missing_topics()
            self._rows.wait(POLL_S)

    def _warn_of_missing_topics(self) -> None:
        """Say once of each new callback topic whether it does not exist. No row waits for it."""
        new = [name for name, is_known in self._targets.items() if not is_known]
        self._targets |= dict.fromkeys(new, True)
        if not new or self._settings.create_target_topics:
            return
        try:
            missing = topic_admin.missing(self._settings, new)
        except TimersError as error:
            logger.info("not checked whether the callback topics exist: %s", error)
            return
        for name in missing:
            logger.warning(
                "topic %r does not exist: unless it does when its timers are due, they become dead letters", name
            )

    def look(self) -> bool:
        """Send rows that are there. Returns whether another look may find more at once: not if all that is left waits,
        such as for a transaction of another program, which holds the row.

        Raises:
            OutboxError: the database cannot be reached.
            TimersError: no broker answers.
        """
        self._take_answers()
        self._delete_taken()
        publisher = self._opened()
        done = self.counters.found + self.counters.refused
        for _ in range(min(_MOST_ALONE, len(self._alone))):
            self._mark_and_submit(publisher, [self._alone.popleft()])
            self._await_answers()
        now = time.monotonic()
        if not (self._resting or self._seen) or now >= self._floor_until:
            self._floor, self._floor_until = 0, now + SEND_S
            self._passed.clear()
        largest = largest_bytes(self._settings.max_request_bytes)
        rows = self._rows.waiting(self._floor, _MOST_ROWS, largest)
        if not self._floor:
            self.counters.oldest_ms = min((row.created_ms for row in rows), default=None)
        if not (rows or self._floor or self._in_flight):
            self._resting.clear()
            self._doubtful.clear()
        read_bytes = sum(row.row_bytes for row in rows if row.row_bytes <= largest)
        is_full = len(rows) == _MOST_ROWS or read_bytes >= databases.MOST_BYTES
        if self._partitions not in (0, publisher.partitions):
            self._recounted_ms = self._now_ms()
        self._partitions = publisher.partitions
        self._forget_gone(rows, rows[-1].number if is_full else math.inf)
        chosen = self._checked(self._chosen(rows))
        if is_full and (self._resting or self._seen):
            self._floor = rows[-1].number
            self._passed.update(row.aggregateid for row in rows)
        is_given = False
        if chosen:
            is_given = self._mark_and_submit(publisher, chosen)
            self._await_answers()
        is_done = self.counters.found + self.counters.refused > done
        has_more = bool(self._alone) or (self._search is not None and self._clock.boot_s() >= self._search_from)
        return is_given or is_done or has_more or (is_full and bool(self._floor))

    def _forget_gone(self, rows: Sequence[Row], last: float) -> None:
        """Forget when the marks were seen of rows that are no longer there, among those that this look has read, up to
        the number ``last``."""
        if self._seen:
            there = {row.number for row in rows}
            self._seen = {
                number: at for number, at in self._seen.items() if number in there or not self._floor < number <= last
            }
            self._not_sent &= self._seen.keys()

    def _chosen(self, rows: Sequence[Row]) -> list[tuple[Row, int]]:
        """The rows that are sent now, and their partitions: the first one of each timer that waits for nothing."""
        now = time.monotonic()
        busy = {each.row.aggregateid for each in (*self._in_flight.values(), *self._alone)} | self._passed
        known = self._in_flight.keys() | {each.row.number for each in self._alone}
        known |= {row.number for row in self._taken}
        marked = [row for row in rows if row.sent_ms is not None and row.number not in known]
        may_be_sent = self._settled(marked, busy) if marked or self._search is not None else set()
        tried: set[int] = set()
        chosen: list[tuple[Row, int]] = []
        for row in rows:
            if row.number in known or row.aggregateid in busy:
                continue
            busy.add(row.aggregateid)
            if row.sent_ms is not None and row.number not in may_be_sent:
                continue
            partition = partition_of(row.key, self._partitions)
            if self._resting.get(partition, 0.0) > now or partition in tried:
                continue
            if partition in self._doubtful:
                tried.add(partition)
            chosen.append((row, partition))
        return chosen

    def _settled(self, marked: Sequence[Row], busy: set[str]) -> set[int]:
        """Deal with rows that a relay has begun to send. Returns the numbers of those that may be sent again."""
        now_ms, now = self._now_ms(), self._clock.boot_s()
        for row in (moved := [row for row in marked if (row.sent_ms or 0) <= self._recounted_ms]):
            self._refuse(row, _MOVED)
        marked = [row for row in marked if row not in moved]
        safe_ms = min(self._settings.verdict_retention_s / 2, _HARMLESS_S) * 1000  # half: clocks may be behind
        ages_ms = {row.number: now_ms - (row.sent_ms or 0) for row in marked if row.is_harmless_twice}
        again = {number for number, age_ms in ages_ms.items() if -CLOCKS_MS < age_ms < safe_ms}
        doubtful = [row for row in marked if row.number not in again]
        self._seen = {row.number: now for row in doubtful} | self._seen
        waits = {row.aggregateid for row in doubtful if now - self._seen[row.number] < SETTLED_S}
        asked = [row for row in doubtful if row.aggregateid not in waits | busy and row.number not in self._not_sent]
        if now >= self._search_from:
            self._look_for(asked, now_ms, now)
        return again | self._not_sent

    def _look_for(self, asked: Sequence[Row], now_ms: int, now: float) -> None:
        """Read the next piece of the log, and begin with these rows if the search for others is over."""
        try:
            if self._search is None and asked:
                self._search = Search(self._settings, asked, now_ms)
            found = None if self._search is None else self._search.go_on(now_ms)
        except TimersError as error:
            self._note(error)
            self._search_from = self._clock.boot_s() + SETTLED_S  # from now: this one may have waited
            if self._search is not None and not self._search.is_read:
                self._search = None  # another one asks anew who leads and what is left of the log
            return
        if found is None or self._search is None:
            return
        rows, self._search = self._search.rows, None
        gone = [row for row in rows if row.number in found.sent]
        if gone:
            self._rows.delete(gone)
        self.counters.found += len(gone)
        for row in rows:
            if row.number in found.unknown:
                self._refuse(row, _UNKNOWN)
        self._seen |= dict.fromkeys(found.unread, now)
        self._not_sent |= {row.number for row in rows} - found.sent - found.unknown - found.unread

    def _checked(self, chosen: Sequence[tuple[Row, int]]) -> list[_InFlight]:
        """The rows that are requests. The others get a reason."""
        checked = []
        for row, partition in chosen:
            try:
                request = request_of(row, self._now_ms(), self._settings.max_request_bytes)
            except Exception as error:  # any program may write any row: none may stop the others
                is_known = isinstance(error, InvalidTimerError)
                self._refuse(row, str(error) if is_known else f"it cannot be read: {error!r}")
            else:
                checked.append(_InFlight(row, request, partition, is_alone=False))
                if row.timer_topic is not None and len(self._targets) < _MOST_TOPICS:
                    self._targets.setdefault(row.timer_topic, False)
        return checked

    # ---- sending ----------------------------------------------------------------------------------------------------

    def _mark_and_submit(self, publisher: Publisher, chosen: Sequence[_InFlight]) -> bool:
        """Mark rows, and give their requests to the producer. Returns whether one was marked: no other transaction
        holds it. After a pause of this process no more are given: another relay may have taken their marks for those
        of a relay that has ended."""
        marked_at = self._clock.boot_s()
        marked = self._rows.mark([each.row for each in chosen], self._now_ms())
        for each in chosen:
            if self._clock.boot_s() - marked_at > SEND_S / 2:
                logger.warning("this process was paused: what it had marked is sent later")
                break
            if each.row.number in marked:
                self.counters.again += each.row.sent_ms is not None and not each.is_alone
                self._submit(publisher, each)
        return bool(marked)

    def _submit(self, publisher: Publisher, each: _InFlight) -> None:
        request, answer = each.request, partial(self._answer, each)
        self._in_flight[each.row.number] = each
        self._seen.pop(each.row.number, None)
        self._not_sent.discard(each.row.number)
        if each.partition in self._doubtful:
            self._resting[each.partition] = math.inf
        try:
            publisher.submit_record(
                self._kafka.request_topic, request.key, request.value, request.headers, answer, each.partition
            )
        except BufferError:
            answer(TimersError("the producer's queue is full"))
        except TimersError as error:
            answer(error)

    def _answer(self, each: _InFlight, answer: str | TimersError) -> None:
        """Take an answer; called by the publisher's thread."""
        self._answers.put((each, answer))

    def _await_answers(self) -> None:
        """Wait for the answers of partitions that do not rest. Those without an answer in time rest."""
        self._take_answers()  # whatever the time: this process may not have run for a second
        deadline = time.monotonic() + _PATIENCE_S
        while late := {each.partition for each in self._in_flight.values()} - self._resting.keys():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                self._note(TimersError(f"no answer yet from partitions {', '.join(map(str, sorted(late)))}"))
                self._resting |= dict.fromkeys(late, math.inf)
            else:
                self._take_answers(left_s)
        self._delete_taken()

    def _take_answers(self, timeout_s: float = 0.0) -> None:
        """Take the answers that are there, and wait for the first one that long."""
        try:
            self._take(*self._answers.get(timeout=timeout_s) if timeout_s else self._answers.get_nowait())
            while True:
                self._take(*self._answers.get_nowait())
        except Empty:
            pass

    def _delete_taken(self) -> None:
        """Delete the rows whose requests were acknowledged."""
        if self._taken:
            self._rows.delete(self._taken)
            self._taken.clear()

    def _take(self, each: _InFlight, answer: str | TimersError) -> None:
        del self._in_flight[each.row.number]
        if isinstance(answer, TimersError) and not isinstance(answer, InvalidTimerError):
            self._note(answer)
            self._resting[each.partition] = time.monotonic() + RETRY_S
            self._doubtful.add(each.partition)
            self._has_failed = True
            return
        self._resting.pop(each.partition, None)
        self._doubtful.discard(each.partition)
        if isinstance(answer, str):
            self._taken.append(each.row)
            self.counters.sent += 1
        elif each.is_alone:
            self._refuse(each.row, str(answer))
        else:
            self._alone.append(each._replace(is_alone=True))

    def _refuse(self, row: Row, reason: str) -> None:
        if self._rows.refuse(row.number, reason[:_SHOWN]):
            logger.error("row %d (timer %.300r) is not sent: %s", row.number, row.aggregateid, reason)
            self.counters.refused += 1

    def _note(self, error: TimersError) -> None:
        if self.counters.error != str(error):
            logger.warning("rows wait: %s", error)
        self.counters.error = str(error)

    def _opened(self) -> Publisher:
        """The producer. After a failure it is made anew, when it has nothing left: an error of it may be for good."""
        if self._publisher is not None and self._has_failed and not self._in_flight:
            self._publisher.close()
            self._publisher = None
        self._has_failed = self._has_failed and self._publisher is not None
        if self._publisher is None:
            publisher = Publisher(self._kafka, thread="timers-outbox", keep_order=True, partitioner=ID_PARTITIONER)
            self._publisher = publisher  # a new producer also looks up the present number of partitions
        self._publisher.open()
        return self._publisher

    def _now_ms(self) -> int:
        return int(self._clock.now_s() * 1000)


_MOVED = (
    "a relay has begun to send this row, and partitions were added to the topic of requests since: its request may be "
    "on a partition that no longer belongs to its id. Does `timers get` find the timer? Then delete the row; else set "
    "reason and sent_ms to NULL to send it"
)

_UNKNOWN = (
    "a relay has begun to send this row and ended, and the log of requests does not reach back so far, or sent_ms is "
    "in the future, or a former relay has sent a row with this id, which several rows have: whether the timer was set "
    "is not known. Set reason and sent_ms to NULL to send it, or delete it"
)


CLOCKS_MS = 120_000
"""Largest difference between the clocks of relays and brokers. So much of the log before a mark is read, too."""

_SENDING_MS = 20_000
"""A relay sends a row within this time after its mark."""

_LOG_TIMEOUT_S = 30.0

_PIECE_S = 1.0
"""A search reads for so long at a time. Rows of other timers are sent in between."""


class Found(NamedTuple):
    """What the log says of rows that a relay has begun to send: numbers of rows."""

    sent: set[int]
    """Their requests are in it."""
    unknown: set[int]
    """Their requests may have been in a part of the log that is deleted, or have a name that several rows have."""
    unread: set[int]
    """Their partition has no leader now, or cannot be read."""


class Search:
    """Looks for the requests of rows in the partitions of their timers, around the time of their marks.

    It reads in pieces: a relay that was away for a day may have a day of the topic to read.

    Args:
        rows: what to look for.
        now_ms: the time.

    Attributes:
        rows: what it looks for.

    Raises:
        TimersError: the topic cannot be read.
    """

    def __init__(self, settings: Settings, rows: Sequence[Row], now_ms: int) -> None:
        self.rows = rows
        self._settings = settings
        topic = settings.id_topic
        self._offsets = offsets = TopicOffsets(settings, _LOG_TIMEOUT_S, skips_leaderless=True)
        if not offsets.existing([topic]):
            raise PublishError(
                f"topic {topic!r} does not exist at {settings.brokers}: start a worker, which creates it"
            )
        count = len(offsets.partitions(topic))
        self._by_partition: dict[int, list[Row]] = defaultdict(list)
        for row in rows:
            self._by_partition[partition_of(row.key, count)].append(row)
        starts, ends = _bounds(offsets, topic, rows, now_ms)
        # A mark of the future was not written by this clock: nothing says where its request would be.
        self._found = Found(set(), {row.number for row in rows if (row.sent_ms or 0) > now_ms + CLOCKS_MS}, set())
        self._began_s = 0.0
        """When the first record of the present piece came."""
        self._left: dict[int, tuple[int, int]] = {}
        """Partition -> from where to where it is still to be read."""
        for partition, those in self._by_partition.items():
            if partition in starts and partition in ends:
                self._left[partition] = starts[partition], ends[partition]
            else:
                self._found.unread.update(row.number for row in those)

    @property
    def is_read(self) -> bool:
        """Whether all of the log was read, so that only :meth:`go_on` has still to judge."""
        return not self._left

    def go_on(self, now_ms: int) -> Found | None:
        """Read the next piece. Returns what was found if it was the last one, else None.

        Args:
            now_ms: the time.

        Raises:
            TimersError: the topic cannot be read. Begin another search, unless all is read: then only what the log
                has lost is not known, and is asked again.
        """
        self._began_s = 0.0
        topic, reports = self._settings.id_topic, connection.ErrorReports(self._settings)
        # A request may stand behind the open transaction of another program. None of ours is in a transaction.
        properties = {
            **connection.librdkafka(self._settings),
            "isolation.level": "read_uncommitted",
            **reports.callbacks,
        }
        with (
            closing(reader(properties, enable_partition_eof=True, fetch_wait_max_ms=10)) as consumer,
            reports.explained(f"topic {topic!r} cannot be read"),
        ):
            while self._left:
                partition = next(iter(self._left))
                try:
                    is_read = self._read(consumer, partition)
                except KafkaException as error:
                    if code_of(error) not in UNREADABLE:
                        raise
                    logger.warning("rows of partition %d of %s wait: %s", partition, topic, error)
                    self._found.unread.update(row.number for row in self._by_partition[partition])
                    is_read = True
                if not is_read:
                    return None
                del self._left[partition]
        return self._judged(now_ms)

    def _judged(self, now_ms: int) -> Found:
        """What was found. What the log has lost is asked when all is read: it may have lost more meanwhile."""
        topic, (sent, unknown, unread) = self._settings.id_topic, self._found
        whole_since_ms = self._offsets.whole_since_ms([topic], now_ms, self._by_partition.keys()).get(topic, {})
        for partition, those in self._by_partition.items():
            if (since_ms := whole_since_ms.get(partition)) is None:
                unread.update(row.number for row in those)
            else:
                unknown.update(row.number for row in those if (row.sent_ms or 0) - CLOCKS_MS < since_ms)
        return Found(sent, unknown - sent, unread - unknown - sent)

    def _read(self, consumer: Consumer, partition: int) -> bool:
        """Read a partition until the piece is over. Returns whether all of it was read."""
        start, end = self._left[partition]
        named: defaultdict[str | None, list[Row]] = defaultdict(list)
        for row in self._by_partition[partition]:
            for name in names_of(row):
                named[name].append(row)
        for message in read(consumer, self._settings.id_topic, partition, start, end, timeout_s=_LOG_TIMEOUT_S):
            headers = headers_of(message)
            if those := named.get(row_of(headers)):
                self._note(Request(message.key() or b"", message.value(), headers), those)
            self._began_s = self._began_s or time.monotonic()  # not before: to connect may take longer than a piece
            if time.monotonic() >= self._began_s + _PIECE_S:
                self._left[partition] = (message.offset() or 0) + 1, end
                return False
        return True

    def _note(self, record: Request, named: Sequence[Row]) -> None:
        """Note of which of the rows that have the name of a record it is the request."""
        sent, unknown, _ = self._found
        own = {row.number for row in named if is_request_of(record, row, self._settings.max_request_bytes)}
        # Of rows that ask for the same under one name, each may be the one. So may a former row that is deleted, if
        # another request for the timer follows under this name: the row itself would have been the last one.
        (sent if len(own) == 1 else unknown).update(own)
        followed = sent & {row.number for row in named if row.key == record.key} - own
        sent -= followed
        unknown |= followed


def _bounds(
    offsets: TopicOffsets, topic: str, rows: Sequence[Row], now_ms: int
) -> tuple[dict[int, int], dict[int, int]]:
    """Return from where and up to where the partitions must be read."""
    marks_ms = [min(row.sent_ms or 0, now_ms + CLOCKS_MS) for row in rows]
    starts = offsets.at_time([topic], max(0, min(marks_ms) - CLOCKS_MS))[topic]
    # Brokers refuse times in the future. The mark of a row that is harmless twice is its first one.
    last_ms = now_ms if any(row.is_harmless_twice for row in rows) else max(marks_ms) + CLOCKS_MS + _SENDING_MS
    ends = offsets.high_watermarks([topic])[topic]
    if last_ms < now_ms - CLOCKS_MS:
        # Where the time is behind the last stable offset, the answer is that offset: then all is read.
        stable, after = offsets.ends([topic])[topic], offsets.at_time([topic], last_ms)[topic]
        in_time = {partition for partition in after.keys() & stable.keys() if after[partition] < stable[partition]}
        ends |= {partition: max(after[partition], starts[partition]) for partition in in_time & starts.keys()}
    return starts, ends
