"""No call of a client or a queue waits without a limit: in a fork, in a second event loop, without brokers."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.harness.constants import Constants
from tests.harness.waiting import wait_until
from timers.client import (
    AsyncTimersClient,
    PartlyPublishedError,
    PublishError,
    TimerRequest,
    TimersClient,
    clients,
    publish,
)
from timers.client.by_id import READER
from timers.client.clients import Client
from timers.client.config import Connection
from timers.client.publish import PRODUCER_POLL_S, Publisher
from timers.errors import (
    InvalidTimerError,
    NoVerdictError,
    SettingsError,
    TimersError,
    UnacknowledgedError,
    UnreachableError,
)
from timers.kafka.clients import flush
from timers.process.threads import BoundedThreads, call_in_thread, result_of
from timers.queue import AsyncQueue, Queue, aio
from timers.wire.topics import ID_REQUEST, REQUEST, VERDICT

DUE_S = 1_800_000_000
REQUESTS = [TimerRequest("t", "k", b"", at=DUE_S)]
TIMEOUT_S = 1.0
STUCK_S = 60.0
"""A call that takes longer has no limit. Nothing here waits so long. It is the limit of calls that brokers answer: to
connect may take seconds on a busy machine."""


CLUSTER = f"""
import sys, confluent_kafka
host = confluent_kafka.Producer({{"test.mock.num.brokers": 1, "log_level": 0}})
for topic in {(REQUEST, ID_REQUEST, VERDICT, "jobs")}:
    address = next(iter(host.list_topics(topic, timeout=10).brokers.values()))
print(f"{{address.host}}:{{address.port}}", flush=True)
sys.stdin.read()
"""
"""A mock cluster with the topics of clients."""


@pytest.fixture
def cluster() -> Iterator[subprocess.Popen[str]]:
    """A mock cluster in a process of its own, so that it can be stopped."""
    command = [sys.executable, "-c", CLUSTER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.fixture
def brokers(cluster: subprocess.Popen[str]) -> str:
    assert cluster.stdout is not None
    return cluster.stdout.readline().strip()


def stop(cluster: subprocess.Popen[str]) -> None:
    """Stop a cluster, so that it answers no more calls until it gets ``SIGCONT``."""
    cluster.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, cluster.pid, os.WSTOPPED)


class SilentMetadata:
    """A producer whose questions for metadata get no answer."""

    def __init__(self, producer: Any) -> None:
        self._producer, self.asked, self.ended = producer, threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def __len__(self) -> int:
        return len(self._producer)

    def list_topics(self, topic: str, timeout: float) -> Any:
        self.asked.set()
        self.ended.wait(STUCK_S)
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


def test_a_broker_that_does_not_count_partitions_delays_no_acknowledgement(brokers: str, constants: Constants) -> None:
    constants(publish, _COUNT_S=0.0)
    with TimersClient(brokers, keep_order=True, timeout_s=STUCK_S / 2) as client:
        client.schedule_request(REQUESTS[0])
        publisher: Any = client._publisher
        publisher._single = silent = SilentMetadata(publisher._single)
        try:
            assert silent.asked.wait(STUCK_S)
            assert client.schedule_request(REQUESTS[0]).startswith(REQUEST)
        finally:
            silent.ended.set()
    assert publisher._partitions > 0, "the former number stays"


@pytest.mark.slow
def test_a_fork_says_what_it_cannot_do_and_ends() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.harness.forked_clients"], capture_output=True, text=True, timeout=5 * STUCK_S
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    said = dict(line.split(": ", 1) for line in ran.stdout.splitlines())
    for name in ("new schedule", "unused schedule"):
        assert said.pop(name).startswith(f"returned '{REQUEST}/"), name
    closing = {name: said.pop(name) for name in list(said) if name.endswith("close")}
    assert set(closing.values()) == {"returned None"}
    assert len(said) == 13
    for name, answer in said.items():
        kind = "QueueError" if name.split()[-1] in ("receive", "run", "settle") else "PublishError"
        assert answer.startswith(f"{kind} this "), (name, answer)
        assert "was opened before os.fork()" in answer and "has none of them. Make a new one" in answer


async def cut_off(call: Awaitable[Any]) -> None:
    """Begin a call, and do not wait for its answer."""
    task = asyncio.ensure_future(call)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_an_event_loop_leaves_nothing_that_stops_the_next_one(brokers: str) -> None:
    client = AsyncTimersClient(brokers)

    async def leave_a_request(*, is_first: bool) -> None:
        if not is_first:
            await client.schedule("t", "k", b"", at=DUE_S)
        await cut_off(client.schedule("t", "k", b"", at=DUE_S))

    for is_first in (True, False, False):
        asyncio.run(leave_a_request(is_first=is_first))
    loop = asyncio.new_event_loop()
    task = loop.create_task(client.schedule("t", "k", b"", at=DUE_S))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()  # the call is never ended
    assert not task.done()
    assert asyncio.run(client.schedule("t", "k", b"", at=DUE_S)).startswith(f"{REQUEST}/")
    assert asyncio.run(client.schedule("t", "k", b"", at=DUE_S, id="one")) == "one"
    asyncio.run(client.close())
    with pytest.raises(PublishError, match="is closed"):
        asyncio.run(client.schedule("t", "k", b"", at=DUE_S))
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_event_loops_of_several_threads_share_a_client(brokers: str) -> None:
    client = AsyncTimersClient(brokers)

    async def schedule() -> list[str]:
        ids: list[str] = []
        for _ in range(30):
            calls = (client.schedule("t", "k", b"", at=DUE_S) for _ in range(3))
            ids += await asyncio.gather(*calls)
        return ids

    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(asyncio.run, schedule()) for _ in range(3)]
        ids = [id for answer in answers for id in answer.result(STUCK_S)]
    assert len(set(ids)) == 270
    asyncio.run(client.close())


def ends(call: Callable[[], Any], kind: type[Exception] = TimersError) -> None:
    """The call raises an error."""
    with pytest.raises(kind):
        call_in_thread("call", call).result(STUCK_S)


def calls_of(client: TimersClient) -> list[Callable[[], Any]]:
    return [
        lambda: client.schedule("t", "k", b"", at=DUE_S),
        lambda: client.schedule("t", "k", b"", at=DUE_S, id="one"),
        lambda: client.schedule("t", "k", b"", at=DUE_S, id="one", if_absent=True),
        lambda: client.schedule_many(REQUESTS),
        lambda: client.update("one", "t", "k", b"", at=DUE_S),
        lambda: client.cancel("one"),
    ]


def test_all_threads_end_when_no_broker_answers(silent: str) -> None:
    """No thread waits for the attempts of the others, one after the other: there are more than STUCK_S takes."""
    client = TimersClient(silent, timeout_s=TIMEOUT_S)
    for each in [call_in_thread("call", ends, call) for call in calls_of(client) for _ in range(20)]:
        each.result(STUCK_S)
    call_in_thread("close", client.close).result(STUCK_S)


def test_all_tasks_end_when_no_broker_answers(silent: str) -> None:
    client = AsyncTimersClient(silent, timeout_s=TIMEOUT_S)

    async def call() -> list[Any]:
        calls: list[Awaitable[Any]] = []
        for _ in range(30):
            calls += [
                client.schedule("t", "k", b"", at=DUE_S),
                client.schedule("t", "k", b"", at=DUE_S, id="one"),
                client.schedule_many(REQUESTS),
                client.cancel("one"),
                client.update("one", "t", "k", b"", at=DUE_S),
            ]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        await client.close()
        return answers

    answers = call_in_thread("loop", asyncio.run, call()).result(STUCK_S)
    assert all(isinstance(answer, TimersError) for answer in answers) and len(answers) == 150


async def test_a_short_call_that_connects_does_not_end_the_others(cluster: subprocess.Popen[str], brokers: str) -> None:
    stop(cluster)
    async with AsyncTimersClient(brokers, timeout_s=STUCK_S) as client:
        for id in (None, "one"):
            short = asyncio.create_task(client.schedule("t", "k", b"", at=DUE_S, id=id, timeout_s=0.1))
            await asyncio.sleep(0)
            long = asyncio.create_task(client.schedule("t", "k", b"", at=DUE_S, id=id))
            with pytest.raises(UnreachableError, match=r"within 0\.\d+ s"):
                await short
            cluster.send_signal(signal.SIGCONT)
            assert await long
            stop(cluster)
        cluster.send_signal(signal.SIGCONT)


async def test_a_call_that_has_time_left_does_not_end_with_an_attempt_that_began_before_it() -> None:
    client, tried = AsyncTimersClient("127.0.0.1:1"), 0

    def connect(deadline: float) -> None:
        nonlocal tried
        tried += 1
        if tried == 1:
            raise UnreachableError("no broker answers")

    await client._connect(connect, time.monotonic() + STUCK_S)
    assert tried == 2
    tried = 0
    with pytest.raises(UnreachableError, match="no broker answers"):
        await client._connect(connect, time.monotonic())


async def test_a_call_may_not_wait_longer_for_the_brokers_than_its_client(brokers: str) -> None:
    async with AsyncTimersClient(brokers, timeout_s=STUCK_S) as client:
        for wrong in (STUCK_S + 1, -1.0, float("nan")):
            with pytest.raises(SettingsError, match=rf"^timeout_s={wrong} is not .* from 0 to {STUCK_S:g}"):
                await client.schedule("t", "k", b"", at=DUE_S, timeout_s=wrong)
        assert await client.schedule("t", "k", b"", at=DUE_S, timeout_s=STUCK_S)


def shorten(*clients: Client[Any, Any, Any], timeout_s: float = TIMEOUT_S) -> None:
    """Let the calls from now on wait for so long."""
    for client in clients:
        client._publisher.timeout_s = timeout_s


async def test_a_second_call_of_schedule_many_waits_for_the_first_one(brokers: str) -> None:
    is_begun, is_free = threading.Event(), threading.Event()
    before = {*threading.enumerate()}
    async with AsyncTimersClient(brokers, timeout_s=STUCK_S) as client:
        first = asyncio.create_task(client.schedule_many(held(is_begun, is_free)))
        await asyncio.to_thread(is_begun.wait, STUCK_S)
        shorten(client)
        second = asyncio.create_task(client.schedule_many(REQUESTS))
        with pytest.raises(PublishError, match=r"^another call of schedule_many .*: nothing was sent"):
            await client.schedule_many(REQUESTS)
        await asyncio.gather(second, return_exceptions=True)
        new = {*threading.enumerate()} - before
        assert len([each for each in new if each.name == "timers-client-bulk"]) == 1
        shorten(client, timeout_s=STUCK_S)
        is_free.set()
        assert len(await first) == 1_500
        assert len(await client.schedule_many(REQUESTS)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGSTOP, signal.SIGKILL], ids=["silent", "refusing"])
def test_calls_end_when_the_brokers_go_away(
    cluster: subprocess.Popen[str], brokers: str, end: signal.Signals, constants: Constants
) -> None:
    longer_s = clients._LONGER_S
    constants(clients, _LONGER_S=STUCK_S)  # while there are brokers
    client, in_loop = TimersClient(brokers, timeout_s=STUCK_S), AsyncTimersClient(brokers, timeout_s=STUCK_S)
    queue = Queue("jobs", brokers=brokers, timeout_s=STUCK_S)
    client.schedule("t", "k", b"", at=DUE_S)
    client.schedule("t", "k", b"", at=DUE_S, id="one")
    client.schedule_many(REQUESTS)
    queue.send(b"")
    asyncio.run(in_loop.schedule("t", "k", b"", at=DUE_S))
    shorten(client, in_loop, queue._timers)
    queue.timeout_s = queue._sender._publisher.timeout_s = TIMEOUT_S
    for use in calls_of(client)[-2:]:  # no worker writes a verdict
        ends(use, NoVerdictError)
    constants(clients, _LONGER_S=longer_s)
    cluster.send_signal(end)
    os.waitid(os.P_PID, cluster.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)  # else it may answer one more call
    calls = [
        *calls_of(client),
        lambda: asyncio.run(in_loop.schedule("t", "k", b"", at=DUE_S)),
        lambda: asyncio.run(in_loop.schedule_many(REQUESTS)),
        lambda: queue.send(b""),
        lambda: queue.send(b"", delay=5),
        queue.stats,
    ]
    for ending in [call_in_thread("call", ends, call) for call in calls]:
        ending.result(STUCK_S)
    for close in (client.close, lambda: asyncio.run(in_loop.close()), queue.close):
        call_in_thread("close", close).result(STUCK_S)


def test_a_bulk_that_is_read_slowly_is_not_given_up(brokers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read_s = 0.0
    monkeypatch.setattr(publish, "monotonic", lambda: time.monotonic() + read_s)

    def slow() -> Iterator[TimerRequest]:
        nonlocal read_s
        yield REQUESTS[0]
        read_s += STUCK_S + 1
        yield REQUESTS[0]

    with TimersClient(brokers, timeout_s=STUCK_S) as client:
        assert client.schedule_many(slow(), ids=False) == 2
        assert len(client.schedule_many(slow())) == 2


@contextmanager
def stopped(cluster: subprocess.Popen[str], brokers: str, *, ids: bool) -> Iterator[TimersClient]:
    """A client that has scheduled many, and whose brokers take nothing from then on."""
    with TimersClient(brokers, timeout_s=STUCK_S) as client:
        client.schedule_many(REQUESTS, ids=ids)
        shorten(client)
        stop(cluster)
        yield client


@pytest.mark.slow
@pytest.mark.parametrize("ids", [True, False])
def test_a_wrong_request_does_not_hide_untaken_ones(cluster: subprocess.Popen[str], brokers: str, ids: bool) -> None:
    said = r"^3 of 3 timers .* \(2 of them may have been taken\)"
    with stopped(cluster, brokers, ids=ids) as client, pytest.raises(PartlyPublishedError, match=said) as error:
        client.schedule_many([*REQUESTS * 2, REQUESTS[0]._replace(at=-1)], ids=ids)
    assert isinstance(error.value.__cause__, InvalidTimerError)
    assert error.value.ids == ([None] * 3 if ids else [])
    assert error.value.unknown == ({0, 1} if ids else set())
    assert error.value.read == 3


@pytest.mark.slow
def test_an_exception_of_the_caller_does_not_hide_it_either(cluster: subprocess.Popen[str], brokers: str) -> None:
    def rows() -> Iterator[TimerRequest]:
        yield from REQUESTS * 2
        raise KeyError("a column")

    with stopped(cluster, brokers, ids=False) as client, pytest.raises(KeyError) as error:
        client.schedule_many(rows(), ids=False)
    assert error.value.__notes__ == ["2 of the 2 timers before it were not acknowledged by the broker"]


def end_producer(part: Publisher, cluster: subprocess.Popen[str], topic: str) -> None:
    """Provoke a fatal error of the producer: a batch on its way that is given up leaves a gap, which
    ``enable.gapless.guarantee`` forbids."""
    producer = part._single
    assert producer is not None
    for wait_s in (0.1, 0.5, 2.0, 8.0):  # until the request was on its way
        stop(cluster)
        answer = part.write(topic, None, b"", None)
        time.sleep(wait_s)
        producer.purge()
        with pytest.raises(UnacknowledgedError):
            answer.result(STUCK_S)
        cluster.send_signal(signal.SIGCONT)
        until_s = time.monotonic() + wait_s + 50 * PRODUCER_POLL_S  # the polling thread sees it at its next poll
        while time.monotonic() < until_s:
            if part._single is not producer:
                return
            time.sleep(PRODUCER_POLL_S / 10)
    raise AssertionError("the producer has no fatal error")


def test_no_verdict_comes_only_on_what_the_brokers_have(
    cluster: subprocess.Popen[str], brokers: str, constants: Constants
) -> None:
    """However short the call is: a request that is not acknowledged may be in no log, so nobody will read it."""

    async def cancel_in_loop(client: AsyncTimersClient, kind: type[TimersError], timeout_s: float) -> None:
        with pytest.raises(kind):
            await client.cancel("one", timeout_s=timeout_s)

    longer_s = clients._LONGER_S
    constants(clients, _LONGER_S=STUCK_S)  # while there are brokers
    in_loop = AsyncTimersClient(brokers, timeout_s=STUCK_S)
    with TimersClient(brokers, timeout_s=STUCK_S) as client:
        for timeout_s in (TIMEOUT_S, 0.0):
            ends(partial(client.cancel, "one", timeout_s=timeout_s), NoVerdictError)
            asyncio.run(cancel_in_loop(in_loop, NoVerdictError, timeout_s))
        constants(clients, _LONGER_S=longer_s)
        cluster.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, cluster.pid, os.WSTOPPED | os.WNOWAIT)
        ends(lambda: client.cancel("one", timeout_s=0.0), UnacknowledgedError)
        ends(lambda: client.update("one", "t", "k", b"", at=DUE_S, timeout_s=TIMEOUT_S), UnacknowledgedError)
        asyncio.run(cancel_in_loop(in_loop, UnacknowledgedError, 0.0))
        cluster.send_signal(signal.SIGCONT)
        asyncio.run(in_loop.close())


@pytest.mark.slow
def test_a_client_outlives_a_fatal_error(cluster: subprocess.Popen[str], brokers: str, constants: Constants) -> None:
    gapless = {"enable.gapless.guarantee": True}
    constants(clients, _LONGER_S=STUCK_S)
    with TimersClient(brokers, timeout_s=STUCK_S, producer_config=gapless) as client:
        assert client.schedule("t", "k", b"", at=DUE_S)
        end_producer(client._publisher, cluster, REQUEST)
        assert client.schedule("t", "k", b"", at=DUE_S).startswith(f"{REQUEST}/")
        with pytest.raises(NoVerdictError):
            client.cancel("one", timeout_s=TIMEOUT_S)
        assert client._ids is not None
        end_producer(client._ids, cluster, ID_REQUEST)
        with pytest.raises(NoVerdictError):  # the request was sent
            client.cancel("one", timeout_s=TIMEOUT_S)
        for ids in (True, False):
            for error in (PartlyPublishedError, KeyError):
                client.schedule_many(REQUESTS, ids=ids)
                end_bulk(client, cluster, ids, error)
                client.schedule_many(REQUESTS, ids=ids)


def end_bulk(client: TimersClient, cluster: subprocess.Popen[str], ids: bool, error: type[Exception]) -> None:
    """As :func:`end_producer`, for the producer of ``schedule_many``. With KeyError the iterable of its caller fails,
    if it learns of the fatal error before the producer gets the next request."""
    producer = client._publisher._bulk[ids, False]

    def requests() -> Iterator[TimerRequest]:
        stop(cluster)
        for _ in range(20):
            yield REQUESTS[0]
            try:
                flush(producer, 1.0)  # until it is on its way
                producer.purge()
                flush(producer, 1.0)
            except (KafkaException, SystemError):  # SystemError: a fatal error while a report was made
                if error is KeyError:
                    raise KeyError("a column") from None
        raise AssertionError("the producer has no fatal error")

    try:
        with pytest.raises((error, PartlyPublishedError)):
            client.schedule_many(requests(), ids=ids)
    finally:
        cluster.send_signal(signal.SIGCONT)


@pytest.mark.slow
def test_an_async_client_goes_on_after_a_fatal_error(cluster: subprocess.Popen[str], brokers: str) -> None:
    async def schedule_twice() -> None:
        gapless = {"enable.gapless.guarantee": True}
        async with AsyncTimersClient(brokers, timeout_s=STUCK_S, producer_config=gapless) as client:
            await client.schedule("t", "k", b"", at=DUE_S)
            end_producer(client._publisher, cluster, REQUEST)
            await client.schedule("t", "k", b"", at=DUE_S)

    asyncio.run(schedule_twice())


def held(is_begun: threading.Event, is_free: threading.Event) -> Iterator[TimerRequest]:
    """1,500 requests, of which the second half is there when ``is_free`` is set."""
    yield from REQUESTS * 1_000
    is_begun.set()
    is_free.wait()
    yield from REQUESTS * 500


def with_bulk(brokers: str, *, ids: bool) -> tuple[TimersClient, Future[Any], threading.Event]:
    """A client that has read the first part of :func:`held`; its call; and what lets the rest be there."""
    is_begun, is_free = threading.Event(), threading.Event()
    client = TimersClient(brokers, timeout_s=STUCK_S)
    bulk = call_in_thread("bulk", client.schedule_many, held(is_begun, is_free), ids=ids)
    assert is_begun.wait(STUCK_S)
    return client, bulk, is_free


@pytest.mark.parametrize("ids", [True, False])
def test_to_close_a_client_waits_for_its_bulk(brokers: str, ids: bool) -> None:
    client, bulk, is_free = with_bulk(brokers, ids=ids)
    closing = call_in_thread("close", client.close)
    while not client._publisher.closed:
        time.sleep(0.001)
    is_free.set()
    answer = bulk.result(STUCK_S)
    assert (len(set(answer)) if isinstance(answer, list) else answer) == 1_500
    closing.result(STUCK_S)
    assert not client._publisher._bulk
    reader = Consumer({"bootstrap.servers": brokers, "group.id": "test"})
    count = len(reader.list_topics(REQUEST, timeout=STUCK_S).topics[REQUEST].partitions)
    places = [TopicPartition(REQUEST, partition) for partition in range(count)]
    assert sum(reader.get_watermark_offsets(place, timeout=STUCK_S)[1] for place in places) == 1_500
    reader.close()


@pytest.mark.parametrize("ids", [True, False])
def test_a_bulk_says_what_was_sent_before_its_client_was_closed(brokers: str, ids: bool) -> None:
    client, bulk, is_free = with_bulk(brokers, ids=ids)
    client.close(timeout_s=0)
    is_free.set()
    with pytest.raises(PartlyPublishedError, match=r"^1 of 1001 timers .* this client was closed meanwhile") as error:
        bulk.result(STUCK_S)
    assert [id is None for id in error.value.ids] == ([False] * 1_000 + [True] if ids else [])
    assert (error.value.unknown, error.value.read) == (frozenset(), 1_001), "the last one was read, and not sent"
    assert not client._publisher._bulk
    ends(lambda: client.schedule_many(REQUESTS))


@pytest.mark.parametrize("in_loop", [True, False])
def test_a_client_that_is_dropped_leaves_no_thread(brokers: str, in_loop: bool) -> None:
    before = set(threading.enumerate())

    async def use() -> None:
        dropped = AsyncTimersClient(brokers, timeout_s=STUCK_S)
        assert await dropped.schedule("t", "k", b"", at=DUE_S)
        with pytest.raises(NoVerdictError):
            await dropped.cancel("one", timeout_s=0.1)
        assert await dropped.schedule_many(REQUESTS, ids=False) == 1

    if in_loop:
        asyncio.run(use())
    else:
        client = TimersClient(brokers, timeout_s=STUCK_S)
        assert client.schedule("t", "k", b"", at=DUE_S)
        with pytest.raises(NoVerdictError):
            client.cancel("one", timeout_s=0.1)
        assert client.schedule_many(REQUESTS, ids=False) == 1
        assert {each.name for each in set(threading.enumerate()) - before} >= {"timers-client", READER}
        del client
    wait_until(lambda: gc.collect() >= 0 and set(threading.enumerate()) <= before, "its threads have ended", 10)


@contextmanager
def on_signal(act: Callable[[], object], when: Callable[[], bool]) -> Iterator[None]:
    """Call a function in this thread, as the handler of a signal does, when another thread finds a condition true."""
    before, main, is_over = signal.signal(signal.SIGUSR1, lambda *_: act() and None), threading.get_ident(), False

    def send() -> None:
        while not is_over:
            if when():
                return signal.pthread_kill(main, signal.SIGUSR1)
            time.sleep(0.001)
        return None

    sending = call_in_thread("signal", send)
    try:
        yield
    finally:
        is_over = True
        sending.result(STUCK_S)
        signal.signal(signal.SIGUSR1, before)


def is_in(function: Callable[..., object]) -> Callable[[], bool]:
    """Whether this thread is in a function, as another thread finds."""
    thread = threading.get_ident()
    code = function.__code__
    return lambda: any(frame.f_code is code for frame, _ in traceback.walk_stack(sys._current_frames()[thread]))


def timed(call: Callable[[], object], took_s: list[float]) -> None:
    began_s = time.monotonic()
    call()
    took_s.append(time.monotonic() - began_s)


@pytest.mark.parametrize("number", range(6))
def test_a_handler_of_a_signal_does_not_wait_for_the_call_that_it_interrupts(silent: str, number: int) -> None:
    """With SIGTERM, a supervisor may wait no longer than a call."""
    client, took_s = TimersClient(silent, timeout_s=STUCK_S), list[float]()
    with on_signal(partial(timed, client.close, took_s), is_in(Connection.partitions_of)), pytest.raises(TimersError):
        calls_of(client)[number]()
    assert took_s[0] < STUCK_S / 10


def test_an_exception_of_a_handler_leaves_no_lock_taken() -> None:
    """Python calls handlers at the begin of its functions, and after each call of a function of C."""
    publisher = TimersClient("127.0.0.1:1")._publisher
    for number in range(100):
        left = number

        def interrupt(_frame: object, event: str, _argument: object) -> None:
            nonlocal left
            if event in ("call", "c_return") and not (left := left - 1) + 1:
                raise KeyboardInterrupt

        deadline = time.monotonic() + STUCK_S
        sys.setprofile(interrupt)
        try:
            with publisher._held(publisher._lock, deadline):
                pass
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
        assert call_in_thread("lock", publisher._lock.acquire, blocking=False).result(STUCK_S), number
        publisher._lock = threading.RLock()  # the thread has ended with the former one
        if left >= 0:
            break
    assert 3 < number < 99


def test_a_handler_of_a_signal_may_close_a_client_whose_bulk_it_interrupts(brokers: str) -> None:
    client, is_begun, took_s = TimersClient(brokers, timeout_s=STUCK_S), threading.Event(), list[float]()

    def rows() -> Iterator[TimerRequest]:
        yield from REQUESTS * 1_000
        is_begun.set()
        while not took_s:
            time.sleep(0.001)
        yield from REQUESTS * 500

    close, said = partial(timed, client.close, took_s), "this client was closed meanwhile"
    with on_signal(close, is_begun.is_set), pytest.raises(PartlyPublishedError, match=said):
        client.schedule_many(rows())
    assert took_s[0] < STUCK_S / 10


def test_after_ctrl_c_the_next_bulk_has_its_own_answers_only(cluster: subprocess.Popen[str], brokers: str) -> None:
    with TimersClient(brokers, timeout_s=STUCK_S) as client:
        client.schedule_many(REQUESTS, ids=False)
        stop(cluster)
        interrupt = partial(signal.raise_signal, signal.SIGINT)
        with on_signal(interrupt, is_in(Publisher._flush_bulk)), pytest.raises(KeyboardInterrupt):
            client.schedule_many(REQUESTS, ids=False)
        assert not client._publisher._bulk, "their reports go to the call that runs"
        cluster.send_signal(signal.SIGCONT)
        assert client.schedule_many(REQUESTS, ids=False) == 1


async def test_a_receive_for_which_no_thread_is_free_ends_in_time(silent: str, constants: Constants) -> None:
    constants(aio, JOIN_WAIT_S=TIMEOUT_S)
    queue = AsyncQueue("jobs", brokers=silent, timeout_s=TIMEOUT_S)
    is_over = threading.Event()
    holding = [queue._receives.call(is_over.wait) for _ in range(64)]
    try:
        async with asyncio.timeout(STUCK_S):
            assert await queue.receive(wait_s=0.1) == []
    finally:
        is_over.set()
    assert len(holding) == 64


async def test_a_call_for_which_no_thread_is_free_says_so() -> None:
    threads, is_over = BoundedThreads("test", 1), threading.Event()
    first = threads.call(is_over.wait)
    called: list[bool] = []
    with pytest.raises(TimeoutError):
        await result_of(threads.call(called.append, True), 0.05)
    is_over.set()
    assert first.result(STUCK_S)
    assert await result_of(threads.call(lambda: 5), STUCK_S) == 5
    assert called == [], "it does not begin later"


async def test_a_call_that_begins_late_does_not_wait_for_its_whole_time_again() -> None:
    threads, is_free, is_over = BoundedThreads("test", 1), threading.Event(), threading.Event()
    threads.call(is_free.wait)
    late = asyncio.create_task(result_of(threads.call(is_over.wait), 2 * TIMEOUT_S))
    await asyncio.sleep(TIMEOUT_S)  # longer than a thread needs to begin
    is_free.set()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(STUCK_S):
            await late
    assert not is_over.is_set()
    is_over.set()
