"""Requests without protobuf: the header ``timer-topic`` names the topic, and the value is the payload."""

from types import SimpleNamespace
from typing import Any

import pytest

from timers.core.levels import FIRST_LEVEL, RAISED_TO_LEVEL
from timers.core.timer import Origin, Rejected
from timers.kafka.request_formats import NATIVE, REQUEST_FORMATS, enabled_formats
from timers.offline.dead_letters.letters import Letter
from timers.offline.dead_letters.retrying import decide
from timers.process.config.settings import Settings
from timers.wire import dead_letter, future
from timers.wire.formats import RequestRecord
from timers.wire.headers import Header

BY_ID_FORMAT = REQUEST_FORMATS[1].request_format
JSON = b'{"order": 17}'
TO_ORDERS: Header = ("timer-topic", b"orders")
DUE: Header = ("timer-due", b"9")


def record(key: bytes | None, value: bytes | None, *headers: Header) -> RequestRecord:
    return RequestRecord(3, key, value, list(headers), 1_000)


def by_key(value: bytes | None, *headers: Header, level: int = FIRST_LEVEL) -> Any:
    return NATIVE.decoder(level, rejects_overdue=False)([record(b"9", value, *headers)], 1_000)


def by_id(value: bytes | None, *headers: Header, level: int = FIRST_LEVEL) -> Any:
    return BY_ID_FORMAT.decoder(level, rejects_overdue=False)([record(b"order-17", value, *headers)], 1_000)


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ([TO_ORDERS], None),
        ([TO_ORDERS, ("timer-key", b"17")], b"17"),
        ([TO_ORDERS, ("timer-key", b"\xff")], b"\xff"),
        ([TO_ORDERS, ("timer-key", None)], None),
        ([("timer-topic", b"others"), TO_ORDERS], None),
    ],
)
@pytest.mark.parametrize("value", [JSON, b"", b"\n", future.encode("elsewhere", "k", b"v")])
def test_the_value_is_the_payload_whatever_it_is(value: bytes, headers: list[Header], key: bytes | None) -> None:
    assert by_key(value, *headers).rows == {9: [(3, "orders", key, value, None, None)]}
    assert by_id(value, *headers, DUE).rows == {9: [(3, "orders", key, value, None, Origin("order-17", 9, 0))]}


def test_the_callback_gets_the_other_headers() -> None:
    sent = [("a", b"1"), TO_ORDERS, ("timer-id", b"forged"), ("a", None)]
    for rows in (by_key(JSON, *sent).rows, by_id(JSON, *sent, DUE).rows):
        assert rows[9][0][4] == [("a", b"1"), ("a", None)]


@pytest.mark.parametrize(
    ("value", "headers", "code", "said"),
    [
        (None, [TO_ORDERS], "value-missing", "it is the payload"),
        (bytes(1_001), [TO_ORDERS], "value-too-large", "1001 bytes"),
        (JSON, [("timer-topic", b"")], "topic-missing", "header timer-topic"),
        (JSON, [("timer-topic", None)], "topic-missing", "header timer-topic"),
        (JSON, [("timer-topic", b"no topic")], "topic-invalid", "header timer-topic"),
        (JSON, [("timer-topic", b"\xff")], "topic-invalid", "header timer-topic"),
        (JSON, [TO_ORDERS, ("timer-if", b"absent")], "condition-without-id", "timer-if"),
    ],
)
def test_requests_that_cannot_be_read(value: bytes | None, headers: list[Header], code: str, said: str) -> None:
    (rejected,) = by_key(value, *headers).rejected
    assert (rejected.code, rejected.headers) == (code, tuple(headers))
    assert said in rejected.message


@pytest.mark.parametrize(
    "headers",
    [
        [TO_ORDERS],
        [DUE],
        [TO_ORDERS, DUE],
        [DUE, DUE],
        [("timer-due", None)],
        [("timer-topic", b"\xff" * 100_000)],
        [("a", b"1"), ("timer-if", b"ids/0/2"), DUE],
        [("timer-if", b"absent"), DUE],
    ],
)
def test_a_request_whose_client_has_lost_its_value_is_no_cancel(headers: list[Header]) -> None:
    """A nil slice or ``undefined`` is null in some clients."""
    decoded = by_id(None, *headers)
    assert (decoded.operations, decoded.rows) == ([], {})
    (rejected,) = decoded.rejected
    assert (rejected.code, rejected.value, rejected.headers) == ("value-missing", None, tuple(headers))
    assert "or send a cancel without these two headers" in rejected.message


@pytest.mark.parametrize("headers", [[], [("a", b"1")], [("timer-if", b"ids/0/2")], [("timer-key", b"k")]])
def test_a_cancel_stays_one(headers: list[Header]) -> None:
    for level in (FIRST_LEVEL, RAISED_TO_LEVEL):
        assert by_id(None, *headers, level=level).operations == [(b"order-17", 3, None, 1)]


def test_a_timer_is_rebuilt_as_a_request_for_the_same_callback() -> None:
    (row,) = by_key(JSON, TO_ORDERS, ("timer-key", b"17"), ("a", b"1")).rows[9]
    key, value, headers = NATIVE.rebuild_request(row, Origin("timer-request/0/3", 9, 0))
    (again,) = NATIVE.decode([record(key, value, *headers)], 1_000).rows[9]
    assert again == row


def test_its_record_is_found_again_for_a_dead_letter() -> None:
    sent = record(b"9", JSON, TO_ORDERS)
    row = (3, "orders", None, JSON, None, None)
    assert NATIVE.is_request_of(sent, row, Origin("timer-request/0/3", 9, 0))
    assert not NATIVE.is_request_of(sent._replace(value=b"other"), row, Origin("timer-request/0/3", 9, 0))


def test_a_dead_letter_shows_what_it_asks_for_and_is_published_again_as_it_was() -> None:
    sent = Rejected(3, "topic-unknown", "a sentence", b"9", JSON, (TO_ORDERS, ("timer-key", b"17"), ("a", b"1")))
    key, value, headers = dead_letter.encode(sent, "timer-request/0/3", 10_000)
    message = SimpleNamespace(
        topic=lambda: "dead",
        partition=lambda: 0,
        offset=lambda: 0,
        timestamp=lambda: (1, 1_000),
        key=lambda: key,
        value=lambda: value,
    )
    letter = Letter.of(message, headers, enabled_formats(Settings()))
    assert letter is not None
    assert letter.summary == (9, "orders", b"17")
    request = decide(letter, letter.request, None, 1_000, force=False).request
    assert request is not None
    assert (request.key, request.value, list(request.headers or ())) == (b"9", JSON, list(sent.headers))


@pytest.mark.parametrize("payload", [JSON, future.encode("secret", "k", b"nested")])
def test_what_is_said_of_a_request_that_cannot_be_read_follows_its_header_and_not_its_payload(payload: bytes) -> None:
    """A user sees the dead letters of the topics that the user may see."""
    headers = [TO_ORDERS, ("timer-key", b"17")]
    assert future.summarize_request(b"1700000000000", payload, headers) == (None, "orders", b"17")
