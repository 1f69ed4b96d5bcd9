"""The time that an audit refers to, by the clock of the brokers: all other times in an audit are theirs too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from timers.core.clock_guard import iso

FRESH_MS = 5000
"""A tick that differs no more than this from this machine's clock shows that the brokers' clock agrees with it: ticks
come every second."""

_WAIT_S, _WAITS = 0.5, 6
"""If the newest tick of each partition differs more, this long and so often the audit waits for another one."""

_MORE_WAITS = 20
"""The same if another broker may show who is right: an oscillator writes each tick to a partition of its choice."""


class Newest(NamedTuple):
    """The newest tick of a partition."""

    broker: int
    """Id of the broker that leads the partition."""
    append_ms: int


class Now(NamedTuple):
    """The time that an audit refers to."""

    as_of_ms: int
    doubt: str = ""
    """Why it is not known; empty if it is."""


def now(
    own_ms: int, newest: Callable[[], Mapping[int, Newest]], max_leap_s: int, sleep: Callable[[float], None]
) -> Now:
    """The time now by the brokers' clock, or ``own_ms`` if no ticks are written.

    By a clock that is behind, timers that have not fired count as pending; by one that is ahead, pending timers count
    as lost. So a broker's clock must agree with a second one, another broker's or this machine's, within the limit that
    the engine has for its ticks [I20]. If it does not, the earliest clock counts: what is overdue by this one is
    overdue by all.

    Args:
        own_ms: the time by the clock of this machine.
        newest: partition -> its newest tick, by the brokers' clock.
        max_leap_s: how far two clocks may differ that agree.
    """
    first = newest()
    near = [tick.append_ms for tick in first.values() if abs(tick.append_ms - own_ms) <= FRESH_MS]
    if near:
        return Now(max(near))
    if not first:
        return Now(own_ms)
    shown: dict[int, int] = {}
    for number in range(_MORE_WAITS):
        if number >= _WAITS and (not shown or len({tick.broker for tick in first.values()}) == 1):
            break
        sleep(_WAIT_S)
        for partition, tick in newest().items():
            before = first.get(partition)
            # Ticks are written by this clock; a single tick of a clock that leapt would not be followed.
            if before is not None and tick.append_ms > before.append_ms:
                shown[tick.broker] = max(tick.append_ms, shown.get(tick.broker, 0))
        agreeing = _agreeing([*shown.values()], own_ms, max_leap_s * 1000)
        if agreeing:
            return Now(max(agreeing))
    if not shown:
        return Now(own_ms)
    return Now(min(own_ms, *shown.values()), _doubt(shown, own_ms, max_leap_s))


def _agreeing(brokers_ms: Sequence[int], own_ms: int, limit_ms: int) -> list[int]:
    """The times of brokers with which a second clock agrees: this machine's if it agrees with any, else another's."""
    with_own = [each for each in brokers_ms if abs(each - own_ms) <= limit_ms]
    if with_own:
        return with_own
    return [
        each
        for index, each in enumerate(brokers_ms)
        if any(abs(each - other) <= limit_ms for other in (*brokers_ms[:index], *brokers_ms[index + 1 :]))
    ]


def _doubt(shown: Mapping[int, int], own_ms: int, max_leap_s: int) -> str:
    times = [f"broker {broker} shows {iso(append_ms / 1000)}" for broker, append_ms in sorted(shown.items())]
    return (
        f"no two clocks agree within {max_leap_s} s: {', '.join(times)}, this machine shows {iso(own_ms / 1000)}. "
        "Timers are judged by the earliest of them: correct the clock that is wrong, and audit again"
    )
