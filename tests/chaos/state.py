"""The state of a round: its workers, its broker, and which worker holds which partitions."""

import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from confluent_kafka import KafkaException
from confluent_kafka.admin import ConsumerGroupDescription

from tests.harness.cluster import Cluster, client_settings
from tests.harness.disk import StallingDisk
from tests.harness.scrape import scrape
from tests.harness.system import System
from tests.harness.worker import Worker
from timers.kafka.admin_client import AdminClient

BEGUN = "Starting..."
"""Part of the first line of a worker. Until then it has asked no broker, so this time depends on the machine alone."""

ASK_S = 5.0
"""Seconds that the group may take to answer."""


class Brokers(Protocol):
    """One broker, or a cluster of them."""

    def start(self) -> str:
        """Start what does not run; return the address when all answer."""

    def kill(self) -> None:
        """Kill all, as a power failure does."""


@dataclass
class Member:
    """One worker of the round.

    Attributes:
        disk: what its data is on, in a round whose disks stall.
        wanted: it should run; if it ends, that is a failure.
        paused: no other fault may hit it: it was stopped by SIGSTOP, or the fault that hit it still watches what it
            does.
        begins: it was started, and its first line was not seen yet.
    """

    name: str
    worker: Worker
    disk: StallingDisk | None
    wanted: bool = True
    paused: bool = False
    begins: bool = False

    def start(self, clock_offset_s: float, **settings: str) -> None:
        """Start the process with a clock that is wrong by ``clock_offset_s``, and with more settings."""
        clock = {"TIMERS_CLOCK_OFFSET": str(clock_offset_s)} if clock_offset_s else {}
        self.worker.start(**clock, **settings)
        self.wanted, self.begins = True, True

    def kill(self) -> None:
        self.wanted, self.begins = False, False
        self.worker.kill()


@dataclass
class RoundState:
    """The system of a round and the brokers that it runs on.

    Attributes:
        bytes_per_s: bytes that all clients together write in the mean, about.
        disks_stall: each worker has a disk that can stall.
        brokers_up: all brokers run; only then new faults begin.
        alone: a fault is under way beside which no other one begins.
        chosen_ends: end offset of each request partition when the victim of the newest fault was chosen.
        failures: sentences about failures that the checker cannot see in the callbacks.
        targets: the callback topics of the round.
        slowest_start_s: the longest time from the start of a worker's process until its first line.
    """

    brokers: Brokers
    system: System
    console: Callable[[str], None]
    bytes_per_s: int
    disks_stall: bool
    members: list[Member] = field(default_factory=list)
    brokers_up: bool = True
    alone: bool = False
    chosen_ends: Mapping[int, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    targets: tuple[str, ...] = ()
    slowest_start_s: float = 0.0
    _asker: AdminClient | None = None
    _no_broker: bool = False
    _first_broker_at: float = 0.0
    """When brokers ran again after all had been killed."""

    def add(self, clock_offset_s: float) -> Member:
        """Start one more worker."""
        worker = self.system.worker(forked=False)
        disk = StallingDisk(worker.data_dir) if self.disks_stall else None
        member = Member(f"worker-{len(self.members)}", worker, disk)
        self.members.append(member)
        member.start(clock_offset_s)
        return member

    def close(self) -> None:
        """End all workers, and unmount their disks."""
        self.system.close()
        for member in self.members:
            if member.disk is not None:
                member.disk.close()

    def _group(self) -> ConsumerGroupDescription | None:
        """Ask the group coordinator; None if it does not answer."""
        if not self.brokers_up:
            return None
        group = self.system.app_id
        if self._asker is None:
            self._asker = AdminClient(client_settings(self.system.address))
        try:
            asked = self._asker.describe_consumer_groups([group], request_timeout=ASK_S)
            description: ConsumerGroupDescription = asked[group].result(2 * ASK_S)
            return description
        except KafkaException:
            # A client whose coordinator went away does not find it again: all its later requests time out.
            self._asker = None
            return None

    def kill_brokers(self) -> None:
        """Kill all brokers."""
        self.brokers_up, self._no_broker = False, True
        self.brokers.kill()

    def restart_brokers(self) -> None:
        """Start the brokers that were killed."""
        self.brokers.start()
        self._no_broker, self._first_broker_at = False, time.time()
        self.note_brokers_up()

    def note_brokers_up(self) -> None:
        """Let new faults begin: all brokers run."""
        self.brokers_up = True
        self._asker = None

    def held(self, topic: str = "") -> dict[str, list[int]]:
        """Partitions of each running worker, from the group coordinator; empty during a rebalance.

        Args:
            topic: of the partitions; by default the request topic.
        """
        told = self._group()
        by_id = {member.worker.worker_id: member for member in self.members if member.wanted}
        held: dict[str, list[int]] = {}
        for one in told.members if told else ():
            member = by_id.get(one.group_instance_id or "")
            places = one.assignment.topic_partitions if one.assignment else []
            mine = [place.partition for place in places if place.topic == (topic or self.system.request_topic)]
            if member is not None and mine:
                held[member.name] = sorted(mine)
        return held

    def throttled_s(self) -> dict[float, float]:
        """Seconds for which each running worker has waited for quotas, by the time of its start."""
        found = {}
        for member in self.members:
            if member.wanted and not member.paused and member.worker.running:
                with suppress(OSError, AssertionError):  # it starts or ends just now
                    found[member.worker.started_at] = scrape(member.worker.port).total("timers_throttled_seconds_total")
        return found

    def ends(self) -> dict[int, int]:
        """End offset of each request partition."""
        return self.system.cluster.ends(self.system.request_topic)

    def committed_end(self, topic: str) -> int | None:
        """Sum of the end offsets of a topic, up to the first open transaction; None if a broker does not answer."""
        try:
            return Cluster(self.system.address).end(topic, committed=True) if self.brokers_up else None
        except (KafkaException, AssertionError):
            return None

    def note_starts(self) -> bool:
        """Note how long starts take. Returns whether each worker has written its first line."""
        for member in self.members:
            if member.begins and BEGUN in member.worker.log:
                member.begins = False
                self.slowest_start_s = max(self.slowest_start_s, time.time() - member.worker.started_at)
        return not any(member.begins for member in self.members)

    def watch(self) -> None:
        """Report workers that ended by themselves, start them again as a supervisor does, and note starts."""
        self.note_starts()
        for member in self.members:
            if member.wanted and not member.paused and not member.worker.running:
                said = " ".join(member.worker.sentences) or member.worker.tail()
                if NO_BROKER in said and (self._no_broker or member.worker.started_at < self._first_broker_at):
                    self.console(f"{member.name} was started while no broker ran, and ended: {said}")
                else:
                    self.failures.append(f"{member.name} ended by itself, exit {member.worker.exit_code()}: {said}")
                    self.console(self.failures[-1])
                member.start(0.0)


NOTICED = " is damaged, "
"""Part of the line that a worker logs for a damaged store."""

NO_BROKER = "no broker answers at"
"""Part of the sentence with which a worker ends if no broker answers for half a minute after its start."""


def wipe(directory: Path) -> None:
    """Delete the data of a worker. It must have some, because otherwise the fault tests nothing."""
    found = [*directory.iterdir()]  # the directory itself may be the place of a disk
    assert found, f"{directory} is empty: this worker never had a store"
    for each in found:
        shutil.rmtree(each) if each.is_dir() else each.unlink()


def now_ms() -> int:
    return int(time.time() * 1000)
