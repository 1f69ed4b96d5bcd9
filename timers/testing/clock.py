"""A clock that moves only by a call."""

from __future__ import annotations

EPOCH_S = 1_700_000_000
"""Default start of simulated time: 14 November 2023, 22:13:20 UTC."""


class SimClock:
    """The brokers' clock. It can move in both directions.

    Attributes:
        now_ms: epoch milliseconds.
        boot_ms: milliseconds that have passed; steps do not change it.
    """

    def __init__(self, now_s: float = EPOCH_S) -> None:
        self.now_ms = round(now_s * 1000)
        self.boot_ms = 0

    @property
    def now_s(self) -> int:
        """The epoch second that has begun."""
        return self.now_ms // 1000

    def advance_ms(self, milliseconds: int) -> None:
        """Move the clock forward."""
        if milliseconds < 0:
            raise ValueError(f"time passes forward, not by {milliseconds} ms: step_ms() sets the clock back")
        self.now_ms += milliseconds
        self.boot_ms += milliseconds

    def step_ms(self, milliseconds: int) -> None:
        """Step the clock, as an operator or an NTP server does; negative: back."""
        self.now_ms += milliseconds
