"""Drives each engine through the same interface."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from confluent_kafka import Producer

from tests.conformance.cases import NARROW, NARROW_BYTES, TARGET
from tests.harness.cluster import CLIENT
from tests.harness.records import Publisher
from tests.harness.system import System
from tests.harness.waiting import wait_until
from timers.testing import SimTimers
from timers.wire.headers import Header

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.harness.spark_query import SparkQuery

PATIENCE_S = 120.0


@dataclass
class Sent:
    """A request that was sent."""

    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    partition: int = 0
    source: str = ""


@dataclass(frozen=True)
class Outcome:
    """A record that a request has caused: a callback or a dead letter."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[Header]
    append_ms: int

    @property
    def source(self) -> str:
        """Source of the request."""
        return self.text("timer-source" if self.text("timer-error") else "timer-id")

    def text(self, name: str) -> str:
        """The last header of a name."""
        return next((value or b"" for header, value in reversed(self.headers) if header == name), b"").decode()


class Engine(Protocol):
    """One engine with topics of its own."""

    names: dict[str, str]
    """Topics by their names in the cases."""

    def now_s(self) -> int:
        """The present epoch second."""

    def send(self, requests: Sequence[Sent]) -> None:
        """Publish, and set the source of each."""

    def tick(self, key: bytes) -> None:
        """Write a tick that the engine did not write."""

    def leave(self) -> None:
        """Stop the engine. Others go on to write ticks."""

    def pass_s(self, seconds: int) -> None:
        """Let time pass."""

    def start(self) -> None:
        """Start the engine, for the first time or again."""

    def outcomes(self, sources: set[str]) -> list[Outcome]:
        """Wait until each of ``sources`` has an outcome, and return all outcomes."""

    def close(self) -> None:
        """End it."""


class Startable(Protocol):
    """What runs from a start of an engine to its next stop."""

    def start(self) -> object:
        """Start the engine."""

    def ready(self) -> object:
        """Wait until it accepts and fires."""

    def stop(self) -> None:
        """Stop it as an operator does."""

    def clean_up(self) -> None:
        """End it if it runs."""


class SimulatedEngine(SimTimers):
    """The worker's own machine over a simulated broker."""

    def __init__(self) -> None:
        super().__init__(missing_topics=["no-such-topic"])
        self.names = {
            "request": self._settings.request_topic,
            "dead-letter": self._settings.dead_letter_topic,
        }
        self._away = False

    def now_s(self) -> int:
        return self.clock.now_s

    def send(self, requests: Sequence[Sent]) -> None:
        for each in requests:
            if self._away:
                each.source = self._kafka.append(self._settings.request_topic, each.key, each.value, each.headers)
            else:
                each.source = self.produce(each.key, each.value, each.headers)

    def tick(self, key: bytes) -> None:
        if not self._away:
            self._tick()

    def leave(self) -> None:
        self._away = True

    def pass_s(self, seconds: int) -> None:
        for _ in range(seconds):
            if self._away:
                self.clock.now_ms += 1000
                self.tick(b"%d" % self.clock.now_s)
            else:
                self.advance(1)

    def start(self) -> None:
        self._away = False
        self.restart(lose_disk=True)

    def outcomes(self, sources: set[str]) -> list[Outcome]:
        self.pass_s(60)
        internal = set(self._settings.own_topics) - {self._settings.dead_letter_topic}
        return [
            Outcome(record.topic, record.key, record.value, list(record.headers), record.timestamp)
            for record in self._kafka.records
            if record.topic not in internal
        ]

    def close(self) -> None:
        """Nothing runs."""


@dataclass
class RealEngine:
    """An engine on a broker.

    Args:
        system: its topics and settings.
        runs: what each start starts, in turn.
    """

    system: System
    runs: Iterator[Startable]
    names: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        settings = self.system.settings
        self.names = {
            TARGET: self.system.target(partitions=3),
            NARROW: self.system.target(max_message_bytes=str(NARROW_BYTES)),
            "request": settings.request_topic,
            "dead-letter": settings.dead_letter_topic,
        }
        self.system.create_own_topics()
        self._publisher = Publisher(self.system.address, settings.request_topic, message_max_bytes=1_060_000)
        self._ticks = Producer({**CLIENT, "bootstrap.servers": self.system.address})
        self._readers = [
            self.system.reader(self.names[TARGET]),
            self.system.reader(self.names[NARROW]),
            self.system.dead_letters(),
        ]
        self._seen: list[Outcome] = []
        self._running: Startable | None = None

    def now_s(self) -> int:
        return int(time.time())

    def send(self, requests: Sequence[Sent]) -> None:
        queued = [
            self._publisher.queue_raw(each.key, each.value, list(each.headers), each.partition) for each in requests
        ]
        self._publisher.flush()
        for each, request in zip(requests, queued, strict=True):
            each.source = request.source

    def tick(self, key: bytes) -> None:
        self._ticks.produce(self.system.settings.oscillator_topic, b"1", key)
        assert self._ticks.flush(PATIENCE_S) == 0

    def leave(self) -> None:
        assert self._running is not None
        self._running.stop()
        self._running = None

    def pass_s(self, seconds: int) -> None:
        end_s = self.now_s() + seconds
        while self.now_s() < end_s:
            if self._running is None:
                self.tick(b"%d" % self.now_s())
            time.sleep(1 - time.time() % 1)

    def start(self) -> None:
        self._running = next(self.runs)
        self._running.start()
        self._running.ready()

    def outcomes(self, sources: set[str]) -> list[Outcome]:
        def all_there() -> bool:
            self._look()
            return sources <= {outcome.source for outcome in self._seen}

        wait_until(all_there, "each request has an outcome", PATIENCE_S)
        # A micro-batch sends in any order. So all outcomes are there when two later requests have fired, one after the
        # other.
        for _ in range(2):
            self.system.wait_past(self.now_s())
        self._look()
        return list(self._seen)

    def _look(self) -> None:
        for reader in self._readers:
            self._seen += [
                Outcome(record.topic, record.key, record.value, record.headers, record.append_ms)
                for record in reader.rest()
            ]

    def close(self) -> None:
        if self._running is not None:
            self._running.clean_up()
        self.system.close()


class Query:
    """The engine on Spark in the session of the tests; it starts sooner than the command.

    Args:
        query: of the engine.
    """

    def __init__(self, query: SparkQuery) -> None:
        self._query = query

    def start(self) -> None:
        self._query.__enter__()

    def ready(self) -> None:
        self._query.ready()

    def stop(self) -> None:
        self._query.__exit__()

    clean_up = stop


def faust_engine(address: str, directory: Path) -> Engine:
    """A Faust worker."""
    system = System(address, directory)
    return RealEngine(system, itertools.repeat(system.worker()))


def spark_engine(address: str, directory: Path, spark: SparkSession) -> Engine:
    """The engine on Spark: first the command, and after the absence its query, on the checkpoint of the command."""
    from tests.harness.spark_job import SparkEngine
    from tests.harness.spark_query import SparkQuery

    command_directory = directory / "spark"
    system = System(address, directory, TIMERS_DATA_DIR=str(command_directory / "data"))
    command = SparkEngine(command_directory, system.environment)
    system.workers.append(command)
    return RealEngine(system, iter([command, Query(SparkQuery(spark, system, command.checkpoint))]))
