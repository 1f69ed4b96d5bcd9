"""What goes wrong in a round, decided by the seed alone, before anything is started."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

KILL = "kill"
"""``kill -9``; it stays away."""
KILL_RESTART = "kill, restart"
PAUSE = "pause"
"""SIGSTOP until the others have taken over, then SIGCONT: a zombie."""
WIPE = "kill, wipe disk, restart"
ADD = "add"
REMOVE = "remove"
"""SIGTERM."""
BROKER = "kill broker, restart"
ALL_DOWN = "all down over a due second"

KINDS = (KILL, KILL_RESTART, PAUSE, WIPE, ADD, REMOVE, BROKER, ALL_DOWN)
NAMES = dict(zip(("kill", "restart", "pause", "wipe", "add", "remove", "broker", "all-down"), KINDS, strict=True))
"""On the command line."""
LEAVING = (KILL, REMOVE)

CLOCKS_S = (0.0, 0.0, 3.0, -2.5, 7_200.0, -10_800.0)
"""How far workers' clocks may be off; one worker of each round is right."""

GATHER_S = 5
"""Most timers are due in bursts this far apart: a fault that injected faults just after one hits work in flight."""

STRIKE_MS = (8, 15)
"""How far into a burst's second a fault injected faults at the earliest, before the first chunk is out, and at the
latest, ..."""
FIRED_PER_MS = 2000
"""... which is later for large bursts: they go on for a millisecond for each so many timers."""


@dataclass(frozen=True)
class Pace:
    """How long a round takes."""

    fault_every_s: int
    """Faults are this far apart, give or take a burst."""
    tail_s: int
    """The storm goes on this long after the last fault began."""
    max_delay_s: int
    """Timers are published up to this long before they are due, some in the second in which they are."""


LONG = Pace(fault_every_s=10, tail_s=8, max_delay_s=12)
"""Time for a rebalance and a recovery between two faults."""
SHORT = Pace(fault_every_s=5, tail_s=3, max_delay_s=4)


@dataclass(frozen=True)
class Fault:
    """One fault of a plan."""

    kind: str
    at_s: int
    """Seconds after the first due second: a burst's."""
    phase_ms: int
    """How far into that second."""
    victim: int
    """Which worker: the one at this index, modulo the number of those that it can hit, in the order of their names."""
    away_s: float
    """How long what was killed or paused stays so; a pause counts from the moment the others have taken over."""
    clock_s: float
    """How far the clock of a worker that this fault starts is off."""


@dataclass(frozen=True)
class Plan:
    """One round."""

    seed: int
    storm_s: int
    """How long the producer publishes."""
    clocks_s: tuple[float, ...]
    """How far the clocks of the first workers are off."""
    delays_s: tuple[int, ...]
    """Seconds from publishing a timer to its due second."""
    faults: tuple[Fault, ...]


def make(seed: int, workers: int, timers: int, kinds: Sequence[str] = KINDS, pace: Pace = LONG) -> Plan:
    """The plan of one round of ``timers`` timers: each of ``kinds`` once, in random order.

    Raises:
        ValueError: too few workers: at least two must be left when some have gone for good.
    """
    leaving = sum(kind in LEAVING for kind in kinds)
    if workers < 2 + leaving:
        raise ValueError(f"{workers} workers are too few: {leaving} of them leave, and at least 2 must be left")
    random = Random(seed)
    order = random.sample(list(kinds), len(kinds))
    latest_ms = STRIKE_MS[1] + timers * GATHER_S // (len(kinds) * pace.fault_every_s * FIRED_PER_MS)
    faults = []
    for index, kind in enumerate(order):
        burst = (index + 1) * pace.fault_every_s // GATHER_S
        if pace.fault_every_s > GATHER_S and random.random() < 0.3:
            burst += 1
        faults.append(
            Fault(
                kind=kind,
                at_s=burst * GATHER_S,
                phase_ms=random.randint(STRIKE_MS[0], latest_ms),
                victim=random.randrange(60),
                away_s=round(random.uniform(0.5, 4.0), 1),
                clock_s=random.choice(CLOCKS_S),
            )
        )
    clocks = (0.0, *(random.choice(CLOCKS_S) for _ in range(workers - 1)))
    delays = tuple(random.choice((0, 1, 2, random.randint(1, pace.max_delay_s))) for _ in range(97))
    return Plan(seed, faults[-1].at_s + pace.tail_s, clocks, delays, tuple(faults))


def describe(plan: Plan) -> list[str]:
    """The plan in lines, to be printed before it happens."""
    clocks = ", ".join(f"{clock:+g} s" if clock else "right" for clock in plan.clocks_s)
    lines = [f"plan of seed {plan.seed}: {plan.storm_s} s of publishing; clocks of the first workers: {clocks}"]
    for fault in plan.faults:
        lines.append(f"  {fault.at_s:3} s + {fault.phase_ms:3} ms: {fault.kind}")
    return lines
