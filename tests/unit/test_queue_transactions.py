"""The transactions of a queue while librdkafka does not return. No brokers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException

from tests.harness.waiting import wait_until
from timers.config.settings import Settings
from timers.queue import records
from timers.queue import transactions as module
from timers.queue.settling import Commit, Plan
from timers.queue.transactions import Outcome, Transactions


class SimProducer:
    """A producer in which one method does not return until ``released`` is set.

    Args:
        stuck: the name of the method.
    """

    released: threading.Event

    def __init__(self, stuck: str, released: threading.Event) -> None:
        self.calls: list[str] = []
        self.failures: list[Exception] = []
        self.released = released
        self._stuck = stuck

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name == self._stuck:
            self.released.wait(60)
        if self.failures:
            raise self.failures.pop(0)

    def init_transactions(self, timeout_s: float) -> None:
        self._call("init_transactions")

    def begin_transaction(self) -> None:
        self._call("begin_transaction")

    def send_offsets_to_transaction(self, offsets: Any, member: Any, timeout_s: float) -> None:
        self._call("send_offsets_to_transaction")

    def commit_transaction(self, timeout_s: float) -> None:
        self._call("commit_transaction")

    def abort_transaction(self, timeout_s: float) -> None:
        self._call("abort_transaction")


class Opened(Transactions):
    """Transactions whose producer is connected, and that write no records.

    Args:
        producer: None if no producer is connected.
    """

    def __init__(self, producer: SimProducer | None) -> None:
        anything = cast(Any, threading.local())
        anything.settings = None
        super().__init__(anything, anything, "queue.jobs", "a", "queue.jobs-ledger")
        self._producer = cast(Any, producer)

    @property
    def has_producer(self) -> bool:
        return self._producer is not None

    def _write(self, producer: Any, plan: Plan) -> None:
        pass


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> SimProducer:
    """What each new producer is."""
    producer = SimProducer("", threading.Event())
    monkeypatch.setattr(module, "Producer", lambda *_, **__: producer)
    monkeypatch.setattr(module, "login", lambda settings: {})
    monkeypatch.setattr(module, "max_message_bytes", lambda settings: 1_000_000)
    return producer


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    monkeypatch.setattr(module, "_TIMEOUT_S", 0.05)
    monkeypatch.setattr(module, "_OVERRUN_S", 0.05)
    released = threading.Event()
    yield released
    released.set()


PLAN = cast(Any, type("Plan", (), {"commits": {}, "jobs": (), "member": None}))


def test_a_transaction_whose_offsets_are_not_sent_in_time_is_repeated_by_a_new_producer(
    released: threading.Event,
) -> None:
    producer = SimProducer("send_offsets_to_transaction", released)
    transactions = Opened(producer)
    assert transactions.execute(PLAN) is Outcome.REFUSED
    assert not transactions.has_producer
    assert producer.calls == ["begin_transaction", "send_offsets_to_transaction"], "no commit after it"


def test_a_commit_that_does_not_return_in_time_has_an_unknown_outcome(released: threading.Event) -> None:
    producer = SimProducer("commit_transaction", released)
    transactions = Opened(producer)
    assert transactions.execute(PLAN) is Outcome.UNKNOWN
    assert not transactions.has_producer
    assert producer.calls.count("commit_transaction") == 1


def test_calls_that_return_commit_the_transaction() -> None:
    transactions = Opened(SimProducer("", threading.Event()))
    assert transactions.execute(PLAN) is Outcome.COMMITTED
    assert transactions.has_producer


def test_the_first_transaction_uses_the_producer_that_was_connected_before(made: SimProducer) -> None:
    transactions = Opened(None)
    transactions.open()
    assert transactions.execute(PLAN) is Outcome.COMMITTED
    assert made.calls.count("init_transactions") == 1


def test_a_producer_that_could_not_connect_is_replaced_when_a_transaction_begins(made: SimProducer) -> None:
    made.failures = [KafkaException(KafkaError(KafkaError._TIMED_OUT))]
    transactions = Opened(None)
    transactions.open()
    wait_until(lambda: made.failures == [], "the failure")
    wait_until(lambda: transactions.execute(PLAN) is Outcome.COMMITTED, "a transaction")
    assert made.calls.count("init_transactions") == 2


def test_a_producer_that_connects_is_waited_for_before_the_next_one_of_its_id(
    made: SimProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CLOSE_S", 60.0)
    transactions = Opened(None)
    transactions.open()
    transactions.close()
    assert made.calls == ["init_transactions"]
    assert not transactions.has_producer
    transactions.open()
    assert transactions.execute(PLAN) is Outcome.COMMITTED
    assert made.calls.count("init_transactions") == 2


class RefusingProducer(SimProducer):
    """A producer whose brokers refuse the records for one topic."""

    def __init__(self, topic: str, code: int) -> None:
        super().__init__("", threading.Event())
        self._refusal = {topic: KafkaError(code)}

    def produce(self, topic: str, *_: Any, on_delivery: Callable[..., None], **__: Any) -> None:
        written = SimpleNamespace(timestamp=lambda: (TIMESTAMP_LOG_APPEND_TIME, 1))
        on_delivery(self._refusal.get(topic), written)

    def flush(self, timeout_s: float) -> int:
        return 0


@pytest.mark.parametrize("code", [KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._UNKNOWN_TOPIC])
def test_a_guard_that_the_brokers_refuse_does_not_hold_up_the_next_transaction(code: int) -> None:
    producer = RefusingProducer("ids", code)
    kafka: Any = SimpleNamespace(settings=Settings(brokers="b:1", id_topic="ids"), request_topic="requests")
    transactions = Transactions(kafka, cast(Any, None), "queue.jobs", "a", "queue.jobs-ledger")
    transactions._producer = cast(Any, producer)
    job: Any = SimpleNamespace(records=[records.Guarding("guard", 1000, b"", [], "jobs/0/1")])
    plan: Any = SimpleNamespace(commits={("jobs", 0): Commit(1, "")}, jobs=[job], member=None)
    assert transactions.execute(plan) is Outcome.REFUSED
    assert "abort_transaction" in producer.calls
    assert transactions.take_refused() == [job]
