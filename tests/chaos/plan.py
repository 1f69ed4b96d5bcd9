"""The faults of a round and their times. The seed alone decides them, before anything is started."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

KILL = "kill"
"""``kill -9``, without a restart."""
KILL_RESTART = "kill, restart"
PAUSE = "pause"
"""SIGSTOP until the other workers have taken over its partitions, then SIGCONT: the worker is a zombie."""
WIPE = "kill, wipe disk, restart"
ADD = "add"
REMOVE = "remove"
"""SIGTERM."""
BROKER = "kill brokers, restart"
ALL_DOWN = "all down over a due second"
FORMATS = "request formats toggled"
"""``kill -9`` and a restart at once with one more request format; when the worker reads it, the same without it."""
DAMAGE = "kill, damage stores, restart"
DAMAGE_RUNNING = "damage stores of a running worker"
LEADERLESS = "partitions without a leader"
"""``kill -9`` of one of three brokers, until some time after the cluster knows that it is gone."""
THROTTLE = "throttle all clients"
"""A quota of the brokers."""
STALL = "disk of a worker stalls"
"""Each access to its data waits, for each of :data:`STALLS_S`."""
STALLS_S = (1.0, 5.0, 15.0)
HOLD = "pause the callback topics"
"""By ``timers targets pause``, and ``resume`` after some seconds; of every second one the release is slow."""
SLOW_S = 8
"""Seconds of a slow release."""

NAMES = {
    "kill": KILL,
    "restart": KILL_RESTART,
    "pause": PAUSE,
    "wipe": WIPE,
    "add": ADD,
    "remove": REMOVE,
    "broker": BROKER,
    "all-down": ALL_DOWN,
    "formats": FORMATS,
    "damage": DAMAGE,
    "damage-running": DAMAGE_RUNNING,
    "leaderless": LEADERLESS,
    "throttle": THROTTLE,
    "stall": STALL,
    "hold": HOLD,
}
"""The kinds by their names on the command line."""
KINDS = tuple(NAMES.values())
LEAVES = (KILL, REMOVE)
"""Kinds after which the worker does not come back."""

CLOCK_OFFSETS_S = (0.0, 0.0, 3.0, -2.5, 7_200.0, -10_800.0)
"""By how many seconds the clocks of workers may be wrong; the clock of one worker of each round is right."""

BURST_EVERY_S = 5
"""Most timers are due in bursts, with this many seconds between two bursts. A fault just after a burst hits timers in
flight."""

INJECT_MS = (2, 8)
"""Milliseconds after the start of a burst at which a fault is injected, at the earliest and at the latest: before the
first chunk has fired."""
FIRED_PER_MS = 2000
"""A large burst takes longer: a fault may come one millisecond later for each time this many timers."""


@dataclass(frozen=True)
class Pace:
    """How fast the faults of a round follow each other."""

    fault_every_s: int
    """Seconds between two faults; a fault may come one burst later."""
    tail_s: int
    """Seconds of publishing after the last fault."""
    max_delay_s: int
    """Timers are published 0 to this many seconds before they are due."""


LONG = Pace(fault_every_s=10, tail_s=8, max_delay_s=12)
"""Leaves time for a rebalance and a recovery between two faults."""
SHORT = Pace(fault_every_s=5, tail_s=3, max_delay_s=4)


@dataclass(frozen=True)
class Fault:
    """One fault of a plan."""

    kind: str
    at_s: int
    """Seconds from the first due second to the burst that it hits."""
    offset_ms: int
    """Milliseconds from the start of the burst to the injection."""
    victim: int
    """Index of the worker among those that it can hit, in the order of their names, modulo their number."""
    down_s: float
    """Seconds until a killed worker or broker is started again; for a pause, seconds from the takeover to SIGCONT."""
    clock_offset_s: float
    """By how much the clock of a worker that this fault starts is wrong."""


@dataclass(frozen=True)
class Plan:
    """The plan of one round."""

    seed: int
    storm_s: int
    """Seconds of publishing."""
    clock_offsets_s: tuple[float, ...]
    """By how much the clocks of the first workers are wrong."""
    delays_s: tuple[int, ...]
    """Seconds from publishing a timer to its due second."""
    faults: tuple[Fault, ...]


def make(seed: int, workers: int, timers: int, kinds: Sequence[str] = KINDS, pace: Pace = LONG) -> Plan:
    """Make the plan of one round of ``timers`` timers: each of ``kinds`` once, in random order.

    Raises:
        ValueError: fewer than two workers would be left at the end.
    """
    leaving = sum(kind in LEAVES for kind in kinds)
    if workers < 2 + leaving:
        raise ValueError(f"{workers} workers are too few: {leaving} of them leave, and at least 2 must be left")
    random = Random(seed)
    order = random.sample(list(kinds), len(kinds))
    latest_ms = INJECT_MS[1] + timers * BURST_EVERY_S // (len(kinds) * pace.fault_every_s * FIRED_PER_MS)
    faults = []
    for index, kind in enumerate(order):
        burst = (index + 1) * pace.fault_every_s // BURST_EVERY_S
        if pace.fault_every_s > BURST_EVERY_S and random.random() < 0.3:
            burst += 1
        faults.append(
            Fault(
                kind=kind,
                at_s=burst * BURST_EVERY_S,
                offset_ms=random.randint(INJECT_MS[0], latest_ms),
                victim=random.randrange(60),
                down_s=round(random.uniform(0.5, 4.0), 1),
                clock_offset_s=random.choice(CLOCK_OFFSETS_S),
            )
        )
    clocks = (0.0, *(random.choice(CLOCK_OFFSETS_S) for _ in range(workers - 1)))
    delays = tuple(random.choice((0, 1, 2, random.randint(1, pace.max_delay_s))) for _ in range(97))
    return Plan(seed, faults[-1].at_s + pace.tail_s, clocks, delays, tuple(faults))


def describe(plan: Plan) -> list[str]:
    """The plan as lines of text."""
    clocks = ", ".join(f"{clock:+g} s" if clock else "right" for clock in plan.clock_offsets_s)
    lines = [f"plan of seed {plan.seed}: {plan.storm_s} s of publishing; clocks of the first workers: {clocks}"]
    for fault in plan.faults:
        lines.append(f"  {fault.at_s:3} s + {fault.offset_ms:3} ms: {fault.kind}")
    return lines
