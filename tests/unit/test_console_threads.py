"""Blocking calls of the console: slow brokers keep neither logins nor changes from being answered."""

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer

from tests.harness.console_users import USERS, basic
from tests.harness.constants import Constants
from tests.harness.sim_admin import answered
from tests.harness.sim_console import SimCluster, console
from tests.harness.sim_consumer import SimConsumer
from tests.harness.waiting import DEADLINE_S
from timers.console import kafka_cluster, threads, topics_follower
from timers.console.kafka_cluster import FoundGroup, KafkaCluster
from timers.console.problems import Problem
from timers.console.queue_list import FoundQueues
from timers.console.threads import Threads
from timers.console.web import server
from timers.errors import QueryError, TimersError
from timers.kafka import connection, group_access, topic_admin
from timers.kafka.aiokafka_internals import sessions
from timers.offline import app_state, targets
from timers.offline.dead_letters.letters import LetterFilter, LetterLog, Span
from timers.process.config.settings import Settings
from timers.wire.topics import DEAD_LETTER

SETTINGS = Settings.load({"TIMERS_BROKERS": "nowhere:1"})


@asynccontextmanager
async def one_thread_of_asyncio() -> AsyncIterator[threading.Event]:
    """The event loop's own pool has one thread. The event lets the calls go on that a test has blocked."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    go_on = threading.Event()
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield go_on
    finally:
        go_on.set()


async def test_a_password_is_checked_while_all_threads_of_asyncio_are_busy(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    path.write_text(USERS)
    async with console(SimCluster(), TIMERS_CONSOLE_USERS_FILE=str(path)) as client, one_thread_of_asyncio() as go_on:
        blocked = asyncio.create_task(asyncio.to_thread(go_on.wait))
        async with client.get("/v1/timers", headers=basic("ada", "right")) as response:
            assert response.status == 200
        assert not blocked.done()


async def test_a_silent_coordinator_delays_nobody_else(monkeypatch: pytest.MonkeyPatch, constants: Constants) -> None:
    constants(threads, MAX_WAIT_S=0.05)
    async with one_thread_of_asyncio() as go_on:
        monkeypatch.setattr(kafka_cluster, "find_group", lambda _: go_on.wait() and FoundGroup([]))
        cluster = KafkaCluster(SETTINGS)
        asked = [asyncio.create_task(cluster.group()) for _ in range(8)]
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.to_thread(str)
        refused = 8 - kafka_cluster.MAX_FINDERS
        while sum(task.done() for task in asked) < refused:
            await asyncio.wait([task for task in asked if not task.done()], return_when=asyncio.FIRST_COMPLETED)
        assert {str(task.exception()) for task in asked if task.done()} == {str(threads._no_free_thread())}
        go_on.set()
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert found.count(FoundGroup([])) == kafka_cluster.MAX_FINDERS
        await cluster.close()


async def test_slow_looks_keep_no_other_reader_waiting(constants: Constants, monkeypatch: pytest.MonkeyPatch) -> None:
    """The brokers answer some questions and not others."""
    constants(app_state, PART_S=0.05)
    constants(threads, MAX_WAIT_S=0.05)
    monkeypatch.setattr(kafka_cluster, "read_queues", lambda _: FoundQueues([], {}))
    cluster, go_on = KafkaCluster(SETTINGS), threading.Event()
    for module, name in (
        *((app_state, name) for name in ("levels_in_use", "topics_in_use", "open_transactions")),
        (kafka_cluster, "read_changes"),
    ):
        monkeypatch.setattr(module, name, lambda *_: go_on.wait(DEADLINE_S))
    changes = [asyncio.create_task(cluster.changes("", "", None)) for _ in range(2)]
    try:
        for _ in range(2):
            assert len((await cluster.state(lambda _: True, 0)).unknown) == 3
        assert await cluster.queues() == ([], {})
    finally:
        go_on.set()
        await asyncio.gather(*changes)
        await cluster.close()


async def test_a_slow_creation_keeps_no_pause_waiting(constants: Constants, monkeypatch: pytest.MonkeyPatch) -> None:
    constants(threads, MAX_WAIT_S=0.05)
    cluster, go_on = KafkaCluster(SETTINGS), threading.Event()
    monkeypatch.setattr(topic_admin, "create_if_missing", lambda *_, partitions: go_on.wait(DEADLINE_S))
    monkeypatch.setattr(targets, "give", lambda _, make: make)
    created = [asyncio.create_task(cluster.create_topic("orders")) for _ in range(2)]
    try:
        await asyncio.wait(created, return_when=asyncio.FIRST_COMPLETED)
        pause: Any = object()
        assert await cluster.command(pause) is pause
    finally:
        go_on.set()
        found = await asyncio.gather(*created, return_exceptions=True)
        await cluster.close()
    assert sorted(map(str, found)) == sorted(["True", str(threads._no_free_thread())])


async def test_a_call_holds_its_thread_after_its_request_is_gone(constants: Constants) -> None:
    constants(threads, MAX_WAIT_S=0.05)
    async with one_thread_of_asyncio() as go_on:
        pool = Threads("test", 1)

        def fail() -> None:
            go_on.wait()
            raise TimersError("no broker answers")

        gone = asyncio.create_task(pool.run(fail))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(gone, 0.01)
        with pytest.raises(Problem, match="other requests"):
            await pool.run(str)
        go_on.set()
        pool._slots._wait_s = DEADLINE_S
        assert await pool.run(str, 7) == "7"
        await pool.close()


async def test_a_call_that_looks_frees_its_thread_when_its_request_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with one_thread_of_asyncio() as go_on:
        pool = Threads("test", 1)
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        def read() -> None:
            loop.call_soon_threadsafe(begun.set)
            while not go_on.wait(0.001):
                threads.check()

        first, second = asyncio.create_task(pool.run(read)), asyncio.create_task(pool.run(str, 7))
        await begun.wait()
        first.cancel()
        assert await second == "7", "it got the only thread"
        threads.check()  # in no thread of a pool
        await pool.run(threads.check)  # the next call in the thread has its own client
        await pool.close()


def test_reading_dead_letters_ends_when_no_task_waits() -> None:
    """Between two records, and while a record does not come."""

    class Gone(Exception):
        pass

    has_gone = threading.Event()

    def check() -> None:
        if has_gone.is_set():
            raise Gone

    host = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    address = next(iter(host.list_topics(DEAD_LETTER, timeout=DEADLINE_S).brokers.values()))
    for _ in range(2):
        host.produce(DEAD_LETTER, b"", partition=0)
    assert host.flush(DEADLINE_S) == 0
    settings = Settings.load({"TIMERS_BROKERS": f"{address.host}:{address.port}"})
    with LetterLog(settings, shows_progress=False, check=check) as log:
        for read in (1, 2):
            found = log.scan(LetterFilter(), [Span(0, 0, 9)])
            assert [next(found)[1] for _ in range(read)] == [*range(read)]
            has_gone.set()
            with pytest.raises(Gone):
                next(found)
            has_gone.clear()


@pytest.mark.parametrize("path", ["/v1/dead-letters", "/dead-letters"])
async def test_an_answer_is_given_up_when_its_client_has_gone(path: str, constants: Constants) -> None:
    """A page gives it up itself, when it is shown without this part."""
    constants(server, _LOOK_S=0.01)
    asked, given_up = asyncio.Event(), asyncio.Event()

    class Slow(SimCluster):
        async def letters(self, *_: Any) -> Any:
            asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                given_up.set()

    async with console(Slow()) as client, asyncio.timeout(DEADLINE_S):
        request = asyncio.create_task(client.get(path, headers={"Accept": "text/html"}))
        await asked.wait()
        if path.startswith("/v1"):
            request.cancel()
        await given_up.wait()


async def test_a_change_goes_on_when_its_client_has_gone(constants: Constants) -> None:
    constants(server, _LOOK_S=0.01)
    asked, go_on, changed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Slow(SimCluster):
        async def schedule_request(self, *_: Any) -> str:
            asked.set()
            await go_on.wait()
            changed.set()
            return "t/0/1"

    async with console(Slow()) as client, asyncio.timeout(DEADLINE_S):
        body = {"topic": "t", "value": "", "delay": 1}
        request = asyncio.create_task(client.post("/v1/timers", json=body))
        await asked.wait()
        request.cancel()
        await asyncio.wait({request})
        await asyncio.sleep(0.05)  # longer than a look takes
        go_on.set()
        await changed.wait()


async def test_a_silent_coordinator_is_given_up(monkeypatch: pytest.MonkeyPatch, constants: Constants) -> None:
    class Silent:
        def __init__(self, **_: Any) -> None:
            self.closed = False

        async def bootstrap(self) -> None:
            await asyncio.Event().wait()

        async def close(self) -> None: ...

    monkeypatch.setattr(sessions, "AIOKafkaClient", Silent)
    constants(group_access, _TIMEOUT_S=0.01)
    async with asyncio.timeout(DEADLINE_S):
        cluster = KafkaCluster(SETTINGS)
        with pytest.raises(QueryError, match="cannot be read"):
            await cluster.group()
        await cluster.close()


async def test_waiting_changes_share_one_attempt_to_open_their_log(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[int] = []
    may_end = [threading.Event(), threading.Event()]
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    class Log:
        is_open = True

        def write(self, topic: str, key: None, entry: bytes, headers: None) -> Future[str]:
            return answered("t/0/1")

        def close(self) -> None: ...

    def open_log(_: KafkaCluster) -> Any:
        number = len(attempts)
        attempts.append(number)
        loop.call_soon_threadsafe(begun.set)
        if number < len(may_end):
            may_end[number].wait()
        if number == 0:
            raise TimersError("no broker answers")
        return Log()

    monkeypatch.setattr(KafkaCluster, "_new_log", open_log)
    cluster = KafkaCluster(SETTINGS)
    try:
        async with asyncio.timeout(DEADLINE_S):
            writes = [asyncio.create_task(cluster.record(b"{}")) for _ in range(20)]
            await begun.wait()
            may_end[0].set()
            found = await asyncio.gather(*writes, return_exceptions=True)
            assert {str(error) for error in found} == {"no broker answers"} and len(attempts) == 1
            begun.clear()
            writes = [asyncio.create_task(cluster.record(b"{}")) for _ in range(20)]
            await begun.wait()
            may_end[1].set()
            await asyncio.gather(*writes)
            await cluster.record(b"{}")
            assert len(attempts) == 2
            await cluster.close()
    finally:
        for event in may_end:
            event.set()


async def test_the_begin_of_a_stream_is_bounded(monkeypatch: pytest.MonkeyPatch, constants: Constants) -> None:
    consumer, counts = SimConsumer(), {"orders": 3, "many": topics_follower.MAX_STREAM_PARTITIONS}
    monkeypatch.setattr(topics_follower, "reader", lambda *_, **__: consumer)
    monkeypatch.setattr(connection, "partitions_of", lambda _, reports, topic, timeout_s: counts[topic])
    cluster = KafkaCluster(SETTINGS)
    with pytest.raises(Problem, match="more than 256 partitions"):
        await cluster.follow(["many", "orders"], None)
    assert consumer.asked_s == [] and consumer.closed.is_set(), "they are counted before their ends are looked for"
    constants(topics_follower, OPENING_S=3.0)
    follower = await cluster.follow(["orders"], None)
    assert follower.positions == [[7, 7, 7]] and max(consumer.asked_s) <= 3.0, "one limit for all partitions"
    consumer.closed.clear()
    await follower.close()
    assert consumer.closed.is_set()
    await cluster.close()


async def test_a_stream_that_goes_on_says_what_its_topics_have_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka goes to another offset without an event, if it is told to."""
    made: list[str] = []
    consumer = SimConsumer(bounds=(3, 7))

    def reader(_: Any, *, auto_offset_reset: str) -> SimConsumer:
        made.append(auto_offset_reset)
        return consumer

    monkeypatch.setattr(topics_follower, "reader", reader)
    monkeypatch.setattr(connection, "partitions_of", lambda *_: 3)
    cluster = KafkaCluster(SETTINGS)
    for partition, given in enumerate(([8, 7, 7], [7, 7, 9], [7, 7, 7, 1])):
        with pytest.raises(Problem, match=r"orders.* made anew, or its log was cut") as error:
            await cluster.follow(["orders"], [given])
        assert error.value.code == "cursor-invalid" and consumer.closed.is_set(), partition
        consumer.closed.clear()
    follower = await cluster.follow(["orders"], [[1, 5]])
    assert follower.positions == [[3, 5, 3]] == [[each.offset for each in consumer.assigned]]
    assert await follower.next(DEADLINE_S) == ([], 2 + 3), "a partition that is new has lost records, too"
    await follower.close()
    consumer.codes = [KafkaError._TIMED_OUT]
    follower = await cluster.follow(["orders"], [[1, 5, 5]])
    assert follower.positions == [[1, 5, 5]], "a partition that has no leader now does not stop the others"
    await follower.close()
    assert set(made) == {"error"}
    await cluster.close()


async def test_a_stream_whose_consumer_cannot_be_closed_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: SimConsumer) -> None:
        raise RuntimeError("of the client")

    ended = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda _: ended.set())
    monkeypatch.setattr(SimConsumer, "close", fail)
    monkeypatch.setattr(topics_follower, "reader", lambda *_, **__: SimConsumer())
    monkeypatch.setattr(connection, "partitions_of", lambda *_: 1)
    cluster = KafkaCluster(SETTINGS)
    follower = await cluster.follow(["orders"], None)
    async with asyncio.timeout(DEADLINE_S):
        await follower.close()
    assert await asyncio.to_thread(ended.wait, DEADLINE_S), "the error is said"
    await cluster.close()


async def test_a_part_of_a_console_that_fails_at_the_end_keeps_no_other_open(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, closed = KafkaCluster(SETTINGS), []

    async def open_log() -> Any:
        raise TimeoutError("the topic was not created")

    async def close() -> None:
        closed.append(1)
        raise RuntimeError("of a part")

    cluster._log_opening = asyncio.create_task(open_log())
    parts = cluster._requests, cluster._times, cluster._reading, cluster._retrying, cluster._finding, cluster._opening
    for each in (cluster.client, *parts):
        monkeypatch.setattr(each, "close", close)
    with pytest.raises(RuntimeError, match="of a part"):
        await cluster.close()
    assert len(closed) == 7


async def test_a_stream_whose_client_went_while_it_began_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = SimConsumer()
    monkeypatch.setattr(topics_follower, "reader", lambda *_, **__: consumer)
    async with one_thread_of_asyncio() as go_on:
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        def count(*_: Any) -> int:
            loop.call_soon_threadsafe(begun.set)
            go_on.wait()
            return 1

        monkeypatch.setattr(connection, "partitions_of", count)
        cluster = KafkaCluster(SETTINGS)
        gone = asyncio.create_task(cluster.follow(["orders"], None))
        await begun.wait()
        gone.cancel()
        await asyncio.wait([gone])
        go_on.set()
        await cluster.close()
        assert await asyncio.to_thread(consumer.closed.wait, DEADLINE_S)
