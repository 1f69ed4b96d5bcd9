"""Reading a range of offsets. The broker tests read real logs with gaps and open transactions."""

import contextlib
import gc
import sys
import threading
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import aiokafka.producer.message_accumulator
import aiokafka.producer.producer
import opentelemetry.trace  # noqa: F401  # a program that has not imported it gets no spans
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.harness.sim_consumer import Event, SimConsumer
from timers.client.retry import ReceivedMessage
from timers.client.tokens import source_of, token_of
from timers.client.tracing import callback_span
from timers.kafka import records
from timers.kafka.clients import flush

END = KafkaError._PARTITION_EOF


def offsets(consumer: Any, start: int, end: int, **arguments: Any) -> list[int | None]:
    return [message.offset() for message in records.read(consumer, "t", 0, start, end, timeout_s=0.0, **arguments)]


@pytest.mark.parametrize(
    ("events", "found"),
    [
        ([(3, None), (4, None), (5, None)], [3, 4]),
        ([(3, None), (7, None)], [3]),  # the rest was compacted
        ([(3, None), (5, END)], [3]),  # a transaction marker at offset 4
        ([(3, END), None, (3, None), (6, END)], [3]),  # an open transaction ended meanwhile
    ],
)
def test_reading_ends_at_the_end_offset_also_after_a_gap(events: list[Event | None], found: list[int]) -> None:
    consumer = SimConsumer(events=events)
    if None in events:
        read = records.read(consumer, "t", 0, 3, 5, timeout_s=60.0)  # type: ignore[arg-type]
        assert [message.offset() for message in read] == found
    else:
        assert offsets(consumer, 3, 5) == found
    assert not consumer.assigned


def test_an_empty_range_reads_nothing() -> None:
    assert offsets(None, 5, 5) == []


def test_no_answer_is_a_timeout_and_a_missing_topic_an_error() -> None:
    for events, code in (((), KafkaError._TIMED_OUT), (((0, KafkaError._UNKNOWN_TOPIC),), KafkaError._UNKNOWN_TOPIC)):
        consumer = SimConsumer(events=events)
        with pytest.raises(KafkaException) as raised:
            offsets(consumer, 0, 1)
        assert raised.value.args[0].code() == code
        assert not consumer.assigned


def test_waiting_can_be_stopped() -> None:
    def stop() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        offsets(SimConsumer(), 0, 1, while_waiting=stop)


class WrongName(str):
    """A header's name that a producer sends as bytes that are not UTF-8."""

    def encode(self, *_: str) -> bytes:
        return b"\xffb\xfe\xfd"


async def message_with(monkeypatch: pytest.MonkeyPatch, *headers: tuple[str, bytes | None]) -> Message:
    """A message of confluent-kafka with these headers."""
    for module in (
        aiokafka.producer.message_accumulator,
        aiokafka.producer.producer,
    ):
        monkeypatch.setattr(module, "DefaultRecordBatchBuilder", _DefaultRecordBatchBuilderPy)
    host = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    broker = next(iter(host.list_topics("t", timeout=10).brokers.values()))
    async with AIOKafkaProducer(bootstrap_servers=f"{broker.host}:{broker.port}") as producer:
        await producer.send_and_wait("t", b"v", key=b"k", partition=0, headers=headers)
    consumer = Consumer({"bootstrap.servers": f"{broker.host}:{broker.port}", "group.id": "g", "log_level": 0})
    consumer.assign([TopicPartition("t", 0, 0)])
    (message,) = consumer.consume(1, 30)
    consumer.close()
    return message


async def test_a_name_that_is_not_utf8_leaves_the_other_headers_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    wrongly = WrongName("123456")
    message = await message_with(monkeypatch, ("a", b"1"), (wrongly, b"2"), ("c", None), ("c", b"3"), (wrongly, b"4"))
    wrong = "\ufffdb\ufffd\ufffd"
    for _ in range(2):
        assert records.headers_of(message) == [("a", b"1"), (wrong, b"2"), ("c", None), ("c", b"3"), (wrong, b"4")]
    with pytest.raises(UnicodeDecodeError):
        b"\xff".decode()


async def test_what_receivers_call_reads_a_message_with_such_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the process else: at the second call, such as in the handler of the first error."""
    sent = (WrongName("123456"), b"2"), ("callback-token", b"t"), ("timer-id", b"timer-request/0/7")
    message = await message_with(monkeypatch, *sent)
    for _ in range(2):
        assert token_of(message) == "t"
        assert source_of(message) == "timer-request/0/7"
        assert ReceivedMessage.of(message).headers == [("\ufffdb\ufffd\ufffd", b"2"), *sent[1:]]
        with callback_span(message) as span:
            assert span is not None


def test_wrong_bytes_are_refused_again_after_a_message_that_cannot_be_read() -> None:
    def headers() -> Any:
        assert b"\xff".decode() == "\ufffd"
        raise KeyError

    with pytest.raises(KeyError):
        records.headers_of(SimpleNamespace(headers=headers))
    assert gc.isenabled()
    with pytest.raises(UnicodeDecodeError):
        b"\xff".decode()


@pytest.mark.parametrize("collects", [True, False])
def test_no_garbage_is_collected_while_wrong_bytes_are_replaced(collects: bool) -> None:
    """A finalizer would run Python code, and so may let another thread run."""
    collecting: list[bool] = []

    def headers() -> Any:
        collecting.append(gc.isenabled())
        return [("a", b"1")]

    if not collects:
        gc.disable()
    try:
        assert records.headers_of(SimpleNamespace(headers=headers)) == [("a", b"1")]
        assert (collecting, gc.isenabled()) == ([False], collects)
    finally:
        gc.enable()


def test_threads_that_decode_meanwhile_see_wrong_bytes_refused() -> None:
    ended = threading.Event()
    seen: list[str] = []

    def decode() -> None:
        while not ended.is_set():
            with contextlib.suppress(UnicodeDecodeError):
                seen.append(b"\xff".decode())

    threads = [threading.Thread(target=decode) for _ in range(3)]
    for thread in threads:
        thread.start()
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        message = SimpleNamespace(headers=partial(list, [("a", b"1")]))  # in C, as confluent-kafka's
        for _ in range(20_000):
            records.headers_of(message)
    finally:
        sys.setswitchinterval(interval_s)
        ended.set()
        for thread in threads:
            thread.join()
    assert seen == []


class SimReading:
    """A consumer that reads planned events, then the last one again and again: (partition, offset, error or None)."""

    def __init__(self, *events: tuple[int, int, int | None] | None) -> None:
        self.events, self.ended, self.assigned = list(events), list[int](), list[int]()

    def assign(self, places: list[Any]) -> None:
        self.assigned = [each.partition for each in places]

    def incremental_unassign(self, places: list[Any]) -> None:
        self.ended += [each.partition for each in places]

    def unassign(self) -> None:
        self.assigned = []

    def poll(self, timeout: float) -> Any:
        event = self.events.pop(0) if len(self.events) > 1 else self.events[0]
        if event is None:
            return None
        partition, offset, code = event
        error = None if code is None else KafkaError(code)
        calls = {"topic": "t", "partition": partition, "offset": offset, "error": error}
        return SimpleNamespace(**{name: lambda value=value: value for name, value in calls.items()})

    def consume(self, count: int, timeout: float) -> list[Any]:
        return []


def read_of(consumer: SimReading, left: dict[tuple[str, int], range], timeout_s: float = 60.0) -> list[tuple[int, int]]:
    found = records.read_all(cast(Any, consumer), left, timeout_s=timeout_s, while_waiting=lambda: None)
    return [(message.partition() or 0, message.offset() or 0) for message in found]


GONE = KafkaError.UNKNOWN_TOPIC_OR_PART


def test_partitions_are_read_at_once_and_each_to_its_end() -> None:
    left = {("t", 0): range(5, 7), ("t", 1): range(3), ("t", 2): range(9)}
    events = [(1, 0, None), (0, 5, None), (2, 8, None), (0, 6, None), (0, 7, None), (1, 1, None), (1, 3, END)]
    consumer = SimReading(*events)
    assert read_of(consumer, left) == [(1, 0), (0, 5), (2, 8), (0, 6), (1, 1)], "and no record after an end"
    assert left == {} and consumer.assigned == []


def test_a_partition_that_cannot_be_read_is_told_once_and_does_not_hold_the_others() -> None:
    left = {("t", 0): range(2), ("t", 1): range(1)}
    consumer = SimReading((0, 0, GONE), (0, 0, GONE), (1, 0, None))
    assert read_of(consumer, left) == [(0, 0), (1, 0)]
    assert set(left) == {("t", 0)}


def test_a_silent_partition_is_given_up_also_while_another_one_that_has_ended_goes_on() -> None:
    left = {("t", 0): range(1), ("t", 1): range(1)}
    assert read_of(SimReading((0, 0, None), (0, 1, None)), left, 0.01) == [(0, 0)]
    assert set(left) == {("t", 1)}
    assert read_of(SimReading(None), {("t", 1): range(1)}, 0.01) == []


def test_partitions_that_have_ended_are_left_in_groups() -> None:
    left = {("t", number): range(1) for number in range(30)}
    consumer = SimReading(*((number, 0, None) for number in range(30)))
    assert len(read_of(consumer, left)) == 30 and len(consumer.ended) == 25


@pytest.mark.parametrize(("answers", "timeout_s", "left"), [((3, 2, 0), 60.0, 0), ((2,), 0.0, 2), ((0,), 0.0, 0)])
def test_the_answers_to_a_producer_are_awaited_in_parts(answers: tuple[int, ...], timeout_s: float, left: int) -> None:
    """See :func:`timers.kafka.clients.flush`: a longer part would go on after a fatal error."""
    producer = Mock()
    producer.flush.side_effect = answers
    assert flush(producer, timeout_s) == left
    waits = [call.args[0] for call in producer.flush.mock_calls]
    assert len(waits) == len(answers) and max(waits) < 0.2
