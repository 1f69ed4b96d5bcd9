"""The verdict on one round: compares callbacks with acknowledged requests, and counts what each fault hit.

All functions work on arrays with one entry a timer (8 bytes each), because a round has a million timers.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tests.harness.judge import Callbacks, Fired, Ints, judge

CATCH_UP_S = 30
"""So many seconds after the end of the last fault all overdue timers must have fired, on a machine that is not slow."""

CATCH_UP_STARTS = 10
"""On a slow machine it is as many times the slowest start of a worker: such a start takes 3 s of CPU time."""


def catch_up_s(slowest_start_s: float) -> float:
    """Seconds after the end of the last fault within which all overdue timers must have fired.

    Args:
        slowest_start_s: the longest time of the round from the start of a worker's process until its first line.
    """
    return max(float(CATCH_UP_S), CATCH_UP_STARTS * slowest_start_s)


@dataclass(frozen=True)
class InjectedFault:
    """A fault that has happened."""

    kind: str
    victim: str
    """Name of the worker, or of several."""
    at_ms: int
    """Epoch milliseconds of its injection."""
    over_ms: int
    """Epoch milliseconds of its last step, such as the restart of the worker."""
    held: Mapping[int, int]
    """Request partitions that the victim held, each with its end offset at the injection."""
    grace_ms: int = 0
    """Milliseconds from then on for which timers may still wait because of it."""
    note: str = ""
    """What was seen of its effect."""
    seen: bool = True
    """Whether its effect was seen, such as the damage of a store by its worker."""
    delays: bool = True
    """Whether timers in flight wait because of it: for a worker that joins, none do."""


@dataclass(frozen=True)
class Verdict:
    """The result of a round."""

    accepted: int
    """Requests that the broker acknowledged."""
    fired: Fired
    in_flight: tuple[int, ...]
    """For each fault: timers of its victim that were due and not yet fired when it was injected."""
    missed: int
    """Faults that delay timers, and hit none."""
    unseen: int
    """Faults whose effect was not seen."""
    worst_lag_ms: int
    worst_after_faults_ms: int
    """The longest wait of a timer, from the end of the last fault or from its due second if that was later."""
    overdue: int
    """Timers that waited longer than ``limit_s``."""
    limit_s: float

    @property
    def counts(self) -> bool:
        """Whether every fault had its effect, and hit timers in flight if it delays them."""
        return bool(self.in_flight) and not self.missed and not self.unseen

    @property
    def kept(self) -> bool:
        """Whether every promise was kept."""
        fired = self.fired
        return not (fired.lost or fired.duplicates or fired.early or fired.altered or self.overdue)


def _in_flight(found: Callbacks, due_s: Ints, injected: InjectedFault) -> int:
    """Timers of the victim's partitions that were requested, due and not yet fired at the injection."""
    ends = np.zeros(1 + max(int(found.source_partition.max(initial=0)), *injected.held, 0), np.int64)
    for partition, end in injected.held.items():
        ends[partition] = end
    requested = found.source_offset < ends[found.source_partition]
    due = due_s[found.numbers] * 1000 <= injected.at_ms
    return int((requested & due & (found.append_ms > injected.at_ms)).sum())


def verdict(
    found: Callbacks, due_s: Ints, injected_faults: list[InjectedFault], limit_s: float = CATCH_UP_S
) -> Verdict:
    """Judge a round.

    Args:
        due_s: due second of each acknowledged timer.
        limit_s: what :func:`catch_up_s` says.
    """
    fired = judge(found, due_s)
    asked = found.of(len(due_s))
    over_ms = max((injected.over_ms + injected.grace_ms for injected in injected_faults), default=0)
    waited_ms = asked.append_ms - np.maximum(due_s[asked.numbers] * 1000, over_ms)
    in_flight = tuple(_in_flight(asked, due_s, injected) for injected in injected_faults)
    return Verdict(
        accepted=len(due_s),
        fired=fired,
        in_flight=in_flight,
        missed=sum(each.delays and not hit for each, hit in zip(injected_faults, in_flight, strict=True)),
        unseen=sum(not injected.seen for injected in injected_faults),
        worst_lag_ms=int(fired.lag_ms.max(initial=0)),
        worst_after_faults_ms=int(waited_ms.max(initial=0)),
        overdue=int((waited_ms > limit_s * 1000).sum()),
        limit_s=limit_s,
    )
