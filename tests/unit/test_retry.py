"""The next attempt or the dead letter of a message that could not be handled."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from timers.client.request import Encoder, TimerRequest
from timers.client.retry import Backoff, DeadLetterRecord, ReceivedMessage, plan
from timers.core.timer import Origin
from timers.errors import InvalidTimerError
from timers.kafka.request_formats import NATIVE, REQUEST_FORMATS
from timers.wire import dead_letter, future
from timers.wire.formats import RequestRecord
from timers.wire.headers import Header

DUE_S = 1_900_000_000
DLQ = "dead"


@dataclass
class Record:
    """A record of aiokafka."""

    topic: str = "orders"
    partition: int = 3
    offset: int = 17
    key: Any = b"k"
    value: Any = b"v"
    headers: Any = field(default_factory=list)


def as_methods(record: Record) -> Any:
    """The record as a message of confluent-kafka."""
    fields: dict[str, Callable[[], Any]] = {name: partial(getattr, record, name) for name in vars(record)}
    return SimpleNamespace(**fields)


def as_event(record: Record) -> Any:
    """The record as an event of Faust."""
    return SimpleNamespace(key="decoded", value={"decoded": 1}, message=record)


def retry_of(planned: Any) -> TimerRequest:
    assert isinstance(planned, TimerRequest)
    return planned


def as_bytes(headers: Sequence[tuple[str, bytes | str | None]] | None) -> list[Header]:
    """The headers, as a consumer receives them."""
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in headers or ()]


def dead_letter_of(planned: TimerRequest | DeadLetterRecord) -> DeadLetterRecord:
    assert not isinstance(planned, TimerRequest)
    return planned


@pytest.mark.parametrize("form", [lambda record: record, as_methods, as_event])
def test_messages_of_all_clients_are_retried_unchanged(form: Callable[[Record], Any]) -> None:
    headers = [("trace", b"1"), ("trace", None), ("timer-id", b"timer-request/0/7"), ("timer-due", b"5")]
    planned = retry_of(plan(form(Record(key=b"\xff", headers=headers)), None, Backoff(first_s=7, jitter=0), None, DLQ))
    assert planned == TimerRequest(
        "orders", b"\xff", b"v", None, 7.0, [("trace", b"1"), ("trace", None), ("retry-attempt", b"1")]
    )


def test_attempts_are_counted_in_a_header_and_delays_grow() -> None:
    record = Record()
    waits = []
    for attempt in range(1, 6):
        planned = retry_of(plan(record, None, Backoff(first_s=1, factor=3, most_s=20, retries=5, jitter=0), None, DLQ))
        waits.append(planned.delay)
        assert planned.headers == [("retry-attempt", b"%d" % attempt)]
        record = Record(headers=[*planned.headers, ("timer-id", b"timer-request/0/7"), ("timer-due", b"5")])
    assert waits == [1, 3, 9, 20, 20]
    assert not isinstance(plan(record, None, Backoff(retries=5), None, DLQ), TimerRequest)
    planned = retry_of(plan(record, 2, Backoff(first_s=1, jitter=0), "other", DLQ))
    assert (planned.topic, planned.delay) == ("other", 2.0), "the attempt is an argument"


@pytest.mark.parametrize(("fired_ms", "due"), [(b"1800000000999", b"1800000000"), (b"9" * 14, None), (b"x", None)])
def test_the_request_of_a_dead_letter_is_due_when_its_callback_was_sent(fired_ms: bytes, due: bytes | None) -> None:
    """By the brokers' clock: the clock of the receiver may be hours ahead, and it is due at once."""
    _, key, *_ = dead_letter_of(plan(Record(headers=[("timer-fired", fired_ms)]), 3, Backoff(retries=2), None, DLQ))
    assert key is not None and (key == due or (due is None and abs(int(key) - time.time()) < 60))


@pytest.mark.parametrize("key", [b"k", b"\xff\x00", None])
def test_the_last_attempt_is_a_dead_letter_whose_retry_counts_from_one(key: bytes | None) -> None:
    headers = [("a", None), ("retry-attempt", b"2"), ("timer-id", b"timer-request/4/99"), ("timer-due", b"5")]
    planned = plan(Record(key=key, headers=headers), None, Backoff(retries=2), None, DLQ)
    topic, sent_key, value, sent = dead_letter_of(planned)
    opened = dead_letter.decode(as_bytes(sent))
    assert (topic, opened and opened.code) == (DLQ, "retries-exhausted")
    assert opened is not None and opened.source == "timer-request/4/99"
    assert "the receiver of 'orders' gave up after 2 retries of the message at orders/3/17" in opened.message
    read = REQUEST_FORMATS[0].request_format.read(RequestRecord(0, sent_key, value, opened.headers, 0))
    ((row,),) = read.rows.values()
    assert (row[1], row[3], row[4]) == ("orders", b"v", [("a", None)])
    assert row[2] == (key if key != b"k" else "k")
    first = dead_letter_of(plan(Record(), 3, Backoff(retries=2), None, DLQ))
    assert dict(first[3])["timer-source"] == b"orders/3/17", "where it stands, if no request brought it"


@pytest.mark.parametrize(
    ("message", "attempt", "sentence"),
    [
        (Record(value=None), None, "no value"),
        (Record(value="text"), None, "value is of type str"),
        (Record(key=5), None, "key is of type int"),
        (Record(), 0, "not the number of a retry"),
        (Record(), True, "not the number of a retry"),
        ("message", None, "str is no message: it has no topic"),
    ],
)
def test_messages_that_cannot_be_retried_are_refused(message: Any, attempt: Any, sentence: str) -> None:
    with pytest.raises(InvalidTimerError, match=sentence):
        plan(message, attempt, Backoff(), None, DLQ)


@pytest.mark.parametrize("wrong", [{"first_s": -1}, {"factor": 0.5}, {"most_s": 1}, {"jitter": 2}, {"retries": -1}])
def test_wrong_backoffs_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidTimerError, match="makes no sense"):
        Backoff(**wrong)


def test_a_dead_letter_keeps_the_ids_of_schemas_when_it_is_sent_again() -> None:
    schema: Header = ("__value_schema_id", b"\x017")
    headers = [("a", b"1"), schema, ("timer-id", b"x")]
    _, due, value, sent = dead_letter_of(plan(Record(headers=headers), 3, Backoff(retries=2), None, DLQ))
    request = RequestRecord(7, due, value, [each for each in sent if not each[0].startswith("timer-error")], 0)
    ((row,),) = NATIVE.newest([request], 1000).rows.values()
    assert row[1:5] == ("orders", b"k", b"v", [("a", b"1"), schema])


def test_an_attempt_header_that_is_no_number_is_ignored() -> None:
    for text in (b"", b"x", None, b"1" * 20, "²".encode()):
        planned = retry_of(plan(Record(headers=[("retry-attempt", text)]), None, Backoff(), None, DLQ))
        assert planned.headers == [("retry-attempt", b"1")]
    assert ReceivedMessage.of(Record(headers={"a": "text"})).headers == [("a", b"text")]


@pytest.mark.parametrize("key", [None, b"\xff\x00", b"text", "text", ""])
def test_keys_of_any_bytes_reach_the_callback(key: Any) -> None:
    due, value, headers = Encoder(1000)(TimerRequest("orders", key, b"v", DUE_S, headers=[("a", b"1")]))
    ((row,),) = future.decode([RequestRecord(7, due, value, as_bytes(headers), 0)], 1000).rows.values()
    wanted = key.decode() if key == b"text" else key
    assert row == (7, "orders", wanted, b"v", [("a", b"1")], None)
    due, value, headers = Encoder(1000)(TimerRequest("orders", key, b"v", DUE_S))
    ((row,),) = future.decode([RequestRecord(7, due, value, as_bytes(headers) or None, 0)], 1000).rows.values()
    assert row == (7, "orders", wanted, b"v", None, None)
    again = RequestRecord(7, *future.rebuild_request(row, Origin("", DUE_S, 0)), 0)
    assert future.decode([again], 1000).rows == {DUE_S: [row]}


@pytest.mark.parametrize("id", [None, "order-1"])
@pytest.mark.parametrize("key", [None, b"\xff\x00", "text", ""])
def test_ids_of_schemas_that_a_caller_gives_reach_the_callback(key: Any, id: Any) -> None:
    """Those of a ``Future`` do not, so it is a request without protobuf."""
    given = [("__value_schema_id", b"\x01v"), ("a", b"1")]
    request = TimerRequest("orders", key, b"v", DUE_S, headers=given, token="t", id=id)
    sent, value, headers = Encoder(1000)(request)
    (by_id,) = (each.request_format for each in REQUEST_FORMATS if each.request_format.has_conditions)
    format = NATIVE if id is None else by_id
    ((row,),) = format.newest([RequestRecord(7, sent, value, as_bytes(headers), 0)], 1000).rows.values()
    wanted = key.encode() if isinstance(key, str) else key
    assert row[1:5] == ("orders", wanted, b"v", [*given, ("callback-token", b"t")])
