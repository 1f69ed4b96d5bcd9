"""Random requests to the engine on Spark, as senders write them to the simulated log."""

from __future__ import annotations

from random import Random

from tests.simulation.kit import SimLog
from timers.config.settings import Settings
from timers.wire import future
from timers.wire import headers as h

TARGETS = ("orders", "mails", "failing", "missing", "narrow")


class Senders:
    """Write requests to the partitions of the topic of requests."""

    def __init__(self, log: SimLog, settings: Settings, random: Random) -> None:
        self._log = log
        self._settings = settings
        self._random = random

    def request(self) -> None:
        """Send some requests. A few of them cannot be read, or are too large."""
        now_s = self._log.clock.now_s
        for _ in range(self._random.choice([1, 1, 3, 12])):
            due = now_s + self._random.choice([-5, 0, 1, 1, 2, 3, 10, 60, 100, 200])
            key = b"not a number" if self._random.random() < 0.05 else b"%d" % due
            value = bytes(self._random.choice([3, 3, 3, 400, 2_500]))
            request = future.encode(self._random.choice(TARGETS), self._random.choice("abc"), value)
            partition = self._random.randrange(self._log.partitions)
            headers = [("h", b"1"), *([(h.TIMER_IF, b"absent")] if due % 20 == 0 else [])]
            self._log.append(self._settings.request_topic, key, request, headers, partition=partition)

    def aborted(self) -> None:
        """A sender aborts a transaction: its offsets stay unused."""
        epoch = self._log.new_epoch("sender")
        transaction = self._log.begin("sender", epoch)
        for _ in range(self._random.choice([1, 3])):
            value = future.encode("orders", "k", b"aborted")
            partition = self._random.randrange(self._log.partitions)
            self._log.append(self._settings.request_topic, b"1", value, (), partition, transaction)
        self._log.finish(transaction, commit=False)
