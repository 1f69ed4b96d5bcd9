"""Whether the senders of ids agree on a partitioner.

All requests of an id must be on one partition. Our clients put an id where Kafka's client for Java does (murmur2). A
sender that has another hash is right if it is the only one: then one id in as many as there are partitions is at
murmur2's place, by chance. Where many more are, and some are not, two hashes meet, and a cancel may miss its timer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from timers.process.partition_metrics import PartitionMetrics
from timers.wire.key_partition import partition_of

SAMPLE = 20
"""So many ids of each fetch are looked at: 0.2 µs each."""

LEAST = 20
"""So many ids must have been looked at."""

DEVIATIONS = 4.0
"""So many standard deviations above chance the number at murmur2's place must be. Chance does it once in 30,000."""


def note(metrics: PartitionMetrics, records: Sequence[Any], partition: int, partitions: int) -> None:
    """Count where ids of a fetch are."""
    keys = [record.key for record in records[:SAMPLE] if record.key is not None]
    in_place = sum(partition_of(key, partitions) == partition for key in keys)
    metrics.ids_in_place += in_place
    metrics.ids_elsewhere += len(keys) - in_place


def are_mixed(in_place: int, elsewhere: int, partitions: int) -> bool:
    """Whether ids were placed by murmur2 and by another hash."""
    count, chance = in_place + elsewhere, 1 / partitions
    expected = count * chance + DEVIATIONS * math.sqrt(count * chance * (1 - chance))
    return count >= LEAST and elsewhere > 0 and in_place > expected


def warnings(topic: str, measured: Iterable[PartitionMetrics], partitions: int) -> list[str]:
    """A sentence, if the senders of a topic place ids in two ways; as far as this worker sees its records.

    Args:
        measured: of the partitions of the topic.
    """
    found = list(measured)
    in_place, elsewhere = sum(each.ids_in_place for each in found), sum(each.ids_elsewhere for each in found)
    if partitions < 2 or not are_mixed(in_place, elsewhere, partitions):
        return []
    return [
        f"the senders of {topic!r} use two partitioners: of {in_place + elsewhere:,} requests that were looked at, "
        f"{elsewhere:,} are not where Kafka's client for Java (murmur2) puts their ids. A cancel or an update on "
        "another partition than its timer has the verdict unknown (docs/other-clients.md#send-requests-with-an-id)"
    ]
