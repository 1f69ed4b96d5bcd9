"""The thread of a queue when requests fail in rebalances, and when partitions come and go. No brokers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.harness.waiting import wait_until
from timers.client import Backoff
from timers.errors import LeaseLostError, QueueError, TimersError
from timers.queue import Message
from timers.queue.deliveries import Deliveries
from timers.queue.guards import Guards
from timers.queue.metadata import decode
from timers.queue.receiver import Receiver
from timers.queue.settling import Commit, Job, Partition, Plan
from timers.queue.starts import NOTHING
from timers.queue.state import State, Terms
from timers.queue.transactions import Outcome
from timers.queue.transport import Transport

JOBS, OTHER = ("jobs", 0), ("jobs", 1)
LOG = "log"
MESSAGES = 5


class Record:
    """A record of confluent-kafka."""

    def __init__(self, partition: Partition, offset: int) -> None:
        self._at = (*partition, offset)

    def error(self) -> None:
        return None

    def topic(self) -> str:
        return self._at[0]

    def partition(self) -> int:
        return self._at[1]

    def offset(self) -> int:
        return self._at[2]

    def timestamp(self) -> tuple[int, int]:
        return 2, 0

    def headers(self) -> None:
        return None

    def key(self) -> None:
        return None

    def __len__(self) -> int:
        return 1


class SimTransactions:
    def take_refused(self) -> list[Job]:
        return []


class SimTransport:
    """Two partitions with messages, of which the test assigns and revokes some.

    Attributes:
        calls: done by the queue's thread in its next poll.
        failures: errors of the next requests for committed offsets.
    """

    transactions = SimTransactions()
    group = "queue.jobs"
    returns_topic = "queue.jobs-returns"

    def __init__(self) -> None:
        self.commits: dict[Partition, Commit] = {}
        self.positions: dict[Partition, int] = {}
        self.calls: list[Callable[[], None]] = []
        self.failures: list[KafkaException] = []
        self.is_recreated = False
        self.low = 0
        self.deleted: dict[Partition, int] = {}
        self.stopped: list[set[Partition]] = []
        self.opened = threading.Event()
        self.opens = 0
        self.owned: list[Partition] = []

    def open(self, assigned: Callable[[list[Partition]], None], revoked: Callable[..., None]) -> None:
        self.assigned, self.revoked = assigned, revoked
        self.opened.set()
        self.opens += 1
        self.calls.append(lambda: assigned(self.owned))

    def poll(self, most: int, wait_s: float) -> list[Any]:
        calls, self.calls = self.calls, []
        for call in calls:
            call()
        records: list[Record] = []
        for partition, position in self.positions.items():
            records += [Record(partition, offset) for offset in range(position, MESSAGES)]
            self.positions[partition] = MESSAGES
        if not records and wait_s:
            threading.Event().wait(0.001)
        return records

    def committed(self, partitions: Iterable[Partition]) -> dict[Partition, Commit | None]:
        if self.failures:
            raise self.failures.pop(0)
        return {each: self.commits.get(each) for each in partitions}

    def copies(self) -> dict[Partition, Commit]:
        return {}

    def bounds(self, partition: Partition) -> tuple[int, int]:
        return 0, MESSAGES

    def log_tag(self, topic: str) -> str:
        return LOG

    def member(self) -> str:
        return "member"

    def start(self, positions: Mapping[Partition, int]) -> None:
        self.positions.update(positions)

    def stop(self, partitions: Iterable[Partition]) -> None:
        self.stopped.append(set(partitions))
        for partition in self.stopped[-1]:
            del self.positions[partition]

    def execute(self, plan: Plan) -> Outcome:
        self.commits.update(plan.commits)
        return Outcome.COMMITTED

    def check_topics(self) -> None:
        if self.is_recreated:
            raise QueueError("topic 'jobs' was deleted and created again")

    def first_offset(self, partition: Partition) -> int:
        return self.low

    def delete_below(self, offsets: Mapping[Partition, int]) -> None:
        self.deleted.update(offsets)

    def end(self, partition: Partition) -> int:
        return MESSAGES

    def pause(self, partitions: Collection[Partition]) -> None: ...
    def resume(self, partitions: Collection[Partition]) -> None: ...

    def close(self) -> None:
        self.positions = {}

    def user_error(self, error: KafkaException, failed: str) -> TimersError:
        return QueueError(failed)


class Opened:
    """A queue that runs over a simulated transport."""

    def __init__(self, lease_s: float = 600.0) -> None:
        self.transport: Any = SimTransport()
        terms = Terms("jobs", "jobs", self.transport.returns_topic, Backoff(), lease_s, False, False, 1_000_000)
        guards: Guards = Guards.__new__(Guards)
        guards.are_possible = False
        self.state = State(terms, guards)
        self.deliveries = Deliveries(self.state)
        self.receiver = Receiver(self.state, cast(Transport, self.transport))
        self.receiver.start()
        assert self.transport.opened.wait(30)

    def call(self, function: Callable[..., None], *arguments: Any, **named: Any) -> None:
        """Let the thread of the queue call a function, and wait for it."""
        done = threading.Event()

        def call() -> None:
            function(*arguments, **named)
            done.set()

        self.transport.calls.append(call)
        assert done.wait(30)

    def receive(self, count: int) -> list[Message]:
        received: list[Message] = []

        def enough() -> bool:
            received.extend(self.deliveries.receive(count - len(received), 0.1))
            return len(received) == count

        wait_until(enough, f"{count} messages")
        return received


@pytest.fixture
def queue() -> Iterator[Opened]:
    opened = Opened()
    yield opened
    opened.state.close()
    opened.receiver.join()


@pytest.fixture
def impatient() -> Iterator[Opened]:
    """A queue with a short lease."""
    opened = Opened(lease_s=1.0)
    yield opened
    opened.state.close()
    opened.receiver.join()


def failure(code: int = KafkaError._TIMED_OUT) -> KafkaException:
    return KafkaException(KafkaError(code))


def test_requests_of_a_rebalance_that_fail_are_repeated(queue: Opened, caplog: pytest.LogCaptureFixture) -> None:
    queue.transport.failures = [failure(), failure(KafkaError._TRANSPORT)]
    queue.call(queue.transport.assigned, [JOBS])
    for message in queue.receive(MESSAGES):
        message.ack()
    assert queue.transport.failures == []
    assert caplog.text.count("loads its partitions later") == 2


def test_a_partition_that_is_lost_before_it_was_loaded_is_not_stopped(queue: Opened) -> None:
    queue.transport.failures = [failure() for _ in range(1000)]
    queue.call(queue.transport.assigned, [JOBS])
    queue.call(queue.transport.revoked, [JOBS], lost=False)
    queue.transport.failures = []
    queue.call(queue.transport.assigned, [OTHER])
    queue.receive(MESSAGES)
    assert queue.transport.stopped == [set()]
    assert queue.state.counters().partitions == 1


def test_a_partition_is_given_up_with_what_was_settled(queue: Opened) -> None:
    queue.call(queue.transport.assigned, [JOBS, OTHER])
    messages = queue.receive(2 * MESSAGES)
    mine = [message for message in messages if message.source.startswith("jobs/0/")]
    assert len(mine) == MESSAGES
    for message in mine[1:]:
        message.ack()
    queue.call(queue.transport.revoked, [JOBS], lost=False)
    commit = queue.transport.commits[JOBS]
    saved = decode(commit.metadata, LOG, commit.offset)
    assert (saved.offset, saved.done, saved.start) == (0, ((1, MESSAGES),), NOTHING)
    assert queue.state.counters().leases_lost == 1


def test_a_lost_partition_is_not_committed(queue: Opened) -> None:
    queue.call(queue.transport.assigned, [JOBS])
    message, *_ = queue.receive(MESSAGES)
    before = queue.transport.commits[JOBS]

    def lose() -> None:
        message.ack()
        queue.transport.revoked([JOBS], lost=True)

    queue.call(lose)
    assert queue.transport.commits[JOBS] == before


def test_a_topic_that_was_created_again_ends_the_queue(queue: Opened) -> None:
    queue.transport.is_recreated = True
    queue.call(queue.transport.assigned, [JOBS])
    with pytest.raises(QueueError, match="created again"):
        # Messages may be received before the topics are checked.
        wait_until(lambda: queue.deliveries.receive(1, 0.1) is None, "the error")


def test_a_process_whose_handlers_hang_leaves_its_messages_to_others(
    impatient: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    impatient.transport.owned = [JOBS]
    impatient.call(impatient.transport.assigned, [JOBS])
    hung = impatient.receive(MESSAGES)
    wait_until(lambda: impatient.transport.positions == {}, "the process leaves")
    assert "gives its partitions to other processes" in caplog.text
    with pytest.raises(LeaseLostError):
        hung[0].ack()
    assert impatient.state.wait_for_commit().result(30) is None, "nothing is left to commit"
    again = impatient.receive(MESSAGES)
    assert {message.source for message in again} == {message.source for message in hung}
    assert impatient.transport.opens == 2
    assert {message.attempt for message in again} == {2}


def test_messages_that_retention_deletes_before_they_are_done_are_said(
    queue: Opened, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("timers.queue.receiver._COPY_S", 0.0)
    queue.transport.low = 3
    queue.call(queue.transport.assigned, [JOBS])
    queue.receive(MESSAGES)
    wait_until(
        lambda: "jobs/0: messages from 0 on are not done, and retention deleted all below 3" in caplog.text, "it"
    )
    assert queue.transport.deleted == {}


def test_done_messages_of_the_returns_topic_are_deleted(queue: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timers.queue.receiver._COPY_S", 0.0)
    returns = ("queue.jobs-returns", 0)
    queue.call(queue.transport.assigned, [returns])
    for message in queue.receive(MESSAGES)[:3]:
        message.ack()
    wait_until(lambda: queue.transport.deleted == {returns: 3}, "the deletion")
