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
        begun: number of timers in the last one.
    """

    def __init__(self) -> None:
        self.timers = LARGEST
        self.begun = 0

    def failed(self) -> None:
        """Note that the brokers did not take the transaction, and do not say which timers to leave out."""
        if self.begun:
            self.timers = max(1, min(SMALL, self.begun // SHRINK_BY))

    def committed(self, seconds: float) -> None:
        """Note that the transaction is committed; the brokers take the next one ``seconds`` after it began."""
        if seconds > LONG_S and self.begun > SMALL:
            self.timers = max(SMALL, self.begun // 2)
        elif self.begun:  # a slow one too: as long as fewer than SMALL timers fire at a time, lags grow
            limit = LARGEST if seconds < QUICK_S else SMALL
            self.timers = max(self.timers, min(2 * self.timers, limit))
