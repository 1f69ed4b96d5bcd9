"""The thread of a queue when requests fail in rebalances, and when partitions come and go. No brokers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.harness.queue_thread import JOBS, LOG, MESSAGES, OTHER, SESSION_S, Opened
from tests.harness.waiting import wait_until
from timers.errors import LeaseLostError, QueueError
from timers.queue.guards import Guard
from timers.queue.metadata import decode
from timers.queue.settling import Partition, Plan
from timers.queue.starts import NOTHING
from timers.queue.transactions import Outcome


@pytest.fixture
def copies_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each commit writes copies and checks the logs. Use it before a queue: its first commit sets the next time."""
    monkeypatch.setattr("timers.queue.receiver._COPY_S", 0.0)


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


def test_a_process_that_was_stopped_and_lost_its_partition_cannot_acknowledge(queue: Opened) -> None:
    queue.call(queue.transport.assigned, [JOBS])
    message, *_ = queue.receive(MESSAGES)
    before = dict(queue.transport.commits)

    def stop() -> None:
        queue.transport.is_expelled = True
        queue.stopped_s += 60

    queue.call(stop)
    with ThreadPoolExecutor(1) as pool:
        ack = pool.submit(message.ack)
        wait_until(lambda: message.is_settled, "the call")
        queue.call(queue.transport.revoked, [JOBS], lost=True)
        with pytest.raises(LeaseLostError):
            ack.result(60)
    assert queue.transport.commits == before


def test_a_process_that_was_stopped_and_is_still_a_member_can_acknowledge(queue: Opened) -> None:
    queue.call(queue.transport.assigned, [JOBS])
    message, *_ = queue.receive(MESSAGES)
    queue.stopped_s += 60
    message.ack()
    assert queue.transport.commits[JOBS].offset == 1, "the call waited for the commit"


def test_a_process_without_news_commits_in_each_session_time_out(queue: Opened) -> None:
    queue.call(queue.transport.assigned, [JOBS])
    queue.receive(MESSAGES)
    wait_until(lambda: queue.state.settler.plan() is None, "all is committed")
    plans = queue.transport.plans
    queue.stopped_s += SESSION_S / 2
    wait_until(lambda: queue.transport.plans > plans, "one more commit")


def test_a_commit_that_meets_a_rebalance_is_repeated_soon(monkeypatch: pytest.MonkeyPatch, queue: Opened) -> None:
    monkeypatch.setattr("timers.queue.receiver._RETRY_S", 600.0)
    refused: list[Plan] = []
    execute = queue.transport.execute

    def refuse_once(plan: Plan) -> Outcome:
        if not refused:
            refused.append(plan)
            return Outcome.REFUSED
        outcome: Outcome = execute(plan)
        return outcome

    queue.transport.execute = refuse_once
    queue.call(queue.transport.assigned, [JOBS])
    for message in queue.receive(MESSAGES):
        message.ack()
    wait_until(lambda: queue.transport.commits[JOBS].offset == MESSAGES, "the commit")
    assert refused


class SlowCommits:
    """Commits that return when ``released`` is set. The first one, which allows the start of messages, returns at once.

    Attributes:
        events: ``begin`` and ``end`` of a commit, and ``stop`` of partitions, in order.
    """

    def __init__(self, queue: Opened) -> None:
        self.events: list[str] = []
        self.released = threading.Event()
        self._execute, self._stop = queue.transport.execute, queue.transport.stop
        queue.transport.execute, queue.transport.stop = self.execute, self.stop

    def execute(self, plan: Plan) -> Outcome:
        self.events.append("begin")
        if "end" in self.events:
            assert self.released.wait(60)
        outcome: Outcome = self._execute(plan)
        self.events.append("end")
        return outcome

    def stop(self, partitions: set[Partition]) -> None:
        self.events.append("stop")
        self._stop(partitions)


@pytest.fixture
def slow(queue: Opened) -> Iterator[SlowCommits]:
    slow = SlowCommits(queue)
    yield slow
    slow.released.set()


def test_the_queue_reads_on_while_a_commit_waits(queue: Opened, slow: SlowCommits) -> None:
    queue.call(queue.transport.assigned, [JOBS])
    message, *_ = queue.receive(MESSAGES)
    message.ack()
    wait_until(lambda: slow.events.count("begin") == 2, "the commit")
    polls = queue.transport.polls
    wait_until(lambda: queue.transport.polls > polls + 5, "polls")
    assert queue.transport.commits[JOBS].offset == 0


def test_a_partition_is_not_given_up_before_the_commit_under_way_has_ended(queue: Opened, slow: SlowCommits) -> None:
    queue.call(queue.transport.assigned, [JOBS])
    message, *_ = queue.receive(MESSAGES)
    message.ack()
    wait_until(lambda: slow.events.count("begin") == 2, "the commit")
    queue.transport.calls.append(lambda: queue.transport.revoked([JOBS], lost=True))
    wait_until(lambda: queue.transport.calls == [], "the callback")
    slow.released.set()
    wait_until(lambda: "stop" in slow.events, "the end of the callback")
    assert slow.events == ["begin", "end", "begin", "end", "stop"]


def test_a_commit_that_does_not_return_is_a_reason_to_start_the_process_again(queue: Opened, slow: SlowCommits) -> None:
    queue.call(queue.transport.assigned, [JOBS])
    message, *_ = queue.receive(MESSAGES)
    message.ack()
    wait_until(lambda: slow.events.count("begin") == 2, "the commit")
    queue.stopped_s += 600
    wait_until(queue.state.stuck, "it")
    slow.released.set()
    wait_until(lambda: queue.state.stuck() == [], "the next round")


def test_a_retry_that_waits_for_a_leader_does_not_delay_acknowledgements(queue: Opened) -> None:
    queue.transport.transactions.are_away = True
    queue.transport.transactions.failures = [failure()]
    queue.call(queue.transport.assigned, [JOBS])
    retried, *others = queue.receive(MESSAGES)
    retried.retry()
    for message in others:
        message.ack()
    settled = queue.state.wait_for_commit()

    def done() -> tuple[tuple[int, int], ...]:
        commit = queue.transport.commits[JOBS]
        return decode(commit.metadata, LOG, commit.offset).done

    wait_until(lambda: done() == ((1, MESSAGES),), "the acknowledgements")
    assert not settled.done(), "the retry is not committed"
    queue.transport.transactions.are_away = False
    assert settled.result(60) is None
    assert queue.transport.commits[JOBS].offset == MESSAGES


def test_a_guard_that_cannot_be_written_does_not_delay_a_rebalance(queue: Opened) -> None:
    queue.transport.transactions.are_away = True
    queue.state.guards.are_possible = True
    queue.state.guards.new = lambda source: Guard(cast(Any, None), source)  # type: ignore[method-assign]
    queue.call(queue.transport.assigned, [JOBS])
    message, *_ = queue.receive(MESSAGES)
    queue.call(queue.transport.revoked, [JOBS], lost=False)
    with pytest.raises(LeaseLostError):
        message.ack()
    assert queue.transport.commits[JOBS].offset == 0, "the new owner delivers it"


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


@pytest.mark.usefixtures("copies_at_once")
def test_an_ordered_queue_says_that_added_partitions_end_the_order(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened = Opened(ordered=True)
    try:
        opened.transport.added = 2
        wait_until(lambda: "topic jobs has 2 more partitions" in caplog.text, "it")
    finally:
        opened.state.close()
        opened.receiver.join()


def test_a_partition_that_cannot_be_read_further_is_said(queue: Opened) -> None:
    queue.transport.high = MESSAGES + 3
    queue.call(queue.transport.assigned, [JOBS])
    for message in queue.receive(MESSAGES):
        message.ack()
    assert "could not be read" not in str(queue.state.unready())
    said = f"jobs/0 could not be read from {MESSAGES} on"

    def is_said() -> bool:
        queue.stopped_s += 1
        return said in str(queue.state.unready())

    wait_until(is_said, "it")
    queue.transport.high = MESSAGES
    wait_until(lambda: "could not be read" not in str(queue.state.unready()), "the end of the transaction")


@pytest.mark.usefixtures("copies_at_once")
def test_messages_that_retention_deletes_before_they_are_done_are_said(
    queue: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    queue.transport.low = 3
    queue.call(queue.transport.assigned, [JOBS])
    queue.receive(MESSAGES)
    wait_until(
        lambda: "jobs/0: messages from 0 on are not done, and retention deleted all below 3" in caplog.text, "it"
    )
    assert queue.transport.deleted == {}


@pytest.mark.usefixtures("copies_at_once")
def test_done_messages_of_the_returns_topic_are_deleted(queue: Opened) -> None:
    returns = ("queue.jobs-returns", 0)
    queue.call(queue.transport.assigned, [returns])
    for message in queue.receive(MESSAGES)[:3]:
        message.ack()
    wait_until(lambda: queue.transport.deleted == {returns: 3}, "the deletion")
