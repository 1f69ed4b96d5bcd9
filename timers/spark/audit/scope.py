"""Selects the requests of an audit, by the time of their acceptance or by offset."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F

from timers.errors import SettingsError
from timers.kafka.topic_offsets import Offsets, TopicOffsets

MARGIN_MS = 60_000
"""Outputs are read from this long before the first request on, because their times may come from another clock."""

Ranges: TypeAlias = Mapping[str, Mapping[int, range]]
"""Topic -> partition -> range of offsets."""


def inside(ranges: Ranges, topic: Column, partition: Column, offset: Column) -> Column:
    """Condition: a record is inside the ranges. ``partition`` may be a number or its digits.

    The expression has one term for each topic, however many partitions a topic has.
    """
    number = partition.try_cast("int")
    is_number = partition.cast("string") == number.cast("string")

    def is_in(name: str, of: Mapping[int, range]) -> Column:
        first, end = (
            F.get(F.expr(f"array({', '.join(_long(bound(of.get(p))) for p in range(max(of) + 1))})"), number)
            for bound in (_start, _stop)
        )
        return F.coalesce((topic == name) & is_number & (offset >= first) & (offset < end), F.lit(False))

    return reduce(or_, (is_in(name, of) for name, of in ranges.items() if of), F.lit(False))


def _start(offsets: range | None) -> int | None:
    return None if offsets is None else offsets.start


def _stop(offsets: range | None) -> int | None:
    return None if offsets is None else offsets.stop


def _long(number: int | None) -> str:
    """A number as Spark's SQL writes it."""
    return "cast(null as bigint)" if number is None else f"{number}L"


def ranges_between(starts: Offsets, ends: Offsets) -> Ranges:
    """The ranges from ``starts`` to ``ends``, for the partitions of ``starts``."""
    return {
        topic: {partition: range(offset, ends[topic][partition]) for partition, offset in partitions.items()}
        for topic, partitions in starts.items()
    }


def before(ends: Offsets) -> Ranges:
    """The ranges of all offsets below ``ends``."""
    return {topic: {partition: range(end) for partition, end in of.items()} for topic, of in ends.items()}


@dataclass(frozen=True)
class Span:
    """Offsets of request topics: which records are read, and which are in scope."""

    starts: Offsets
    ends: Offsets
    scope_ends: Offsets
    """Requests at or after these offsets are not in scope. They are read because they may replace or cancel earlier
    ones."""


@dataclass(frozen=True)
class Scope:
    """Bounds for the requests of an audit. Without bounds, all requests are in scope."""

    from_ms: int | None = None
    """Accepted at this time or later."""
    to_ms: int | None = None
    """Accepted before this time."""
    ranges: Ranges = field(default_factory=dict)
    """The only requests in scope of the topics named here. Other topics are in scope as a whole."""

    @property
    def evidence_from_ms(self) -> int | None:
        """From which time on outputs can belong to the requests; None: from the start."""
        return None if self.from_ms is None else max(0, self.from_ms - MARGIN_MS)

    def span(
        self, topics: TopicOffsets, request_topics: Collection[str], ends: Offsets, whole: Collection[str]
    ) -> Span:
        """The offsets to read.

        Args:
            whole: those of ``topics`` that are read to their ends, also if the scope ends earlier.
        """
        starts = topics.starts(request_topics) if self.from_ms is None else topics.at_time(request_topics, self.from_ms)
        scope_ends = dict(ends) if self.to_ms is None else topics.at_time(request_topics, self.to_ms)
        for topic, partitions in self.ranges.items():
            if topic not in starts or not partitions.keys() <= starts[topic].keys():
                raise SettingsError(
                    f"--range names {topic!r} with partitions {sorted(partitions)}: this request topic does not exist, "
                    f"or it has fewer partitions (existing: {', '.join(request_topics) or 'none'})"
                )
            starts[topic] = {p: max(starts[topic][p], part.start) for p, part in partitions.items()}
            scope_ends[topic] = {p: min(scope_ends[topic][p], part.stop) for p, part in partitions.items()}
        read_ends = {
            topic: {p: ends[topic][p] if topic in whole else max(scope_ends[topic][p], of[p]) for p in of}
            for topic, of in starts.items()
        }
        return Span(starts, read_ends, scope_ends)
