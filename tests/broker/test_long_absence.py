"""All workers are away for longer than Kafka remembers a group's offsets."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_INVALID, ConsumerGroupTopicPartitions, TopicPartition

from tests.harness.records import Request
from tests.harness.system import PARTITIONS, System
from tests.harness.waiting import DEADLINE_S, due_in, wait_until
from tests.harness.worker import READY
from timers.cli.broker import EmbeddedBroker

pytestmark = [pytest.mark.broker, pytest.mark.long]

FORGETS = {"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "1000"}
"""The shortest that Kafka allows; seven days by default."""

FORGOTTEN_WITHIN_S = 240.0


@pytest.fixture
def systems(tmp_path: Path) -> Iterator[list[System]]:
    """Two systems on one broker that soon forgets the offsets of a group without members."""
    broker = EmbeddedBroker(tmp_path / "broker", 0, FORGETS)
    address = broker.start()
    systems = [System(address, tmp_path), System(address, tmp_path)]
    yield systems
    for system in systems:
        system.close()
    broker.stop()


def remembered(system: System) -> bool:
    """Whether the group has an offset for any request partition."""
    places = [TopicPartition(system.request_topic, partition) for partition in range(PARTITIONS)]
    asked = ConsumerGroupTopicPartitions(system.app_id, places)
    told = system.admin.list_consumer_group_offsets([asked])[system.app_id].result(DEADLINE_S)
    return any(place.offset != OFFSET_INVALID for place in told.topic_partitions)


def forgotten(system: System) -> bool:
    return not remembered(system)


def on_all_partitions(target: str, count: int, due_s: int) -> list[Request]:
    return [Request(target, due_s, f"key-{index}", partition=index % PARTITIONS) for index in range(count)]


class Absence:
    """One system before its workers' absence, and what must come of it after."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._worker = system.worker().start().ready()
        self._fired = system.send(*on_all_partitions(system.target(), 2_000, due_in(1)))
        self._later = system.send(*on_all_partitions(system.target(), 1_000, due_in(3600)))
        system.fired(self._fired)
        wait_until(lambda: remembered(system), "the group has offsets")
        self._worker.stop()
        self._overdue = system.send(*on_all_partitions(system.target(), 2_000, due_in(2)))

    def end(self, *, disk_kept: bool) -> None:
        system = self._system
        (self._worker if disk_kept else system.worker()).start().wait_for(READY)
        assert len(system.fired(self._overdue)) == 2_000
        assert len(system.reader(self._fired[0].target).rest()) == 2_000, "what has fired stays fired"
        assert system.reader(self._later[0].target).rest() == []
        fresh = system.send(*on_all_partitions(system.target(), 200, due_in(2)))
        assert len(system.fired(fresh)) == 200, "nothing new is swallowed"


def test_nothing_fires_twice_and_nothing_new_is_swallowed(systems: list[System]) -> None:
    """One comes back with its disk, one without."""
    absences = [Absence(system) for system in systems]
    for system in systems:
        wait_until(partial(forgotten, system), "the group's offsets are forgotten", FORGOTTEN_WITHIN_S)
    for absence, disk_kept in zip(absences, (True, False), strict=True):
        absence.end(disk_kept=disk_kept)
