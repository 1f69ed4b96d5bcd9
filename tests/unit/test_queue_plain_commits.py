"""Plain commits that one thread asks for and another one makes. No brokers."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tests.harness.sim_consumer import SimConsumer
from tests.harness.waiting import wait_until
from timers.queue import transport as module
from timers.queue.settling import Commit, Partition
from timers.queue.transactions import Outcome
from timers.queue.transport import PlainCommits

JOBS, OTHER = ("jobs", 0), ("jobs", 1)


@pytest.fixture
def consumer() -> SimConsumer:
    return SimConsumer()


@pytest.fixture
def commits(consumer: SimConsumer) -> PlainCommits:
    return PlainCommits(cast(Any, consumer), "queue.jobs")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def sent(consumer: SimConsumer, commits: PlainCommits, count: int = 1) -> None:
    """Serve the requests of other threads until ``count`` commits are not answered."""

    def serve() -> bool:
        commits.send()
        return len(consumer.sent) == count

    wait_until(serve, "the requests")


def commit(offset: int, partition: Partition = JOBS) -> dict[Partition, Commit]:
    return {partition: Commit(offset, "metadata")}


def test_the_thread_of_the_consumer_makes_the_commit(
    consumer: SimConsumer, commits: PlainCommits, pool: ThreadPoolExecutor
) -> None:
    outcome = pool.submit(commits.commit, commit(7))
    sent(consumer, commits)
    assert not outcome.done()
    ((place,),) = consumer.sent
    assert (place.topic, place.partition, place.offset, place.metadata) == ("jobs", 0, 7, "metadata")
    commits.answer(None, consumer.sent[0])
    assert outcome.result(60) is Outcome.COMMITTED


@pytest.mark.parametrize(
    ("code", "outcome"),
    [(KafkaError.ILLEGAL_GENERATION, Outcome.REFUSED), (KafkaError._TIMED_OUT, Outcome.UNKNOWN)],
)
def test_errors_are_outcomes(
    consumer: SimConsumer, commits: PlainCommits, pool: ThreadPoolExecutor, code: int, outcome: Outcome
) -> None:
    answered = pool.submit(commits.commit, commit(7))
    sent(consumer, commits)
    commits.answer(KafkaError(code), consumer.sent[0])
    assert answered.result(60) is outcome
    consumer.failures = [KafkaException(KafkaError(code))] * 2
    assert commits.commit(commit(8)) is outcome
    raised = pool.submit(commits.commit, commit(9))

    def is_raised() -> bool:
        commits.send()
        return raised.done()

    wait_until(is_raised, "the failure")
    assert raised.result() is outcome


def test_one_refused_partition_refuses_the_commit(
    consumer: SimConsumer, commits: PlainCommits, pool: ThreadPoolExecutor
) -> None:
    outcome = pool.submit(commits.commit, commit(7))
    sent(consumer, commits)
    error = KafkaError(KafkaError.OFFSET_METADATA_TOO_LARGE)
    commits.answer(None, [cast(Any, SimpleNamespace(topic="jobs", partition=0, offset=7, error=error))])
    assert outcome.result(60) is Outcome.REFUSED


def test_a_callback_that_waits_makes_the_commits_itself(
    consumer: SimConsumer, commits: PlainCommits, pool: ThreadPoolExecutor
) -> None:
    """It runs in ``consume``, which another thread must not enter and which delivers no answers meanwhile."""

    def commit_twice() -> list[Outcome]:
        return [commits.commit(commit(7)), commits.commit(commit(8))]

    outcomes = pool.submit(commit_twice)
    sent(consumer, commits)
    commits.wait_for(outcomes)
    assert outcomes.result() == [Outcome.UNKNOWN, Outcome.COMMITTED]
    ((place,),) = consumer.made
    assert place.offset == 8


def test_at_the_end_nothing_is_committed_any_more(
    consumer: SimConsumer, commits: PlainCommits, pool: ThreadPoolExecutor
) -> None:
    outcome = pool.submit(commits.commit, commit(7))
    commits.wait_for(outcome, is_over=True)
    assert outcome.result() is Outcome.REFUSED
    assert consumer.made == consumer.sent == []


def test_a_callback_waits_for_calls_without_commits(commits: PlainCommits, pool: ThreadPoolExecutor) -> None:
    never: Future[None] = Future()
    never.set_result(None)
    commits.wait_for(never)
    commits.wait_for(pool.submit(sum, [1, 2]))
    commits.send()


def test_an_answer_that_comes_too_late_is_not_that_of_another_commit(
    consumer: SimConsumer, commits: PlainCommits, pool: ThreadPoolExecutor
) -> None:
    lost = pool.submit(commits.commit, commit(7))
    sent(consumer, commits)
    commits.lose_answers()
    assert lost.result(60) is Outcome.UNKNOWN
    repeated, other = pool.submit(commits.commit, commit(8)), pool.submit(commits.commit, commit(8, OTHER))
    sent(consumer, commits, 3)
    commits.answer(KafkaError(KafkaError.ILLEGAL_GENERATION), consumer.sent[0])
    assert not repeated.done() and not other.done()
    commits.answer(None, [TopicPartition(*OTHER, 8)])
    assert other.result(60) is Outcome.COMMITTED
    commits.answer(None, [TopicPartition(*JOBS, 8)])
    assert repeated.result(60) is Outcome.COMMITTED


def test_a_commit_that_nobody_makes_is_given_up(
    consumer: SimConsumer, commits: PlainCommits, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.01)
    assert pool.submit(commits.commit, commit(7)).result(60) is Outcome.REFUSED
    commits.send()
    assert consumer.sent == []


def test_a_commit_that_is_not_answered_has_an_unknown_outcome(
    consumer: SimConsumer, commits: PlainCommits, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 2.0)
    outcome = pool.submit(commits.commit, commit(7))
    sent(consumer, commits)
    assert outcome.result(60) is Outcome.UNKNOWN
