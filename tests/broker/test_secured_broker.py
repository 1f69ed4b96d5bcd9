"""A broker that lets in only who proves who they are, and denies by default: what works there, and what is said if not.

The least that a worker needs is found here: with these ACLs it runs, fires, gives up, tries later and recovers; without
any one of them it says so at its start.
"""

import asyncio
import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AclOperation

from tests.harness import acls
from tests.harness.acls import (
    CREATE,
    DESCRIBE,
    GROUP,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    acl,
    guard_acls,
    operator_acls,
    queue_acls,
    worker_acls,
)
from tests.harness.command_line import command, set_environment
from tests.harness.constants import Constants
from tests.harness.logins import (
    AS_PLAIN,
    PASSWORD,
    PLAIN_PASSWORD,
    REFUSED,
    SECRETS,
    USER,
    as_worker,
    login,
    refused_login,
)
from tests.harness.queue_calls import PATIENT, joined_by_another, receive
from tests.harness.records import Publisher, Request
from tests.harness.scrape import get
from tests.harness.secure import PLAIN_USER, SecureBroker, secure_broker
from tests.harness.system import System, soon, with_ids
from tests.harness.waiting import DEADLINE_S, due_in, wait_until
from timers.client import SqlOutbox, TimersClient
from timers.client.outbox import DEFAULT_TABLE, schema
from timers.console.kafka_cluster import KafkaCluster
from timers.core import levels
from timers.core.timer import Rejected
from timers.errors import AccessError, LeaseLostError, TimersError
from timers.kafka import topics
from timers.kafka.own_topics import own_topics
from timers.kafka.progress_log import allow, allowed_level
from timers.kafka.rights import rights
from timers.offline.app_state import AppState
from timers.outbox import Relaying
from timers.outbox import relay as relays
from timers.process.config.settings import Settings
from timers.queue import Queue
from timers.wire import dead_letter, future

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    with secure_broker(tmp_path_factory.mktemp("secure") / "broker", {USER: PASSWORD}, PLAIN_PASSWORD) as server:
        yield server


@pytest.fixture
def guarded(broker: SecureBroker, tmp_path: Path) -> Iterator[System]:
    """A system on the secure broker with its topics; its worker logs in by SASL_SSL and SCRAM."""
    system = System(broker.address, tmp_path, **with_ids())
    system.environment |= login(broker)
    system.create_own_topics()
    yield system
    system.close()


# ---- what works -----------------------------------------------------------------------------------------------------


def test_a_worker_needs_no_more_than_the_documented_acls(
    guarded: System, broker: SecureBroker, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    target, silent, missing = guarded.target(), guarded.target(), f"missing-{guarded.app_id}"
    unseen = guarded.target()
    acls.add(
        guarded.admin,
        [
            *worker_acls(guarded.settings, USER, target, missing),
            *acl(TOPIC, silent, DESCRIBE, principal=f"User:{USER}"),
        ],
    )
    worker = guarded.worker().start().ready()
    assert allowed_level(as_worker(guarded)) == levels.RAISED_TO_LEVEL, (
        "and it may read which level the operator allows"
    )
    before = guarded.send(*soon(target, 50))
    assert len(guarded.reader(target).take(50)) == 50
    # Brokers do not list a topic on which the worker has no right: it counts as one that does not exist.
    unknown, hidden = guarded.send(Request(missing, due_in(1)), Request(unseen, due_in(1)))
    letters = guarded.dead_letters()
    assert {record.text("timer-source"): record.text("timer-error") for record in letters.take(2)} == {
        unknown.source: "topic-unknown",
        hidden.source: "topic-unknown",
    }
    # It retries later where it may not write. Timers that can never be sent went to the retry topic too, without an
    # attempt.
    (put_off,) = guarded.send(Request(silent, due_in(1)))
    moved = guarded.reader(guarded.settings.retry_topic).take(3)
    assert {record.timer_id: record.text("timer-attempt") for record in moved} == {
        unknown.source: "0",
        hidden.source: "0",
        put_off.source: "1",
    }
    pending = guarded.send(*(Request(target, due_in(6), f"pending-{i}") for i in range(50)))
    worker.kill()
    after_crash = guarded.send(*soon(target, 50))
    worker.start().ready()
    records = guarded.reader(target).take(150, 2 * DEADLINE_S)
    assert {record.timer_id for record in records} == {request.source for request in (*before, *pending, *after_crash)}
    # Another worker is found by what its membership of the group says, which the ACL of a member is enough for.
    other = guarded.worker().start().ready()

    def whole() -> list[dict[str, Any]]:
        answer = json.loads(get(other.port, f"/timers?topic={silent}")[1])
        return [] if answer["missing"] else list(answer["timers"])

    (waiting,) = wait_until(whole, "both answer")
    assert waiting["id"] == waiting["source"] == put_off.source
    assert waiting["retry"]["attempt"] >= 1 and waiting["retry"]["first_due"] == put_off.due_s < waiting["due"]
    assert waiting["position"].startswith(f"{guarded.settings.retry_topic}/")
    # An operator, with the least ACLs of one, tries again what has become possible.
    acls.add(guarded.admin, operator_acls(guarded.settings, PLAIN_USER))
    guarded.create_topic(missing)
    guarded.use(monkeypatch, **login(broker, **AS_PLAIN))
    assert command(capfd, "dead-letters", "retry", "--yes", unknown.source).code == 0
    assert f"{missing}" in command(capfd, "dead-letters", "list").out
    (retried,) = guarded.reader(missing).take(1)
    assert retried.due_s == unknown.due_s
    other.stop()
    worker.stop()
    assert not [secret for secret in SECRETS if secret in worker.log_path.read_text()]


@pytest.mark.parametrize(
    ("protocol", "changes"),
    [
        ("SASL_SSL", {"TIMERS_SASL_MECHANISM": "SCRAM-SHA-256"}),
        pytest.param("SASL_SSL", AS_PLAIN, marks=pytest.mark.long),
        ("SSL", {}),
        pytest.param("SASL_PLAINTEXT", {}, marks=pytest.mark.long),
    ],
    ids=["SASL_SSL SCRAM-SHA-256", "SASL_SSL PLAIN", "SSL with a certificate", "SASL_PLAINTEXT SCRAM-SHA-512"],
)
def test_worker_client_and_commands_log_in_and_keep_secrets(
    broker: SecureBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    protocol: str,
    changes: dict[str, str],
) -> None:
    system = System(broker.address, tmp_path)
    system.create_own_topics()
    target = system.target()
    system.environment |= login(broker, protocol, **changes)
    user = changes.get("TIMERS_SASL_USERNAME", USER)
    rules = [
        *worker_acls(system.settings, user, target),
        # What a client and the commands need beyond that.
        *acl(TOPIC, system.request_topic, WRITE, principal=f"User:{user}"),
        *acl(TOPIC, target, READ, principal=f"User:{user}"),
        *acl(GROUP, "timers-watch", READ, principal=f"User:{user}"),
    ]
    acls.add(system.admin, rules)
    worker = system.worker()
    worker.log_level = "debug"
    worker.start().ready()
    system.use(monkeypatch)
    with TimersClient() as client:
        first = client.schedule(target, "by the client", b"", delay=1)
    asked = command(capfd, "schedule", "--in", "1s", "-t", target, "-k", "by a command", "-v", "")
    assert asked.code == 0, asked.err
    seen = command(capfd, "watch", target, "--from-beginning", "-n", "2")
    assert seen.code == 0, seen.err
    assert sorted(line.split("key=")[1].split(" due")[0] for line in seen.out.splitlines()) == [
        "by a command",
        "by the client",
    ]
    assert {first, asked.out.splitlines()[-1]} == {record.timer_id for record in system.reader(target).take(2)}
    shown = command(capfd, "settings", "-o", "json").out
    worker.stop()
    system.close()
    log = worker.log
    assert "SaslHandShakeRequest" in log or "SASL" not in protocol, "a debug log of logins is what this reads"
    for text in (log, shown, *asked[1:], *seen[1:]):
        assert not [secret for secret in SECRETS if secret in text]


def test_dead_letter_commands_need_no_more_than_the_documented_acls(
    guarded: System, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The user has only the ACLs of ``docs/bad-input.md``."""
    settings, who = guarded.settings, f"User:{USER}"
    value = future.encode("nowhere", "k", b"v")
    original = guarded.publisher().send_raw(b"17", value, [("a", b"1")], 2)
    rejected = Rejected(0, "topic-unknown", "it does not exist", b"17", value, [("a", b"1")])
    letters = Publisher(guarded.address, settings.dead_letter_topic)
    whole, truncated = (dead_letter.encode(rejected, original, max_bytes) for max_bytes in (1000, 0))
    for letter in (whole, truncated):
        letters.send_raw(letter.key, letter.value, letter.headers, 0)
    reading = [
        *acl(TOPIC, settings.dead_letter_topic, READ, principal=who),
        *acl(TOPIC, settings.retried_topic, READ, principal=who),
        *acl(GROUP, "timers-watch", READ, principal=who),
    ]
    acls.add(guarded.admin, reading)
    guarded.use(monkeypatch)
    listed = command(capsys, "dead-letters", "list")
    assert listed.code == 0, listed.err
    assert listed.out.count(original) == 2
    refused = command(capsys, "dead-letters", "retry", "--all", "--yes")
    assert (refused.code, refused.out) == (1, "")
    writing = [
        *acl(TOPIC, settings.request_topic, READ, WRITE, principal=who),
        *acl(TOPIC, settings.retried_topic, WRITE, CREATE, principal=who),
    ]
    acls.add(guarded.admin, writing)
    refused = command(capsys, "dead-letters", "retry", "--all", "--yes")
    assert (refused.code, refused.out) == (1, "")
    assert f"{who} may not do that" in refused.err
    assert f"on transactional id '{guarded.app_id}-dead-letters'" in refused.err
    acls.add(guarded.admin, acl(TRANSACTIONAL_ID, f"{guarded.app_id}-dead-letters", WRITE, principal=who))
    done = command(capsys, "dead-letters", "retry", "--all", "--yes")
    assert done.code == 0, done.err
    first, *again = guarded.reader(settings.request_topic).take(3)
    assert [(r.partition, r.key, r.value, r.headers) for r in again] == 2 * [(2, b"17", first.value, first.headers)]
    for each in (listed, refused, done):
        assert not [secret for secret in SECRETS if secret in each.out + each.err]


def test_a_pause_needs_no_more_than_the_documented_acls(
    guarded: System, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings, who, target = guarded.settings, f"User:{USER}", guarded.target()
    allow(settings, levels.HOLDS_LEVEL)
    looking = [
        *acl(TOPIC, settings.targets_topic, READ, principal=who),
        *acl(TOPIC, settings.progress_topic, READ, principal=who),
        *acl(GROUP, "timers-watch", READ, principal=who),
    ]
    acls.add(guarded.admin, looking)
    guarded.use(monkeypatch)
    listed = command(capsys, "targets", "list")
    assert listed.code == 0, listed.err
    acls.add(guarded.admin, acl(TOPIC, target, DESCRIBE, principal=who))
    for missing in (
        acl(TRANSACTIONAL_ID, f"{guarded.app_id}-targets", WRITE, principal=who),
        acl(TOPIC, settings.targets_topic, WRITE, principal=who),
    ):
        refused = command(capsys, "targets", "pause", target)
        assert refused.code == 1 and f"on transactional id '{guarded.app_id}-targets'" in refused.err, refused
        acls.add(guarded.admin, missing)
    done = command(capsys, "targets", "pause", target)
    assert done.code == 0, done.err
    assert f"{target} is paused" in done.out


def test_a_queue_needs_no_more_than_the_documented_acls(guarded: System, monkeypatch: pytest.MonkeyPatch) -> None:
    """An output that it may not write becomes a dead letter, and does not hold up other outputs and dead letters."""
    topic, results, denied = guarded.target(), guarded.target(), guarded.target()
    acls.add(
        guarded.admin,
        [
            *queue_acls(guarded.settings, USER, topic, results),
            *acl(TOPIC, topic, WRITE, principal=f"User:{USER}"),  # to send
            *acl(TOPIC, denied, READ, principal=f"User:{USER}"),
            *acl(TOPIC, guarded.settings.id_topic, READ, principal=f"User:{USER}"),
        ],
    )
    guarded.use(monkeypatch)
    with Queue(topic, **PATIENT) as queue:
        queue.send_many((None, b"%d" % number, ()) for number in range(4))
        refused, rejected, written, retried = receive(queue, 4)
        refused.output(denied, b"never")
        refused.ack()
        rejected.reject("bad")
        written.output(results, b"result")
        written.ack()
        retried.retry(after=1)
        queue.settle()
        assert dict(queue.counters().dead) == {"rejected": 2}
    letters = guarded.dead_letters().take(2)
    assert {letter.text("timer-source") for letter in letters} == {refused.source, rejected.source}
    assert [record.value for record in guarded.reader(results).take(1)] == [b"result"]
    assert guarded.reader(denied).rest() == []


def test_the_page_of_the_cluster_needs_no_more_than_the_rights_that_are_printed(guarded: System) -> None:
    target, settings = guarded.target(), as_worker(guarded)

    async def state() -> AppState:
        cluster = KafkaCluster(settings)
        try:
            return await cluster.state(lambda _: True, time.time() + 60)
        finally:
            await cluster.close()

    before = asyncio.run(state())
    assert before.unknown.keys() == {"feature levels"} and before.topics is not None
    assert {each.partitions for each in before.topics} == {None}, "it may describe none"
    assert before.transactions is not None
    assert any("may not describe" in each for each in before.transactions.unknown)
    for right in rights(settings, ["console"], [target]):
        given = acl(
            right.kind,
            right.name,
            *right.operations,
            principal=f"User:{settings.sasl_username}",
            prefixed=right.prefixed,
        )
        acls.add(guarded.admin, given)
    worker = {"bootstrap.servers": guarded.address, "transactional.id": f"{guarded.app_id}-a-worker"}
    producer = Producer(worker)
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(target, b"held back")
    producer.flush()
    found = asyncio.run(state())
    producer.abort_transaction()
    assert found.unknown == {} and found.topics is not None and found.transactions is not None
    assert all(each.partitions and each.is_read for each in found.topics)
    assert [each.id for each in found.transactions.transactions] == [f"{guarded.app_id}-a-worker"]
    own = {target, *(each.name for each in found.topics)}
    # This login may describe topics of other tests, too.
    assert not [why for why in found.transactions.unknown if any(name in why for name in own)]


def test_a_relay_of_an_outbox_needs_no_more_than_the_documented_acls(
    guarded: System, tmp_path: Path, constants: Constants, caplog: pytest.LogCaptureFixture
) -> None:
    """It sends, looks into the log for what was sent before, and looks for the callback topics."""
    caplog.set_level("INFO")
    constants(relays, SETTLED_S=0.0)
    target, hidden, file = guarded.target(), guarded.target(), tmp_path / "shop.db"
    for right in rights(guarded.settings, ["relay"], [target]):
        acls.add(guarded.admin, acl(right.kind, right.name, *right.operations, principal=f"User:{USER}"))
    outbox = SqlOutbox()
    with closing(sqlite3.connect(file, timeout=30)) as shop:
        shop.executescript(schema("sqlite"))
        for name in (target, hidden):
            outbox.schedule(shop, name, "k", b"v", at=due_in(900), id=name)
        shop.execute(f"UPDATE {DEFAULT_TABLE} SET sent_ms = created_ms WHERE aggregateid = ?", [target])
        shop.commit()
        with Relaying(f"sqlite:{file}", settings=as_worker(guarded)) as relay:
            rows = f"SELECT count(*) FROM {DEFAULT_TABLE}"
            wait_until(lambda: shop.execute(rows).fetchone() == (0,), "both rows are sent")
            wait_until(lambda: "not checked whether the callback topics exist" in caplog.text, "it says so")
    assert (relay.counters.sent, relay.counters.again, relay.counters.found) == (2, 1, 0)
    assert guarded.end(guarded.settings.id_topic) == 2


def queue_of_two_partitions(system: System, monkeypatch: pytest.MonkeyPatch) -> str:
    """A topic with a message in each partition. Queues have only the ACLs that they need without guards."""
    topic = system.target(2)
    acls.add(system.admin, queue_acls(system.settings, USER, topic))
    for partition in range(2):
        Publisher(system.address, topic).send_raw(None, b"", [], partition)
    system.use(monkeypatch)
    return topic


def test_without_the_acl_for_guards_the_messages_that_move_are_delivered_at_once(
    guarded: System, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, messages = joined_by_another(queue_of_two_partitions(guarded, monkeypatch))
    with first, second:
        (again,) = receive(second, 1)
        (lost,) = (each for each in messages if each.source == again.source)
        (kept,) = (each for each in messages if each.source != again.source)
        with pytest.raises(LeaseLostError, match="its partition has another owner"):
            lost.ack()
        again.ack()
        kept.retry(after=1)
        first.settle()
        second.settle()
        assert (first.counters().retried, second.counters().acked) == (1, 1)
    assert guarded.end(guarded.settings.id_topic) == 0
    assert f"lacks the ACL Write on topic {guarded.settings.id_topic!r}: there are no guards" in caplog.text


def test_guards_need_no_more_than_the_documented_acls(guarded: System, monkeypatch: pytest.MonkeyPatch) -> None:
    acls.add(guarded.admin, [*worker_acls(guarded.settings, USER), *guard_acls(guarded.settings, USER)])
    worker = guarded.worker().start().ready()
    first, second, messages = joined_by_another(queue_of_two_partitions(guarded, monkeypatch))
    with first, second:
        wait_until(lambda: guarded.end(guarded.settings.id_topic) and second.receive(wait_s=0.1) == [], "a guard")
        for message in messages:
            message.ack()
        first.settle()
        assert first.counters().acked == 2
        assert second.receive(wait_s=1) == []
    worker.stop()


def test_a_worker_that_may_create_makes_its_topics(broker: SecureBroker, tmp_path: Path) -> None:
    system = System(broker.address, tmp_path)
    system.environment |= login(broker)
    with pytest.raises(AccessError, match=r"lacks at .*: Read, DescribeConfigs on topic 'request-"):
        topics.ensure(as_worker(system))
    owned = [topic.name for topic in own_topics(system.settings)]
    needed = worker_acls(system.settings, USER)
    acls.add(system.admin, needed)
    with pytest.raises(AccessError, match=r"Create on topic '.*', which does not exist"):
        topics.ensure(as_worker(system))
    acls.add(system.admin, [rule for name in owned for rule in acl(TOPIC, name, CREATE, principal=f"User:{USER}")])
    assert set(topics.ensure(as_worker(system)).partitions) == set(owned)


# ---- what is refused ------------------------------------------------------------------------------------------------


def test_a_start_names_the_acl_that_is_missing(guarded: System) -> None:
    needed = worker_acls(guarded.settings, USER)
    acls.add(guarded.admin, needed)
    settings = as_worker(guarded)
    topics.ensure(settings)
    asked = [rule for rule in needed if rule.restype != TRANSACTIONAL_ID]
    assert len(asked) == 20
    for rule in asked:
        acls.remove(guarded.admin, [rule])
        with pytest.raises(AccessError) as error:
            topics.ensure(settings)
        kind = "group" if rule.restype == GROUP else "topic"
        assert isinstance(rule.operation, AclOperation)
        named = rule.operation.name.title().replace("_", "")
        assert f"User:{USER} lacks at {settings.brokers}: " in str(error.value)
        assert named in str(error.value).split(f" on {kind} {rule.name!r}")[0]
        assert ("TIMERS_ID_TOPIC= (empty)" in str(error.value)) == (rule.name == settings.id_topic)
        acls.add(guarded.admin, [rule])


def test_without_its_transactional_ids_a_worker_ends_with_a_sentence(guarded: System) -> None:
    acls.add(guarded.admin, [rule for rule in worker_acls(guarded.settings, USER) if rule.restype != TRANSACTIONAL_ID])
    worker = guarded.worker().start()
    assert worker.exit_code() == 1
    assert f"timers: User:{USER} may not write as transactional id '{guarded.app_id}-" in worker.log


@pytest.mark.parametrize("why", REFUSED)
def test_the_worker_reports_a_refused_login_at_once(broker: SecureBroker, why: str) -> None:
    environment, said = refused_login(broker, why)
    began = time.monotonic()
    with pytest.raises(AccessError, match=said):
        topics.ensure(Settings.load(environment))
    assert time.monotonic() - began < 60, "it does not wait until its time is over"


@pytest.mark.parametrize("why", ["wrong password", "unknown authority", "no certificate"])
def test_client_and_commands_report_a_refused_login_at_once(
    broker: SecureBroker, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], why: str
) -> None:
    environment, said = refused_login(broker, why)
    set_environment(monkeypatch, environment)
    began = time.monotonic()
    with TimersClient(timeout_s=300) as client, pytest.raises(AccessError, match=said):
        client.schedule("t", "k", b"", delay=1)
    assert time.monotonic() - began < 60, "it does not wait until its time is over"
    for arguments in (("watch", "t"), ("schedule", "--in", "1s", "-t", "t", "-k", "k", "-v", "")):
        refused = command(capfd, *arguments)
        assert (refused.code, refused.out) == (1, "")
        assert refused.err.startswith("timers: ") and said in refused.err
        assert refused.err.count("\n") == 1
        assert "pa55" not in refused.err


def test_a_worker_whose_login_is_refused_ends_with_a_sentence(guarded: System) -> None:
    worker = guarded.worker().start(TIMERS_SASL_PASSWORD="nope-pa55")
    assert worker.exit_code() == 1
    (sentence,) = [line for line in worker.log.splitlines() if line.startswith("timers: ")]
    assert "refuse the login of TIMERS_SASL_USERNAME='ada'" in sentence
    assert "nope-pa55" not in worker.log


def test_a_wrong_security_protocol_is_named_in_the_sentence(broker: SecureBroker, constants: Constants) -> None:
    constants(topics, TOPICS_TIMEOUT_S=2.0)
    environment = {"TIMERS_BROKERS": broker.address_of("SASL_SSL")}
    with pytest.raises(TimersError, match="do the brokers speak TIMERS_SECURITY_PROTOCOL='PLAINTEXT'"):
        topics.ensure(Settings.load(environment))
