"""Request formats that are turned on and off by restarts within the session timeout."""

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from confluent_kafka.admin import NewPartitions

from tests.harness.records import Publisher, Request
from tests.harness.scrape import health, scrape
from tests.harness.system import PARTITIONS, System
from tests.harness.waiting import DEADLINE_S, due_in, wait_until
from tests.harness.worker import Worker
from timers.wire import future
from timers.wire.formats import future_by_id

pytestmark = pytest.mark.broker

ON = {"TIMERS_ID_TOPIC": "{0}-by-id", "TIMERS_VERDICT_TOPIC": "{0}-verdict"}
"""Settings that turn timers with an id on."""


class Formats:
    """A system whose workers may miss heartbeats for five minutes: no test waits for their session to expire."""

    def __init__(self, address: str, directory: Path) -> None:
        self.system = System(address, directory, TIMERS_SESSION_TIMEOUT_S="300")
        self.on = {name: value.format(self.system.app_id) for name, value in ON.items()}

    def native_timers_fire(self, partitions: int = PARTITIONS) -> None:
        target = self.system.target()
        publisher = self.system.publisher()  # a new one knows all partitions
        publisher.send([Request(target, due_in(1), partition=partition) for partition in range(partitions)])
        self.system.reader(target).take(partitions)

    def timers_with_an_id_fire(self) -> None:
        target = self.system.target()
        publisher = Publisher(self.system.address, self.on["TIMERS_ID_TOPIC"])
        headers = future_by_id.encode_headers(due_in(1))
        for partition in range(PARTITIONS):
            publisher.send_raw(b"%d" % partition, future.encode(target, "", b""), headers, partition)
        self.system.reader(target).take(PARTITIONS)


@pytest.fixture
def formats(broker_address: str, tmp_path: Path) -> Iterator[Formats]:
    formats = Formats(broker_address, tmp_path)
    yield formats
    formats.system.close()


def owned(worker: Worker) -> list[str]:
    """The partitions that a worker owns and runs."""
    said = wait_until(lambda: (said := health(worker.port, "partitions")[1])["green"] and said, "all are green")
    assert said["red"] == {}
    partitions: list[str] = said["owned"]
    return partitions


def test_one_worker_turns_a_format_on_and_off_by_quick_restarts(formats: Formats) -> None:
    worker = formats.system.worker(quick=True).start().ready()
    worker.stop()
    worker.start(**formats.on).ready()
    formats.timers_with_an_id_fire()
    worker.kill()
    worker.start().ready()
    formats.native_timers_fire()
    assert "Traceback" not in worker.log
    topic = formats.system.request_topic
    formats.system.admin.create_partitions([NewPartitions(topic, PARTITIONS + 1)])[topic].result(DEADLINE_S)
    formats.native_timers_fire(PARTITIONS + 1)  # a leader that restarted still notices added partitions


@pytest.mark.long
def test_a_rolling_restart_turns_a_format_on_and_off(formats: Formats) -> None:
    """Each worker restarts when the one before is ready; timers fire meanwhile, each once."""
    system = formats.system
    workers = [system.worker().start() for _ in range(2)]
    for worker in workers:
        worker.ready()
    target, first_s = system.target(), due_in(2)
    requests = [Request(target, first_s + number // 4, partition=number % PARTITIONS) for number in range(160)]
    system.send(*requests)
    closed = {
        f"{topic}/{p}" for topic in (system.request_topic, system.settings.retry_topic) for p in range(PARTITIONS)
    }
    opened = closed | {f"{formats.on['TIMERS_ID_TOPIC']}/{p}" for p in range(PARTITIONS)}

    def restart(settings: Mapping[str, str], partitions: set[str]) -> None:
        for worker in workers:
            worker.stop()
            worker.start(**settings).ready()

        def shared() -> bool:
            found = [tp for worker in workers for tp in owned(worker)]
            return sorted(found) == sorted(partitions) and all(owned(worker) for worker in workers)

        wait_until(shared, "each partition has one owner, and each worker some")

    restart(formats.on, opened)
    formats.timers_with_an_id_fire()
    restart({}, closed)
    formats.native_timers_fire()
    system.fired(requests)


class BrokenLeader(RoundRobinPartitionAssignor):  # type: ignore[misc]
    """As the leader of a group, a member with this assignor gives partition 0 of :attr:`topic` to no member."""

    topic = ""

    @classmethod
    def assign(cls, cluster: Any, members: Mapping[str, Any]) -> dict[str, ConsumerProtocolMemberAssignment]:
        def without(assignment: Any) -> ConsumerProtocolMemberAssignment:
            kept = [(topic, [each for each in ids if (topic, each) != (cls.topic, 0)]) for topic, ids in assignment]
            return ConsumerProtocolMemberAssignment(0, kept, b"")

        return {name: without(each.assignment) for name, each in super().assign(cluster, members).items()}


@contextmanager
def broken_leader(system: System, topic: str) -> Iterator[None]:
    """A member of the workers' group that is its leader, as it joins first, and reads a topic of its own."""
    BrokenLeader.topic = topic
    stop, joined = threading.Event(), threading.Event()

    async def lead() -> None:
        consumer = AIOKafkaConsumer(
            system.target(),
            bootstrap_servers=system.address,
            group_id=system.app_id,
            partition_assignment_strategy=[BrokenLeader],
            enable_auto_commit=False,
            heartbeat_interval_ms=500,
        )
        await consumer.start()
        joined.set()
        while not stop.is_set():
            await consumer.getmany(timeout_ms=200)
        await consumer.stop()

    thread = threading.Thread(target=asyncio.run, args=[lead()])
    thread.start()
    try:
        assert joined.wait(DEADLINE_S)
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.long
def test_a_partition_without_an_owner_is_red_and_gets_one(formats: Formats) -> None:
    """The worker stays ready, and asks for a rebalance until the partition has an owner."""
    system = formats.system
    topic = system.request_topic
    with broken_leader(system, topic):
        worker = system.worker().start().ready()
        wait_until(lambda: health(worker.port, "ready")[0] == 200, "the worker is ready")
        worker.wait_for(rf"no worker owns {topic}/0: asking for a rebalance")
        wait_until(lambda: health(worker.port, "partitions")[0] == 503, "the partition is red", 2 * DEADLINE_S)
        _, said = health(worker.port, "partitions")
        assert list(said["red"]) == [f"{topic}/0"] and "no worker has owned" in said["red"][f"{topic}/0"]
        assert scrape(worker.port).total("timers_partitions_unowned") == 1
        wait_until(lambda: health(worker.port, "ready")[0] == 200, "a worker that was ready stays ready")
        BrokenLeader.topic = ""
        wait_until(lambda: health(worker.port, "partitions")[0] == 200, "the worker asked again", 2 * DEADLINE_S)
        formats.native_timers_fire()
