"""Notices that a client of librdkafka has lost the addresses of all brokers. It connects to none any more, and says so
nowhere: only a new client helps.

A broker that stops may answer a request for metadata with topics, and without any broker. librdkafka 2.16 then forgets
all brokers, also those of ``bootstrap.servers``. It takes these again when it has no connection; but if the connection
breaks while this answer is read, it does not (its issue 5301). A request for whatever then gets no answer.

Its statistics name the brokers that it knows. As long as they are merely away, one of them is there, with the source
``learned`` or ``configured``. Statistics of 200 partitions cost less than 1 ms of CPU time. They are neither logged nor
kept.

Admin clients are not watched, because nothing polls them all the time. They are made anew after a time without an
answer: :class:`timers.kafka.admin_client.RenewedAdmin`.
"""

from __future__ import annotations

from time import monotonic
from typing import Any

STATISTICS_MS = 10_000

_SURE_S = 9.0
"""Statistics must say it for so long: two of them, or more if the application wants them more often."""

LOST_BROKERS = "has lost the addresses of all brokers, and connects to none any more (issue 5301 of librdkafka)"
"""What a message says of a client."""

_KNOWN = '"source":"learned"', '"source":"configured"'


class LostBrokers:
    """Watches one client, whose properties include :attr:`properties`. The client must be polled all the time:
    librdkafka keeps statistics, of some kB each, until they are taken."""

    def __init__(self) -> None:
        self._since: float | None = None
        """When the first of the last statistics came that had no broker; None: the last one had some."""
        self.are_all = False
        """Whether the client has lost all brokers. The first statistics are not enough: the client may just be about to
        take those of ``bootstrap.servers`` again."""

    @property
    def properties(self) -> dict[str, Any]:
        """Let the client report to this."""
        return {"statistics.interval.ms": STATISTICS_MS, "stats_cb": self}

    def __call__(self, statistics: str) -> None:
        """Take statistics, a JSON text."""
        if any(known in statistics for known in _KNOWN):
            self._since = None
        elif self._since is None:
            self._since = monotonic()
        self.are_all = self._since is not None and monotonic() - self._since >= _SURE_S
