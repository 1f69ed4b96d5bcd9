"""Totals of one partition for the metrics. An event is counted once, when its transaction is known to be committed.

Counters belong to a partition of this process. They are kept when its machine is opened again. So totals never
decrease. If the outcome of a commit was not known, the next machine reads the committed progress, which shows whether
this transaction was committed. Another worker that owned the partition in between counts its own events.

Only the thread that owns the machine writes; every thread may read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from timers.core.progress import Progress
from timers.core.timer import DueRows

LAG_BOUNDS_S = (
    *(0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
    *(1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0, 21600.0, 86400.0),
)
"""Upper bounds of lag in seconds: close together around 40 ms, the target for p99; up to a downtime of one day."""

Callers: TypeAlias = Mapping[tuple[str, str], int]
"""(caller, outcome) -> records."""

NO_CALLERS: Callers = MappingProxyType({})

MAX_COUNTED_CALLERS = 100
"""Maximum number of caller names. Producers choose these names, and each costs memory here and in the metrics store."""

OTHER_CALLERS = "other"
"""Counts all callers above the maximum."""

TOPIC_LAG_BOUNDS_S = (0.05, 0.1, 0.25, 1.0, 5.0, 60.0, 3600.0)
"""Upper bounds of the lag of one callback topic: few, because each is a time series for each topic."""

MAX_COUNTED_TOPICS = 100
"""Maximum number of callback topics that are counted by name. Producers choose these names."""

OTHER_TOPICS = "(other)"
"""Counts all topics above the maximum. No topic has this name."""

MAX_COUNTED_ZONES = 20
"""Maximum number of unknown time zones that are counted by name. Any client can write a name that is no zone."""

OTHER_ZONES = "(other)"
"""Counts all unknown zones above the maximum. No zone has this name."""

WAITED, LATE, RETRIED, HELD = "waited", "late", "retried", "held"
"""Kinds of firings: the timer waited for its second; it was accepted after its second had fired; it came from the retry
topic, because its target failed or a backlog was spread; it was held, because its target was paused or noisy. Only the
first kind shows the lag of the engine."""


class Histogram:
    """Counts observations by upper bound. One call adds many observations of one value."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """One count for each bound, not cumulative, and one for values above all bounds."""
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count ``times`` observations of ``value``."""
        self.observe_all([(value, times)])

    def observe_all(self, observations: Iterable[tuple[float, int]]) -> None:
        """Count observations: values, each with its times."""
        bounds, counts, added = self.bounds, self.counts, 0.0
        for value, times in observations:
            counts[bisect_left(bounds, value)] += times
            added += value * times
        self.sum += added


Fired: TypeAlias = dict[str, dict[int, int]]
"""Callback topic -> due second -> callbacks."""


class TopicCounters:
    """Totals of one callback topic.

    Attributes:
        lag: seconds from the due second to the end of the transaction, of timers that waited for their second.
    """

    __slots__ = ("fired", "lag")

    def __init__(self) -> None:
        self.fired = 0
        self.lag = Histogram(TOPIC_LAG_BOUNDS_S)


@dataclass(slots=True)
class TransactionCounters:
    """What one transaction adds to the totals when it is committed. The outbox fills it."""

    kind: str = WAITED
    """Kind of its firings, without those that come from the retry topic."""
    fired: Fired = field(default_factory=dict)
    """Callbacks sent."""
    fired_after_retry: Fired = field(default_factory=dict)
    """Callbacks that come from the retry topic, by the due second of the request."""
    retried: int = 0
    """Timers moved to the retry topic."""
    dead_lettered: Counter[str] = field(default_factory=Counter)
    """Code -> dead letters."""
    verdicts: Counter[str] = field(default_factory=Counter)
    """Verdict -> cancels and replacements of timers with an id."""
    followed: int = 0
    """Occurrences of timers that repeat, appended to the log."""
    mended: int = 0
    """Those of them that were appended again, because the log has lost them."""
    lacking: Counter[str] = field(default_factory=Counter)
    """Zone that is not known here -> timers that wait for it, and look again after a minute."""
    missed: Counter[str] = field(default_factory=Counter)
    """Reason -> occurrences that are not sent."""
    forwarded: int = 0
    """Requests that went cold."""
    unlisted: int = 0
    """Requests that count although the version that they name has fired."""
    progress: Progress | None = None
    """The progress that it commits; it identifies the transaction. Set just before the commit."""
    ended_ms: int | None = None
    """The brokers' time when it ended, committed or not; None if the lag is not measured."""

    def fire(self, topic: str, due: Iterable[DueRows]) -> None:
        """Add callbacks to a topic."""
        counts = self.fired.setdefault(topic, {})
        for due_s, rows in due:
            counts[due_s] = counts.get(due_s, 0) + len(rows)

    def fire_again(self, topic: str, due_s: int) -> None:
        """Add a callback that comes from the retry topic."""
        counts = self.fired_after_retry.setdefault(topic, {})
        counts[due_s] = counts.get(due_s, 0) + 1


_LETTERS, _MISSED, _LAG, _SUM = "dead-lettered/", "missed/", "lag/", "sum"


def lag_of(numbers: Mapping[str, float], way: str) -> Histogram:
    """The lags of a kind of firing in sums of :meth:`Counters.numbers`."""
    histogram = Histogram(LAG_BOUNDS_S)
    histogram.counts = [int(numbers.get(f"{_LAG}{way}/{place}", 0)) for place in range(len(histogram.counts))]
    histogram.sum = numbers.get(f"{_LAG}{way}/{_SUM}", 0.0)
    return histogram


def dead_lettered_of(numbers: Mapping[str, float]) -> dict[str, int]:
    """Code -> dead letters in sums of :meth:`Counters.numbers`."""
    return {name.removeprefix(_LETTERS): int(number) for name, number in numbers.items() if name.startswith(_LETTERS)}


def missed_of(numbers: Mapping[str, float]) -> dict[str, int]:
    """Reason -> occurrences that are not sent, in sums of :meth:`Counters.numbers`."""
    return {name.removeprefix(_MISSED): int(number) for name, number in numbers.items() if name.startswith(_MISSED)}


def added(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    """The sums of two of :meth:`Counters.numbers`."""
    return {name: first.get(name, 0) + second.get(name, 0) for name in {**first, **second}}


def subtracted(later: Mapping[str, float], earlier: Mapping[str, float]) -> dict[str, float]:
    """What has been added to :meth:`Counters.numbers` since an earlier time, without zeros."""
    return {name: number - earlier.get(name, 0) for name, number in later.items() if number != earlier.get(name, 0)}


class Accepted(NamedTuple):
    """Numbers of the requests of one fetch."""

    to_offset: int
    """End of the fetch."""
    accepted: int
    late: int
    promoted: int = 0
    promoted_duplicates: int = 0
    callers: Callers = NO_CALLERS


class Counters:
    """Totals of one partition.

    Attributes:
        accepted: requests accepted, not counting those that cannot be read.
        late: accepted requests whose second had already fired.
        fired: callbacks sent to their topics.
        verdicts: verdict -> cancels and replacements of timers with an id.
        followed: occurrences of timers that repeat, appended to the log.
        mended: those of them that were appended again, because the log has lost them.
        zone_unknown: how often timers did not know what follows, because their zone is not known here: once a minute.
        lacking: zone that is not known here -> (minute, timers that looked for it in this minute, in the one before).
        missed: reason -> occurrences that are not sent.
        unlisted: requests that count although the version that they name has fired [I27].
        promoted: promoted copies that were read.
        promoted_duplicates: promoted copies that were ignored.
        callers: (caller, outcome) -> records, where the records name a caller.
        lag: kind of firing -> seconds from the due second to the end of the transaction that fired.
        topics: callback topic -> its totals; at most :data:`MAX_COUNTED_TOPICS`, and one for the others.
        transaction: the transaction that is being filled; the outbox begins it.
        uncommitted: what was accepted after the last commit; it is counted when a commit covers it.
    """

    def __init__(self) -> None:
        self.accepted = 0
        self.late = 0
        self.fired = 0
        self.retried = 0
        self.dead_lettered: Counter[str] = Counter()
        self.verdicts: Counter[str] = Counter()
        self.followed = 0
        self.mended = 0
        self.zone_unknown = 0
        self.lacking: dict[str, tuple[int, int, int]] = {}
        self.missed: Counter[str] = Counter()
        self.forwarded = 0
        self.unlisted = 0
        self.promoted = 0
        self.promoted_duplicates = 0
        self.replayed = 0
        self.lag = {kind: Histogram(LAG_BOUNDS_S) for kind in (WAITED, LATE, RETRIED, HELD)}
        self.topics: dict[str, TopicCounters] = {}
        self.transaction = TransactionCounters()
        self._committed: Progress | None = None
        self.callers: Counter[tuple[str, str]] = Counter()
        self.uncommitted: list[Accepted] = []

    def numbers(self) -> dict[str, float]:
        """The totals that engines have in common: name -> number. Subtract two results to get the totals between them.

        :func:`lag_of`, :func:`dead_lettered_of` and :func:`missed_of` read them.
        """
        lags = ((way, histogram) for way, histogram in self.lag.items() if histogram.sum or any(histogram.counts))
        return {
            "fired": self.fired,
            "retried": self.retried,
            "followed": self.followed,
            "mended": self.mended,
            "zone-unknown": self.zone_unknown,
            **{f"{_MISSED}{reason}": count for reason, count in self.missed.items()},
            **{f"{_LETTERS}{code}": count for code, count in self.dead_lettered.items()},
            **{
                f"{_LAG}{way}/{place}": number
                for way, histogram in lags
                for place, number in (*enumerate(histogram.counts), (_SUM, histogram.sum))
            },
        }

    def count_committed(self, committed: Progress) -> None:
        """Count the open transaction, which has committed the progress ``committed``."""
        transaction, self.transaction = self.transaction, TransactionCounters()
        self._committed = committed
        self._count_accepted(committed.next_offset)
        self.retried += transaction.retried
        self.followed += transaction.followed
        self.mended += transaction.mended
        self._count_lacking(transaction.lacking, committed.fired_through[0] // 60)
        self.missed.update(transaction.missed)
        self.forwarded += transaction.forwarded
        self.unlisted += transaction.unlisted
        self.dead_lettered.update(transaction.dead_lettered)
        self.verdicts.update(transaction.verdicts)
        self._count_fired(transaction.kind, transaction.fired, transaction.ended_ms)
        self._count_fired(RETRIED, transaction.fired_after_retry, transaction.ended_ms)

    def _count_lacking(self, zones: Mapping[str, int], minute: int) -> None:
        if zones:
            self.lacking = {zone: seen for zone, seen in self.lacking.items() if seen[0] >= minute - 1}
        for zone, number in zones.items():
            name = zone if zone in self.lacking or len(self.lacking) < MAX_COUNTED_ZONES else OTHER_ZONES
            known, present, before = self.lacking.get(name, (minute, 0, 0))
            if known != minute:
                present, before = 0, present if known == minute - 1 else 0
            self.lacking[name] = minute, present + number, before
            self.zone_unknown += number

    def _count_fired(self, kind: str, fired: Fired, ended_ms: int | None) -> None:
        for topic, counts in fired.items():
            count = sum(counts.values())
            self.fired += count
            of_topic = self.topics.get(topic) or self._new_topic(topic)
            of_topic.fired += count
            if ended_ms is not None:
                ended_s = ended_ms / 1000
                lags = [(max(0.0, ended_s - due_s), times) for due_s, times in counts.items()]  # its time is estimated
                self.lag[kind].observe_all(lags)
                if kind == WAITED:
                    of_topic.lag.observe_all(lags)

    def _new_topic(self, topic: str) -> TopicCounters:
        name = topic if len(self.topics) < MAX_COUNTED_TOPICS else OTHER_TOPICS
        return self.topics.setdefault(name, TopicCounters())

    def _count_accepted(self, next_offset: int) -> None:
        while self.uncommitted and self.uncommitted[0].to_offset <= next_offset:
            _, accepted, late, promoted, promoted_duplicates, callers = self.uncommitted.pop(0)
            self.accepted += accepted
            self.late += late
            self.promoted += promoted
            self.promoted_duplicates += promoted_duplicates
            for (caller, outcome), count in callers.items():
                known = (caller, outcome) in self.callers or len(self.callers) < MAX_COUNTED_CALLERS
                self.callers[caller if known else OTHER_CALLERS, outcome] += count

    def resume(self, committed: Progress, applied: int) -> None:
        """Decide whether the last commit of the former machine succeeded. Call when a machine opens.

        Args:
            committed: newest committed progress. If it is neither the last known commit nor the one whose outcome was
                unknown, another worker has owned the partition, and has counted the requests.
            applied: offset up to which the store was written; requests below it are not accepted again.
        """
        if self.transaction.progress == committed:
            self.count_committed(committed)
        elif self._committed != committed:
            self.uncommitted = []
        self.transaction = TransactionCounters()
        self._committed = committed
        self.uncommitted = [fetch for fetch in self.uncommitted if fetch.to_offset <= applied]
