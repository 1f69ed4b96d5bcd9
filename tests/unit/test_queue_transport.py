"""What a queue asks and sends while leaders are away: questions about logs, and partitions of records. No brokers."""

import threading
from collections.abc import Set as AbstractSet
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AclOperation

from tests.harness.sim_admin import LOST, SimAdmin
from tests.harness.waiting import wait_until
from timers.client.config import Connection
from timers.kafka.leaders import COUNT_S, FRESH_S, KNOWN_S, SILENT_S, AnsweringLeaders, WriteAccess
from timers.process.config.settings import Settings
from timers.queue import transport
from timers.queue.entry import BIND, Entry
from timers.queue.ledger import Ledger
from timers.queue.metadata import Commit, ForeignMetadataError, Saved, decode
from timers.queue.port import Job, Outcome
from timers.queue.records import Kind, Record
from timers.queue.settling import Settler
from timers.queue.transactions import AnsweringPlaces
from timers.queue.transport import PlainCommits, Transport
from timers.wire.key_partition import partitions_of

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


def test_an_error_while_partitions_are_given_up_leaves_none_open(opened: Transport, closing: ClosingConsumer) -> None:
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


LEDGER, REQUESTS, LETTERS, RESULTS = "ledger", "requests", "letters", "results"

SETTINGS = Settings(brokers="b:1", id_topic="ids", dead_letter_topic=LETTERS)
KAFKA: Any = SimpleNamespace(settings=SETTINGS, request_topic=REQUESTS)

LATER = Record(Kind.RETRY, b"", [], "jobs/0/1", 1000)
LETTER = Record(Kind.LETTER, b"", [], "jobs/0/1", 0)
GUARDING = Record(Kind.GUARD, b"", [], "jobs/0/1", 1000, b"guard")


def output(key: bytes | None, topic: str = RESULTS) -> Record:
    return Record(Kind.OUTPUT, b"", [], "jobs/0/1", key=key, topic=topic)


def job(*written: Any) -> Job:
    return Job(("jobs", 0), Ledger(Saved(0)), Entry(0, None, None, 1, 1), written)


class SimLeaders:
    """Leaders that answer as the test says."""

    def __init__(self, **answer: list[bool]) -> None:
        self.answer = answer
        self.asked: list[AbstractSet[str]] = []

    def ask(self, topics: AbstractSet[str]) -> None:
        self.asked.append(topics)


class SimAccess:
    """Topics that may not be written to."""

    def __init__(self, *denied: str) -> None:
        self.denied = frozenset(denied)
        self.asked: list[AbstractSet[str]] = []

    def ask(self, topics: AbstractSet[str]) -> None:
        self.asked.append(topics)


def places(leaders: SimLeaders, access: SimAccess | None = None) -> AnsweringPlaces:
    asked = cast(WriteAccess, access or SimAccess())
    return AnsweringPlaces(KAFKA, cast(AnsweringLeaders, leaders), asked, LEDGER)


ALL_ANSWER = {LEDGER: [True], REQUESTS: [True], LETTERS: [True], RESULTS: [True], "ids": [True]}


def test_outputs_and_guards_that_may_not_be_written_are_refused_beforehand(caplog: pytest.LogCaptureFixture) -> None:
    chosen = places(SimLeaders(**ALL_ANSWER), SimAccess(RESULTS, "ids"))
    refused = [job(output(b"key")), job(output(None, "other"), output(None)), job(GUARDING)]
    others = [job(LATER), job(LETTER), job(output(None, "other"))]
    chosen.ask_leaders([*refused, *others])
    assert chosen.denied([*refused, *others]) == refused
    assert not chosen.are_complete
    assert [chosen.has_place(each) for each in others] == [True] * 3
    assert "topic 'ids': there are no guards" in caplog.text
    assert f"topic '{RESULTS}': messages with outputs for it become dead letters" in caplog.text


def test_a_retry_that_may_not_be_written_waits_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    access = SimAccess(REQUESTS)
    chosen = places(SimLeaders(**ALL_ANSWER), access)
    for _ in range(2):
        chosen.ask_leaders([job(LATER)])
    assert chosen.denied([job(LATER)]) == []
    assert not chosen.has_place(job(LATER)) and chosen.has_place(job(LETTER))
    assert caplog.text.count("lacks the ACL Write on topic 'requests': retries and dead letters for it wait") == 1
    access.denied = frozenset({LEDGER})
    with pytest.raises(KafkaException, match="lacks the ACL Write on topic 'ledger'"):
        chosen.ask_leaders([job(LETTER)])


def test_timers_and_dead_letters_go_to_partitions_whose_leaders_answer() -> None:
    chosen = places(SimLeaders(requests=[False, True, False, True], letters=[False, True]))
    assert {chosen.partition(LATER) for _ in range(100)} == {1, 3}
    assert chosen.partition(LETTER) == 1
    assert chosen.has_place(job(LATER)) and chosen.has_place(job(LETTER))


def test_a_record_whose_key_decides_waits_for_its_leader() -> None:
    keys = [b"%d" % number for number in range(10)]
    chosen = places(SimLeaders(results=[True, False], ids=[False]))
    for key, partition in zip(keys, partitions_of(keys, 2), strict=True):
        assert chosen.has_place(job(output(key))) == (partition == 0)
        assert chosen.partition(output(key)) == -1
    assert chosen.has_place(job(output(None)))
    assert chosen.partition(output(None)) == 0
    assert not chosen.has_place(job(GUARDING))
    assert not chosen.has_place(job(output(None), GUARDING))


def test_a_missing_topic_of_an_output_is_tried_and_one_of_the_engine_is_waited_for() -> None:
    chosen = places(SimLeaders())
    assert chosen.has_place(job(output(b"key", "missing")))
    assert not chosen.has_place(job(LATER))
    assert not chosen.are_complete


def test_without_the_leader_of_the_copies_no_transaction_begins() -> None:
    leaders = SimLeaders(ledger=[True], requests=[True], letters=[True], ids=[True])
    chosen = places(leaders)
    chosen.ask_leaders([job(output(None))])
    assert leaders.asked == [{LEDGER, REQUESTS, LETTERS, RESULTS, "ids"}]
    assert chosen.are_complete
    leaders.answer = {**leaders.answer, LEDGER: [False]}
    with pytest.raises(KafkaException, match="does not answer"):
        chosen.ask_leaders([])


def test_jobs_that_wait_are_not_in_the_plan() -> None:
    settler = Settler("queue.jobs", 0.0)
    ledger = Ledger(Saved(0))
    settler.assign(("jobs", 0), ledger, "log", None)
    entries = []
    for offset in range(2):
        ledger.read(offset, None)
    ledger.starts.allow(ledger.starts.wanted(2))
    for _ in range(2):
        entry = ledger.take(1.0)
        assert entry is not None
        ledger.settle(entry, entry.delivery, BIND)
        entries.append(entry)
        settler.jobs.append(Job(("jobs", 0), ledger, entry, [LATER]))
    waits, goes = settler.jobs
    plan = settler.plan(waiting={waits})
    assert plan is not None and plan.jobs == [goes]
    settler.succeed(plan)
    assert list(settler.jobs) == [waits]
    assert settler.commits["jobs", 0].offset == 0, "the message of the job that waits is open"


TIMED_OUT = KafkaException(KafkaError(KafkaError._TIMED_OUT))


def test_leaders_are_asked_and_not_only_named_by_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr("timers.kafka.leaders.monotonic", lambda: now_s)
    admin = SimAdmin(a=2, b=1)
    leaders = AnsweringLeaders(cast(Any, admin), cast(Any, SimpleNamespace(unreached={})))
    leaders.ask({"a", "b", "missing"})
    assert leaders.answer == {"a": [True, True], "b": [True]}
    admin.offsets = {("a", 1): TIMED_OUT, ("b", 0): OFFSET_INVALID}
    leaders.ask({"a"})
    assert leaders.answer["b"] == [True], "the answers count for a while"
    now_s += FRESH_S
    leaders.ask({"a", "b"})
    assert leaders.answer == {"a": [True, False], "b": [False]}
    leaders.ask({"a", "missing"})
    assert admin.asked[2:] == [[("a", 0)]], "not a leader that was silent just now"
    admin.offsets = {}
    now_s += SILENT_S
    leaders.ask({"a"})
    assert leaders.answer == {"a": [True, True]}


def test_a_topic_that_was_made_anew_with_fewer_partitions_is_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr("timers.kafka.leaders.monotonic", lambda: now_s)
    admin = SimAdmin(a=3, b=2)
    leaders = AnsweringLeaders(cast(Any, admin), cast(Any, SimpleNamespace(unreached={})))
    leaders.ask({"a", "b"})
    admin.topics = {"a": [1]}
    now_s += FRESH_S
    leaders.ask({"a", "b"})
    assert leaders.answer == {"a": [True, False, False], "b": [False, False]}, "no partition that is gone has a place"
    now_s += FRESH_S
    leaders.ask({"a", "b"})
    assert leaders.answer == {"a": [True]}, "the next answer has the new number, and no topic that is gone"


def test_leaders_are_asked_also_while_no_broker_answers_for_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr("timers.kafka.leaders.monotonic", lambda: now_s)
    admin = SimAdmin(a=2)
    leaders = AnsweringLeaders(cast(Any, admin), cast(Any, SimpleNamespace(unreached={})))
    leaders.ask({"a"})
    admin.error = KafkaError(KafkaError.BROKER_NOT_AVAILABLE)
    admin.offsets = {("a", 0): OFFSET_INVALID}
    now_s += COUNT_S
    leaders.ask({"a"})
    assert leaders.answer == {"a": [False, True]}
    with pytest.raises(KafkaException):
        leaders.ask({"b"})


def test_topics_that_may_not_be_written_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr("timers.kafka.leaders.monotonic", lambda: now_s)
    read, write = AclOperation.READ, AclOperation.WRITE
    acls = SimAdmin()
    acls.allowed = {
        "mine": [read, write],
        "old": None,
        "read": [read],
        "hidden": KafkaError.TOPIC_AUTHORIZATION_FAILED,
        "missing": KafkaError.UNKNOWN_TOPIC_OR_PART,
        "silent": KafkaError._TIMED_OUT,
        "without_answer": LOST,
    }
    access = WriteAccess(cast(Any, acls), 0.0)
    access.ask(set(acls.allowed))
    assert access.denied == {"read", "hidden"}
    acls.allowed["read"] = [read, write]
    access.ask({"mine", "old", "read", "hidden"})
    assert (access.denied, acls.asked[1]) == ({"hidden"}, ["hidden", "read"])
    access.ask({"mine", "read"})
    assert (access.denied, len(acls.asked)) == (set(), 2)
    acls.allowed["mine"] = [read]
    now_s += KNOWN_S
    access.ask({"mine"})
    assert access.denied == {"mine"}
    acls.allowed["read"] = [read]
    access.forget()
    access.ask({"read"})
    assert access.denied == {"read"}


def test_a_client_that_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timers.kafka.leaders.LEADER_ANSWER_S", 0.0)
    monkeypatch.setattr("timers.kafka.leaders._GRACE_S", 0.0)
    admin = SimAdmin(a=2)
    admin.offsets = {("a", 1): LOST}
    leaders = AnsweringLeaders(cast(Any, admin), cast(Any, SimpleNamespace(unreached={})))
    leaders.ask({"a"})
    assert leaders.answer == {"a": [True, False]}
