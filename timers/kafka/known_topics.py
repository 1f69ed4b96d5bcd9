"""All topics as the brokers listed them last, and the partitions of the engine's topics that get no records for now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from time import monotonic

from timers.kafka.topic_metadata import Topic

AVOIDED_S = 10.0
"""Seconds for which records of the engine avoid a partition whose leader took none, and after which the leaders are
looked up again while a partition has none. The brokers notice the loss of another one after 9 s."""


class KnownTopics:
    """The topics of the cluster.

    Attributes:
        counts: topic -> number of its partitions.
        leaderless: topic -> its partitions without a leader, if there are any.

    Args:
        counts: of the topics that are known at the start.
    """

    def __init__(self, counts: Mapping[str, int]) -> None:
        self.counts = dict(counts)
        self.leaderless: dict[str, frozenset[int]] = {}
        self._avoided: dict[tuple[str, int], float] = {}
        """Partition of a topic of the engine whose leader did not take records -> until when another one is used."""

    def note(self, found: Mapping[str, Topic]) -> None:
        """Note a new list of all topics."""
        self.leaderless = {name: topic.leaderless for name, topic in found.items() if topic.leaderless}
        self.counts = {name: topic.partitions for name, topic in found.items()}

    def partitions(self, topic: str) -> int:
        """Last known number of partitions of a topic that exists."""
        return self.counts.get(topic, 1)

    def avoid(self, topic: str, partitions: Iterable[int]) -> float:
        """Use other partitions of a topic of the engine for :data:`AVOIDED_S`. Returns when this time ends."""
        until = monotonic() + AVOIDED_S
        self._avoided |= {(topic, partition): until for partition in partitions}
        return until

    def available(self, topic: str, partition: int) -> int:
        """``partition`` of a topic of the engine; or the next one with a leader, if it had none a short time ago."""
        if not self._avoided and topic not in self.leaderless:
            return partition
        count = self.partitions(topic)
        others = ((partition + step) % count for step in range(count))
        return next((each for each in others if not self._is_avoided(topic, each)), partition)

    def _is_avoided(self, topic: str, partition: int) -> bool:
        return partition in self.leaderless.get(topic, ()) or monotonic() < self._avoided.get((topic, partition), 0.0)
