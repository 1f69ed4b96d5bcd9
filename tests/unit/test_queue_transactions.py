"""The transactions of a queue while librdkafka does not return. No brokers."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException

from tests.harness.constants import Constants
from tests.harness.waiting import wait_until
from timers.kafka.connection import ErrorReports
from timers.process.config.settings import Settings
from timers.queue import transactions as module
from timers.queue.entry import Entry
from timers.queue.ledger import Ledger
from timers.queue.metadata import Commit, Saved
from timers.queue.port import Job, Outcome, Plan
from timers.queue.records import Kind, Record
from timers.queue.transactions import AnsweringPlaces, Transactions


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


KAFKA: Any = SimpleNamespace(settings=Settings(brokers="b:1", id_topic="ids"), request_topic="requests")

REPORTS = ErrorReports(KAFKA.settings)

CONNECTED: Future[None] = Future()
CONNECTED.set_result(None)

ACCESS = SimpleNamespace(denied=frozenset(), forget=lambda: None)
PLACES = AnsweringPlaces(KAFKA, cast(Any, SimpleNamespace(answer={})), cast(Any, ACCESS), "queue.jobs-ledger")
"""No leader was asked: the client chooses the partitions."""


class Opened(Transactions):
    """Transactions whose producer is connected, and that write no records.

    Args:
        producer: None if no producer is connected.
    """

    def __init__(self, producer: SimProducer | None) -> None:
        super().__init__(KAFKA, REPORTS, "queue.jobs", "a", "queue.jobs-ledger")
        self.places = PLACES
        if producer is not None:
            self._opened = cast(Any, producer), CONNECTED

    @property
    def has_producer(self) -> bool:
        return self._opened is not None

    def _write(self, producer: Any, plan: Plan) -> None: ...


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> SimProducer:
    """What each new producer is."""
    producer = SimProducer("", threading.Event())
    monkeypatch.setattr(module, "Producer", lambda *_, **__: producer)
    monkeypatch.setattr(module, "admin_client", lambda *_: None)
    monkeypatch.setattr(module, "login", lambda settings: {})
    monkeypatch.setattr(module, "max_message_bytes", lambda settings: 1_000_000)
    return producer


@pytest.fixture
def released(constants: Constants) -> Iterator[threading.Event]:
    constants(module, _TIMEOUT_S=0.5, _OVERRUN_S=0.4)  # also for the calls that return, each in a thread of its own
    released = threading.Event()
    yield released
    released.set()


PLAN = cast(Any, type("Plan", (), {"commits": {}, "jobs": (), "member": None}))


def test_a_transaction_whose_offsets_are_late_is_repeated_by_a_new_producer(released: threading.Event) -> None:
    producer = SimProducer("send_offsets_to_transaction", released)
    transactions = Opened(producer)
    assert transactions.execute(PLAN).outcome is Outcome.REFUSED
    assert not transactions.has_producer
    assert producer.calls == ["begin_transaction", "send_offsets_to_transaction"], "no commit after it"


@pytest.mark.parametrize(
    ("codes", "is_kept"),
    [
        ([KafkaError._MSG_TIMED_OUT], True),
        ([KafkaError._MSG_TIMED_OUT, KafkaError._MSG_TIMED_OUT], False),
        ([KafkaError._MSG_TIMED_OUT, None, KafkaError._MSG_TIMED_OUT], True),
        ([KafkaError.INVALID_RECORD, KafkaError.INVALID_RECORD], True),
    ],
)
def test_a_producer_without_two_answers_is_replaced_though_its_transactions_were_aborted(
    codes: list[int | None], is_kept: bool
) -> None:
    """Without a partition in the transaction librdkafka aborts it by itself: the producer may have lost all brokers.
    Once, one leader may be away."""
    producer, left = SimProducer("", threading.Event()), iter(codes)
    transactions = Opened(producer)
    transactions._write = lambda *_: _fail(next(left))  # type: ignore[method-assign]
    for code in codes:
        assert transactions.has_producer
        assert transactions.execute(PLAN).outcome is (Outcome.COMMITTED if code is None else Outcome.REFUSED)
    assert (producer.calls[-1], transactions.has_producer) == ("abort_transaction", is_kept)


def _fail(code: int | None) -> None:
    if code is not None:
        raise KafkaException(KafkaError(code))


def test_a_commit_that_does_not_return_in_time_has_an_unknown_outcome(released: threading.Event) -> None:
    producer = SimProducer("commit_transaction", released)
    transactions = Opened(producer)
    assert transactions.execute(PLAN).outcome is Outcome.UNKNOWN
    assert not transactions.has_producer
    assert producer.calls.count("commit_transaction") == 1


@pytest.mark.parametrize("code", [KafkaError._FENCED, KafkaError.PRODUCER_FENCED])
@pytest.mark.parametrize(
    ("method", "outcome"),
    [
        ("begin_transaction", Outcome.REFUSED),
        ("send_offsets_to_transaction", Outcome.REFUSED),
        ("commit_transaction", Outcome.UNKNOWN),
    ],
)
def test_a_process_whose_name_another_one_has_goes_on_under_its_own(
    method: str, outcome: Outcome, code: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fenced, made = SimProducer("", threading.Event()), SimProducer("", threading.Event())

    def fail(*_: Any) -> None:
        raise KafkaException(KafkaError(code, "fenced", True))

    configs: list[dict[str, Any]] = []

    def make(config: dict[str, Any], **_: Any) -> SimProducer:
        configs.append(config)
        return made

    monkeypatch.setattr(module, "Producer", make)
    monkeypatch.setattr(module, "login", lambda settings: {})
    monkeypatch.setattr(module, "max_message_bytes", lambda settings: 1_000_000)
    monkeypatch.setattr(fenced, method, fail)
    transactions = Opened(fenced)
    assert transactions.execute(PLAN).outcome is outcome
    assert transactions.execute(PLAN).outcome is Outcome.COMMITTED
    (config,) = configs
    assert config["transactional.id"].startswith("queue.jobs-a-")
    (said,) = (record.getMessage() for record in caplog.records if record.levelname == "ERROR")
    assert "took the name 'a' (--member) of this one" in said
    assert config["transactional.id"] in said


def test_a_fatal_error_behind_several_reports_is_known() -> None:
    with pytest.raises(KafkaException, match="fenced"), module._fatal_errors():
        try:
            try:
                raise KafkaException(KafkaError(KafkaError._FENCED, "fenced"))
            except KafkaException as error:
                raise SystemError("first report") from error
        except SystemError as error:
            raise SystemError("second report") from error


def test_calls_that_return_commit_the_transaction() -> None:
    transactions = Opened(SimProducer("", threading.Event()))
    assert transactions.execute(PLAN).outcome is Outcome.COMMITTED
    assert transactions.has_producer


def test_the_first_transaction_uses_the_producer_that_was_connected_before(made: SimProducer) -> None:
    transactions = Opened(None)
    transactions.open()
    assert transactions.execute(PLAN).outcome is Outcome.COMMITTED
    assert made.calls.count("init_transactions") == 1


def test_a_producer_that_could_not_connect_is_replaced_when_a_transaction_begins(made: SimProducer) -> None:
    made.failures = [KafkaException(KafkaError(KafkaError._TIMED_OUT))]
    transactions = Opened(None)
    transactions.open()
    wait_until(lambda: made.failures == [], "the failure")
    wait_until(lambda: transactions.execute(PLAN).outcome is Outcome.COMMITTED, "a transaction")
    assert made.calls.count("init_transactions") == 2


def test_a_producer_that_connects_is_waited_for_by_the_next(made: SimProducer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CLOSE_S", 60.0)
    transactions = Opened(None)
    transactions.open()
    transactions.close()
    assert not hasattr(transactions, "places"), "its admin client is closed too"
    assert made.calls == ["init_transactions"]
    assert not transactions.has_producer
    transactions.open()
    assert transactions.execute(PLAN).outcome is Outcome.COMMITTED
    assert made.calls.count("init_transactions") == 2


def hidden(error: KafkaException) -> SystemError:
    """What confluent-kafka raises if a delivery report follows a fatal error."""
    system_error = SystemError("returned a result with an exception set")
    system_error.__cause__ = error
    return system_error


FENCED = KafkaException(KafkaError(KafkaError._FENCED, "a newer producer", fatal=True))


@pytest.mark.parametrize("error", [FENCED, hidden(FENCED)], ids=["raised", "hidden"])
@pytest.mark.parametrize(
    ("failing", "outcome"),
    [(0, Outcome.REFUSED), (1, Outcome.REFUSED), (2, Outcome.UNKNOWN)],
    ids=["begin", "offsets", "commit"],
)
def test_a_fenced_producer_is_replaced(error: Exception, failing: int, outcome: Outcome) -> None:
    producer = SimProducer("", threading.Event())
    calls: list[str] = []
    call = producer._call

    def fail(name: str) -> None:
        calls.append(name)
        if len(calls) > failing:
            raise error
        call(name)

    producer._call = fail  # type: ignore[method-assign]
    transactions = Opened(producer)
    assert transactions.execute(PLAN).outcome is outcome
    assert not transactions.has_producer


class RefusingProducer(SimProducer):
    """A producer whose brokers refuse the records for one topic."""

    def __init__(self, topic: str, code: int) -> None:
        super().__init__("", threading.Event())
        self._refusal = {topic: KafkaError(code)}
        self.flush_failure: Exception | None = None

    def produce(self, topic: str, *_: Any, on_delivery: Callable[..., None], **__: Any) -> None:
        written = SimpleNamespace(timestamp=lambda: (TIMESTAMP_LOG_APPEND_TIME, 1))
        on_delivery(self._refusal.get(topic), written)

    def flush(self, timeout_s: float) -> int:
        if self.flush_failure is not None:
            raise self.flush_failure
        return 0


def test_a_producer_that_is_fenced_while_it_writes_is_replaced() -> None:
    producer = RefusingProducer("ids", KafkaError.NO_ERROR)
    producer.flush_failure = hidden(FENCED)
    transactions = opened_with(producer)
    assert transactions.execute(cast(Any, SimpleNamespace(commits={}, jobs=[], member=None))).outcome is Outcome.REFUSED
    assert producer.calls == ["begin_transaction"], "what was open is aborted already"
    assert transactions._opened is None


def opened_with(producer: SimProducer) -> Transactions:
    """Transactions that write records."""
    transactions = Transactions(KAFKA, REPORTS, "queue.jobs", "a", "queue.jobs-ledger")
    transactions.places = PLACES
    transactions._opened = cast(Any, producer), CONNECTED
    return transactions


def refusing(topic: str, code: int) -> tuple[Transactions, RefusingProducer]:
    """Transactions whose records for one topic are refused."""
    producer = RefusingProducer(topic, code)
    return opened_with(producer), producer


def plan_of(*written: Any) -> tuple[Any, Job]:
    """A plan with one job."""
    job = Job(("jobs", 0), Ledger(Saved(0)), Entry(0, None, None, 1, 1), written)
    return SimpleNamespace(commits={("jobs", 0): Commit(1, "")}, jobs=[job], member=None), job


@pytest.mark.parametrize("code", [KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._UNKNOWN_TOPIC])
def test_a_guard_that_the_brokers_refuse_does_not_hold_up_the_next_transaction(code: int) -> None:
    transactions, producer = refusing("ids", code)
    plan, job = plan_of(Record(Kind.GUARD, b"", [], "jobs/0/1", 1000, b"guard"))
    answer = transactions.execute(plan)
    assert "abort_transaction" in producer.calls
    assert (answer.outcome, [*answer.refused]) == (Outcome.REFUSED, [job])


def test_what_may_not_be_written_is_asked_for_again_after_a_failed_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    transactions, _ = refusing("results", KafkaError._MSG_TIMED_OUT)
    forgotten: list[bool] = []
    monkeypatch.setattr(ACCESS, "forget", lambda: forgotten.append(True))
    plan, _ = plan_of(Record(Kind.OUTPUT, b"", [], "jobs/0/1", topic="results"))
    answer = transactions.execute(plan)
    assert (answer.outcome, answer.refused) == (Outcome.REFUSED, {}), "brokers do not say which topic they refuse"
    assert forgotten == [True]


def test_a_job_is_refused_once_though_several_of_its_records_are() -> None:
    """The second time, its dead letter would be taken for a record that is refused, and lose the message's value."""
    transactions, _ = refusing("results", KafkaError._UNKNOWN_TOPIC)
    plan, job = plan_of(*(Record(Kind.OUTPUT, value, [], "jobs/0/1", topic="results") for value in (b"1", b"2")))
    answer = transactions.execute(plan)
    assert (answer.outcome, [*answer.refused]) == (Outcome.REFUSED, [job])


def test_a_fatal_error_that_confluent_kafka_has_lost_is_an_error_of_the_brokers() -> None:
    with pytest.raises(KafkaException, match="fatal"), module._fatal_errors():
        raise SystemError("<method 'flush' of 'cimpl.Producer' objects> returned NULL without setting an exception")
