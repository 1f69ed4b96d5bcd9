"""Plain commits, whose answers come later or not at all. No brokers."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tests.harness.constants import Constants
from tests.harness.sim_consumer import SimConsumer
from timers.queue.metadata import Commit, Partition
from timers.queue.port import Outcome
from timers.queue.transport import PlainCommits

JOBS, OTHER = ("jobs", 0), ("jobs", 1)


@pytest.fixture
def consumer() -> SimConsumer:
    return SimConsumer()


@pytest.fixture
def commits(consumer: SimConsumer) -> PlainCommits:
    return PlainCommits(cast(Any, consumer), "queue.jobs")


def commit(offset: int, partition: Partition = JOBS) -> dict[Partition, Commit]:
    return {partition: Commit(offset, "metadata")}


def test_an_answer_comes_later(consumer: SimConsumer, commits: PlainCommits) -> None:
    answer = commits.begin(commit(7))
    assert not answer.done()
    ((place,),) = consumer.sent
    assert (place.topic, place.partition, place.offset, place.metadata) == ("jobs", 0, 7, "metadata")
    commits.answer(None, consumer.sent[0])
    assert answer.result(0).outcome is Outcome.COMMITTED


@pytest.mark.parametrize(
    ("code", "outcome"),
    [(KafkaError.ILLEGAL_GENERATION, Outcome.REFUSED), (KafkaError._TIMED_OUT, Outcome.UNKNOWN)],
)
def test_errors_are_outcomes(consumer: SimConsumer, commits: PlainCommits, code: int, outcome: Outcome) -> None:
    answered = commits.begin(commit(7))
    commits.answer(KafkaError(code), consumer.sent[0])
    consumer.failures = [KafkaException(KafkaError(code))] * 2
    answers = [answered.result(0), commits.begin(commit(8)).result(0), commits.commit(commit(9))]
    assert [answer.outcome for answer in answers] == [outcome] * 3


def test_one_refused_partition_refuses_the_commit(commits: PlainCommits) -> None:
    answer = commits.begin(commit(7))
    error = KafkaError(KafkaError.OFFSET_METADATA_TOO_LARGE)
    commits.answer(None, [cast(Any, SimpleNamespace(topic="jobs", partition=0, offset=7, error=error))])
    assert answer.result(0).outcome is Outcome.REFUSED


def test_a_callback_waits_for_no_answer(commits: PlainCommits) -> None:
    """It runs in ``consume``, which delivers no answers meanwhile."""
    sent = commits.begin(commit(7))
    commits.lose_answers()
    assert [sent.result(0).outcome, commits.commit(commit(8)).outcome] == [Outcome.UNKNOWN, Outcome.COMMITTED]


def test_an_answer_that_comes_too_late_is_not_of_another_commit(consumer: SimConsumer, commits: PlainCommits) -> None:
    lost = commits.begin(commit(7))
    commits.lose_answers()
    assert lost.result(0).outcome is Outcome.UNKNOWN
    repeated, other = commits.begin(commit(8)), commits.begin(commit(8, OTHER))
    commits.answer(KafkaError(KafkaError.ILLEGAL_GENERATION), consumer.sent[0])
    assert not repeated.done() and not other.done()
    commits.answer(None, [TopicPartition(*OTHER, 8)])
    assert other.result(0).outcome is Outcome.COMMITTED
    commits.answer(None, [TopicPartition(*JOBS, 8)])
    assert repeated.result(0).outcome is Outcome.COMMITTED


def test_a_commit_that_is_not_answered_has_an_unknown_outcome(commits: PlainCommits, constants: Constants) -> None:
    commits.check()
    constants("timers.queue.transport", ANSWER_S=-1.0)
    answer = commits.begin(commit(7))
    commits.check()
    assert answer.result(0).outcome is Outcome.UNKNOWN
