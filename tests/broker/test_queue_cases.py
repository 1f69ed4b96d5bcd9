"""The hardest cases of a queue, on real brokers.

Of the twelve, other files have: a process that is killed between effect and commit, a deploy in mid-handler, a process
that is stopped, a handler that hangs, a message that kills its process, clocks that are days apart
(``test_queue_crashes.py``), a coordinator that fails over, ordered messages in rebalances (``test_queue_failover.py``),
retention past the oldest open message and expired groups (``test_queue.py``).
"""

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from time import monotonic

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import NewPartitions

from tests.harness import queue_calls
from tests.harness.cluster import client_settings
from tests.harness.constants import Constants
from tests.harness.queue_calls import PATIENT
from tests.harness.system import System
from tests.harness.waiting import DEADLINE_S, wait_until
from timers.queue import LeaseLostError, Message, Queue, QueueError
from timers.queue.driver import Driver
from timers.queue.inspection import Inspection

pytestmark = [pytest.mark.broker, pytest.mark.long]

OTHERS = 120_000
FAILURES = 20_000

receive = partial(queue_calls.receive, deadline_s=4 * DEADLINE_S)


@pytest.fixture
def without_worker(broker_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[System]:
    """A system whose worker does not run."""
    system = System(broker_address, tmp_path)
    system.use(monkeypatch)
    system.create_own_topics()
    yield system
    system.close()


def numbers(count: int) -> Iterator[tuple[None, bytes, tuple[()]]]:
    return ((None, b"%d" % number, ()) for number in range(count))


def depth(system: System, queue: Queue) -> int:
    return Inspection(system.settings).stats(queue.name, queue.topic, with_delayed=False).depth


def test_after_12_hours_with_one_message_a_restart_repeats_no_other(
    here: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed_s = 0.0
    monkeypatch.setattr("timers.queue.queue.Driver", partial(Driver, now_s=lambda: monotonic() + passed_s))
    topic = here.target()
    with Queue(topic, lease_s=3600.0, session_timeout_s=60.0, timeout_s=60.0) as queue:
        queue.send(b"long")
        (long,) = receive(queue, 1)
        queue.send_many(numbers(OTHERS))
        for _ in range(13):
            passed_s += 3300.0
            long.extend(3600.0)
            receive(queue, OTHERS // 13, ack=True)
        receive(queue, OTHERS % 13, ack=True)
        queue.settle()
        assert depth(here, queue) == 1
        assert queue.counters().ledger_bytes < 100
    with Queue(topic, **PATIENT) as queue:
        (again,) = receive(queue, 1)
        assert (again.value, queue.receive(1, wait_s=1)) == (b"long", [])
        again.ack()
        queue.settle()
        assert depth(here, queue) == 0


def test_a_hundredth_of_what_fails_at_once_without_workers_does_not_stop_the_queue(without_worker: System) -> None:
    topic = without_worker.target(partitions=4)
    with Queue(topic, **PATIENT) as queue:
        queue.send_many(numbers(FAILURES))
        for message in receive(queue, FAILURES):
            message.retry(after=1)
        queue.send_many(numbers(100))
        receive(queue, 100, ack=True)
        queue.settle()
        assert depth(without_worker, queue) == 0
        without_worker.worker().start().ready()
        returned = receive(queue, FAILURES, ack=True)
        assert {message.attempt for message in returned} == {2}
        assert len({message.source for message in returned}) == FAILURES
        queue.settle()
        assert queue.receive(1, wait_s=1) == []


def test_two_processes_have_half_of_the_partitions_each(here: System) -> None:
    topic = here.target(partitions=4)
    with Queue(topic, **PATIENT) as first:
        receiving = partial(first.receive, 1, 0.1)
        wait_until(lambda: receiving() == [] and first.counters().partitions == 8, "all partitions", 2 * DEADLINE_S)
        with Queue(topic, **PATIENT) as second:

            def shared() -> bool:
                first.receive(1, wait_s=0.1)
                second.receive(1, wait_s=0.1)
                return first.counters().partitions == second.counters().partitions == 4

            wait_until(shared, "half of the partitions", 2 * DEADLINE_S)
            described = here.admin.describe_consumer_groups([f"queue.{topic}"])[f"queue.{topic}"].result(DEADLINE_S)
            owned = [len(each.assignment.topic_partitions) for each in described.members]
            assert owned == [2, 2], "the returns topic is not dealt"


def test_one_run_becomes_visible_of_messages_with_outputs_whose_partitions_move(here: System) -> None:
    topic, results = here.target(partitions=4), here.target()
    lost: list[bytes | None] = []
    with Queue(topic, **PATIENT) as first:
        first.send_many((b"k%d" % number, b"%d" % number, ()) for number in range(40))
        held = receive(first, 40)
        for message in held:
            message.output(results, message.value)
        with Queue(topic, **PATIENT) as second:
            again: list[Message] = []

            def moved() -> bool:
                again.extend(second.receive(40, wait_s=0.5))
                return bool(again)

            wait_until(moved, "messages of the second process", 2 * DEADLINE_S)
            for message in held:
                try:
                    message.ack()
                except LeaseLostError:
                    lost.append(message.value)
            wait_until(lambda: moved() and len(again) == len(lost), "the lost messages", 2 * DEADLINE_S)
            for message in again:
                message.output(results, message.value)
                message.ack()
    written = [record.value for record in here.reader(results).rest()]
    assert sorted(map(str, written)) == sorted(str(b"%d" % number) for number in range(40))


@pytest.mark.parametrize(
    ("metadata", "reason"), [("", "empty"), ("of another program", "not written by a queue")], ids=["lost", "foreign"]
)
def test_metadata_that_another_program_wrote_is_said(
    here: System, caplog: pytest.LogCaptureFixture, metadata: str, reason: str
) -> None:
    topic = here.target()
    with Queue(topic, **PATIENT) as queue:
        queue.send_many(numbers(10))
        for message in receive(queue, 10)[1:]:
            message.ack()
        queue.settle()
    moved = ConsumerGroupTopicPartitions(f"queue.{topic}", [TopicPartition(topic, 0, 4, metadata)])
    (altered,) = here.admin.alter_consumer_group_offsets([moved]).values()
    altered.result(DEADLINE_S)
    with Queue(topic, **PATIENT) as queue:
        assert [message.value for message in receive(queue, 6)] == [b"%d" % number for number in range(4, 10)]
    assert reason in caplog.text and "Messages below 4 count as done" in caplog.text


def test_a_topic_that_is_created_again_ends_the_queue_and_begins_anew(
    here: System, constants: Constants, caplog: pytest.LogCaptureFixture
) -> None:
    constants("timers.queue.member", _COPY_S=0.5)
    topic = here.target()
    with Queue(topic, **PATIENT) as queue:
        queue.send_many(numbers(5))
        receive(queue, 3, ack=True)
        queue.settle()
        here.create_anew(topic)
        with pytest.raises(QueueError, match=r"created again|was recreated"):
            wait_until(lambda: queue.receive(1, wait_s=0.5) is None, "the error", 2 * DEADLINE_S)
    with Queue(topic, **PATIENT) as queue:
        queue.send_many(numbers(2))
        assert [message.value for message in receive(queue, 2)] == [b"0", b"1"]
    assert "deleted and created again, so all its messages are delivered" in caplog.text


def test_an_open_transaction_of_a_producer_is_said(here: System, constants: Constants) -> None:
    constants("timers.queue.member", _STALLED_S=1.0)
    topic = here.target()
    hanging = Producer({**client_settings(here.address), "transactional.id": topic, "transaction.timeout.ms": 600_000})
    hanging.init_transactions(DEADLINE_S)
    with Queue(topic, **PATIENT) as queue:
        queue.send(b"before")
        receive(queue, 1, ack=True)
        hanging.begin_transaction()
        hanging.produce(topic, b"undecided")
        hanging.flush(DEADLINE_S)
        queue.send(b"after")

        def said() -> str:
            with contextlib.suppress(QueueError):
                assert queue.receive(1, wait_s=0.1) == []
            return next((each for each in queue.unready() if "could not be read" in each), "")

        assert f"{topic}/0 could not be read from 1 on" in wait_until(said, "it")
        hanging.abort_transaction(DEADLINE_S)
        assert [message.value for message in receive(queue, 1, ack=True)] == [b"after"]
        wait_until(lambda: queue.unready() == [], "readiness")


def test_added_partitions_end_the_order_and_are_said(
    here: System, constants: Constants, caplog: pytest.LogCaptureFixture
) -> None:
    constants("timers.queue.member", _COPY_S=0.5)
    topic = here.target(partitions=2)
    with Queue(topic, ordered=True, **PATIENT) as queue:
        queue.send_many((b"key", b"%d" % number, ()) for number in range(10))
        (first,) = receive(queue, 1)
        here.admin.create_partitions([NewPartitions(topic, 5)])[topic].result(DEADLINE_S)
        wait_until(lambda: f"topic {topic} has 3 more partitions" in caplog.text, "it", 2 * DEADLINE_S)
        first.retry(after=0.1)
        assert [message.value for message in receive(queue, 10, ack=True)] == [b"%d" % number for number in range(10)]
