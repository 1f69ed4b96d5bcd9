"""The internal topics that a queue creates, what it says of those that exist, and its ledger's records. No brokers."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Message as KafkaMessage

from tests.harness.constants import Constants
from tests.harness.queue_state import SIGNING
from timers.errors import QueueError
from timers.process.config.settings import Settings
from timers.queue import ledger_log, metadata
from timers.queue import transport as module
from timers.queue.ledger_log import read, signing
from timers.queue.metadata import Commit, layout, run_size
from timers.queue.records import Kept, decode_kept, encode_copy, encode_key
from timers.queue.transport import Transport

SETTINGS = Settings(brokers="b:1", max_request_bytes=2_000_000)
RETURNS, LEDGER = "queue.jobs-returns", "queue.jobs-ledger"


def ignore(*_: Any, **__: Any) -> None:
    """A callback of rebalances."""


class Opened:
    """A transport that was opened on brokers which have its topic only.

    Attributes:
        created: topic -> arguments of its creation.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.created: dict[str, dict[str, Any]] = {}

        def create(settings: Settings, topic: str, **arguments: Any) -> None:
            self.created[topic] = arguments

        def partitions_of(admin: Any, reports: Any, topic: str, **_: Any) -> int:
            return 3 if topic == "jobs" else 0

        monkeypatch.setattr(module, "admin_client", lambda *_: None)
        monkeypatch.setattr(module, "create_if_missing", create)
        monkeypatch.setattr("timers.kafka.connection.partitions_of", partitions_of)
        monkeypatch.setattr(module, "Consumer", lambda *_, **__: SimpleNamespace(subscribe=lambda *_, **__: None))
        transport = Transport(cast(Any, SimpleNamespace(settings=SETTINGS)), "jobs", "queue.jobs", "a", 10.0)
        transport._topic_tags = dict  # type: ignore[method-assign]
        transport.transactions.open = lambda: None  # type: ignore[method-assign]
        monkeypatch.setattr("timers.queue.ledger_log.signing", lambda *_, **__: SIGNING)
        transport.open(ignore, ignore, lambda: False)


def test_the_topics_that_a_queue_creates_take_all_retries_and_are_compacted(monkeypatch: pytest.MonkeyPatch) -> None:
    created = Opened(monkeypatch).created
    assert (created[RETURNS]["partitions"], created[LEDGER]["partitions"]) == (3, 1)
    assert int(created[RETURNS]["config"]["max.message.bytes"]) > SETTINGS.max_request_bytes
    assert created[RETURNS]["config"]["retention.ms"] == "-1"
    assert created[LEDGER]["cleanup_policy"] == "compact"
    assert created[LEDGER]["config"] == {"segment.bytes": "8388608", "min.cleanable.dirty.ratio": "0.1"}


def looking(monkeypatch: pytest.MonkeyPatch, found: Mapping[str, Mapping[str, str]], replicas: int = 1) -> Transport:
    """A transport that has asked for the configuration of its topics, which is ``found``.

    Args:
        replicas: of the brokers' log of transactions.
    """

    def describe(_transport: Transport, names: list[str]) -> dict[str, Future[Any]]:
        described: dict[str, Future[Any]] = {name: Future() for name in names}
        for future in described.values():
            future.set_result(SimpleNamespace(partitions=[SimpleNamespace(replicas=list(range(replicas)))]))
        return described

    def ask(_admin: Any, names: list[str], _timeout_s: float) -> dict[str, Future[Any]]:
        asked: dict[str, Future[Any]] = {name: Future() for name in names}
        for name, future in asked.items():
            future.set_result({key: SimpleNamespace(value=value) for key, value in found.get(name, {}).items()})
        return asked

    monkeypatch.setattr(module, "ask_for_configs", ask)
    monkeypatch.setattr(Transport, "_describe", describe)
    monkeypatch.setattr(module, "_CONFIGS_S", 0.0)
    monkeypatch.setattr(module, "_FIRST_CONFIGS_S", 0.0)
    transport = Transport(cast(Any, SimpleNamespace(settings=SETTINGS)), "jobs", "queue.jobs", "a", 10.0)
    transport.check_configs()
    return transport


@pytest.mark.parametrize(("size", "said"), [("1048588", True), ("3000000", False), (None, False)])
def test_a_topic_of_returns_that_refuses_large_retries_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, size: str | None, said: bool
) -> None:
    looking(monkeypatch, {RETURNS: {"max.message.bytes": size} if size else {}}).check_configs()
    assert (f"topic '{RETURNS}' has max.message.bytes={size}, less than a request may take" in caplog.text) == said


def test_a_topic_that_changes_is_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The question does not wait, and its answer is read with the next one."""
    found = {
        "jobs": {"cleanup.policy": "compact", "retention.ms": "1000", "min.insync.replicas": "1"},
        RETURNS: {"cleanup.policy": "delete", "retention.ms": "1000", "retention.bytes": "-1"},
        LEDGER: {"cleanup.policy": "delete"},
    }
    transport = looking(monkeypatch, found)
    assert caplog.text == ""
    for _ in range(2):
        transport.check_configs()
    said = [record.getMessage().split(";")[0] for record in caplog.records]
    assert said == [
        "topic 'jobs' has cleanup.policy=compact, which would lose messages",
        f"topic '{RETURNS}' has retention.ms=1000, so messages that wait longer than its retention are lost",
        f"topic '{LEDGER}' has cleanup.policy=delete, which would lose messages",
    ]


@pytest.mark.parametrize(("replicas", "said"), [(3, True), (1, False)])
def test_a_weak_log_of_transactions_is_said_where_it_can_be_stronger(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, replicas: int, said: bool
) -> None:
    """With one replica, 2 in sync would stop each transaction of the cluster."""
    looking(monkeypatch, {"__transaction_state": {"min.insync.replicas": "1"}}, replicas).check_configs()
    assert ("topic '__transaction_state' has min.insync.replicas=1" in caplog.text) == said
    assert not caplog.text or said or "one replica" in caplog.text


@pytest.mark.parametrize(("value", "looks"), [("1", 4), ("2", 1)])
def test_the_log_of_transactions_is_looked_at_again_soon_only_while_it_is_weak(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, value: str, looks: int
) -> None:
    found = {"min.insync.replicas": value, "unclean.leader.election.enable": "false"}
    transport = looking(monkeypatch, {"__transaction_state": found}, replicas=3)
    seen = [bool(transport._log_of_transactions)]
    for _ in range(3):
        transport.check_configs()
        seen.append(bool(transport._log_of_transactions))
    assert sum(seen) == looks
    assert caplog.text.count("topic '__transaction_state' has") == (value == "1")
    assert "is right again" not in caplog.text


def described(**ids: str | None) -> dict[str, Future[Any]]:
    """The answers about the topics: topic -> its id, or None if it does not exist."""
    asked: dict[str, Future[Any]] = {}
    for kind, id in ids.items():
        future = asked[{"jobs": "jobs", "returns": RETURNS, "ledger": LEDGER}[kind]] = Future()
        if id is None:
            future.set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
        else:
            future.set_result(SimpleNamespace(topic_id=id, partitions=[0, 1, 2]))
    return asked


@pytest.fixture
def watching(constants: Constants) -> Transport:
    """A transport that has asked for its topics, which are as they were."""
    constants(module, _TOPICS_S=0.0)
    transport = Transport(cast(Any, SimpleNamespace(settings=SETTINGS)), "jobs", "queue.jobs", "a", 10.0)
    transport._logs = {"jobs": "j", RETURNS: "r", LEDGER: "l"}
    transport._seen_count = 3
    transport._asking = cast(Any, SimpleNamespace(poll=lambda _: None))
    told = described(jobs="j", returns="r", ledger="l")
    transport._describe = lambda names: told  # type: ignore[method-assign]
    transport.check_topics()
    assert transport.check_topics() == 0 and not transport.ledger_is_lost
    return transport


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (
            {"jobs": None},
            "topic 'jobs' was deleted. Create it with `timers topics create jobs`, and open the queue again",
        ),
        ({"returns": None}, f"topic '{RETURNS}' was deleted, and the messages on it. To make it anew, open the queue"),
        ({"jobs": "new"}, "topic 'jobs' was deleted and created again: open the queue again"),
        ({"returns": "new"}, f"topic '{RETURNS}' was deleted and created again: open the queue again"),
    ],
)
def test_a_topic_of_messages_that_was_deleted_ends_the_queue_with_a_sentence(
    watching: Transport, ids: dict[str, str | None], said: str
) -> None:
    watching._described = described(**ids)
    with pytest.raises(QueueError, match=re.escape(said)):
        watching.check_topics()


@pytest.mark.parametrize("id", [None, "new"])
def test_a_ledger_that_was_deleted_is_made_anew_with_the_keys(
    watching: Transport, id: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watching._described = described(ledger=id)
    watching.check_topics()
    assert watching.ledger_is_lost
    made: list[str] = []
    written: list[Any] = []
    monkeypatch.setattr(module, "create_if_missing", lambda _, topic, **__: made.append(topic))
    monkeypatch.setattr("timers.queue.ledger_log.write", lambda _, group, records: written.extend(records))
    watching._topic_tags = lambda: {"jobs": "j", RETURNS: "r", LEDGER: "new"}  # type: ignore[method-assign]
    watching.restore_ledger(SIGNING)
    assert made == [LEDGER] and [int(key.split(b"/")[1]) for key, _ in written] == [*SIGNING.keys]
    assert not watching.ledger_is_lost and f"topic {LEDGER} was deleted" in caplog.text
    watching._described = described(ledger="new")
    watching.check_topics()
    assert not watching.ledger_is_lost


GROUP = "queue.jobs"
COMMIT = Commit(7, "q1.log-name.7....")
SECRET = bytes(range(32))


class SimTopic:
    """A ledger topic. ``others``: what another process writes at the same time as this one, before it."""

    def __init__(
        self, records: Iterable[tuple[bytes | None, bytes | None]] = (), others: Iterable[tuple[bytes, bytes]] = ()
    ) -> None:
        self.records = list(records)
        self.others = list(others)

    def __call__(self, *_: Any, **__: Any) -> SimTopic:
        return self

    def assign(self, _: object) -> None:
        written: list[Any] = [{"key": key, "value": value} for key, value in self.records]
        polled = [*written, {"error": KafkaError(KafkaError._PARTITION_EOF)}]
        self._polled = iter([KafkaMessage(offset=offset, **content) for offset, content in enumerate(polled)])

    def poll(self, _: float) -> KafkaMessage | None:
        return next(self._polled, None)

    def close(self) -> None: ...

    def write(self, login: object, group: str, records: Iterable[tuple[bytes, bytes]]) -> None:
        self.records += [*self.others, *records]


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> SimTopic:
    made = SimTopic()
    monkeypatch.setattr(ledger_log, "reader", made)
    monkeypatch.setattr(ledger_log, "write", made.write)
    return made


def decoded(key: bytes, value: bytes, group: str = GROUP) -> Kept | None:
    kept = Kept({}, {})
    return kept if decode_kept(group, key, value, kept) else None


def test_copies_and_keys_are_read() -> None:
    assert decoded(*encode_copy(GROUP, ("jobs", 3), COMMIT)) == ({("jobs", 3): COMMIT}, {})
    assert decoded(*encode_copy(GROUP, ("jobs", 3), Commit(7, ""))) == ({("jobs", 3): Commit(7, "")}, {})
    assert decoded(*encode_key(GROUP, 2**63 - 1, SECRET)) == ({}, {2**63 - 1: SECRET})


@pytest.mark.parametrize("written", [encode_copy(GROUP, ("jobs", 3), COMMIT), encode_key(GROUP, 5, SECRET)])
def test_a_record_that_is_damaged_or_of_another_queue_does_not_count(written: tuple[bytes, bytes]) -> None:
    key, value = written
    assert decoded(key, value) is not None
    assert decoded(key, value, "queue.job") is None
    assert decoded(key + b"1", value) is None
    for at in range(len(value)):
        assert decoded(key, value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]) is None
        assert decoded(key, value[:at]) is None
    assert decoded(b"", b"") is None


def test_records_of_other_programs_are_said_and_do_not_count(topic: SimTopic, caplog: pytest.LogCaptureFixture) -> None:
    topic.records = [
        encode_key(GROUP, 5, SECRET),
        (None, None),
        (b"jobs/3", b"\xff"),
        encode_copy("queue.other", ("jobs", 3), COMMIT),
        encode_copy(GROUP, ("jobs", 3), COMMIT),
    ]
    assert read({}, GROUP) == ({("jobs", 3): COMMIT}, {5: SECRET})
    assert "queue.jobs-ledger: 3 records are damaged or not of this queue, the first at offset 1" in caplog.text


def test_the_first_start_of_a_queue_writes_a_key_for_later(topic: SimTopic, caplog: pytest.LogCaptureFixture) -> None:
    first, second = signing({}, GROUP, is_new=True), signing({}, GROUP, is_new=False)
    assert len(topic.records) == 1
    assert first.sign("a/0/1", 1, 0, None, None) == second.sign("a/0/1", 1, 0, None, None)
    assert not caplog.records


def test_two_first_starts_sign_with_one_key(topic: SimTopic) -> None:
    topic.others = [encode_key(GROUP, 5, SECRET)]
    ours, theirs = signing({}, GROUP, is_new=True), signing({}, GROUP, is_new=True)
    assert len(topic.records) == 2
    signed = ours.sign("a/0/1", 1, 0, None, None)
    assert signed == theirs.sign("a/0/1", 1, 0, None, None)
    assert (dict(signed)["queue-signature"] or b"").startswith(b"5.")


def test_a_lost_key_is_said_with_the_way_on(topic: SimTopic, caplog: pytest.LogCaptureFixture) -> None:
    signing({}, GROUP, is_new=False)
    (said,) = caplog.records
    assert said.levelno == logging.ERROR
    assert "topic queue.jobs-ledger has no key" in said.getMessage()
    assert "`timers queue redrive jobs --code unsigned`" in said.getMessage()


# ---- metadata that are nearly full -----------------------------------------------------------------------------------


@pytest.mark.parametrize("left", range(4))
def test_a_partition_without_open_messages_is_read_on(left: int) -> None:
    """``left`` characters are free, and all messages that were read are done: only reading makes room."""
    ahead = [(110, 120)]
    parts = [(run_size(10, 10), 20)]
    room = layout(parts).characters + left
    assert metadata.read_limit([], 100, ahead, room) > 100
