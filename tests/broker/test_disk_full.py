"""A full disk: the worker stops with a sentence, loses no timer, and goes on when there is space again."""

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from tests.harness.cluster import CLIENT
from tests.harness.disk import SmallDisk, limit_files, may_mount, small_disk
from tests.harness.records import Request
from tests.harness.system import System, timers
from tests.harness.waiting import DEADLINE_S, due_in, wait_until
from tests.harness.worker import Worker
from timers.cli.broker import EmbeddedBroker

pytestmark = pytest.mark.broker

MIB = 1024 * 1024

LITTLE_MEMORY = {"TIMERS_STORE_MEMORY_MB": "16"}
"""So that stores are flushed to the disk within seconds, and not within a minute."""


def assert_stopped_with(worker: Worker, reason: str) -> None:
    """Check that it ended by itself with exit code 1 and one sentence with directory, reason and advice."""
    assert worker.exit_code() == 1, worker.tail()
    (sentence,) = re.findall(r"^timers: (.*)$", worker.log, re.MULTILINE)
    assert re.match(rf"the store in \S*/worker-\S+/\d+ does not work: {reason}", sentence), sentence
    assert "Nothing was deleted" in sentence and "TIMERS_DATA_DIR" in sentence


def incompressible(target: str, count: int, first_s: int, seconds: int) -> list[Request]:
    """``count`` timers with a kilobyte each, which takes as much on the disk."""
    requests = timers(target, count, first_s, seconds)
    for request in requests:
        request.value = os.urandom(1000)
    return requests


@pytest.mark.long
def test_a_disk_that_refuses_writes_stops_the_worker_and_no_timer_is_lost(system: System) -> None:
    target = system.target()
    worker = system.worker().start(**LITTLE_MEMORY).ready()
    first = system.send(*timers(target, 100, due_in(2), 1))
    system.wait_past(first[0].due_s)
    limit_files(worker.pid, MIB)
    # The first ones come due while the disk refuses, the others later: neither way out is open.
    requests = [*first, *system.send(*incompressible(target, 40_000, due_in(8), 8))]
    assert_stopped_with(worker, "File too large.*ulimit -f")
    assert "Traceback" not in worker.log
    worker.start().ready()
    assert len(system.fired(requests)) == 40_100


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "small", 12) as disk:
        yield disk


# A list, not a skip: where nothing may be mounted this test does not exist, and the one above stands for it.
@pytest.mark.parametrize("size_mib", [200] if may_mount() else [])
def test_a_full_disk_stops_the_worker_until_there_is_space(system: System, disk: SmallDisk, size_mib: int) -> None:
    target = system.target()
    data_dir = {"TIMERS_DATA_DIR": str(disk.path / "data"), **LITTLE_MEMORY}
    worker = system.worker().start(**data_dir).ready()
    first_s = due_in(10 + math.ceil(3 * worker.ready_s))
    requests = system.send(*incompressible(target, 40_000, first_s, 3))
    assert_stopped_with(worker, "No space left on device.*make space there")
    disk.fill()
    stores = set(disk.path.rglob("CURRENT"))
    worker.start(**data_dir)
    assert_stopped_with(worker, "No space left on device.*make space there")
    assert set(disk.path.rglob("CURRENT")) == stores, "a full disk is no reason to wipe a store"
    disk.make_space(size_mib)
    worker.start(**data_dir).ready()
    assert len(system.fired(requests)) == 40_000


@pytest.mark.long
def test_a_worker_waits_while_the_disk_of_the_broker_is_full(tmp_path: Path) -> None:
    """The broker ends; the worker logs what it waits for, and goes on when the broker runs again."""
    broker = EmbeddedBroker(tmp_path / "broker", port=0)
    system = System(broker.start(), tmp_path)
    try:
        worker = system.worker().start().ready()
        target, filler = system.target(), system.target()
        requests = system.send(*timers(target, 1_000, due_in(20), 5))
        assert broker.pid is not None
        limit_files(broker.pid, 16 * MIB)  # more than the 10 MiB that Kafka lays out for an index
        fill(system.address, filler)
        wait_until(lambda: broker.pid is None, "the broker ends")
        worker.wait_for(r"WARNING\].*(not delivered|failed|waits for the brokers)")
        assert worker.running
        broker.start()
        assert len(system.fired(requests, 2 * DEADLINE_S)) == 1_000
        worker.stop()
    finally:
        system.close()
        broker.stop()


def fill(address: str, topic: str) -> None:
    """Write to a topic until its broker ends."""
    producer = Producer({**CLIENT, "bootstrap.servers": address, "message.timeout.ms": 5_000})
    refused: list[KafkaError] = []

    def note(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            refused.append(error)

    for _ in range(100):
        producer.produce(topic, os.urandom(MIB // 2), on_delivery=note)
        producer.flush(10)
        if refused:
            return
    raise AssertionError("50 MiB fit")
