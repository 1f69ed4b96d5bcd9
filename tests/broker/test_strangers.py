"""Members of other programs in the workers' group: kept out, or the worker says so, and goes on when they have gone."""

import re
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.harness import kafka_version
from tests.harness.command_line import command
from tests.harness.queue_calls import PATIENT, receive
from tests.harness.records import Request
from tests.harness.scrape import get, scrape, wait_equal
from tests.harness.strangers import CLASSIC, KIP_848, member, remove_members, stranger, with_partitions
from tests.harness.system import MAX_LAG_MS, PARTITIONS, System, timers
from tests.harness.waiting import DEADLINE_S, due_in, wait_until
from tests.harness.worker import Worker
from timers.cli.partitions import NOT_KNOWN_CODE
from timers.kafka.aiokafka_clients import arguments
from timers.kafka.aiokafka_internals.group_member import taking_part
from timers.kafka.group_access import describe_patiently
from timers.queue import Queue
from timers.wire.topics import engine_id

pytestmark = pytest.mark.broker

RED_S = DEADLINE_S
"""So long after the brokers name a stranger a worker may say that all is well."""

BACK_S = 30.0
"""So long after a stranger has gone a timer may be late: less than the 45 s after which a session of Java ends."""

IS_NAMED = re.compile(r"client 'stranger[^']*' at 127.0.0.1")
"""Kafka Streams adds the names of its threads."""


def reasons(worker: Worker) -> str:
    status, body = get(worker.port, "/health/ready")
    return "" if status == 200 else body


def is_taken(worker: Worker) -> bool:
    return IS_NAMED.search(reasons(worker)) is not None


def fire_late(system: System, requests: list[Request], since_s: float) -> None:
    """Check that each request has fired once, and not later than :data:`BACK_S` after ``since_s`` or its due second."""
    fired = system.fired(requests)
    late = {each.timer_id: each for each in fired.values() if each.append_ms / 1000 > max(since_s, each.due_s) + BACK_S}
    assert not late


def test_a_stranger_that_would_let_the_brokers_deal_is_refused(system: System) -> None:
    worker = system.worker().start().ready()
    requests = [*system.send(*timers(system.target(), 200, due_in(2), 5))]
    with stranger(system.address, system.app_id, system.request_topic) as found:
        wait_until(lambda: found.errors, "the stranger was refused")
        assert reasons(worker) == ""
        fired = system.fired(requests)
    assert not found.partitions and not found.read
    assert max(each.lag_ms for each in fired.values()) < MAX_LAG_MS


FIRST: dict[str, Callable[..., AbstractContextManager[Any]]] = {
    KIP_848: with_partitions,
    "librdkafka, which leads": partial(with_partitions, protocol=CLASSIC),
    "Java, of KIP-848": partial(member, "java-848"),
    "Java, with other strategies": partial(member, "java"),
    "Java, which shares": partial(member, "share"),
    "Kafka Streams, which leaves": partial(member, "streams-leaves"),
    "Kafka Streams, of KIP-1071": partial(member, "streams-1071"),
}

BEFORE_4 = pytest.mark.skipif(kafka_version.chosen() < "4", reason="brokers before 4.0 have no such groups by default")
MARKS: dict[str, Sequence[pytest.MarkDecorator]] = {
    KIP_848: [BEFORE_4],
    "Java, of KIP-848": [BEFORE_4, pytest.mark.long],
    "Java, with other strategies": [pytest.mark.long],
    "Java, which shares": [BEFORE_4, pytest.mark.long],
    "Kafka Streams, which leaves": [pytest.mark.long],
    "Kafka Streams, of KIP-1071": [BEFORE_4, pytest.mark.long],
}


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=MARKS.get(kind, ())) for kind in FIRST])
def test_a_worker_that_finds_a_stranger_says_so_and_begins_when_it_has_gone(
    kind: str, system: System, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    system.create_own_topics()
    with FIRST[kind](system.address, system.app_id, system.request_topic):
        worker = system.worker().start()
        worker.wait_for(r"TimersWorker\]: Ready", RED_S)
        wait_until(lambda: is_taken(worker), "the stranger is named", RED_S)
        shown = scrape(worker.port)
        assert shown.total("timers_group_taken") == 1
        assert "timers_partitions_unowned" not in shown.names
        system.use(monkeypatch, TIMERS_WORKER_URL=f"http://127.0.0.1:{worker.port}")
        for code, arguments in ((NOT_KNOWN_CODE, "status"), (1, "list"), (0, "levels"), (1, "levels --raise 9")):
            ran = command(capsys, *arguments.split())
            assert ran.code == code and IS_NAMED.search(ran.out + ran.err), (arguments, ran)
        requests = [*system.send(*timers(system.target(), 100, due_in(1), 3))]
    if "shares" in kind:
        wait_until(lambda: f"kafka-share-groups.sh --delete --group {system.app_id}" in reasons(worker), "the way on")
        system.admin.delete_consumer_groups([system.app_id])[system.app_id].result(DEADLINE_S)
    fire_late(system, requests, time.time())
    wait_equal(partial(reasons, worker), "")
    assert scrape(worker.port).total("timers_group_taken") == 0
    wait_equal(lambda: scrape(worker.port).total("timers_partitions_unowned"), 0)


@pytest.mark.parametrize(
    "joins",
    [pytest.param(with_partitions, marks=BEFORE_4), pytest.param(partial(member, "java"), marks=pytest.mark.long)],
    ids=[KIP_848, "Java"],
)
def test_a_queue_names_a_stranger_that_takes_its_messages(joins: Any, here: System) -> None:
    """Java's consumer offers the strategy of the queue's processes by default."""
    topic = here.target(partitions=4)
    with Queue(topic, **PATIENT) as queue:
        queue.receive(1, wait_s=0.1)
        wait_until(lambda: not queue.unready(), "the queue has its partitions")
        with joins(here.address, f"queue.{topic}", topic):
            wait_until(lambda: "client 'stranger' at 127.0.0.1" in str(queue.unready()), "it is named", RED_S)
        queue.send(b"later")
        wait_until(lambda: not queue.unready(), "it has gone")
        assert [message.value for message in receive(queue, 1, ack=True)] == [b"later"]


@pytest.mark.parametrize("protocol", [CLASSIC, pytest.param(KIP_848, marks=BEFORE_4)])
def test_the_engine_on_spark_names_a_stranger_that_has_its_group_until_it_has_gone(
    protocol: str, system: System
) -> None:
    settings, group = system.settings, engine_id(system.app_id)
    system.create_own_topics()
    with ExitStack() as stack:
        stack.enter_context(with_partitions(system.address, group, system.request_topic, protocol=protocol))
        how = arguments(settings), group, settings.canonical_url, settings.session_timeout_s
        with taking_part(*how, {system.request_topic: PARTITIONS}, print) as taken:
            wait_until(lambda: IS_NAMED.search(taken()), "it is named", RED_S)
            stack.close()
            wait_until(lambda: not taken(), "it has gone")
            assert [each.url for each in describe_patiently(settings, group).members] == [settings.canonical_url]


@pytest.mark.long
def test_a_program_that_ended_without_leaving_is_removed_by_kafkas_tool(system: System, tmp_path: Path) -> None:
    """Kafka Streams does not leave: the brokers would name it until its session has timed out, 45 s later."""
    system.create_own_topics()
    with member("streams", system.address, system.app_id, system.request_topic) as streams:
        worker = system.worker().start()
        worker.wait_for(r"TimersWorker\]: Ready", 2 * DEADLINE_S)
        wait_until(lambda: is_taken(worker), "the stranger is named")
        requests = [*system.send(*timers(system.target(), 100, due_in(1), 3))]
        topics = {name for name in system.cluster.topics() if system.app_id in name}
        streams.kill()
        assert is_taken(worker)
        remove_members(tmp_path, system.address, system.app_id)
        fire_late(system, requests, time.time())
    wait_equal(partial(reasons, worker), "")
    assert topics <= {*system.cluster.topics()}, "it deletes topics of Kafka Streams only"
