"""The relay: sends the rows of an outbox as requests for timers, and deletes them.

One look at the table is: read the first rows, mark them as begun, send their requests, wait for all acknowledgements,
delete them. What happens to a row:

=================================  ==========================================================================
its request                        the row
=================================  ==========================================================================
is acknowledged                    is deleted
would become a dead letter         stays with the reason, and is not read again
is refused by the brokers          is sent once more, alone, because brokers refuse a batch as a whole. If it is
                                   refused again, it stays with the reason
has no answer                      stays marked, as after the end of a relay, and waits. Others go on
=================================  ==========================================================================

A marked row may have been sent. If its request has ``timer-if: absent``, a second one changes nothing until
``TIMERS_VERDICT_RETENTION_S`` after its timer was due, so it is sent again at once. For another row, or after a long
time, the log is asked (:mod:`timers.outbox.sent`), when the producer that may have had it has given up. Rows of
the same timer wait for it. If the log does not reach back so far, the row stays with a reason: an operator decides.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from timers.client.config import ID_PARTITIONER, Connection
from timers.client.publish import Publisher
from timers.errors import InvalidTimerError, OutboxError, TimersError
from timers.outbox import sent
from timers.outbox.databases import Database
from timers.outbox.rows import Request, Row, request_of
from timers.process.clock import Clock
from timers.process.config.settings import Settings

logger = logging.getLogger(__name__)

POLL_S = 1.05
"""Longest time between two looks. With :data:`COUNT_EVERY_S` it makes less than one query a second."""

COUNT_EVERY_S = 60.0
"""Seconds between two counts of the refused rows."""

SEND_S = 10.0
"""A request that has no answer after this time was not sent, or never will be: the producer gives up."""

SETTLED_MS = int(2 * SEND_S * 1000)
"""So long after its mark a row is looked for in the log."""

RETRY_S = 1.0
"""Pause after an error of the database or the brokers."""

_MOST_ROWS, _FEWEST_ROWS = 2000, 50
_LOOK_BYTES = 8_000_000
"""So many bytes of payloads are read at a time, about."""

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


@dataclass
class _Batch:
    """Requests that are sent, and their answers."""

    count: int
    answers: list[tuple[Row, str | TimersError]] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def taker(self, row: Row) -> Callable[[str | TimersError], None]:
        """A function that takes the answer for a row."""

        def take(answer: str | TimersError) -> None:
            with self.lock:
                self.answers.append((row, answer))
                if len(self.answers) == self.count:
                    self.done.set()

        return take


class Relay:
    """Sends the rows of one table.

    Args:
        settings: of the app that fires the timers.
    """

    def __init__(self, rows: Database, settings: Settings, clock: Clock | None = None) -> None:
        self.counters = Counters()
        self._rows = rows
        self._settings = settings
        self._kafka = replace(Connection.of(settings).for_ids(), timeout_s=SEND_S)
        self._clock = clock or Clock()
        self._publisher: Publisher | None = None
        self._limit = _MOST_ROWS
        self._count_at = 0.0
        self._resting: dict[int, float] = {}
        """Number of a row without an answer -> until when it waits, by the monotonic clock."""

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
                    if self.counters.error is None or isinstance(error, OutboxError):
                        logger.warning("nothing is sent now: %s", error)
                    self.counters.error = str(error)
                    is_connected = is_connected and not isinstance(error, OutboxError)
                    self.counters.is_first = self.counters.is_first and is_connected
                    self._close_publisher()
                    stop.wait(RETRY_S)
        finally:
            self._rows.close()
            self._close_publisher()

    def _work(self, stop: threading.Event) -> None:
        """Look at the table, or wait for the end of another relay."""
        if not self.counters.is_first:
            self.counters.is_first = self._rows.is_first()
            if not self.counters.is_first:
                self._recovered()
                stop.wait(POLL_S)
                return
            self._opened()  # so that the first row does not wait for it
            logger.info("this relay sends the rows")
        if time.monotonic() >= self._count_at:
            self.counters.refused = self._rows.refused()
            self._count_at = time.monotonic() + COUNT_EVERY_S
        is_idle = not self.look()
        self._recovered()
        if is_idle:
            self._rows.wait(POLL_S)

    def _recovered(self) -> None:
        if not self._resting:
            self.counters.error = None

    def look(self) -> bool:
        """Send the rows that are there. Returns whether it has dealt with any.

        Raises:
            OutboxError: the database cannot be reached.
            TimersError: no broker answers.
        """
        rows = self._rows.waiting(self._limit + len(self._resting))
        self.counters.oldest_ms = min((row.created_ms for row in rows), default=None)
        payload_bytes = sum(len(row.payload or b"") for row in rows)
        limit = self._limit * 2 if payload_bytes < _LOOK_BYTES else self._limit // 4
        self._limit = min(_MOST_ROWS, max(_FEWEST_ROWS, limit))
        now = time.monotonic()
        self._resting = {number: until for number, until in self._resting.items() if until > now}
        waits = {row.aggregateid for row in rows if row.number in self._resting}
        marked = [row for row in rows if row.sent_ms is not None and row.aggregateid not in waits]
        again = self._settle(marked, waits) if marked else []
        new = [row for row in rows if row.sent_ms is None]
        chosen = sorted((row for row in (*new, *again) if row.aggregateid not in waits), key=lambda row: row.number)
        self.counters.again += len(chosen) - len(new)
        self._send(chosen)
        return bool(chosen)

    def _settle(self, marked: Sequence[Row], waits: set[str]) -> list[Row]:
        """Deal with rows that a relay has begun to send. Returns those that are sent again.

        Args:
            waits: gets the timers whose rows wait.
        """
        now_ms = self._now_ms()
        ages_ms = {row.number: now_ms - (row.sent_ms or 0) for row in marked}
        safe_ms = self._settings.verdict_retention_s * 500  # half of it: clocks and workers may be behind
        again = [row for row in marked if row.is_harmless_twice and ages_ms[row.number] < safe_ms]
        doubtful = [row for row in marked if not (row.is_harmless_twice and ages_ms[row.number] < safe_ms)]
        waits |= {row.aggregateid for row in doubtful if ages_ms[row.number] < SETTLED_MS}
        asked = [row for row in doubtful if row.aggregateid not in waits]
        if not asked:
            return again
        try:
            found = sent.find(self._settings, asked, now_ms)
        except TimersError as error:  # one partition may have no leader: others go on
            self._rest([row.number for row in asked], error)
            waits |= {row.aggregateid for row in asked}
            return again
        self._rows.delete([row.number for row in asked if row.id in found.sent])
        self.counters.found += len(found.sent)
        for row in asked:
            if row.id in found.unknown:
                self._refuse(row, _UNKNOWN)
        return again + [row for row in asked if row.id not in found.sent | found.unknown]

    def _rest(self, numbers: Sequence[int], error: TimersError) -> None:
        """Let rows wait for a time."""
        self._resting |= dict.fromkeys(numbers, time.monotonic() + SEND_S)
        if self.counters.error is None:
            logger.warning("%d rows wait: %s", len(numbers), error)
        self.counters.error = str(error)

    def _send(self, rows: Sequence[Row]) -> None:
        """Send rows, and delete those that were taken."""
        checked = self._checked(rows)
        if not checked:
            return
        publisher = self._opened()
        is_durable = not all(row.is_harmless_twice for row, _ in checked)
        self._rows.mark([row.number for row, _ in checked], self._now_ms(), is_durable=is_durable)
        refused = self._sent(publisher, checked)
        for row, request, error in refused:
            alone = self._sent(publisher, [(row, request)]) if len(checked) > 1 else [(row, request, error)]
            for _, _, reason in alone:
                self._refuse(row, str(reason))

    def _checked(self, rows: Sequence[Row]) -> list[tuple[Row, Request]]:
        """The rows that are requests. The others get a reason."""
        checked = []
        for row in rows:
            try:
                checked.append((row, request_of(row, self._now_ms(), self._settings.max_request_bytes)))
            except InvalidTimerError as error:
                self._refuse(row, str(error))
        return checked

    def _sent(
        self, publisher: Publisher, checked: Sequence[tuple[Row, Request]]
    ) -> list[tuple[Row, Request, TimersError]]:
        """Send requests, wait for all answers, and delete the rows of those that were taken. Returns the refused ones.

        Raises:
            TimersError: none has an answer.
        """
        batch = _Batch(len(checked))
        requests = {row.number: request for row, request in checked}
        for row, request in checked:
            try:
                publisher.submit_record(
                    self._kafka.request_topic, request.key, request.value, request.headers, batch.taker(row)
                )
            except (BufferError, TimersError) as error:
                known = error if isinstance(error, TimersError) else TimersError("the producer's queue is full")
                batch.taker(row)(known)
        batch.done.wait(SEND_S + RETRY_S)
        with batch.lock:
            answers = [*batch.answers]
        taken = [row.number for row, answer in answers if isinstance(answer, str)]
        self._rows.delete(taken)
        self.counters.sent += len(taken)
        failed = [(row, requests[row.number], answer) for row, answer in answers if isinstance(answer, TimersError)]
        refused = [each for each in failed if isinstance(each[2], InvalidTimerError)]
        done = {*taken, *(row.number for row, _, _ in refused)}
        open_rows = [row.number for row, _ in checked if row.number not in done]
        if open_rows:
            others = (error for _, _, error in failed if not isinstance(error, InvalidTimerError))
            cause = next(others, None) or self._kafka.unreachable_error()
            self._rest(open_rows, cause)
            if not taken:
                raise cause
        return refused

    def _refuse(self, row: Row, reason: str) -> None:
        logger.error("row %d (timer %r) is not sent: %s", row.number, row.aggregateid[:_SHOWN], reason)
        self._rows.refuse(row.number, reason[:_SHOWN])
        self.counters.refused += 1

    def _opened(self) -> Publisher:
        if self._publisher is None:
            self._publisher = Publisher(self._kafka, thread="timers-outbox", partitioner=ID_PARTITIONER)
        self._publisher.open()
        return self._publisher

    def _close_publisher(self) -> None:
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None

    def _now_ms(self) -> int:
        return int(self._clock.now_s() * 1000)


_UNKNOWN = (
    "a relay has begun to send this row and ended, and the log of requests does not reach back so far: whether the "
    "timer was set is not known. Set reason and sent_ms to NULL to send it, or delete the row"
)
