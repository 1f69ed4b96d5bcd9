"""What a process knows of the brokers' time. Pure: no clock and no I/O."""

from __future__ import annotations

_RESOLUTION_S = 0.001
"""Append times are whole milliseconds, rounded down."""


class BrokersClock:
    """The brokers' time, in epoch seconds, for times of this process's own clock.

    A delay that outlives its process is kept as an instant of the brokers' time: clocks of two processes may be a day
    apart. A process learns this time when it writes a record, whose append time is between two times of its
    own clock.
    """

    def __init__(self) -> None:
        self._least_ahead_s: float | None = None
        self._most_ahead_s = 0.0

    def note(self, append_s: float, sent_s: float, reported_s: float) -> None:
        """Note the append time of a record, and when it was sent and reported by the own clock."""
        self._most_ahead_s = append_s + _RESOLUTION_S - sent_s
        self._least_ahead_s = append_s - reported_s

    @property
    def is_known(self) -> bool:
        return self._least_ahead_s is not None

    def latest(self, own_s: float) -> float:
        """Return the brokers' time at ``own_s`` of the own clock, or a later one."""
        return own_s + self._most_ahead_s

    def own(self, brokers_s: float) -> float:
        """Return when it is ``brokers_s`` by the own clock, or a later time."""
        assert self._least_ahead_s is not None
        return brokers_s - self._least_ahead_s
