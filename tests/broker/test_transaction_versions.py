"""The producer of a machine in both versions of Kafka's transactions, against a real broker.

A network that holds requests back is the client of the test: a request gets no answer in time, and is sent later, at a
random moment of a later transaction.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from aiokafka.errors import RequestTimedOutError
from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as ReadPartition

from tests.harness.cluster import client_settings
from tests.harness.constants import Constants
from tests.harness.scrape import health, scrape
from tests.harness.system import System, timers
from tests.harness.waiting import due_in
from timers.cli.broker import EmbeddedBroker, jars, process
from timers.core.ports import BatchesRefused, DeliveryFailed, Lost, Unanswered
from timers.errors import Fenced
from timers.kafka.aiokafka_internals import broker_answers
from timers.kafka.aiokafka_internals.producer_loop import ProducerLoop
from timers.kafka.aiokafka_internals.record_batch import RecordBatch
from timers.machines.firing.producer import TransactionalProducer
from timers.process import java
from timers.process.partition_metrics import PartitionMetrics

pytestmark = pytest.mark.broker

HELD = ("ProduceRequest", "ProduceInTransaction", "EndTxnRequest", "EndTransaction", "OffsetsInTransaction")
TAKEN_CODES = {0, 46}
"""NONE, DUPLICATE_SEQUENCE_NUMBER"""
PARTITIONS = 3


class HoldingProducer(TransactionalProducer):
    """The producer of a machine, in a network that holds requests back.

    Attributes:
        refused: answers to requests of the past: kind -> code -> how often.
    """

    share = 0.0
    """Of the requests, those that are held back."""
    seed = 0

    def begin(self) -> None:
        """Prepare what each opening uses."""
        self._random = random.Random(self.seed)
        self._late: list[tuple[Any, ...]] = []
        self.refused: dict[str, Counter[int]] = {}

    async def _choose_road(self, producer: Any) -> None:
        await super()._choose_road(producer)
        send = producer.client.send

        async def held(node: int, request: Any, **options: Any) -> Any:
            kind = type(request).__name__
            if self._late and self._random.random() < 0.3:
                await self._send_late(send)
            if kind in HELD and self._random.random() < self.share:
                self._late.append((kind, node, request, options))
                raise RequestTimedOutError(kind)
            return await send(node, request, **options)

        producer.client.send = held

    async def _send_late(self, send: Any) -> None:
        """Send a request of the past."""
        kind, node, request, options = self._late.pop(self._random.randrange(len(self._late)))
        with suppress(Exception):
            answer = await send(node, request, **options)
            found = self.refused.setdefault(kind, Counter())
            if hasattr(answer, "error_code"):
                found[answer.error_code] += 1
            else:
                found.update(each[1] for _, partitions, *_ in answer.topics for each in partitions)


def batch(value: int) -> RecordBatch:
    found = RecordBatch(10_000)
    found.add(0, int(time.time() * 1000), b"k", b"%d" % value, [])
    found.offsets.append(None)
    return found


@pytest.fixture
def loop() -> Iterator[ProducerLoop]:
    loop = ProducerLoop()
    yield loop
    loop.close()


class Machine:
    """Commits one number after another, each to all partitions of a topic.

    Args:
        version: of the setting.
        share: of the requests, those that are held back.
    """

    def __init__(self, system: System, loop: ProducerLoop, version: str, share: float = 0.0) -> None:
        self.topic = system.target(partitions=PARTITIONS)
        self._system = system
        settings = system.settings.__class__.load({**system.environment, "TIMERS_TRANSACTION_VERSION": version})
        self.metrics, own = PartitionMetrics(), (self.topic, 0)
        self.producer = HoldingProducer(loop, settings, own, threading.Event(), self.metrics)
        self.producer.share = share
        self.producer.begin()
        self.producer.open()
        self.opened = 0

    def committed(self, partition: int = 0) -> list[int]:
        """The values of a partition. Right after an opening, when all markers are written."""
        options = {"group.id": self.topic, "enable.partition.eof": True, "isolation.level": "read_committed"}
        reader = Consumer({**client_settings(self._system.address), **options})
        reader.assign([ReadPartition(self.topic, partition, 0)])
        found: list[int] = []
        while True:
            for message in reader.consume(1000, 0.2):
                if (error := message.error()) is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    reader.close()
                    return found
                found.append(int(message.value() or b""))

    def commit(self, value: int, offsets: Any = None) -> None:
        """Commit one value."""
        batches = [(self.topic, partition, batch(value)) for partition in range(PARTITIONS)]
        self.producer.transact(batches, offsets or {})

    def commit_all(self, count: int) -> None:
        """Commit values up to ``count``, and open anew after each failure, as a machine does."""
        value = len(self.committed())
        while value < count:
            try:
                self.commit(value, {(self.topic, 0): (value, "")} if value % 7 == 0 else {})
                value += 1
            except (Lost, Fenced, DeliveryFailed, Unanswered, BatchesRefused):
                self.producer.open()
                self.opened += 1
                value = len(self.committed())
        self.producer.open()


@pytest.mark.parametrize("version", ["1", "auto"])
def test_requests_of_the_past_do_no_harm(version: str, system: System, loop: ProducerLoop) -> None:
    machine = Machine(system, loop, version, share=0.03)
    machine.commit_all(60)
    assert machine.metrics.transaction_version == (2 if version == "auto" else 1)
    assert machine.producer.refused, "no request was held back"
    assert machine.opened > 0 or version == "auto", "version 2 sends the same request again"
    for partition in range(PARTITIONS):
        assert machine.committed(partition) == list(range(60)), f"partition {partition}"
    machine.producer.close()


def test_a_produce_of_the_past_is_refused(system: System, loop: ProducerLoop) -> None:
    """Version 2: in each round it is sent while the next transaction is open in its partition."""
    machine = Machine(system, loop, "auto")
    past: list[tuple[int, Any]] = []
    present: list[tuple[int, Any]] = []
    aiokafka: Any = machine.producer._producer
    send, answers = aiokafka.client.send, Counter[int]()

    async def watched(node: int, request: Any, **options: Any) -> Any:
        kind = type(request).__name__
        if kind == "EndTransaction" and past:
            answer = await send(*past[0])
            answers.update(code for _, partitions, *_ in answer.topics for _, code, *_ in partitions)
        if kind == "ProduceInTransaction":
            present.append((node, request))
        return await send(node, request, **options)

    aiokafka.client.send = watched
    rounds = 100
    for value in range(rounds):
        machine.commit(value)
        past[:], present[:] = present[-1:], []
    machine.producer.open()
    assert not answers.keys() & TAKEN_CODES and answers.total() >= rounds - 1, answers
    assert machine.committed() == list(range(rounds))
    machine.producer.close()


@pytest.mark.long
def test_a_machine_goes_on_when_an_id_has_no_more_epochs(system: System, loop: ProducerLoop) -> None:
    """An id ends with epoch 32,766; the answer to the end of that transaction names a new one."""
    machine = Machine(system, loop, "auto")
    first, _ = machine.producer.opening
    value = 0
    while machine.producer.opening[0] == first:
        machine.producer.transact([(machine.topic, 0, batch(value))], {})
        value += 1
        assert value < 33_000
    for each in range(value, value + 10):
        machine.producer.transact([(machine.topic, 0, batch(each))], {})
    machine.producer.open()
    assert machine.committed() == list(range(value + 10)), "nothing is lost, and nothing is there twice"
    machine.producer.close()


def set_version(broker: EmbeddedBroker, address: str, version: int) -> None:
    """Finalize ``transaction.version``."""
    action = "upgrade" if version == 2 else "downgrade"
    options = "--bootstrap-server", address, action, "--feature", f"transaction.version={version}"
    command = "org.apache.kafka.tools.FeatureCommand"
    done = process.run(java.for_broker(), jars.KAFKA.ensure(None), broker.directory, command, *options)
    assert done.returncode == 0, done.stdout


def test_a_machine_follows_the_version_of_the_cluster(
    own_broker: EmbeddedBroker, tmp_path: Path, loop: ProducerLoop, constants: Constants
) -> None:
    constants(broker_answers, VERSION_S=0.0, FRESH_S=0.0)
    address = own_broker.start()
    system = System(address, tmp_path / "app")
    machine, count = Machine(system, loop, "auto"), 0
    for version in (1, 2, 1):
        set_version(own_broker, address, version)
        for _ in range(100):  # the controller answers before the broker knows it
            count += 5
            machine.commit_all(count)
            if machine.metrics.transaction_version == version:
                break
        assert machine.metrics.transaction_version == version
    for partition in range(PARTITIONS):
        assert machine.committed(partition) == list(range(count)), f"partition {partition}"
    machine.producer.close()
    system.close()


def test_a_worker_says_which_version_its_machines_use(system: System) -> None:
    worker = system.worker().start(TIMERS_TRANSACTION_VERSION="auto").ready()
    requests = system.send(*timers(system.target(), 500, due_in(2), 3))
    assert len(system.fired(requests)) == 500
    _, page = health(worker.port, "partitions")
    assert {each["transaction_version"] for each in page["machines"].values()} == {2}
    samples = scrape(worker.port).samples.items()
    assert {value for (name, _), value in samples if name == "timers_transaction_version"} == {2}
