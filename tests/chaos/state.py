"""The state of a round: its workers, its broker, and which worker holds which partitions."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription

from tests.harness.cluster import client_settings
from tests.harness.system import System
from tests.harness.worker import Worker
from timers.broker import EmbeddedBroker

ASK_S = 5.0
"""Seconds that the group may take to answer."""


@dataclass
class Member:
    """One worker of the round.

    Attributes:
        wanted: it should run; if it ends, that is a failure.
        paused: no other fault may hit it: it was stopped by SIGSTOP, and the fault has not yet judged how it goes on;
            or it restarts with other formats.
    """

    name: str
    worker: Worker
    wanted: bool = True
    paused: bool = False

    def start(self, clock_offset_s: float, **settings: str) -> None:
        """Start the process with a clock that is wrong by so many seconds, and with more settings."""
        clock = {"TIMERS_CLOCK_OFFSET": str(clock_offset_s)} if clock_offset_s else {}
        self.worker.start(**clock, **settings)
        self.wanted = True

    def kill(self) -> None:
        self.wanted = False
        self.worker.kill()


@dataclass
class RoundState:
    """The system of a round and the broker that it runs on.

    Attributes:
        failures: sentences about failures that the checker cannot see in the callbacks.
    """

    broker: EmbeddedBroker
    system: System
    console: Callable[[str], None]
    members: list[Member] = field(default_factory=list)
    broker_up: bool = True
    failures: list[str] = field(default_factory=list)
    _asker: AdminClient | None = None

    def add(self, clock_offset_s: float) -> Member:
        """Start one more worker."""
        member = Member(f"worker-{len(self.members)}", self.system.worker())
        self.members.append(member)
        member.start(clock_offset_s)
        return member

    def _group(self) -> ConsumerGroupDescription | None:
        """Ask the group coordinator; None if it does not answer."""
        if not self.broker_up:
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

    def restart_broker(self) -> None:
        """Start the broker that was killed."""
        self.broker.start()
        self.broker_up = True
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

    def ends(self) -> dict[int, int]:
        """End offset of each request partition."""
        return self.system.cluster.ends(self.system.request_topic)

    def watch(self) -> None:
        """Report workers that ended by themselves, and start them again as a supervisor does."""
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
"""Part of the sentence with which a fenced worker ends."""


def wipe(directory: Path) -> None:
    """Delete the data of a worker. It must have some, because otherwise the fault tests nothing."""
    assert directory.is_dir(), f"{directory} is not there: this worker never had a store"
    shutil.rmtree(directory)


def now_ms() -> int:
    return int(time.time() * 1000)
