"""How many timers fire in one transaction: fewer while the brokers are slow, more again after each success."""

from __future__ import annotations

LARGEST = 1_000_000
"""The largest value of the setting. While :attr:`ChunkSize.timers` has this value, only the setting limits a chunk."""

SMALL = 100
"""This many timers make no transaction slow. After a time-out, the next transaction has at most this many."""

SHRINK_BY = 4
"""A refused record that is the first of a chunk of 20,000 timers is alone in the fifth transaction."""

QUICK_S = 1.0
LONG_S = 3.0
"""After a transaction of less than ``QUICK_S`` the next one may be larger; after one of more than ``LONG_S`` it must be
smaller. Deliveries time out after 6 s."""


class ChunkSize:
    """Limits the chunks of one partition. It outlives the machine, which is opened again after a time-out.

    Attributes:
        timers: maximum number of timers in the next transaction.
    """

    def __init__(self) -> None:
        self.timers = LARGEST
        self._begun = 0

    def limit(self, setting: int) -> int:
        """Returns the maximum number of timers in the next transaction: at most ``setting``."""
        return min(self.timers, setting)

    @property
    def reduced(self) -> bool:
        """Whether chunks are smaller than the setting says, so that stored groups are split."""
        return self.timers < LARGEST

    def begin(self, timers: int) -> None:
        """Note that a transaction has ``timers`` timers."""
        self._begun = timers

    def failed(self) -> None:
        """Note that the brokers did not take the transaction, and do not say which timers to leave out."""
        if self._begun:
            self.timers = max(1, min(SMALL, self._begun // SHRINK_BY))

    def committed(self, seconds: float) -> None:
        """Note that the transaction is committed; the brokers take the next one ``seconds`` after it began."""
        if seconds > LONG_S and self._begun > SMALL:
            self.timers = max(SMALL, self._begun // 2)
        elif self._begun:  # a slow one too: as long as fewer than SMALL timers fire at a time, lags grow
            limit = LARGEST if seconds < QUICK_S else SMALL
            self.timers = max(self.timers, min(2 * self.timers, limit))
