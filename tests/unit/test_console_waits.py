"""The console waits for a worker that is starting, and for leaders that move."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from confluent_kafka import KafkaError, KafkaException

from tests.harness.constants import Constants
from tests.harness.sim_admin import SimAdmin
from tests.harness.sim_consumer import SimConsumer
from timers.cli.broker.embedded import free_port
from timers.client import by_id
from timers.client.config import Connection
from timers.console import kafka_cluster
from timers.console.kafka_cluster import KafkaCluster, WorkerAnswer
from timers.console.problems import Problem
from timers.core.backoff import Pauses
from timers.core.ports import Lost
from timers.errors import QueryError, TimersError
from timers.kafka import connection, topic_admin, topic_offsets
from timers.kafka.topic_offsets import TopicOffsets
from timers.process.config.settings import Settings
from timers.wire import query as wire

NOT_LEADER = KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION))
AWAY = KafkaException(KafkaError(KafkaError._TRANSPORT))
DENIED = KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
OWN = {"app": "timers", "cluster": "c-1"}
FOUND = {**OWN, "timers": [{"id": "a"}], "missing": []}
STARTING = {"error": "this worker is starting"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, constants: Constants) -> None:
    constants(connection, CALL_RETRY_S=0.0)
    constants(kafka_cluster, PAUSES=Pauses(0.01, 2.0), MIN_ATTEMPT_S=0.05)
    constants(topic_offsets, _POLL_S=0.01)
    monkeypatch.setattr(topic_admin, "cluster_id", lambda _: "c-1")


def cluster_at(port: int) -> KafkaCluster:
    return KafkaCluster(Settings.load({"TIMERS_BROKERS": "b:1", "TIMERS_WORKER_URL": f"http://127.0.0.1:{port}"}))


def worker_with(find: Callable[[web.Request], Awaitable[web.Response]]) -> web.Application:
    """A worker that answers the questions for one timer by ``find``."""
    application = web.Application()
    application.router.add_get(wire.FIND_PATH, find)
    return application


async def test_a_question_waits_for_a_worker_that_starts() -> None:
    answers = iter([(503, STARTING), (503, {**OWN, "timers": [], "missing": [{}]}), (200, FOUND)])

    async def find(_: web.Request) -> web.Response:
        status, body = next(answers)
        return web.json_response(body, status=status)

    application = worker_with(find)
    port = free_port()
    cluster = cluster_at(port)
    asked = asyncio.create_task(cluster.ask(wire.FIND_PATH, {"id": "a"}))
    await asyncio.sleep(0.1)
    assert not asked.done(), "nothing answers at this port yet"
    async with TestServer(application, port=port):
        assert await asked == (200, FOUND)
        await cluster.close()


async def test_the_last_answer_is_given_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of the test: each look at it takes a second, and each question as long as it needs."""

    async def find(_: web.Request) -> web.Response:
        return web.json_response(STARTING, status=503)

    clock = count()
    monkeypatch.setattr(kafka_cluster, "monotonic", lambda: float(next(clock)))
    application = worker_with(find)
    async with TestServer(application) as server:
        cluster = cluster_at(server.port or 0)
        assert await cluster.ask(wire.FIND_PATH, {"id": "a"}) == (503, STARTING)
    with pytest.raises(QueryError, match="no worker answers"):
        await cluster.ask(wire.FIND_PATH, {"id": "a"})
    await cluster.close()


@pytest.mark.parametrize(
    ("origin", "why"),
    [
        (
            {"app": "timers", "cluster": "c-2"},
            "is of app 'timers' and cluster c-2, and not of app 'timers' and cluster c-1",
        ),
        ({"app": "other", "cluster": "c-1"}, "is of app 'other' and cluster c-1"),
        ({}, "does not say which app and cluster it is of"),
    ],
)
async def test_nothing_of_a_worker_of_another_cluster_or_app_is_shown(origin: dict[str, str], why: str) -> None:
    async def find(_: web.Request) -> web.Response:
        return web.json_response({**FOUND, "app": None, "cluster": None, **origin})

    async with TestServer(worker_with(find)) as server:
        cluster = cluster_at(server.port or 0)
        with pytest.raises(QueryError, match=why):
            await cluster.ask(wire.FIND_PATH, {"id": "a"})
        await cluster.close()


async def test_nothing_is_shown_before_a_broker_answers(monkeypatch: pytest.MonkeyPatch, constants: Constants) -> None:
    async def find(_: web.Request) -> web.Response:
        return web.json_response(FOUND)

    brokers: list[str | TimersError] = [TimersError("no broker answers"), "c-2", "c-1", TimersError("away")]

    def cluster_id(_: Settings) -> str:
        found = brokers.pop(0)
        if isinstance(found, TimersError):
            raise found
        return found

    monkeypatch.setattr(topic_admin, "cluster_id", cluster_id)
    async with TestServer(worker_with(find)) as server:
        cluster = cluster_at(server.port or 0)
        with pytest.raises(Problem, match="no broker has answered"):
            await cluster.ask(wire.FIND_PATH, {"id": "a"})
        assert await cluster.ask(wire.FIND_PATH, {"id": "a"}) == (200, FOUND), "the brokers were asked again"
        constants(kafka_cluster, CLUSTER_ID_S=-1.0)
        assert await cluster._cluster_id() == "c-1", "a cluster that is away keeps its id"
        await cluster.close()
    assert brokers == []


async def test_few_questions_are_asked_while_a_partition_has_no_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the real pauses, by a clock of the test."""
    now_s, asked_at = 0.0, []
    missing = {"timers": [], "missing": [{"partition": "t/1", "reason": "no worker owns it"}]}

    async def ask(*_: Any) -> WorkerAnswer:
        asked_at.append(now_s)
        return WorkerAnswer(503, missing)

    async def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    monkeypatch.undo()
    monkeypatch.setattr(kafka_cluster, "monotonic", lambda: now_s)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    cluster = cluster_at(1)
    cluster._ask_once = ask  # type: ignore[assignment, method-assign]
    assert await cluster.ask(wire.FIND_PATH, {"id": "a"}) == (503, missing)
    await cluster.close()
    assert len(asked_at) <= 10
    assert asked_at[1] == kafka_cluster.PAUSES.first_s, "a worker that starts is seen soon"
    assert kafka_cluster.ANSWER_S - asked_at[-1] <= 2 * kafka_cluster.MIN_ATTEMPT_S, "and one that starts late"


async def test_an_answer_that_says_what_is_missing_is_not_replaced_by_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    answered, now_s = 0, 0.0

    async def find(_: web.Request) -> web.Response:
        nonlocal answered, now_s
        answered += 1
        if answered > 1:
            now_s = kafka_cluster.ANSWER_S
            await asyncio.sleep(60)
        now_s = kafka_cluster.ANSWER_S - 0.3  # what is left for the second question
        return web.json_response(STARTING, status=503)

    monkeypatch.setattr(kafka_cluster, "monotonic", lambda: now_s)
    application = worker_with(find)
    async with TestServer(application) as server:
        cluster = cluster_at(server.port or 0)
        assert await cluster.ask(wire.FIND_PATH, {"id": "a"}) == (503, STARTING)
        await cluster.close()
    assert answered == 2


class Failing:
    """Fails with these errors, one call each, and returns ``result`` from then on."""

    def __init__(self, result: Any, *errors: Exception) -> None:
        self._result = result
        self._errors = list(errors)

    def __call__(self, *_: Any, **__: Any) -> Any:
        if self._errors:
            raise self._errors.pop(0)
        return self._result


def test_a_call_is_repeated_while_leaders_move() -> None:
    assert connection.while_moving(Failing(7, NOT_LEADER, AWAY), 10) == 7
    with pytest.raises(KafkaException, match="AUTHORIZATION"):
        connection.while_moving(Failing(7, NOT_LEADER, DENIED), 10)
    with pytest.raises(KafkaException, match="NOT_LEADER"):
        connection.while_moving(Failing(7, NOT_LEADER, AWAY), -1)


def test_a_client_waits_for_the_leaders_of_the_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = SimConsumer(KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError._TRANSPORT, bounds=(3, 7))
    monkeypatch.setattr(Connection, "consumer", lambda self, _lost: consumer)
    monkeypatch.setattr(Connection, "partitions_of", lambda self, *_, **__: 1)
    never = SimpleNamespace(describe_topics=lambda *_, **__: defaultdict(Future))
    monkeypatch.setattr(Connection, "admin", lambda self: never)
    topic = SimpleNamespace(partitions=[SimpleNamespace(leader=1)])
    found = SimpleNamespace(topics={Settings.load({}).verdict_topic: topic})
    monkeypatch.setattr(connection, "metadata", lambda *_: found)
    ids = by_id.ById(Connection.resolve("b:1", None, None, 10, None))
    ids.open = lambda *_: None  # type: ignore[method-assign]
    ids.listen()
    assert [tp.offset for tp in consumer.assigned] == [7]
    ids.close()


def offsets_of(
    away: dict[int, Exception],
    monkeypatch: pytest.MonkeyPatch,
    *,
    skips_leaderless: bool = False,
    timeout_s: float = 10,
) -> tuple[TopicOffsets, SimAdmin]:
    leaders = SimAdmin(t=3)
    leaders.offsets = {("t", each): error for each, error in away.items()}
    clock = iter(range(1000))
    found = SimpleNamespace(topics={"t": SimpleNamespace(partitions=dict.fromkeys(range(3)))}, brokers={1: None})
    monkeypatch.setattr(topic_offsets, "admin_client", lambda *_: leaders)
    monkeypatch.setattr(topic_offsets, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(topic_offsets, "sleep", lambda _: None)
    monkeypatch.setattr(connection, "metadata", lambda *_: found)
    settings = Settings.load({"TIMERS_BROKERS": "b:1"})
    return TopicOffsets(settings, timeout_s, skips_leaderless=skips_leaderless), leaders


@pytest.mark.parametrize(("errors", "timeout_s", "works"), [([NOT_LEADER, AWAY], 10, True), ([AWAY], -1, False)])
def test_offsets_wait_for_their_leader(
    errors: list[Exception], timeout_s: float, works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets, leaders = offsets_of({}, monkeypatch, timeout_s=timeout_s)
    leaders.failures = errors.copy()
    if works:
        assert offsets.ends(["t"]) == {"t": {0: 7, 1: 7, 2: 7}}
    else:
        with pytest.raises(TimersError, match="no broker answers"):
            offsets.ends(["t"])


@pytest.mark.parametrize("error", [NOT_LEADER, AWAY], ids=["no leader", "silent"])
def test_a_partition_without_a_leader_hides_no_others(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    offsets, leaders = offsets_of({1: error}, monkeypatch, skips_leaderless=True)
    assert offsets.ends(["t"]) == {"t": {0: 7, 2: 7}}
    assert [*offsets.unknown] == [("t", 1)]
    assert leaders.asked[0] == [("t", 0), ("t", 1), ("t", 2)] and leaders.asked[-1] == [("t", 1)], (
        "only what is not known is asked for again"
    )
    asked = len(leaders.asked)
    assert offsets.starts(["t"]) == {"t": {0: 7, 2: 7}}
    assert leaders.asked[asked:] == [[("t", 0), ("t", 2)]], "it is waited for once"


def test_who_needs_all_partitions_learns_which_have_no_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    offsets, _ = offsets_of({1: AWAY, 2: NOT_LEADER}, monkeypatch, skips_leaderless=False)
    with pytest.raises(TimersError, match="the leader of t/1, t/2 does not answer"):
        offsets.ends(["t"])


def test_brokers_that_do_not_answer_are_no_missing_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are waited for until the end, because one may be starting again."""
    offsets, leaders = offsets_of(dict.fromkeys(range(3), AWAY), monkeypatch, skips_leaderless=True)
    with pytest.raises(TimersError, match="no broker answers"):
        offsets.ends(["t"])
    tries = len(leaders.asked)
    leaders.offsets = {("t", 0): AWAY}
    assert offsets.ends(["t"]) == {"t": {1: 7, 2: 7}}
    assert len(leaders.asked) - tries < tries


def test_a_topic_whose_only_leader_is_away_is_skipped_if_brokers_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    offsets, leaders = offsets_of({}, monkeypatch, skips_leaderless=True)
    assert len(offsets.ends(["t"])["t"]) == 3
    leaders.offsets = {("t", each): NOT_LEADER for each in range(3)}
    assert offsets.starts(["t"]) == {"t": {}}
    assert len(offsets.unknown) == 3


async def test_requests_are_read_when_their_leader_is_back() -> None:
    cluster = cluster_at(1)
    reader = SimpleNamespace(read=Failing({"s": "record"}, Lost("t/0 has no leader")), close=lambda: None)
    cluster._requests._reader = reader  # type: ignore[assignment]
    assert [*await cluster._requests.read(["s"])] == ["s"]
    await cluster.close()
