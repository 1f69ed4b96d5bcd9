"""The time that an audit refers to, by the clock of the brokers: all other times in an audit are theirs too."""

from __future__ import annotations

from collections.abc import Callable

FRESH_MS = 5000
"""A tick that differs no more than this from this machine's clock shows that the brokers' clock agrees with it: ticks
come every second."""

_WAIT_S, _WAITS = 0.5, 6
"""If the newest tick differs more, this long and so often the audit waits for another one."""


def as_of_ms(own_ms: int, newest_tick_ms: Callable[[], int | None], sleep: Callable[[float], None]) -> int:
    """The time now by the brokers' clock, or ``own_ms`` if no ticks are written.

    By a clock that is behind, timers that have not fired count as pending; by one that is ahead, pending timers count
    as lost.

    Args:
        own_ms: the time by the clock of this machine.
        newest_tick_ms: when the brokers appended the newest tick; None if that is not known.
    """
    newest = newest_tick_ms()
    if newest is None:
        return own_ms
    if abs(newest - own_ms) <= FRESH_MS:
        return newest
    for _ in range(_WAITS):
        sleep(_WAIT_S)
        later = newest_tick_ms()
        if later is not None and later > newest:
            return later  # ticks are written by that clock; one tick of a clock that leapt would not be followed
    return own_ms
