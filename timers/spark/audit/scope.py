"""Which requests an audit is about: by the time of their acceptance, or by offset."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from timers.errors import SettingsError
from timers.kafka.topic_offsets import Places, Topics

MARGIN_MS = 60_000
"""Outputs are looked for from this long before the first request on: their time may be another clock's."""


@dataclass(frozen=True)
class Span:
    """Offsets of request topics: what is read, and what is asked about."""

    starts: Places
    ends: Places
    scope_ends: Places
    """Requests from here on are not asked about; they may say what became of those before."""


@dataclass(frozen=True)
class Scope:
    """All requests, but for these bounds."""

    from_ms: int | None = None
    """Accepted at this time or later."""
    to_ms: int | None = None
    """Accepted before this time."""
    ranges: dict[str, dict[int, tuple[int, int]]] = field(default_factory=dict)
    """Topic -> partition -> offsets [from, to). Of a topic that is named, nothing else."""

    @property
    def evidence_from_ms(self) -> int | None:
        """Since when outputs can answer the requests; None: since ever."""
        return None if self.from_ms is None else max(0, self.from_ms - MARGIN_MS)

    def span(self, topics: Topics, asking: Collection[str], ends: Places, whole: Collection[str]) -> Span:
        """The offsets to read.

        Args:
            topics: the cluster's.
            asking: topics of requests that are there.
            ends: where each of them ends.
            whole: of these, topics to be read to their ends, whatever the scope.

        Raises:
            SettingsError: a range names what is not there.
        """
        starts = topics.starts(asking) if self.from_ms is None else topics.at(asking, self.from_ms)
        scope_ends = dict(ends) if self.to_ms is None else topics.at(asking, self.to_ms)
        for topic, partitions in self.ranges.items():
            if topic not in starts or not partitions.keys() <= starts[topic].keys():
                raise SettingsError(
                    f"--range names {topic!r} with partitions {sorted(partitions)}: there is no such topic of "
                    f"requests, or it has fewer (there are {', '.join(asking) or 'none'})"
                )
            starts[topic] = {p: max(starts[topic][p], low) for p, (low, _) in partitions.items()}
            scope_ends[topic] = {p: min(scope_ends[topic][p], high) for p, (_, high) in partitions.items()}
        read_ends = {
            topic: {p: ends[topic][p] if topic in whole else max(scope_ends[topic][p], of[p]) for p in of}
            for topic, of in starts.items()
        }
        return Span(starts, read_ends, scope_ends)
