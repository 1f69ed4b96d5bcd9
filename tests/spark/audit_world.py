"""A system of all request formats, in whose topics a test writes what happened hours ago."""

import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from pyspark.sql import SparkSession

from tests.harness.planted import Asked, Writer
from tests.harness.records import Request
from tests.harness.system import System
from tests.harness.waiting import DEADLINE_S
from timers.spark.audit.findings import Findings
from timers.spark.audit.gaps import Scope
from timers.spark.audit.outcomes import Moment
from timers.spark.jobs import audit
from timers.wire import headers as h

HOUR_MS = 3_600_000
MAX_LAG_S = 3600


class AuditedSystem(System):
    """A system with all request formats. Producers set the times of their records."""

    def __init__(self, address: str, directory: Path) -> None:
        run = uuid.uuid4().hex[:8]
        names = {
            "TIMERS_ID_TOPIC": f"by-id-{run}",
            "TIMERS_VERDICT_TOPIC": f"verdict-{run}",
            "TIMERS_COUNTDOWN_TOPIC": f"wait-{run}",
            "TIMERS_SCHEDULE_TOPICS": f"schedule-{run}",
            "TIMERS_COLD_TOPIC": f"cold-{run}",
            "TIMERS_HOT_HORIZON_S": "86400",
            # Lowered since the requests were accepted.
            "TIMERS_MAX_REQUEST_BYTES": "1024",
        }
        super().__init__(address, directory, **names)
        self._open: list[Producer] = []
        settings = self.settings
        self.create_topic(settings.schedule_topics[0], 1, cleanup_policy="compact", segment_ms="600000")
        self.create_own_topics()
        for topic in (settings.request_topic, settings.id_topic, settings.countdown_topic, *settings.schedule_topics):
            self.let_producers_set_times(topic)

    def close(self) -> None:
        while self._open:
            self._open.pop().abort_transaction(DEADLINE_S)
        super().close()

    def let_producers_set_times(self, topic: str) -> None:
        entry = ConfigEntry("message.timestamp.type", "CreateTime", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        self.admin.incremental_alter_configs([resource])[resource].result(DEADLINE_S)

    def delete_all(self, topic: str, partition: int) -> None:
        """Delete all records of a partition."""
        self.cluster.delete_records(topic, {partition: -1})

    def hold_open(self, topic: str, partition: int) -> None:
        """Leave a transaction with one record open on a partition, until the end of the test."""
        config = {"transactional.id": f"open-{uuid.uuid4().hex}", "transaction.timeout.ms": 600_000}
        producer = Producer({"bootstrap.servers": self.address, **config})
        producer.init_transactions(DEADLINE_S)
        producer.begin_transaction()
        producer.produce(topic, b"value", b"key", partition=partition)
        assert producer.flush(DEADLINE_S) == 0
        self._open.append(producer)


@dataclass
class World:
    """A system with requests of three hours ago.

    Attributes:
        expected: fault -> the names of the timers that have it.
    """

    system: AuditedSystem
    writer: Writer
    target: str
    due_s: int
    expected: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    numbers: ClassVar[Iterator[int]] = count()
    """Numbers that no other call has."""

    def ask(self, **more: Any) -> Asked:
        return self.writer.ask(self.target, self.due_s, self.asked_ms, **more)

    @property
    def asked_ms(self) -> int:
        return (self.due_s - 600) * 1000

    def good(self) -> None:
        """Write timers that fired as they must."""
        writer = self.writer
        for asked in (
            self.ask(),
            self.ask(value=bytes(2000)),
            self.ask(key="", value=b"", headers=[("trace", None), ("trace", b"x")]),
            writer.ask_by_id(self.target, f"good-{uuid.uuid4().hex}", self.due_s, self.asked_ms),
            writer.wait(self.target, self.due_s, 600),
            writer.schedule(self.target, f"good-{uuid.uuid4().hex}", self.due_s, self.asked_ms),
        ):
            writer.fire(asked)

    def plant(self, fault: str, asked: Asked) -> Asked:
        self.expected[fault].append(asked.timer_id)
        return asked


def world(system: AuditedSystem, writer: Writer) -> World:
    target = system.target(2, message_timestamp_type="CreateTime")
    return World(system, writer, target, int(time.time()) - 3 * 3600)


def found(spark: SparkSession, world: World, **more: Any) -> Findings:
    """The findings of an audit. ``more``: its parameters."""
    moment = Moment(int(time.time() * 1000), 5, MAX_LAG_S)
    arguments = audit.Audit(world.system.settings, Scope(), moment, **more)
    return audit.run(spark, arguments, print)


def found_in(spark: SparkSession, system: System, scope: Scope | None = None, *, grace_s: int = 0) -> Findings:
    """The findings of an audit of a system in which a worker ran, or something in its place."""
    moment = Moment(int(time.time() * 1000), grace_s)
    return audit.run(spark, audit.Audit(system.settings, scope or Scope(), moment), print)


class Engine:
    """Writes what an engine would, also what it must not."""

    def __init__(self, system: System) -> None:
        self._producer = Producer({"bootstrap.servers": system.address, "acks": "all"})

    def fire(self, request: Request, tick_ms: int | None = None, id: bytes = b"") -> None:
        headers = [
            *request.headers,
            (h.TIMER_ID, id or request.source),
            (h.TIMER_DUE, str(request.due_s)),
            (h.TIMER_FIRED, str(request.due_s * 1000 + 5 if tick_ms is None else tick_ms)),
        ]
        self._producer.produce(request.target, request.value, request.key, headers=[*headers])

    def flush(self) -> None:
        assert self._producer.flush(DEADLINE_S) == 0
