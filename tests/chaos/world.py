"""What faults act on: the workers of a round, the broker, and a view of the group from outside."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription

from bench.harness.cluster import Cluster
from tests.harness.records import CLIENT
from tests.harness.system import System
from tests.harness.worker import Worker
from timers.broker import EmbeddedBroker

ASK_S = 5.0
"""How long the group may take to answer."""


@dataclass
class Member:
    """One worker of the round.

    Attributes:
        wanted: it should be running; one that ends all the same has failed.
        paused: it is stopped by a signal, or has not yet shown what becomes of it.
    """

    name: str
    worker: Worker
    wanted: bool = True
    paused: bool = False

    def start(self, clock_s: float) -> None:
        """Start the process with a clock that is off by so much."""
        self.worker.start(**({"TIMERS_CLOCK_OFFSET": str(clock_s)} if clock_s else {}))
        self.wanted = True

    def kill(self) -> None:
        self.wanted = False
        self.worker.kill()


@dataclass
class World:
    """One round's system and the broker it runs on.

    Attributes:
        failures: what went wrong beyond what the checker finds, in sentences.
    """

    broker: EmbeddedBroker
    system: System
    cluster: Cluster
    console: Callable[[str], None]
    members: list[Member] = field(default_factory=list)
    broker_up: bool = True
    failures: list[str] = field(default_factory=list)
    _asker: AdminClient | None = None

    def add(self, clock_s: float) -> Member:
        """Start one more worker."""
        member = Member(f"worker-{len(self.members)}", self.system.worker())
        self.members.append(member)
        member.start(clock_s)
        return member

    def _group(self) -> ConsumerGroupDescription | None:
        """The group, asked now; None if nobody answers."""
        if not self.broker_up:
            return None
        group = self.system.app_id
        if self._asker is None:
            self._asker = AdminClient({**CLIENT, "bootstrap.servers": self.system.address})
        try:
            return self._asker.describe_consumer_groups([group], request_timeout=ASK_S)[group].result(2 * ASK_S)
        except KafkaException:
            # librdkafka does not find a group's coordinator again that went away: every later question times out too.
            self._asker = None
            return None

    def restart_broker(self) -> None:
        """Start the broker that was killed."""
        self.broker.start()
        self.broker_up = True
        self._asker = None

    def held(self) -> dict[str, list[int]]:
        """Request partitions of each running worker, as the group says; empty while it rebalances."""
        told = self._group()
        by_id = {member.worker.worker_id: member for member in self.members if member.wanted}
        held: dict[str, list[int]] = {}
        for one in told.members if told else ():
            member = by_id.get(one.group_instance_id)
            places = one.assignment.topic_partitions if one.assignment else []
            mine = [place.partition for place in places if place.topic == self.system.request_topic]
            if member is not None and mine:
                held[member.name] = sorted(mine)
        return held

    def ends(self) -> dict[int, int]:
        """End of each request partition."""
        return self.cluster.ends(self.system.request_topic)

    def watch(self) -> None:
        """A worker that ended though nobody ended it: say so, and start it again as a supervisor would."""
        for member in self.members:
            if member.wanted and not member.paused and not member.worker.running:
                said = " ".join(member.worker.sentences) or member.worker.tail()
                if FENCED in said:
                    self.console(f"{member.name} was fenced and ended: {said}")
                else:
                    self.failures.append(f"{member.name} ended by itself, exit {member.worker.exit_code()}: {said}")
                    self.console(self.failures[-1])
                member.start(0.0)


FENCED = "was taken over by another worker"
"""What a fenced worker says at its end."""


def wipe(directory: Path) -> None:
    """Delete a disk, and prove that there was something on it."""
    assert directory.is_dir(), f"{directory} is not there: this worker never had a store"
    shutil.rmtree(directory)


def now_ms() -> int:
    return int(time.time() * 1000)
