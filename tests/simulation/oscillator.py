"""Ticks of three brokers: the clocks of two are right, the third one's may be wrong."""

from random import Random

from tests.simulation.kit.log import SimLog, SimRecord
from tests.simulation.kit.worker import RIGHT, WRONG

YEAR_S = 365 * 86_400


class SimOscillator:
    """Writes ticks.

    Args:
        log: the cluster.
        topic: topic of ticks.
        random: random source.
    """

    def __init__(self, log: SimLog, topic: str, random: Random) -> None:
        self._log = log
        self._topic = topic
        self._random = random

    def tick(self) -> None:
        """Write a tick. Its key may be wrong by hours: only its append time counts."""
        key = self._log.clock.now_s + self._random.choice([0, 0, 3, -3600, 3600])
        self._log.append(self._topic, b"%d" % key, b"1", partition=self._random.choice(RIGHT))

    def tick_of_each(self) -> None:
        """Write several ticks with right clocks: enough for each worker to compare two of them."""
        for partition in (*RIGHT, *RIGHT):
            self._log.append(self._topic, b"0", b"1", partition=partition)

    def wrong_tick(self, ahead_s: float) -> None:
        """Write a tick of the broker whose clock is wrong."""
        record = self._log.append(self._topic, b"0", b"1", partition=WRONG)
        record.timestamp_ms += round(ahead_s * 1000)

    def old_ticks(self) -> list[SimRecord]:
        """The last ticks of one broker whose clock is right."""
        records = self._log.fetch(self._topic, self._random.choice(RIGHT), 0, committed=False).records
        return [*records[-6:]]
