"""How much one machine does at a time: limits from the settings, the size of chunks, the pace of a backlog."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from timers.core.timer import DueRows, Row

LARGEST_CHUNK = 1_000_000
"""The largest value of the setting. While :attr:`ChunkSize.timers` has this value, only the setting limits a chunk."""

SMALL_CHUNK = 100
"""This many timers make no transaction slow. After a time-out, the next transaction has at most this many."""

SHRINK_BY = 4
"""A refused record that is the first of a chunk of 20,000 timers is alone in the fifth transaction."""

QUICK_TRANSACTION_S = 1.0
LONG_TRANSACTION_S = 3.0
"""After a transaction of less than ``QUICK_TRANSACTION_S`` the next one may be larger; after one of more than
``LONG_TRANSACTION_S`` it must be smaller. Deliveries time out after 6 s."""


NOISY_ROWS = 1_000

LEAST_RELEASED = 100
"""So many timers of a hold are released at a time, if the brokers take that many."""

SHORT_S, LONG_PART_S = 0.05, 0.25
BEFORE_TICK_S = 0.2
"""While others fire too, what a hold releases is sent in parts of ``LONG_PART_S``. In the last ``BEFORE_TICK_S`` of a
second they take ``SHORT_S``: the others come due with the next tick, and wait for the part that is being sent. After
the tick they begin with it: in other partitions the others may not be sent yet, and share the processor."""


class ChunkSize:
    """Limits the chunks of one partition. It outlives the machine, which is opened again after a time-out.

    Attributes:
        timers: maximum number of timers in the next transaction.
        begun: number of timers in the last one.
        since_tick_s: seconds from the begin of a second to the end of its last transaction; the machine sets it to
            0 with the tick of another second.
    """

    def __init__(self) -> None:
        self.timers = LARGEST_CHUNK
        self.begun = 0
        self._took_s: deque[float] = deque(maxlen=16)
        self._per_s = LEAST_RELEASED / SHORT_S
        self.since_tick_s = 0.0

    def failed(self) -> None:
        """Note that the brokers did not take the transaction, and do not say which timers to leave out."""
        if self.begun:
            self.timers = max(1, min(SMALL_CHUNK, self.begun // SHRINK_BY))

    def committed(self, seconds: float, since_tick_s: float) -> None:
        """Note that the transaction is committed; the brokers take the next one ``seconds`` after it began.

        Args:
            since_tick_s: seconds since the second of the last tick began. A part of a release takes what has passed
                since the transaction before: its timers are read and written, too, while other machines compute.
        """
        self._took_s.append(seconds)
        took_s, self.since_tick_s = max(seconds, since_tick_s - self.since_tick_s), since_tick_s
        if self.begun >= LEAST_RELEASED:
            self._per_s = self.begun / max(took_s, 0.001)
        if seconds > LONG_TRANSACTION_S and self.begun > SMALL_CHUNK:
            self.timers = max(SMALL_CHUNK, self.begun // 2)
        elif self.begun:  # also after a slow chunk: lags grow as long as one has fewer timers than SMALL_CHUNK
            limit = LARGEST_CHUNK if seconds < QUICK_TRANSACTION_S else SMALL_CHUNK
            self.timers = max(self.timers, min(2 * self.timers, limit))

    @property
    def part(self) -> int:
        """How many timers of a hold to release in the next transaction, while others fire too. Where brokers need long
        for few of them, a part takes twice as long: else the overhead would be all of it."""
        left_s = 1 - BEFORE_TICK_S - self.since_tick_s
        aim_s = min(LONG_PART_S, left_s, self.since_tick_s)
        aim_s = max(SHORT_S, aim_s, 2 * min(self._took_s, default=0.0))
        return max(LEAST_RELEASED, int(self._per_s * aim_s))


OVERDUE_S = 10
"""A timer that is late by more seconds than this belongs to a backlog. In a burst of timers the lag is smaller."""


class Pace:
    """Assigns overdue timers to this second and later ones. Its counts are in memory only, and lost at a restart.

    A machine fires in the order of due seconds. If overdue timers waited, timers that are not late would wait behind
    them. So timers above the limit are moved to the retry topic, due at the first second below the limit.

    Args:
        per_s: maximum number of overdue timers in one second.
    """

    def __init__(self, per_s: int) -> None:
        self._per_s = per_s
        self._now_s = 0
        self._second = 0
        self._assigned = 0

    def paced(
        self, due: Iterable[DueRows], now_s: int, overdue_s: int
    ) -> tuple[list[DueRows], list[tuple[int, list[Row], int]]]:
        """Returns those of due rows that fire now, and the others as (due second, rows, second of the next attempt)."""
        fired: list[DueRows] = []
        postponed: list[tuple[int, list[Row], int]] = []
        for due_s, rows in due:
            if due_s >= now_s - overdue_s:
                fired.append((due_s, rows))
                continue
            start = 0
            for second, count in self.spread(now_s, len(rows)):
                part = rows[start : start + count]
                start += count
                if second == now_s:
                    fired.append((due_s, part))
                else:
                    postponed.append((due_s, part, second))
        return fired, postponed

    def spread(self, now_s: int, count: int) -> Iterator[tuple[int, int]]:
        """Yields (second, number of timers) for ``count`` timers; the first second is ``now_s`` or later."""
        if self._second < now_s or now_s < self._now_s:  # all assigned seconds are over, or the clock went back
            self._second, self._assigned = now_s, 0
        self._now_s = now_s
        while count:
            if self._assigned == self._per_s:
                self._second, self._assigned = self._second + 1, 0
            part = min(count, self._per_s - self._assigned)
            self._assigned += part
            count -= part
            yield self._second, part


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one machine."""

    chunk_timers: int
    """Maximum number of timers in one transaction; may be exceeded by one stored group."""
    chunk_bytes: int
    """Maximum bytes of timers in one transaction; may be exceeded by one stored group."""
    max_request_bytes: int
    """Maximum bytes of a request value."""
    catch_up_per_s: int = 0
    """Maximum number of overdue timers fired in one second; 0 means no bound."""
    overdue_s: int = OVERDUE_S
    """A timer is overdue if it is more seconds past its due second than this."""
    partitions: int = 0
    """Number of partitions of the topic, if its timers have ids."""
    reject_overdue: bool = False
    """Reject requests that were due before they were sent, if the request format can."""
    stale_after_s: int = 0
    """Maximum age of the store in seconds, if the log is compacted [I9]; 0: the log is not compacted."""
    noisy_rows: int = NOISY_ROWS
    """A target with so many timers of a full chunk may be noisy [I36]."""
