"""What one partition has done, each thing counted once: when the transaction that says so is known to be committed.

A counters belongs to a partition of this process, not to a machine: it outlives the machines that are dropped and
opened again there, so totals never go back. A commit whose outcome was not known is settled when the next machine reads
the committed progress: it names the transaction. What another worker did in between is that worker's to count.

One thread writes, the one that owns the machine; any other may read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

from timers.core.progress import Progress

LAG_BOUNDS_S = (
    *(0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
    *(1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0, 21600.0, 86400.0),
)
"""Fine around the promise (p99 under 40 ms) and on to a day's downtime."""

Callers: TypeAlias = Mapping[tuple[str, str], int]
"""(caller, outcome) -> records."""

NO_CALLERS: Callers = MappingProxyType({})

MAX_CALLERS = 100
"""A producer may choose any caller name, and each name takes memory here and in Prometheus. Later callers are one."""

OTHER_CALLERS = "other"
"""All callers beyond that."""

WAITED, LATE, RETRIED = "waited", "late", "retried"
"""Ways to a firing: the timer waited for its second; it was accepted when its second had fired already; it came
by the retry topic, since its target failed or a backlog was spread out. Only the first says how well the engine keeps
time."""


class Histogram:
    """How many observations lie at or below each bound; takes many of one value at once."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """One for each bound, not cumulative, and one for what lies above all."""
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count ``times`` observations of ``value``."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times


@dataclass(slots=True)
class TransactionCounters:
    """What one transaction adds when it is committed. Filled by the outbox."""

    late: bool = False
    """Its firings are of requests that were accepted in it."""
    fired: dict[int, int] = field(default_factory=dict)
    """Due second -> callbacks sent."""
    fired_after_retry: dict[int, int] = field(default_factory=dict)
    """Due second first asked for -> callbacks that come from the retry topic."""
    retried: int = 0
    """Timers moved to the retry topic."""
    dead_lettered: dict[str, int] = field(default_factory=dict)
    """Code -> dead letters."""
    verdicts: dict[str, int] = field(default_factory=dict)
    """Verdict -> cancels and updates of timers with an id that came to it."""
    forwarded: int = 0
    """Requests that went cold."""
    progress: Progress | None = None
    """Its name; known once it is about to be committed."""
    ended_ms: int | None = None
    """The brokers' time when it ended, well or not; None if it is not measured."""

    def fire(self, due_s: int, count: int) -> None:
        """``count`` callbacks of one due second were added."""
        self.fired[due_s] = self.fired.get(due_s, 0) + count

    def fire_again(self, due_s: int) -> None:
        """A callback was added that comes from the retry topic."""
        self.fired_after_retry[due_s] = self.fired_after_retry.get(due_s, 0) + 1

    def dead_letter(self, code: str) -> None:
        """A dead letter was added."""
        self.dead_lettered[code] = self.dead_lettered.get(code, 0) + 1


class Counters:
    """Totals of one partition.

    Attributes:
        accepted: requests accepted, not counting those that cannot be read.
        late: of these, requests whose second had fired already.
        fired: callbacks sent to their topics.
        retried: timers moved to the retry topic, each time anew.
        dead_lettered: code -> dead letters.
        verdicts: verdict -> cancels and updates of timers with an id.
        forwarded: requests that went cold.
        promoted: copies of them that came back.
        promoted_duplicates: of these, copies that changed nothing.
        callers: (caller, outcome) -> records, where they say who asks.
        replayed: records read again by recoveries.
        lag: way -> seconds from the due second to the end of the transaction that fired.
        transaction: the transaction that is being filled.
    """

    def __init__(self) -> None:
        self.accepted = 0
        self.late = 0
        self.fired = 0
        self.retried = 0
        self.dead_lettered: dict[str, int] = {}
        self.verdicts: dict[str, int] = {}
        self.forwarded = 0
        self.promoted = 0
        self.promoted_duplicates = 0
        self.replayed = 0
        self.lag = {way: Histogram(LAG_BOUNDS_S) for way in (WAITED, LATE, RETRIED)}
        self.transaction = TransactionCounters()
        self._committed: Progress | None = None
        self.callers: dict[tuple[str, str], int] = {}
        self._taken: list[tuple[int, int, int, int, int, Callers]] = []
        """(end of a fetch, accepted, late, promoted, of them duplicates, callers) of what no known commit covers, in
        order."""

    def begin(self) -> None:
        """A transaction begins; what was begun and not committed is forgotten."""
        self.transaction = TransactionCounters()

    def take(
        self,
        to_offset: int,
        accepted: int,
        late: int,
        promoted: int = 0,
        promoted_duplicates: int = 0,
        callers: Callers = NO_CALLERS,
    ) -> None:
        """Requests up to ``to_offset`` are about to be accepted; they count when that is committed."""
        if accepted or promoted or callers:
            self._taken.append((to_offset, accepted, late, promoted, promoted_duplicates, callers))

    def settle(self, committed: Progress) -> None:
        """Count the transaction that has committed this progress."""
        transaction, self.transaction = self.transaction, TransactionCounters()
        self._committed = committed
        self._count_taken(committed.next_offset)
        self.retried += transaction.retried
        self.forwarded += transaction.forwarded
        for code, count in transaction.dead_lettered.items():
            self.dead_lettered[code] = self.dead_lettered.get(code, 0) + count
        for verdict, count in transaction.verdicts.items():
            self.verdicts[verdict] = self.verdicts.get(verdict, 0) + count
        self._count_fired(LATE if transaction.late else WAITED, transaction.fired, transaction.ended_ms)
        self._count_fired(RETRIED, transaction.fired_after_retry, transaction.ended_ms)

    def _count_fired(self, way: str, fired: Mapping[int, int], ended_ms: int | None) -> None:
        lag = self.lag[way]
        for due_s, count in fired.items():
            self.fired += count
            if ended_ms is not None:
                lag.observe(max(0.0, ended_ms / 1000 - due_s), count)  # the clock is an estimate

    def _count_taken(self, next_offset: int) -> None:
        while self._taken and self._taken[0][0] <= next_offset:
            _, accepted, late, promoted, promoted_duplicates, callers = self._taken.pop(0)
            self.accepted += accepted
            self.late += late
            self.promoted += promoted
            self.promoted_duplicates += promoted_duplicates
            for (caller, outcome), count in callers.items():
                known = (caller, outcome) in self.callers or len(self.callers) < MAX_CALLERS
                label = (caller if known else OTHER_CALLERS, outcome)
                self.callers[label] = self.callers.get(label, 0) + count

    def resume(self, committed: Progress, applied: int) -> None:
        """A machine opens: find out what the last commit of the one before came to.

        Args:
            committed: what is committed now. Neither what was known to be, nor what was about to be: another worker
                has owned the partition, and what it found there is its to count.
            applied: what the store holds: it is not accepted again.
        """
        if self.transaction.progress == committed:
            self.settle(committed)
        elif self._committed != committed:
            self._taken = []
        self.transaction = TransactionCounters()
        self._committed = committed
        self._taken = [taken for taken in self._taken if taken[0] <= applied]
