"""Drives each engine through the same interface."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from confluent_kafka import Producer

from tests.conformance.cases import NARROW, NARROW_BYTES, SHAKY, TARGET
from tests.conformance.stories import BY_ID, COUNTDOWN, HORIZON_S, MARKER, MESSAGES, NATIVE, SCHEDULE
from tests.harness.cluster import CLIENT
from tests.harness.records import Publisher, Record
from tests.harness.system import PARTITIONS, System
from tests.harness.waiting import wait_until
from timers.cli.broker.embedded import free_port
from timers.kafka import topics
from timers.kafka.progress_log import ProgressLog
from timers.kafka.request_formats import enabled_formats
from timers.process.http import asking
from timers.testing import SimTimers
from timers.wire import progress
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
    topic: str = NATIVE
    """Of the engine, or its name in the cases."""


@dataclass(frozen=True)
class Outcome:
    """A record that a request has caused: a callback, a dead letter, a verdict, or a cold request."""

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

    def mend(self) -> None:
        """Let the shaky target take records."""

    def cold(self, count: int) -> list[Outcome]:
        """Wait for cold requests, and return them."""

    def outcomes(self, are_all: Callable[[list[Outcome]], bool]) -> list[Outcome]:
        """Wait for all outcomes, and return them."""

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
        super().__init__(missing_topics=(missing := ["no-such-topic"]))
        self._settings = replace(
            self._settings,
            countdown_topic=COUNTDOWN,
            schedule_topics=(SCHEDULE,),
            marker_topic=MARKER,
            message_topic=MESSAGES,
            hot_horizon_s=HORIZON_S,
        )
        self._own_topics = self._settings.own_topics
        self._formats = enabled_formats(self._settings)
        self._kafka = type(self._kafka)(self.clock, self._formats, missing)
        self.names = {
            NATIVE: self._settings.request_topic,
            BY_ID: self._settings.id_topic,
            "dead-letter": self._settings.dead_letter_topic,
            "verdict": self._settings.verdict_topic,
        }
        self._away = False
        self.restart(lose_disk=True)

    def restart(self, *, lose_disk: bool = False) -> None:
        """As there, with all formats."""
        if lose_disk:
            self._stores.clear()
        for topic in sorted(self._formats, key=self._settings.retry_topic.__eq__):
            self._open((topic, 0))
        self._tick()

    def now_s(self) -> int:
        return self.clock.now_s

    def send(self, requests: Sequence[Sent]) -> None:
        for each in requests:
            append = self._kafka.append if self._away else self._append
            each.source = append(self.names.get(each.topic, each.topic), each.key, each.value, each.headers)

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

    def mend(self) -> None:
        """All targets take records."""

    def cold(self, count: int) -> list[Outcome]:
        return [each for each in self._written() if each.topic == self._settings.cold_topic]

    def outcomes(self, are_all: Callable[[list[Outcome]], bool]) -> list[Outcome]:
        self.pass_s(60)
        outside = {self._settings.dead_letter_topic, self._settings.verdict_topic}
        internal = {*self._settings.own_topics} - outside
        return [each for each in self._written() if each.topic not in internal]

    def _written(self) -> list[Outcome]:
        return [
            Outcome(record.topic, record.key, record.value, list(record.headers), record.timestamp)
            for record in self._kafka.records
        ]

    def close(self, timeout_s: float | None = None) -> None:
        """Nothing runs."""


@dataclass
class RealEngine:
    """An engine on a broker.

    Args:
        system: its topics and settings.
        runs: what each start starts, in turn.
        web_port: at which it answers queries.
    """

    system: System
    runs: Iterator[Startable]
    web_port: int
    names: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        system, settings = self.system, self.system.settings
        (schedules,) = settings.schedule_topics
        system.create_topic(schedules, 2, cleanup_policy="compact", message_timestamp_type="CreateTime")
        self.names = {
            TARGET: system.target(partitions=3),
            NARROW: system.target(max_message_bytes=str(NARROW_BYTES)),
            SHAKY: system.target(min_insync_replicas="2"),
            MESSAGES: system.create_topic(settings.message_topic, 2),
            NATIVE: settings.request_topic,
            BY_ID: settings.id_topic,
            COUNTDOWN: settings.countdown_topic,
            SCHEDULE: schedules,
            MARKER: system.create_topic(settings.marker_topic, 2),
            "dead-letter": settings.dead_letter_topic,
            "verdict": settings.verdict_topic,
        }
        system.create_own_topics()
        self._cluster_id = topics.ensure(settings).cluster_id
        self._publishers = {
            topic: Publisher(system.address, topic, message_max_bytes=1_060_000)
            for topic in map(self.names.__getitem__, (NATIVE, BY_ID, COUNTDOWN, SCHEDULE, MARKER))
        }
        self._ticks = Producer({**CLIENT, "bootstrap.servers": self.system.address})
        self._readers = [
            *(system.reader(self.names[name]) for name in (TARGET, NARROW, SHAKY, MESSAGES)),
            *(system.reader(self.names[name], append_time=False) for name in ("dead-letter", "verdict")),
        ]
        self._seen: list[Outcome] = []
        self._running: Startable | None = None

    def now_s(self) -> int:
        return int(time.time())

    def send(self, requests: Sequence[Sent]) -> None:
        queued = [
            self._publishers[self.names.get(each.topic, each.topic)].queue_raw(
                each.key, each.value, list(each.headers), each.partition
            )
            for each in requests
        ]
        for publisher in self._publishers.values():
            publisher.flush()
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

    def mend(self) -> None:
        self.system.configure(self.names[SHAKY], min_insync_replicas="1")

    def cold(self, count: int) -> list[Outcome]:
        return list(map(_outcome, self.system.reader(self.system.settings.cold_topic).take(count, PATIENCE_S)))

    def outcomes(self, are_all: Callable[[list[Outcome]], bool]) -> list[Outcome]:
        def all_there() -> bool:
            self._look()
            return are_all(self._seen)

        wait_until(all_there, "each request has an outcome", PATIENCE_S)
        # A micro-batch sends in any order. So all outcomes are there when two later requests have fired, one after the
        # other.
        for _ in range(2):
            self.system.wait_past(self.now_s())
        self._look()
        return list(self._seen)

    def _look(self) -> None:
        for reader in self._readers:
            self._seen += map(_outcome, reader.rest())

    def query(self, path: str, **parameters: str) -> Any:
        """The answer to a question about timers."""
        settings = replace(self.system.settings, web_port=self.web_port)
        return asking.ask(settings, path, parameters, self._cluster_id)

    def snapshots(self) -> int:
        """Number of partitions of the request topic whose progress names a snapshot."""
        settings = self.system.settings
        with closing(ProgressLog(settings, topics.ensure(settings))) as log:
            records = log.read([(settings.request_topic, partition) for partition in range(PARTITIONS)])
        return sum(progress.decode(each)[0].snapshot is not None for each in records.values())

    def close(self) -> None:
        if self._running is not None:
            self._running.clean_up()
        self.system.close()


def _outcome(record: Record) -> Outcome:
    return Outcome(record.topic, record.key, record.value, record.headers, record.append_ms)


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


def all_formats(address: str, directory: Path, **settings: str) -> System:
    """A system with all request formats and a cold tier."""
    run = uuid.uuid4().hex[:8]
    named = {
        "ID": BY_ID,
        "COUNTDOWN": COUNTDOWN,
        "MARKER": MARKER,
        "MESSAGE": MESSAGES,
        "VERDICT": "verdict",
        "COLD": "cold",
    }
    formats = {f"TIMERS_{name}_TOPIC": f"{topic}-{run}" for name, topic in named.items()}
    others = {"TIMERS_SCHEDULE_TOPICS": f"{SCHEDULE}-{run}", "TIMERS_HOT_HORIZON_S": str(HORIZON_S)}
    return System(address, directory, **formats, **others, **settings)


def faust_engine(address: str, directory: Path) -> Engine:
    """A Faust worker."""
    system = all_formats(address, directory)
    worker = system.worker()
    return RealEngine(system, itertools.repeat(worker), worker.port)


def spark_engine(address: str, directory: Path, spark: SparkSession) -> Engine:
    """The engine on Spark: first the command, and after the absence its query, on the checkpoint of the command."""
    from tests.harness.spark_job import SparkEngine
    from tests.harness.spark_query import SparkQuery

    command_directory = directory / "spark"
    # The query has other disks than the command: it restores what the command has written.
    port, data = free_port(), str(command_directory / "data")
    settings = {"TIMERS_DATA_DIR": data, "TIMERS_SNAPSHOT_RECORDS": "10", "TIMERS_WEB_PORT": str(port)}
    system = all_formats(address, directory, **settings)
    command = SparkEngine(command_directory, system.environment)
    system.workers.append(command)
    return RealEngine(system, iter([command, Query(SparkQuery(spark, system, command.checkpoint))]), port)
