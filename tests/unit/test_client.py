"""The clients, against librdkafka's mock cluster: a broker inside this process that speaks the real protocol."""

import asyncio
import socket
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition

from tests.harness.waiting import wait_until
from timers.client import AsyncTimersClient, TimerRequest, TimersClient, publish
from timers.errors import (
    InvalidTimerError,
    PartlyPublishedError,
    PublishError,
    SettingsError,
    TimerTooLargeError,
    UnreachableError,
)
from timers.v1.future_pb2 import Future
from timers.wire.topics import REQUEST

PARTITIONS = 4  # the mock cluster's own default
DUE_S = 1_800_000_000


@pytest.fixture(scope="module")
def brokers() -> Iterator[str]:
    """A mock cluster in which the request topic exists."""
    host = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    address = next(iter(host.list_topics(REQUEST, timeout=10).brokers.values()))
    yield f"{address.host}:{address.port}"
    del host


@pytest.fixture(scope="module")
def client(brokers: str) -> Iterator[TimersClient]:
    """A client for many tests, because to connect takes time."""
    with TimersClient(brokers) as client:
        yield client


def read(brokers: str, ids: Sequence[str]) -> list[Message]:
    """The request records of these timers."""
    consumer = Consumer(
        {"bootstrap.servers": brokers, "group.id": "test", "enable.auto.commit": False, "fetch.wait.max.ms": 10}
    )
    consumer.assign([TopicPartition(REQUEST, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
    found: dict[str, Message] = {}
    try:
        while not found.keys() >= set(ids):
            message = consumer.poll(10)
            assert message is not None, f"{len(set(ids) - found.keys())} records did not come"
            assert message.error() is None
            found[f"{message.topic()}/{message.partition()}/{message.offset()}"] = message
    finally:
        consumer.close()
    return [found[timer_id] for timer_id in ids]


def ends(brokers: str) -> list[int]:
    """The end offset of each partition of the request topic."""
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "test"})
    try:
        return [
            consumer.get_watermark_offsets(TopicPartition(REQUEST, partition), timeout=10)[1]
            for partition in range(PARTITIONS)
        ]
    finally:
        consumer.close()


@pytest.mark.parametrize("is_bulk", [False, True])
def test_the_first_timer_of_a_client_does_not_wait_half_a_second(is_bulk: bool) -> None:
    """librdkafka would get the id of its producer after 0.5 s. With one broker it has it sooner now and then."""
    host = Producer({"test.mock.num.brokers": 3, "log_level": 0})
    address = next(iter(host.list_topics(REQUEST, timeout=10).brokers.values()))
    taken_s: list[float] = []
    for _ in range(7):
        with TimersClient(f"{address.host}:{address.port}") as client:
            began = time.monotonic()
            if is_bulk:
                client.schedule_many([TimerRequest("orders", "k", b"v", at=DUE_S)])
            else:
                client.schedule("orders", "k", b"v", at=DUE_S)
            taken_s.append(time.monotonic() - began)
    assert statistics.median(taken_s) < 0.4, taken_s  # a busy machine may delay some of them
    del host


def test_brokers_may_be_a_list_and_are_checked_at_once(brokers: str) -> None:
    with TimersClient([brokers, brokers]) as client:
        assert client.schedule("orders", "k", b"v", delay=60)
    for wrong in ("kafka", ["kafka:9092", "kafka"], ["kafka:9092,"]):
        with pytest.raises(SettingsError, match=r"brokers=.* is not .*host:port"):
            TimersClient(wrong)


def test_schedule_returns_the_id_of_the_written_record(brokers: str, client: TimersClient) -> None:
    timer_id = client.schedule("orders", "o-1", b"expired", at=DUE_S, headers=[("a", b"1"), ("a", None)], token="t")
    (record,) = read(brokers, [timer_id])
    assert record.key() == b"1800000000"
    request = Future.FromString(record.value() or b"")
    assert request == Future(callBackTopic="orders", callBackKey="o-1", callBack=b"expired")
    assert record.headers() == [("a", b"1"), ("a", None), ("callback-token", b"t")]


def test_schedule_many_keeps_the_order_and_spreads_over_all_partitions(brokers: str, client: TimersClient) -> None:
    count = 4000
    ids = client.schedule_many(TimerRequest("orders", f"o-{number}", b"x", at=DUE_S) for number in range(count))
    keys = [Future.FromString(record.value() or b"").callBackKey for record in read(brokers, ids)]
    assert keys == [f"o-{number}" for number in range(count)]
    spread = Counter(timer_id.split("/")[1] for timer_id in ids)
    assert len(spread) == PARTITIONS
    assert min(spread.values()) > count / PARTITIONS * 0.8


def test_schedule_many_without_ids_has_published_all_when_it_returns(brokers: str, client: TimersClient) -> None:
    count = 4000
    before = sum(ends(brokers))
    assert client.schedule_many((TimerRequest("orders", "k", b"x", at=DUE_S) for _ in range(count)), ids=False) == count
    assert sum(ends(brokers)) == before + count


def test_schedule_many_without_requests_returns_no_ids(client: TimersClient) -> None:
    assert client.schedule_many([]) == []
    assert client.schedule_many([], ids=False) == 0


def test_schedule_many_names_a_wrong_request_and_schedules_those_before_it(brokers: str, client: TimersClient) -> None:
    taken: list[int] = []

    def requests() -> Iterator[TimerRequest]:
        for number in range(5):
            taken.append(number)
            yield TimerRequest("orders", "k", b"", at=DUE_S if number < 3 else -1)

    with pytest.raises(
        InvalidTimerError, match=r"request 3: at=-1 is before 1970.*\(the 3 before it are scheduled\)"
    ) as error:
        client.schedule_many(requests())
    assert taken == [0, 1, 2, 3]
    assert len(read(brokers, error.value.ids)) == 3
    with pytest.raises(TimerTooLargeError, match=r"request 0: .*nothing is scheduled"):
        client.schedule_many([TimerRequest("orders", "k", b"v" * 2_000_000, at=DUE_S)])


def test_schedule_many_that_cannot_go_on_says_which_are_scheduled(brokers: str, client: TimersClient) -> None:
    requests = [TimerRequest("orders", "k", b"", at=DUE_S, id=id) for id in (None, None, "one", None)]
    with pytest.raises(PartlyPublishedError, match=r"^1 of 3 timers .*broker: topic .* does not exist") as error:
        client.schedule_many(requests)
    *ids, last = error.value.ids
    assert len(read(brokers, [id for id in ids if id is not None])) == 2
    assert (last, error.value.unknown, error.value.read) == (None, frozenset(), 3)
    with pytest.raises(PublishError, match="does not exist") as first:
        client.schedule_many(requests[2:])
    assert type(first.value) is PublishError, "nothing was sent"


def test_threads_may_share_a_client(client: TimersClient) -> None:
    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda number: client.schedule("orders", str(number), b"", delay=number), range(200)))
    assert len(set(ids)) == 200


async def test_any_number_of_coroutines_may_schedule_at_once(brokers: str) -> None:
    async with AsyncTimersClient(brokers) as client:
        ids = await asyncio.gather(*(client.schedule("orders", str(number), b"", at=DUE_S) for number in range(500)))
        more = await client.schedule_many(TimerRequest("orders", "k", b"", at=DUE_S) for _ in range(50))
        assert await client.schedule_many([TimerRequest("orders", "k", b"", at=DUE_S)], ids=False) == 1
    keys = [Future.FromString(record.value() or b"").callBackKey for record in read(brokers, ids)]
    assert keys == [str(number) for number in range(500)]
    assert len({*ids, *more}) == 550


async def test_close_waits_for_the_answers_to_open_requests(brokers: str) -> None:
    client = AsyncTimersClient(brokers)
    await client.schedule("t", "first", b"", at=DUE_S)
    scheduling = [asyncio.create_task(client.schedule("t", str(number), b"", at=DUE_S)) for number in range(100)]
    await asyncio.sleep(0)  # each has handed over its request
    await client.close()
    assert len(set(await asyncio.gather(*scheduling))) == 100


async def test_a_client_works_after_a_cancelled_task(brokers: str) -> None:
    async with AsyncTimersClient(brokers) as client:
        await client.schedule("orders", "k", b"", at=DUE_S)
        task = asyncio.create_task(client.schedule("orders", "k", b"", at=DUE_S))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await client.schedule("orders", "k", b"", at=DUE_S)


def test_a_missing_request_topic_is_reported_at_once_and_not_created(brokers: str) -> None:
    for _ in range(2):  # the second time shows that the first did not create it
        with (
            TimersClient(brokers, request_topic="nowhere") as client,
            pytest.raises(
                PublishError,
                match=r"topic 'nowhere' does not exist at .*: start a worker \(or the engine on Spark\)",
            ),
        ):
            client.schedule("orders", "k", b"", delay=1)


def test_an_unreachable_broker_is_an_error_after_the_timeout() -> None:
    with socket.socket() as silent:  # accepts no connection
        silent.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with (
            TimersClient(address, timeout_s=0.3) as client,
            pytest.raises(PublishError, match=rf"no broker at {address} acknowledged within 0.3 s"),
        ):
            client.schedule("orders", "k", b"", delay=1)


def test_a_closed_client_raises_and_leaves_no_thread(brokers: str) -> None:
    before = set(threading.enumerate())
    client = TimersClient(brokers)
    client.schedule("orders", "k", b"", delay=1)
    client.close()
    client.close()
    assert set(threading.enumerate()) <= before
    with pytest.raises(PublishError, match="this client is closed: open a new one"):
        client.schedule("orders", "k", b"", delay=1)


NEVER_SET = ("acks", "metadata.broker.list", "enable.idempotence", "partitioner", "transactional.id")


@pytest.mark.parametrize("name", NEVER_SET)
def test_properties_that_would_break_a_promise_are_refused(name: str) -> None:
    with pytest.raises(SettingsError, match=f"producer_config may not set '{name}': "):
        TimersClient("127.0.0.1:1", producer_config={name: "0"})


def test_a_callback_of_the_application_that_raises_ends_no_thread(brokers: str) -> None:
    raised = threading.Event()

    def export(statistics: str) -> None:
        raised.set()
        raise KeyError("a broker that is new")

    extra = {"statistics.interval.ms": 100, "stats_cb": export}  # each of them logs a traceback
    with TimersClient(brokers, producer_config=extra) as client:
        client.schedule("t", "k", b"", delay=60)
        assert raised.wait(60)
        client.schedule("t", "k", b"", delay=60)
        client.schedule_many([TimerRequest("t", "k", b"", delay=60)])


def test_no_more_requests_lack_an_answer_than_were_read() -> None:
    """librdkafka counts statistics that wait for their callback among them."""
    bulk = publish._Bulk(Mock(), ids=False)
    bulk.read = 1
    with pytest.raises(PartlyPublishedError, match=r"^1 of 1 timers"):
        bulk.result(3, None)


def test_an_error_of_this_program_does_not_end_the_poll_thread(brokers: str, caplog: pytest.LogCaptureFixture) -> None:
    """Each call waits for it."""
    with TimersClient(brokers) as client:
        client.schedule("t", "k", b"", delay=60)

        def fail(result: object) -> None:
            raise ZeroDivisionError

        client._publisher.submit_record("timer-request", None, b"", None, fail)
        # Before the next call: the answer of another partition may overtake this one, which then came to close().
        wait_until(
            lambda: "an error in this program: the client goes on" in caplog.messages, "the thread has logged it"
        )
        client.schedule("t", "k", b"", delay=60)


def test_a_client_whose_thread_cannot_start_is_not_open(brokers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would send requests, and hear no answer. The machine may have threads a moment later."""

    def start() -> None:
        raise RuntimeError("can't start new thread")

    with TimersClient(brokers) as client:
        monkeypatch.setattr(client._publisher._thread, "start", start)
        with pytest.raises(UnreachableError, match="no Kafka client can be made now: can't start new thread"):
            client.schedule("t", "k", b"", delay=60)
        assert not client._publisher.is_open
        monkeypatch.undo()
        assert client.schedule("t", "k", b"", delay=60)


def test_an_unknown_property_is_named() -> None:
    with (
        TimersClient("127.0.0.1:1", producer_config={"no.such": 1}) as client,
        pytest.raises(SettingsError, match=r"producer_config with no\.such: No such configuration property"),
    ):
        client.schedule("orders", "k", b"", delay=1)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(SettingsError, match="request_topic='a b' is not a legal topic name"):
        TimersClient("127.0.0.1:1", request_topic="a b")
    with pytest.raises(SettingsError, match="timeout_s=0 is not a number of seconds from"):
        TimersClient("127.0.0.1:1", timeout_s=0)


def test_too_large_headers_are_refused_with_the_limit(brokers: str) -> None:
    with (
        TimersClient(brokers, max_request_bytes=1000) as client,
        pytest.raises(InvalidTimerError, match=r"limit, which is 1000 bytes .* and 65536 for headers"),
    ):
        client.schedule("orders", "k", b"", delay=1, headers={"big": b"x" * 70_000})


def test_close_answers_all_waiting_calls(brokers: str) -> None:
    """Each call returns an id, or raises because the client is closed."""
    for _ in range(5):
        client = TimersClient(brokers)
        client.schedule("t", "k", b"v", at=DUE_S)
        begun = threading.Event()

        def schedule(number: int, client: TimersClient = client, begun: threading.Event = begun) -> str:
            if number == 20:
                begun.set()
            try:
                return client.schedule("t", str(number), b"v", at=DUE_S)
            except PublishError as error:
                assert "closed" in str(error)
                return "closed"

        with ThreadPoolExecutor(8) as pool:
            answers = pool.map(schedule, range(200))
            assert begun.wait(30)
            client.close()
            assert len(list(answers)) == 200
