"""A queue whose broker is killed, and an ordered queue whose partitions move while it retries."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pytest
from confluent_kafka import Producer

from tests.harness.cluster import client_settings
from tests.harness.constants import Constants
from tests.harness.queue_calls import PATIENT
from tests.harness.system import System
from tests.harness.three_brokers import (
    CONSUMER_OFFSETS,
    ONE_COORDINATOR,
    TRANSACTION_STATE,
    ThreeBrokers,
    coordinating_partition,
)
from tests.harness.waiting import DEADLINE_S, wait_until
from timers.cli.broker import EmbeddedBroker
from timers.queue import Backoff, LeaseLostError, Queue

pytestmark = [pytest.mark.broker, pytest.mark.long]

MESSAGES = 3000


@pytest.fixture
def alone(own_broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[System]:
    """A system on that broker, without a worker."""
    system = System(own_broker.start(), tmp_path)
    system.use(monkeypatch)
    yield system
    system.close()


Work: TypeAlias = Callable[[int], bool]
"""Settles some messages; whether so many more are done since the kill."""


def assert_written_once(queue: Queue, system: System, results: str, kill: Callable[[Work], None]) -> None:
    """Check that each message has one visible output, although there are two kills while they are written."""
    queue.send_many((None, b"%d" % number, ()) for number in range(MESSAGES))
    done: set[bytes | None] = set()

    def work(target: int) -> bool:
        for message in queue.receive(20, wait_s=0.5):
            message.output(results, message.value)
            with contextlib.suppress(LeaseLostError):
                message.ack()
                done.add(message.value)
        return len(done) >= target

    for target in (MESSAGES // 3, 2 * MESSAGES // 3):
        wait_until(partial(work, target), "messages before the kill", 3 * DEADLINE_S)
        kill(lambda more, target=target: work(target + more))  # type: ignore[misc]
    reader = system.reader(results)
    written: list[bytes | None] = []

    def all_written() -> bool:
        work(MESSAGES)
        written.extend(record.value for record in reader.rest())
        return len(set(written)) == MESSAGES

    wait_until(all_written, "all outputs", 6 * DEADLINE_S)
    queue.settle()
    written.extend(record.value for record in reader.rest())
    assert len(written) == MESSAGES


def test_outputs_are_visible_once_though_the_broker_is_killed_in_transactions(
    own_broker: EmbeddedBroker, alone: System
) -> None:
    topic, results = alone.target(partitions=2), alone.target()

    def kill(work: Work) -> None:
        own_broker.kill()
        own_broker.start()

    with Queue(topic, **PATIENT) as queue:
        assert_written_once(queue, alone, results, kill)


def test_an_ordered_queue_keeps_the_order_through_retries_and_rebalances(
    running: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.use(monkeypatch)
    topic = running.target(partitions=4)
    keys, count = 8, 400
    done: dict[int, set[int]] = {key: set() for key in range(keys)}
    failed: set[int] = set()
    arguments = {**PATIENT, "ordered": True, "backoff": Backoff(first_s=0.05, retries=9)}

    def work(queue: Queue) -> bool:
        """Settle some messages; return whether all are done."""
        for message in queue.receive(9, wait_s=0.2):
            number = int(message.value or b"")
            try:
                if number % 5 == 0 and number not in failed:
                    failed.add(number)
                    message.retry(error="the first attempt")
                    continue
                message.ack()
            except LeaseLostError:
                continue
            earlier = set(range(number % keys, number, keys))
            assert earlier <= done[number % keys], f"{number} overtook {sorted(earlier - done[number % keys])}"
            done[number % keys].add(number)
        return sum(map(len, done.values())) == count

    with Queue(topic, **arguments) as first:
        first.send_many((b"k%d" % (number % keys), b"%d" % number, ()) for number in range(count))
        wait_until(lambda: work(first) or len(failed) > 5, "retries", 2 * DEADLINE_S)
        for _ in range(2):
            with Queue(topic, **arguments) as second:

                def both(second: Queue = second) -> bool:
                    work(first)
                    return work(second) or second.counters().acked > 5

                wait_until(both, "messages of the second process", 3 * DEADLINE_S)
        wait_until(partial(work, first), "all messages", 3 * DEADLINE_S)


GONE = 3
"""The broker that freezes."""

TRANSACTION_PARTITIONS = 50
"""Kafka's default."""

COORDINATORS = {
    **ONE_COORDINATOR,
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}


@pytest.fixture
def three(tmp_path: Path) -> Iterator[ThreeBrokers]:
    """Three brokers, of which the first one coordinates."""
    brokers = ThreeBrokers(tmp_path / "brokers", COORDINATORS)
    try:
        brokers.start()
        for topic in (CONSUMER_OFFSETS, TRANSACTION_STATE):
            brokers.create(topic, [1], {"cleanup.policy": "compact"})
        yield brokers
    finally:
        brokers.stop()


def test_outputs_are_visible_once_though_their_coordinator_fails_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = ThreeBrokers(tmp_path / "brokers")
    try:
        brokers.start()
        system = System(brokers.address, tmp_path)
        system.use(monkeypatch)
        for topic in ("jobs", "results", "queue.jobs-returns", "queue.jobs-ledger", system.request_topic):
            brokers.create(topic, [1, 2])
        brokers.create(system.settings.dead_letter_topic, [1])
        try:
            write_outputs(brokers, system)
        finally:
            system.close()
    finally:
        brokers.stop()


def write_outputs(brokers: ThreeBrokers, system: System) -> None:
    """Kill the broker that coordinates the transactions while they are written, twice."""
    opening = Producer({**client_settings(system.address), "transactional.id": "creates the topic of transactions"})
    opening.init_transactions(DEADLINE_S)
    led = brokers.led_by(GONE)
    names = (f"m{number}" for number in range(1000))
    member = next(
        name
        for name in names
        if (TRANSACTION_STATE, coordinating_partition(f"queue.jobs-{name}", TRANSACTION_PARTITIONS)) in led
    )

    def kill(work: Work) -> None:
        brokers.brokers[GONE].kill()
        wait_until(partial(work, 100), "messages after the kill", 3 * DEADLINE_S)
        brokers.start_again(GONE)

    with Queue("jobs", member=member, **PATIENT) as queue:
        assert_written_once(queue, system, "results", kill)


def test_retries_and_dead_letters_go_to_partitions_whose_leaders_answer(
    three: ThreeBrokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, constants: Constants
) -> None:
    constants("timers.kafka.leaders", FRESH_S=0.0)  # an open transaction would wait for the frozen broker
    system = System(three.address, tmp_path)
    system.use(monkeypatch)
    requests, letters, results = system.request_topic, system.settings.dead_letter_topic, "results"
    for topic in ("jobs", "queue.jobs-returns", "queue.jobs-ledger"):
        three.create(topic, [1])
    for topic in (requests, letters, results):
        three.create(topic, [1, GONE])

    def is_ended() -> bool:
        return all(system.end(topic, committed=True) == system.end(topic) for topic in (requests, letters, results))

    try:
        with Queue("jobs", **PATIENT) as queue:
            queue.send_many((None, b"%d" % number, ()) for number in range(40))

            def handle(count: int) -> None:
                left = count
                while left:
                    for message in queue.receive(left, wait_s=DEADLINE_S):
                        left -= 1
                        match left % 3:
                            case 0:
                                message.retry()
                            case 1:
                                message.reject("bad")
                            case 2:
                                message.output(results, message.value)
                                message.ack()
                queue.settle()

            handle(20)
            wait_until(is_ended, "the markers of the transactions")
            three.freeze(GONE)
            try:
                handle(20)
            finally:
                three.thaw(GONE)
        wait_until(is_ended, "the markers of the transactions")
        assert [len(system.reader(topic).rest()) for topic in (requests, letters, results)] == [14, 14, 12]
    finally:
        system.close()
