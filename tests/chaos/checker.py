"""The verdict on one round: what was fired against what was acknowledged, and what each fault hit.

Everything here is a function of arrays with one entry a timer (8 bytes each), so a million of them fit anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bench.harness.checker import Fired, Ints, Read, judge

CALM_S = 30
"""Within this long after the last fault, everything overdue has fired. A promise."""


@dataclass(frozen=True)
class InjectedFault:
    """A fault that has happened."""

    kind: str
    victim: str
    """Name of the worker, or what else was hit."""
    at_ms: int
    """Epoch milliseconds at which it was injected ..."""
    over_ms: int
    """... and at which nothing more was done: the worker started again, say."""
    held: Mapping[int, int]
    """Request partitions that the victim held, each with the end of its log at that moment."""
    note: str = ""


@dataclass(frozen=True)
class Verdict:
    """What came out of a round."""

    accepted: int
    """Acknowledged to the producer."""
    fired: Fired
    in_flight: tuple[int, ...]
    """For each fault: timers that its victim had, due already and not yet fired when it was injected."""
    worst_lag_ms: int
    worst_after_ms: int
    """After the last fault was over: the longest that a timer waited from then, or from its due second if that was
    later."""
    overdue: int
    """Timers that waited longer than :data:`CALM_S` then."""

    @property
    def counts(self) -> bool:
        """Whether every fault hit work in flight."""
        return bool(self.in_flight) and all(self.in_flight)

    @property
    def kept(self) -> bool:
        """Whether every promise was kept."""
        fired = self.fired
        return not (fired.lost or fired.duplicates or fired.early or fired.altered or self.overdue)


def _numbered(found: Read, timers: int) -> Read:
    """Without records that carry a number nobody asked for."""
    known = (found.numbers >= 0) & (found.numbers < timers)
    return Read(*(column[known] for column in found.columns))


def _in_flight(found: Read, due_s: Ints, injected: InjectedFault) -> int:
    """Timers of the victim's partitions that stood in the log, were due, and had not been fired at that moment."""
    ends = np.zeros(1 + max(int(found.source_partition.max(initial=0)), *injected.held, 0), np.int64)
    for partition, end in injected.held.items():
        ends[partition] = end
    there = found.source_offset < ends[found.source_partition]
    due = due_s[found.numbers] * 1000 <= injected.at_ms
    return int((there & due & (found.append_ms > injected.at_ms)).sum())


def verdict(found: Read, due_s: Ints, faults_injected: list[InjectedFault]) -> Verdict:
    """Judge a round.

    Args:
        due_s: due second of each acknowledged timer.
    """
    fired = judge(found, due_s)
    asked = _numbered(found, len(due_s))
    over_ms = max((injected.over_ms for injected in faults_injected), default=0)
    waited_ms = asked.append_ms - np.maximum(due_s[asked.numbers] * 1000, over_ms)
    return Verdict(
        accepted=len(due_s),
        fired=fired,
        in_flight=tuple(_in_flight(asked, due_s, injected) for injected in faults_injected),
        worst_lag_ms=int(fired.lag_ms.max(initial=0)),
        worst_after_ms=int(waited_ms.max(initial=0)),
        overdue=int((waited_ms > CALM_S * 1000).sum()),
    )
