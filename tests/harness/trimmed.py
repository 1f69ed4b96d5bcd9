"""Deletes from request logs what their snapshots replace, as workers do."""

from __future__ import annotations

from tests.harness.system import System
from tests.harness.waiting import wait_until
from timers.core.timer import TopicPartition
from timers.kafka import progress_log
from timers.kafka.clients import asking_admin
from timers.kafka.topics import existing_topics


def trim(system: System, *topics: str) -> dict[TopicPartition, int]:
    """Wait until each partition of these topics has two snapshots, and delete all before the older one.

    Returns:
        The first offset of each partition.
    """
    cluster = existing_topics(asking_admin(system.settings), system.settings)
    tps = {(topic, partition) for topic in topics for partition in range(cluster.partitions[topic])}
    begins: dict[TopicPartition, int] = {}

    def all_have_two() -> bool:
        for tp, progress in progress_log.read_all(system.settings, cluster).items():
            if tp in tps and progress.older_snapshot is not None:
                begins[tp] = progress.older_snapshot.applied
        return begins.keys() == tps

    wait_until(all_have_two, "two snapshots of each partition")
    for (topic, partition), begin in begins.items():
        system.cluster.delete_records(topic, {partition: begin})
    return begins
