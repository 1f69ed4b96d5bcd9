"""The producer of a machine in both versions of Kafka's transactions, against a real broker."""

import asyncio
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import pairwise
from operator import le
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as ReadPartition

from tests.harness.bad_network import DistantBroker
from tests.harness.cluster import client_settings
from tests.harness.constants import Constants
from tests.harness.late_requests import LateRequests
from tests.harness.scrape import health, scrape
from tests.harness.system import System, timers
from tests.harness.waiting import DEADLINE_S, due_in, wait_until
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

TAKEN_CODES = {0, 46}
"""NONE, DUPLICATE_SEQUENCE_NUMBER"""
PARTITIONS = 3
MACHINES = 16
SHARE = 0.15
"""Of the requests, those that are held back."""
LONGEST_S = 900.0
OF_TWO_IDS = 70_000
"""Transactions, which use up all epochs of two producer ids."""
KILLED_EACH_S = 20.0


def batch(value: int, at_ms: int | None = None) -> RecordBatch:
    found = RecordBatch(10_000)
    found.add(0, int(time.time() * 1000) if at_ms is None else at_ms, b"k", b"%d" % value, [])
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
        partitions: of the topic.
    """

    def __init__(self, system: System, loop: ProducerLoop, version: str, partitions: int = PARTITIONS) -> None:
        self.topic, self.partitions = system.target(partitions=partitions), range(partitions)
        self.refusing = system.target(message_timestamp_type="CreateTime", message_timestamp_before_max_ms="3600000")
        self._system = system
        self._settings = system.settings.__class__.load({**system.environment, "TIMERS_TRANSACTION_VERSION": version})
        self._loop = loop
        self.metrics, self._known = PartitionMetrics(), list[int]()
        self.opened = self.fenced = self.rolled_back = self.next_offset = 0
        self.take_over()

    def take_over(self) -> None:
        """Open another producer with the same transactional id, as another worker does."""
        own, stop = (self.topic, 0), threading.Event()
        self.producer = TransactionalProducer(self._loop, self._settings, own, stop, self.metrics)
        self.open()

    def open(self) -> None:
        """Open the producer anew, also while brokers are away."""

        def is_open() -> bool:
            with suppress(Lost):
                self.producer.open()
                return True
            return False

        wait_until(is_open, "it can be opened", 3 * DEADLINE_S)
        self.opened += 1

    def committed(self, partition: int = 0) -> list[int]:
        """The values of a partition. Right after an opening, when all markers are written."""
        return self._read(partition, 0)[0]

    def next_value(self) -> int:
        """The value after the last committed one. Right after an opening."""
        found, self.next_offset = self._read(0, self.next_offset)
        self._known += found
        assert self._known == list(range(len(self._known)))
        return len(self._known)

    def has_no_open_transaction(self) -> bool:
        """Whether receivers can read all records."""
        return self._system.end(self.topic, committed=True) == self._system.end(self.topic)

    def _read(self, partition: int, offset: int) -> tuple[list[int], int]:
        """The values of a partition from an offset on, and the offset after them."""
        options = {"group.id": self.topic, "enable.partition.eof": True, "isolation.level": "read_committed"}
        reader = Consumer({**client_settings(self._system.address), **options})
        reader.assign([ReadPartition(self.topic, partition, offset)])
        found: list[int] = []
        while True:
            for message in reader.consume(1000, 0.05):
                if (error := message.error()) is None:
                    found.append(int(message.value() or b""))
                elif error.code() == KafkaError._PARTITION_EOF:
                    reader.close()
                    return found, message.offset() or 0

    def commit(self, value: int, offsets: Any = None) -> None:
        """Commit one value."""
        batches = [(self.topic, partition, batch(value)) for partition in self.partitions]
        self.producer.transact(batches, offsets or {})

    def roll_back(self, value: int) -> None:
        """Try to commit a value together with a record that brokers refuse, so that it is rolled back."""
        batches = [(self.topic, partition, batch(value)) for partition in self.partitions]
        self.producer.transact([*batches, (self.refusing, 0, batch(value, at_ms=0))], {})

    def commit_all(self, is_enough: Callable[[int], bool], draw: random.Random | None = None) -> int:
        """Commit values until there are enough, and open anew after each failure, as a machine does.

        Args:
            draw: rolls back, and takes over from itself, at random.

        Returns:
            The number of values.
        """
        value = self.next_value()
        while not is_enough(value):
            step = 1.0 if draw is None else draw.random()
            if step < 0.02:
                former = self.producer
                self.take_over()
                value = self.next_value()
                self._must_be_fenced(former)
            try:
                if step > 0.95 and draw:
                    self.roll_back(value)
                self.commit(value, {(self.topic, 0): (value, "")} if value % 7 == 0 else {})
                value += 1
            except BatchesRefused:
                self.rolled_back += 1
            except (Lost, Fenced, DeliveryFailed, Unanswered):
                self.open()
                value = self.next_value()
        self.open()
        return value

    def _must_be_fenced(self, former: TransactionalProducer) -> None:
        """A producer of the past must not commit."""
        with pytest.raises((Lost, Fenced, DeliveryFailed, Unanswered)):
            former.transact([(self.topic, 0, batch(-1))], {})
        former.close()
        self.fenced += 1


@pytest.fixture(scope="module")
def distant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DistantBroker]:
    broker = DistantBroker(tmp_path_factory.mktemp("late") / "broker", LateRequests)
    yield broker
    broker.stop()


@pytest.mark.parametrize("version", ["1", "auto"])
@pytest.mark.parametrize("rounds", [60, pytest.param(2_000, marks=pytest.mark.long)])
def test_late_requests_do_no_harm(
    rounds: int, version: str, distant: DistantBroker, tmp_path: Path, loop: ProducerLoop
) -> None:
    """They come past commits, rollbacks, new openings, other producers with the same id, and restarts of the broker."""
    network, restarts = distant.network, 1 + rounds // 500
    assert isinstance(network, LateRequests)
    network.late.clear()
    network.codes.clear()
    system = System(distant.distant_address, tmp_path)
    machines = [Machine(system, loop, version) for _ in range(MACHINES)]
    draws = [random.Random(number) for number in range(MACHINES)]
    network.hold_back(SHARE)
    with ThreadPoolExecutor(MACHINES) as threads:
        outcomes = [
            threads.submit(machine.commit_all, lambda _: network.has_delivered(rounds), draw)
            for machine, draw in zip(machines, draws, strict=True)
        ]
        for number in range(1, restarts):
            wait_until(partial(network.has_delivered, rounds * number // restarts), "late requests", LONGEST_S)
            distant.embedded.kill()
            distant.embedded.start()
        counts = [outcome.result() for outcome in outcomes]
        network.hold_back(0.0)
    told = {name: sum(getattr(each, name) for each in machines) for name in ("opened", "fenced", "rolled_back")}
    print(f"version {version}: {sum(counts)} transactions, {told}, late {network.late}, answers {network.codes}")
    assert network.late.keys() == {"produce", "end", "offsets"} or rounds < 1_000
    for machine, count in zip(machines, counts, strict=True):
        assert machine.metrics.transaction_version == (2 if version == "auto" else 1)
        machine.open()
        for partition in range(PARTITIONS):
            assert machine.committed(partition) == list(range(count)), f"partition {partition}"
        machine.producer.close()
        wait_until(machine.has_no_open_transaction, "no transaction hangs longer than its time-out")
    if version == "auto":
        taken = {code for kind, code in network.codes if kind == "produce"} & TAKEN_CODES
        assert not taken, f"a produce of the past was taken: {network.codes}"
    system.close()


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


@pytest.mark.parametrize("version", ["1", "auto"])
def test_an_owner_learns_in_the_middle_of_a_transaction_that_it_was_taken_over(
    version: str, system: System, loop: ProducerLoop
) -> None:
    """A coordinator answers a commit with an unknown error, or that there is no transaction, while it fences."""
    machine, value, learned = Machine(system, loop, version, partitions=1), 0, Counter[str]()
    rounds = 60
    for _ in range(rounds):
        former = machine.producer
        with ThreadPoolExecutor(1) as threads:
            opening = threads.submit(machine.take_over)
            while True:
                try:
                    former.transact([(machine.topic, 0, batch(value))], {})
                except (Lost, Fenced, DeliveryFailed, Unanswered) as error:
                    learned[type(error).__name__] += 1
                    break
                value += 1
            opening.result()
        former.close()
    machine.open()
    assert learned == {Fenced.__name__: rounds}
    assert machine.committed() == list(range(value)), "what was refused is not committed, and all else is"
    machine.producer.close()


def test_a_rollback_during_which_another_owner_commits_opens_the_machine_anew(
    system: System, loop: ProducerLoop
) -> None:
    """Version 1: a rollback opens the producer again, which would fence the new owner, and must not go on after it."""
    machine = Machine(system, loop, "1")
    machine.commit(0)
    former: Any = machine.producer
    abort = former._producer.abort_transaction

    def take_over() -> None:
        machine.take_over()
        machine.commit(1)

    async def abort_slowly() -> None:
        await abort()
        await asyncio.to_thread(take_over)

    former._producer.abort_transaction = abort_slowly
    with pytest.raises(Lost, match="another producer was opened"):
        machine.roll_back(1)
    former.close()
    machine.open()
    assert [machine.committed(partition) for partition in machine.partitions] == [[0, 1]] * PARTITIONS
    with pytest.raises(BatchesRefused):
        machine.roll_back(2)
    machine.commit(2)
    machine.producer.close()
    assert machine.next_value() == 3


@pytest.mark.long
def test_a_machine_goes_on_when_two_ids_have_no_more_epochs(
    own_broker: EmbeddedBroker, tmp_path: Path, loop: ProducerLoop
) -> None:
    """An id ends with epoch 32,766; the answer to the end of that transaction names a new one. Its broker is killed."""
    system = System(own_broker.start(), tmp_path / "app")
    machine, ids, kills = Machine(system, loop, "auto", partitions=1), set[int](), 0
    with ThreadPoolExecutor(1) as threads:
        committing = threads.submit(machine.commit_all, partial(le, OF_TWO_IDS))
        while not committing.done():
            with suppress(TimeoutError):
                committing.result(KILLED_EACH_S)
                break
            own_broker.kill()
            own_broker.start()
            kills += 1
            with suppress(AssertionError):  # it is being opened
                ids.add(machine.producer.opening[0])
            print(f"{kills} kills, ids {sorted(ids)}, {machine.next_offset} records and markers")
    count = committing.result()
    assert kills > 1 and len(ids) > 2
    assert machine.committed() == list(range(count)), "nothing is lost, and nothing is there twice"
    machine.producer.close()
    system.close()


def set_version(broker: EmbeddedBroker, address: str, version: int, former: int = 2) -> None:
    """Finalize ``transaction.version``."""
    action = "upgrade" if version > former else "downgrade"
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
    for former, version in pairwise((2, 1, 2, 1)):
        set_version(own_broker, address, version, former)
        for _ in range(100):  # the controller answers before the broker knows it
            count += 5
            machine.commit_all(partial(le, count))
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


@pytest.mark.parametrize("version", ["1", "auto"])
def test_timers_fire_while_the_coordinator_of_the_group_answers_and_takes_no_offsets(
    version: str, tmp_path: Path
) -> None:
    """As while it loads its partition of the offsets topic. Here the copy of the progress is too long for it."""
    with EmbeddedBroker(tmp_path / "broker", 0, {"offset.metadata.max.bytes": "20"}) as broker:
        assert broker.address is not None
        system = System(broker.address, tmp_path / "app")
        worker = system.worker().start(TIMERS_TRANSACTION_VERSION=version).ready()
        for _ in range(2):
            requests = system.send(*timers(system.target(), 200, due_in(2), 5))
            assert len(system.fired(requests)) == 200
        assert worker.log.count("takes no offsets") == 1
        system.close()


@pytest.mark.long
def test_a_transaction_that_cannot_begin_is_red_with_the_command_and_each_timer_fires_once(
    own_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """The cluster goes from ``transaction.version`` 2 to 0, which no release of Kafka supports under a producer of
    version 2, and back, while timers fire."""
    address = own_broker.start()
    system = System(address, tmp_path / "app")
    worker = system.worker().start(TIMERS_TRANSACTION_VERSION="auto").ready()
    requests = system.send(*timers(system.target(), 20_000, due_in(2), 200))

    def red() -> dict[str, str]:
        return dict(health(worker.port, "partitions")[1]["red"])

    def versions() -> set[int]:
        return {each["transaction_version"] for each in health(worker.port, "partitions")[1]["machines"].values()}

    wait_until(lambda: versions() == {2}, "all machines use version 2")
    set_version(own_broker, address, 0)
    said = next(iter(wait_until(red, "a partition is red", 3 * DEADLINE_S).values()))
    assert "did not let it begin" in said, said
    shown = re.search(r"`kafka-transactions\.sh (.+?)`", said)
    assert shown, said
    command = "org.apache.kafka.tools.TransactionsCommand"
    options = "--bootstrap-server", address, *shown[1].split()
    done = process.run(java.for_broker(), jars.KAFKA.ensure(None), own_broker.directory, command, *options)
    assert done.returncode == 0 and "CoordinatorId" in done.stdout, done.stdout
    set_version(own_broker, address, 1, former=0)
    own_broker.kill()
    own_broker.start()
    wait_until(lambda: not red() and versions() == {1}, "the machines go on", 3 * DEADLINE_S)
    set_version(own_broker, address, 2, former=1)
    wait_until(lambda: versions() == {2}, "all machines use version 2 again", 3 * DEADLINE_S)
    assert len(system.fired(requests)) == 20_000
    system.close()
