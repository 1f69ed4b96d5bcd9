"""The client's requests with an id, and what ``timers.client`` exports, against librdkafka's mock cluster."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition

import timers.client
from timers.client import (
    AsyncTimersClient,
    InvalidTimerError,
    PublishError,
    SettingsError,
    TimerRequest,
    TimersClient,
)
from timers.client.request import Encoder
from timers.core.operation import VERDICTS, VerdictName
from timers.wire import verdict
from timers.wire.key_partition import partitions_of
from timers.wire.topics import ID_REQUEST, REQUEST, VERDICT

PARTITIONS = 4  # the mock cluster's own default
DUE_S = 1_800_000_000
DUE = [("timer-due", b"1800000000")]


@pytest.fixture
def brokers() -> Iterator[str]:
    """A mock cluster in which both request topics exist, and another one, without records."""
    host = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    for topic in (REQUEST, ID_REQUEST, "shop"):
        address = next(iter(host.list_topics(topic, timeout=10).brokers.values()))
    yield f"{address.host}:{address.port}"
    del host


def read(brokers: str, topic: str, count: int) -> list[Message]:
    """The first ``count`` records of a topic that arrive."""
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "test", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
    try:
        messages = [consumer.poll(60) for _ in range(count)]
        assert all(message is not None and message.error() is None for message in messages)
        assert consumer.poll(0.2) is None, "no more than these"
        return [message for message in messages if message is not None]
    finally:
        consumer.close()


@pytest.mark.parametrize("ids", [True, False])
def test_schedule_many_takes_requests_with_and_without_an_id(brokers: str, ids: bool) -> None:
    names = [f"order-{number}" for number in range(100)]
    headers = {"a": b"1"}
    requests = [
        TimerRequest("orders", "k", b"", DUE_S, headers=headers, id=id) for name in names for id in (name, None)
    ]
    with TimersClient(brokers, id_topic=ID_REQUEST) as client:
        taken = client.schedule_many(requests, ids=ids)
    if isinstance(taken, list):
        assert taken[::2] == names
        assert all(each.startswith(f"{REQUEST}/") for each in taken[1::2])
    else:
        assert taken == len(requests)

    with_id = {message.key() or b"": message for message in read(brokers, ID_REQUEST, len(names))}
    assert with_id.keys() == {name.encode() for name in names}
    for key, message in with_id.items():
        assert message.partition() == partitions_of([key], PARTITIONS)[0], "the one that Java's producer chooses"
        assert message.headers() == [("a", b"1"), *DUE]
    for message in read(brokers, REQUEST, len(names)):
        assert (message.key(), message.headers()) == (b"1800000000", [("a", b"1")])


def test_requests_with_one_id_keep_their_order(brokers: str) -> None:
    dues = range(DUE_S, DUE_S + 500)
    with TimersClient(brokers, id_topic=ID_REQUEST) as client:
        client.schedule_many((TimerRequest("orders", "k", b"", due_s, id="order-17") for due_s in dues), ids=False)
    sent = [dict(message.headers() or ())["timer-due"] for message in read(brokers, ID_REQUEST, len(dues))]
    assert sent == [b"%d" % due_s for due_s in dues]


def test_a_request_with_an_id_needs_a_topic_for_ids(brokers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [TimerRequest("orders", "k", b"", DUE_S, id="order-17")]
    with (
        TimersClient(brokers, request_topic="shop") as client,
        pytest.raises(PublishError, match=r"topic 'shop-by-id' does not exist .* with TIMERS_ID_TOPIC=shop-by-id,"),
    ):
        client.schedule_many(requests)
    monkeypatch.setenv("TIMERS_ID_TOPIC", ID_REQUEST)
    with TimersClient(brokers, request_topic="shop") as client:
        assert client.schedule_many(requests) == ["order-17"]
    monkeypatch.setenv("TIMERS_ID_TOPIC", "")
    with TimersClient(brokers) as client, pytest.raises(SettingsError, match="TIMERS_ID_TOPIC is empty"):
        client.schedule_many(requests)


def test_a_record_that_is_no_verdict_does_not_end_the_reading_of_verdicts(brokers: str) -> None:
    producer = Producer({"bootstrap.servers": brokers})
    producer.list_topics(VERDICT, timeout=10)  # the mock cluster creates it
    with TimersClient(brokers, id_topic=ID_REQUEST) as client, ThreadPoolExecutor() as pool:
        call = pool.submit(client.cancel, "order-17")
        (request,) = read(brokers, ID_REQUEST, 1)
        source = f"{ID_REQUEST}/{request.partition()}/{request.offset()}".encode()
        for value in (None, b"text", b"[1]", b"\xff", b"{}", b"[" * 100_000):
            producer.produce(VERDICT, value, b"order-17", 0, headers=[("timer-source", source)])
        true = verdict.as_json(verdict.VerdictMessage("order-17", "cancelled", DUE_S)).encode()
        sent: list[list[tuple[str, str | bytes | None]]] = [[], [("timer-source", None)], [("timer-source", source)]]
        for headers in sent:
            producer.produce(VERDICT, true, b"order-17", 0, headers=headers)
        assert producer.flush(30) == 0
        assert call.result(60).verdict == "cancelled"


def answer_after_cut(brokers: str, verdicts: dict[bytes, VerdictName], ended: threading.Event) -> None:
    """Write verdicts as a worker does whose logs were cut twice. What asks for one gets unknown if it is not named."""
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "worker", "enable.auto.commit": False})
    consumer.assign([TopicPartition(ID_REQUEST, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
    producer = Producer({"bootstrap.servers": brokers})
    while not ended.is_set():
        request = consumer.poll(0.05)
        if request is None or request.error() is not None:
            continue
        id = request.key() or b""
        asks = "timer-verdict" in dict(request.headers() or [])
        outcome = verdicts.get(id, "unknown" if asks else None)
        if outcome is not None:
            source = f"{ID_REQUEST}/{request.partition()}/{request.offset()}~2".encode()
            value = verdict.as_json(verdict.VerdictMessage(id.decode(), outcome, None)).encode()
            producer.produce(VERDICT, value, id, 0, headers=[("timer-source", source)])
            producer.flush(30)
    consumer.close()


def test_after_a_cut_each_call_finds_its_verdict_and_names_its_version_as_workers_do(brokers: str) -> None:
    """A producer does not learn the number of the cut. Each call writes one record, also an update of a new id."""
    Producer({"bootstrap.servers": brokers}).list_topics(VERDICT, timeout=10)  # the mock cluster creates it
    ended = threading.Event()
    with TimersClient(brokers, id_topic=ID_REQUEST, timeout_s=60) as client, ThreadPoolExecutor() as pool:
        worker = pool.submit(answer_after_cut, brokers, {b"old": "replaced", b"ended": "cancelled"}, ended)
        try:
            told = [client.update(id, "t", "k", b"", at=DUE_S) for id in ("old", "new")]
            assert client.cancel("ended").verdict == "cancelled"
        finally:
            ended.set()
        worker.result(60)
    assert [each.verdict for each in told] == ["replaced", "unknown"]
    places = partitions_of([b"old", b"new"], PARTITIONS)
    offsets = {message.key(): message.offset() for message in read(brokers, ID_REQUEST, 3)}
    assert [each.version for each in told] == [
        f"{ID_REQUEST}/{place}/{offsets[each.id.encode()]}~2" for each, place in zip(told, places, strict=True)
    ]


async def test_send_later_takes_an_id_and_a_token(brokers: str) -> None:
    with TimersClient(brokers, id_topic=ID_REQUEST) as client:
        assert client.send_later("k", b"", "orders", DUE_S, token="t").startswith(f"{REQUEST}/")
        assert client.send_later("k", b"", "orders", DUE_S, id="order-1") == "order-1"
    async with AsyncTimersClient(brokers, id_topic=ID_REQUEST) as client_async:
        assert await client_async.send_later("k", b"", "orders", DUE_S, token="t", id="order-2") == "order-2"
    assert [message.headers() for message in read(brokers, REQUEST, 1)] == [[("callback-token", b"t")]]
    sent = {message.key(): message.headers() for message in read(brokers, ID_REQUEST, 2)}
    assert sent == {b"order-1": DUE, b"order-2": [("callback-token", b"t"), *DUE]}


@pytest.mark.parametrize(
    ("id", "expected_text"),
    [("", "missing or empty"), (7, "id 7 is of type int: give a str"), ("x" * 513, "513 bytes, more than 512")],
)
def test_wrong_ids_are_refused(id: Any, expected_text: str) -> None:
    with pytest.raises(InvalidTimerError, match=expected_text):
        Encoder(1000)(TimerRequest("orders", "k", b"", DUE_S, id=id))


# --- exports ---------------------------------------------------------------------------------------------------------


def test_each_exported_name_exists_and_verdicts_are_literals() -> None:
    assert {name for name in dir(timers.client) if name[0] != "_"} >= set(timers.client.__all__)
    for name in timers.client.__all__:
        assert getattr(timers.client, name) is not None
    assert get_args(timers.client.VerdictName) == VERDICTS
    assert timers.client.CANCELLED in VERDICTS
    with pytest.raises(AttributeError, match=r"module 'timers.client' has no attribute 'nonsense'"):
        timers.client.nonsense  # noqa: B018


def test_importing_the_errors_does_not_import_librdkafka() -> None:
    """So `import timers.client` takes some 10 ms; librdkafka's package takes 60 ms, protobuf 20 ms."""
    show = "print([name for name in ('confluent_kafka', 'google.protobuf', 'asyncio') if name in sys.modules])"
    program = f"import sys; from timers.client import TimersError, CANCELLED, Timeouts; {show}"
    out = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    assert out.stdout == "[]\n"
