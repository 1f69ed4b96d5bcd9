"""Commits of a queue while its thread reads on: they wait, are refused, and are repeated. No brokers."""

import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError

from tests.harness.constants import Constants
from tests.harness.queue_thread import JOBS, LOG, MESSAGES, SESSION_S, Opened, failure
from tests.harness.waiting import wait_until
from timers.errors import QueueError
from timers.queue.metadata import Partition, decode
from timers.queue.port import CommitAnswer, Outcome, Plan
from timers.queue.records import Kind


def test_an_output_that_may_not_be_written_does_not_hold_up_others(queue: Opened) -> None:
    queue.call(queue.transport.assigned, [JOBS])
    denied, rejected, *_ = queue.receive(MESSAGES)
    denied.output("denied", b"")
    denied.ack()
    rejected.reject("bad")
    waits = queue.driver.wait_for_commit()
    assert waits.result(30) is None
    assert queue.transport.commits[JOBS].offset == 2
    assert queue.driver.member.settler.totals.dead == {"rejected": 2}


def test_a_dead_letter_that_is_refused_itself_does_not_hold_up_others(
    queue: Opened, constants: Constants, caplog: pytest.LogCaptureFixture
) -> None:
    """Its message stays open, and the dead letter is tried again: the topic may be corrected."""
    constants("timers.queue.settling", _HELD_S=0.02)
    constants("timers.queue.settling", _MAX_HELD_S=0.05)
    constants("timers.queue.settling", _MAX_PAUSE_S=0.05)
    execute, refused, corrected = queue.transport.execute, [], threading.Event()

    def refuse(plan: Plan) -> CommitAnswer:
        letters = [job for job in plan.jobs if job.records[0].kind is Kind.LETTER]
        if letters and not corrected.is_set():
            refused.append(letters[0].records[0].value)
            error = KafkaError(KafkaError.INVALID_TIMESTAMP)
            return CommitAnswer(Outcome.REFUSED, refused=dict.fromkeys(letters, error))
        answer: CommitAnswer = execute(plan)
        return answer

    queue.transport.execute = refuse
    queue.call(queue.transport.assigned, [JOBS])
    rejected, *others = queue.receive(MESSAGES)
    rejected.reject("bad")
    wait_until(lambda: "refuse the dead letter of" in caplog.text, "the error")
    for message in others:
        message.ack()

    def done() -> tuple[tuple[int, int], ...]:
        commit = queue.transport.commits[JOBS]
        return decode(commit.metadata, LOG, commit.offset).done

    wait_until(lambda: done() == ((1, MESSAGES),) and len(refused) > 2, "the others, and more tries")
    assert queue.transport.commits[JOBS].offset == 0, "the message is open"
    assert None not in refused, "it keeps its value"
    corrected.set()
    wait_until(lambda: queue.transport.commits[JOBS].offset == MESSAGES, "the dead letter")


def test_a_process_without_news_commits_in_each_session_time_out(queue: Opened) -> None:
    queue.call(queue.transport.assigned, [JOBS])
    queue.receive(MESSAGES)
    wait_until(lambda: queue.driver.member.settler.plan() is None, "all is committed")
    plans = queue.transport.plans
    queue.stopped_s += SESSION_S / 2
    wait_until(lambda: queue.transport.plans > plans, "one more commit")


def test_a_commit_that_meets_a_rebalance_is_repeated_soon(constants: Constants, queue: Opened) -> None:
    constants("timers.queue.member", _RETRY_S=600.0)
    refused: list[Plan] = []
    execute = queue.transport.execute

    def refuse_once(plan: Plan) -> CommitAnswer:
        if not refused:
            refused.append(plan)
            return CommitAnswer(Outcome.REFUSED)
        answer: CommitAnswer = execute(plan)
        return answer

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

    def execute(self, plan: Plan) -> CommitAnswer:
        self.events.append("begin")
        if "end" in self.events:
            assert self.released.wait(60)
        answer: CommitAnswer = self._execute(plan)
        self.events.append("end")
        return answer

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
    wait_until(queue.driver.stuck, "it")
    slow.released.set()
    wait_until(lambda: queue.driver.stuck() == [], "the next round")


def test_a_retry_that_waits_for_a_leader_does_not_delay_acknowledgements(queue: Opened) -> None:
    queue.transport.transactions.places.are_complete = False
    queue.transport.transactions.places.failures = [failure()]
    queue.call(queue.transport.assigned, [JOBS])
    retried, *others = queue.receive(MESSAGES)
    retried.retry()
    for message in others:
        message.ack()
    settled = queue.driver.wait_for_commit()

    def done() -> tuple[tuple[int, int], ...]:
        commit = queue.transport.commits[JOBS]
        return decode(commit.metadata, LOG, commit.offset).done

    wait_until(lambda: done() == ((1, MESSAGES),), "the acknowledgements")
    assert not settled.done(), "the retry is not committed"
    queue.transport.transactions.places.are_complete = True
    assert settled.result(60) is None
    assert queue.transport.commits[JOBS].offset == MESSAGES


@pytest.mark.parametrize("is_expelled", [False, True])
def test_an_end_says_if_its_last_calls_were_committed(queue: Opened, constants: Constants, is_expelled: bool) -> None:
    """What was dropped before it was told to end is no matter of the end."""
    constants("timers.queue.driver", _DRAIN_S=0.05)
    queue.call(queue.transport.assigned, [JOBS])
    (before, *_) = queue.receive(MESSAGES)
    queue.transport.is_expelled = True
    before.ack()
    queue.call(queue.transport.revoked, [JOBS], lost=True)
    with pytest.raises(QueueError, match="lost partitions before all earlier calls"):
        queue.driver.wait_for_commit().result(30)
    queue.transport.is_expelled = False
    queue.call(queue.transport.assigned, [JOBS])
    (again,) = queue.receive(1)
    queue.transport.is_expelled = is_expelled
    again.ack()
    queue.close()
    assert queue.driver.lost_last_calls == is_expelled
