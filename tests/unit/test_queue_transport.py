"""What the transport of a queue asks the brokers about logs, when some leaders do not answer. No brokers."""

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from tests.harness.sim_admin import SimAdmin
from tests.harness.waiting import wait_until
from timers.client.config import Connection
from timers.queue import transport
from timers.queue.metadata import Commit, ForeignMetadataError, decode
from timers.queue.port import Outcome
from timers.queue.transport import PlainCommits, Transport

JOBS, OTHER = ("jobs", 0), ("jobs", 1)


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> SimAdmin:
    monkeypatch.setattr(transport, "_LEADERS_S", 0.0)
    monkeypatch.setattr(transport, "_GRACE_S", 0.0)
    return SimAdmin()


@pytest.fixture
def opened(admin: SimAdmin) -> Transport:
    opened = Transport(Connection.resolve("127.0.0.1:1", None, None, 1.0, None), "jobs", "queue.jobs", "one", 10.0)
    opened._admin = admin
    return opened


NOT_ANSWERED = [None, KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE)), OFFSET_INVALID]


@pytest.mark.parametrize("answer", NOT_ANSWERED, ids=["silent", "refused", "invalid"])
def test_bounds_are_those_of_the_leaders_that_answer(
    opened: Transport, admin: SimAdmin, answer: int | KafkaException | None
) -> None:
    admin.offsets = {JOBS: 7, OTHER: answer}
    assert opened.bounds([JOBS, OTHER]) == {JOBS: (7, 7)}


@pytest.mark.parametrize("answer", NOT_ANSWERED, ids=["silent", "refused", "invalid"])
def test_first_offsets_are_the_answers_to_the_question_before(
    opened: Transport, admin: SimAdmin, answer: int | KafkaException | None
) -> None:
    admin.offsets = {JOBS: 7, OTHER: answer}
    assert opened.first_offsets([JOBS, OTHER]) == {}
    admin.offsets = {JOBS: 8, OTHER: 3}
    assert opened.first_offsets([JOBS, OTHER]) == {JOBS: 7}
    assert opened.first_offsets([]) == {JOBS: 8, OTHER: 3}
    assert opened.first_offsets([]) == {}


class ClosingConsumer:
    """A consumer that says in ``close`` that it gives up its partitions, and returns when ``released`` is set."""

    def __init__(self, opened: Transport) -> None:
        self.released = threading.Event()
        self.revoked: list[list[tuple[str, int]]] = []
        self.outcomes: list[Outcome] = []
        self._opened = opened

    def close(self) -> None:
        self.released.wait(60)
        self._opened._on_revoke(self._note, cast(Any, self), [TopicPartition(*JOBS)])

    def _note(self, partitions: list[tuple[str, int]]) -> None:
        self.revoked.append(partitions)
        self.outcomes.append(self._opened._plain.commit({JOBS: Commit(7, "")}).outcome)

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> list[TopicPartition] | None:
        assert not asynchronous
        return offsets


@pytest.fixture
def closing(opened: Transport) -> ClosingConsumer:
    consumer: Any = ClosingConsumer(opened)
    opened._count = 1
    opened._consumer = consumer
    opened._plain = PlainCommits(consumer, "queue.jobs")
    opened._asking = cast(Any, SimpleNamespace(close=lambda: None))
    return cast(ClosingConsumer, consumer)


def test_partitions_that_are_given_up_at_the_end_are_committed(opened: Transport, closing: ClosingConsumer) -> None:
    closing.released.set()
    opened.close()
    assert (closing.revoked, closing.outcomes) == ([[JOBS]], [Outcome.COMMITTED])


def test_an_error_while_partitions_are_given_up_leaves_nothing_open(
    opened: Transport, closing: ClosingConsumer
) -> None:
    def fail(_: object) -> Outcome:
        raise AssertionError("of a callback")

    closed: list[str] = []
    opened._plain.commit = fail  # type: ignore[assignment, method-assign]
    opened._asking.close = lambda: closed.append("asking")  # type: ignore[method-assign]
    opened.transactions.close = lambda: closed.append("transactions")  # type: ignore[method-assign]
    closing.released.set()
    with pytest.raises(AssertionError, match="of a callback"):
        opened.close()
    assert closed == ["asking", "transactions"]
    opened.close()


def test_brokers_that_are_away_do_not_delay_the_end(
    opened: Transport, closing: ClosingConsumer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(transport, "_CLOSE_S", 0.01)
    opened.close()
    assert "did not confirm" in caplog.text
    closing.released.set()
    wait_until(lambda: all(thread.name != "queue-close" for thread in threading.enumerate()), "the end of close")
    assert closing.revoked == [], "nobody uses this consumer any more"


class OfStreams:
    """A commit of Kafka Streams, whose metadata the client does not end."""

    topic, partition, offset, error = *JOBS, 7, None

    @property
    def metadata(self) -> str:
        raise UnicodeDecodeError("utf-8", b"AgAAAaImnJ5V\xed\x7f", 12, 13, "invalid continuation byte")


def test_a_commit_whose_metadata_cannot_be_read_is_that_of_another_program(opened: Transport) -> None:
    opened._asking = cast("Any", SimpleNamespace(committed=lambda *_, **__: [OfStreams()]))
    (commit,) = opened.committed([JOBS]).values()
    assert commit is not None and commit.offset == 7
    with pytest.raises(ForeignMetadataError):
        decode(commit.metadata, "log", 7)
