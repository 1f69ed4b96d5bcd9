"""Time as data: a clock that stands still until it is told to move."""

from __future__ import annotations

EPOCH_S = 1_700_000_000
"""Where simulated time begins unless told otherwise: 14 November 2023, 22:13:20 UTC."""


class SimClock:
    """The brokers' clock. It moves only when told, in either direction.

    Attributes:
        now_ms: epoch milliseconds.
    """

    def __init__(self, now_s: float = EPOCH_S) -> None:
        self.now_ms = round(now_s * 1000)

    @property
    def now_s(self) -> int:
        """The whole second that has begun."""
        return self.now_ms // 1000

    def advance_ms(self, milliseconds: int) -> None:
        """Let time pass."""
        if milliseconds < 0:
            raise ValueError(f"time passes forward, not by {milliseconds} ms: step_ms() sets the clock back")
        self.now_ms += milliseconds

    def step_ms(self, milliseconds: int) -> None:
        """Set the clock, as an operator or a bad NTP server would; back if negative."""
        self.now_ms += milliseconds
