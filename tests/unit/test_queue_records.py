"""What a queue writes for a retry and a dead letter, and what it believes of a record that comes back."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from timers.errors import InvalidTimerError
from timers.queue import records
from timers.queue.records import Identity, Later
from timers.queue.sending import Sender
from timers.queue.settling import Commit
from timers.request_formats import NATIVE
from timers.wire import dead_letter
from timers.wire.formats import RequestRecord

MAX_BYTES = 1_000_000
Headers = list[tuple[str, bytes | None]]


@dataclass
class Delivered:
    """A message as its receiver sees it."""

    key: bytes | None = b"\xff"
    value: bytes | None = b"\x00value"
    headers: Headers = field(default_factory=list)
    attempt: int = 1
    source: str = "jobs/3/14"
    sent_ms: int = 1_700_000_000_123


@dataclass
class Record:
    """A record of confluent-kafka."""

    record_topic: str
    record_headers: Headers

    def topic(self) -> str:
        return self.record_topic

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 5

    def timestamp(self) -> tuple[int, int]:
        return 2, 99

    def headers(self) -> Headers:
        return self.record_headers


def fired(later: Later, due_s: int) -> tuple[str, bytes | None, bytes, Headers]:
    """The callback of a timer, as the worker decodes its request."""
    headers: Headers = [(name, data.encode() if isinstance(data, str) else data) for name, data in later.headers]
    read = NATIVE.read(RequestRecord(0, b"%d" % due_s, later.value, headers, due_s * 1000))
    ((_, (row,)),) = read.rows.items()
    key = row[2].encode() if isinstance(row[2], str) else row[2]
    return row[1], key, row[3], list(row[4] or ())


def test_a_retry_comes_back_as_it_was_sent() -> None:
    message = Delivered(headers=[("trace", b"1"), ("null", None), ("trace", b"2")], attempt=4)
    topic, key, value, headers = fired(records.later(message, "returns", 5, "no answer", MAX_BYTES), 1_800_000_000)
    assert (topic, key, value) == ("returns", b"\xff", b"\x00value")
    assert records.user_headers(headers, returned=True) == message.headers
    assert records.identity(Record("returns", headers), returned=True) == Identity("jobs/3/14", 1_700_000_000_123, 5)
    assert dict(headers)[records.ERROR] == b"no answer"
    assert records.returned_value(value, headers) == b"\x00value"


def test_a_null_value_comes_back_as_null_and_an_empty_one_as_empty() -> None:
    for sent in (None, b""):
        _, _, value, headers = fired(records.later(Delivered(value=sent), "returns", 0, "", MAX_BYTES), 1_800_000_000)
        assert records.returned_value(value, headers) == sent


@pytest.mark.parametrize("sent_ms", [-1, 0, 10**17])
def test_a_message_keeps_its_time_of_sending_whatever_it_is(sent_ms: int) -> None:
    """It is a part of the message's id."""
    *_, headers = fired(records.later(Delivered(sent_ms=sent_ms), "returns", 0, "", MAX_BYTES), 1_800_000_000)
    assert records.identity(Record("returns", headers), returned=True).sent_ms == sent_ms


def test_headers_of_identity_count_on_the_returns_topic_only() -> None:
    copied: Headers = [(records.SOURCE, b"other/0/1"), (records.ATTEMPT, b"7"), (records.SENT, b"1"), ("a", b"1")]
    assert records.identity(Record("jobs", copied), returned=False) == Identity("jobs/0/5", 99, 1)
    assert records.user_headers(copied, returned=False) == copied
    later = records.later(Delivered(headers=copied, attempt=1), "returns", 0, "", MAX_BYTES)
    back = records.identity(Record("returns", fired(later, 1_800_000_000)[3]), returned=True)
    assert back == Identity("jobs/3/14", 1_700_000_000_123, 2)


@pytest.mark.parametrize("text", [b"", b"-2", b"1" * 20, "²".encode(), None])
def test_damaged_headers_on_the_returns_topic_are_a_first_attempt(text: bytes | None) -> None:
    headers: Headers = [(records.SOURCE, text), (records.ATTEMPT, text), (records.SENT, text)]
    assert records.identity(Record("returns", headers), returned=True) == Identity("returns/0/5", 99, 1)


def test_a_message_larger_than_a_request_is_refused() -> None:
    with pytest.raises(InvalidTimerError, match="TIMERS_MAX_REQUEST_BYTES"):
        records.later(Delivered(value=b"x" * 2000), "returns", 1, "", 1000)


UNSENDABLE: list[tuple[dict[str, Any], str]] = [
    ({"headers": [("\ud800", b"x")]}, "header name"),  # librdkafka would end the process
    ({"headers": {"a": "\ud800"}}, "header 'a' has characters"),
    ({"headers": [(1, b"x")]}, "header name 1"),
    ({"headers": [("a", 1)]}, "of type int"),
    ({"headers": ["ab"]}, "is not a"),
    ({"key": "\ud800"}, "UTF-8"),
    ({"key": 7}, "of type int"),
    ({"value": "\ud800"}, "UTF-8"),
]


@pytest.mark.parametrize(("changes", "error"), UNSENDABLE)
def test_what_cannot_be_sent_is_refused_before_it_reaches_librdkafka(changes: dict[str, Any], error: str) -> None:
    sent = {"key": None, "value": b"v", "headers": ()} | changes
    with pytest.raises(InvalidTimerError, match=error):
        records.output(Delivered(), "results", **sent)
    sender = Sender.__new__(Sender)
    sender._topic, sender._publisher = "jobs", cast(Any, SimpleNamespace(open=lambda: None))
    with pytest.raises(InvalidTimerError, match=error):
        sender.send([(sent["key"], sent["value"], sent["headers"])])


def test_an_output_keeps_its_headers() -> None:
    made = records.output(Delivered(), "results", "k", None, [("timer-a", "1"), ("b", None), ("b", bytearray(b"2"))])
    assert made == ("results", b"k", None, [("timer-a", b"1"), ("b", None), ("b", b"2")], "jobs/3/14")


def test_delays_are_rounded_up_from_the_brokers_time() -> None:
    assert records.due_key(1_000_000, 0) == b"1000"
    assert records.due_key(1_000_001, 0) == b"1001"
    assert records.due_key(999_999, 1) == b"1000"
    assert records.later(Delivered(), "returns", 0.0001, "", MAX_BYTES).after_ms == 1


@pytest.mark.parametrize("sent", [b"\x00value", b"", None])
def test_a_dead_letter_holds_a_request_that_returns_the_message_as_its_first_attempt(sent: bytes | None) -> None:
    message = Delivered(value=sent, headers=[("trace", b"1"), ("null", None)], attempt=4)
    letter = records.letter(message, "returns", "rejected", "too old", MAX_BYTES)
    decoded = dead_letter.decode(letter.headers)
    assert decoded is not None
    assert (decoded.code, decoded.message, decoded.source) == ("rejected", "too old", "jobs/3/14")
    again = Later(0, letter.value or b"", list(decoded.headers), "")
    topic, key, value, headers = fired(again, 1_800_000_000)
    assert (topic, key, records.returned_value(value, headers)) == ("returns", b"\xff", sent)
    assert records.user_headers(headers, returned=True) == message.headers
    assert records.identity(Record("returns", headers), returned=True) == Identity("jobs/3/14", 1_700_000_000_123, 1)


def test_what_the_brokers_refuse_becomes_a_truncated_dead_letter() -> None:
    for record, code in (
        (records.later(Delivered(), "returns", 1, "", MAX_BYTES), "rejected"),
        (records.letter(Delivered(), "returns", "attempts-exhausted", "why", MAX_BYTES), "attempts-exhausted"),
        (records.output(Delivered(), "results", "key", None), "rejected"),
    ):
        stub = records.truncated_letter(record, "too large")
        decoded = dead_letter.decode(stub.headers)
        assert decoded is not None and (stub.has_key, stub.value) == (False, None)
        assert (decoded.code, decoded.message, decoded.source) == (code, "too large", "jobs/3/14")


def test_copies_of_commits_are_read_and_other_records_are_not() -> None:
    commit = Commit(7, "q1.log-name.7....")
    assert records.decode_copy(*records.encode_copy(("jobs", 3), commit)) == (("jobs", 3), commit)
    for key, value in [
        (None, None),
        (b"jobs/3", None),
        (b"jobs", b"7 x"),
        (b"jobs/3", b"x"),
        (b"/3", b"7 "),
        (b"\xff", b"\xff"),
    ]:
        assert records.decode_copy(key, value) is None


@pytest.mark.parametrize(("key", "headers"), [(b"k" * 1000, []), (None, [("h" * 400, b"v" * 600), ("null", None)])])
def test_the_size_of_a_record_counts_its_key_and_headers(key: bytes | None, headers: Headers) -> None:
    class Sized(Record):
        def key(self) -> bytes | None:
            return key

        def __len__(self) -> int:
            return 7

    assert 1007 <= records.size_of(Sized("jobs", headers)) <= 2007
