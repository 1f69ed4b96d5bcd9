"""Says which partitions an open transaction of a producer holds back: readers of committed requests stop before it."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from timers.core.timer import TopicPartition
from timers.wire.topics import partition_name

logger = logging.getLogger(__name__)

HELD_S = 10.0
"""Producers commit within less. Kafka ends a transaction after the producer's ``transaction.timeout.ms``, 60 s."""


class HeldBack:
    """Notes how long the last stable offset of a partition stands still before its high watermark."""

    def __init__(self) -> None:
        self._since: dict[TopicPartition, tuple[int, float]] = {}
        """Partition -> last stable offset, and the time at which it was seen first."""
        self._said: set[TopicPartition] = set()

    def note(self, watermarks: Mapping[TopicPartition, tuple[int, int]], now_s: float) -> Mapping[TopicPartition, str]:
        """Note high watermark and last stable offset of each partition, and log what begins and what ends.

        Args:
            now_s: time of a monotonic clock.

        Returns:
            Partition that has been held back for :data:`HELD_S` -> a sentence.
        """
        since = {}
        for tp, (high, stable) in watermarks.items():
            if high > stable:
                offset, began_s = self._since.get(tp, (stable, now_s))
                since[tp] = (stable, began_s if offset == stable else now_s)
        self._since = since
        held = {tp: (stable, now_s - began_s) for tp, (stable, began_s) in since.items() if now_s - began_s > HELD_S}
        reasons = {
            tp: f"a producer's transaction has been open for {held_s:.0f} s, and holds back its requests from offset "
            f"{stable} on (docs/operations.md#timersrequestsheldback)"
            for tp, (stable, held_s) in held.items()
        }
        for tp in held.keys() - self._said:
            logger.warning("%s: %s", partition_name(*tp), reasons[tp])
        for tp in self._said - held.keys():
            logger.info("%s: the open transaction has ended", partition_name(*tp))
        self._said = set(held)
        return reasons
