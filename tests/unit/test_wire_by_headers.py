"""Requests without protobuf: the header ``timer-topic`` names the topic, and the value is the payload."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.harness.machines import MachineRig, NativeRig
from timers.core.levels import (
    BY_HEADERS,
    BY_HEADERS_TRIMMED,
    FIRST,
    RAISED_TO,
    READABLE_LATE,
    SNAPSHOTS,
    SUPPORTED,
    TRIMMING,
    allows_trimming,
    says_trimmed,
    wanted,
)
from timers.core.progress import FEATURE_LEVEL, LOG_TRIMMED, Progress
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


def by_key(value: bytes | None, *headers: Header, level: int = BY_HEADERS) -> Any:
    return NATIVE.decoder(level, rejects_overdue=False)([record(b"9", value, *headers)], 1_000)


def by_id(value: bytes | None, *headers: Header, level: int = BY_HEADERS) -> Any:
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
    """From the level on: a nil slice or ``undefined`` is null in some clients. Below it, it cancels as before."""
    decoded = by_id(None, *headers, level=READABLE_LATE)
    assert (decoded.operations, decoded.rows, decoded.null_requests) == ([], {}, [])
    (rejected,) = decoded.rejected
    assert (rejected.code, rejected.value, rejected.headers) == ("value-missing", None, tuple(headers))
    assert "or send a cancel without these two headers" in rejected.message
    if ("timer-if", b"absent") not in headers:
        before = by_id(None, *headers, level=READABLE_LATE - 1)
        assert (before.operations, before.null_requests) == ([(b"order-17", 3, None, 1)], [3])


@pytest.mark.parametrize("headers", [[], [("a", b"1")], [("timer-if", b"ids/0/2")], [("timer-key", b"k")]])
def test_a_cancel_stays_one(headers: list[Header]) -> None:
    for level in (FIRST, READABLE_LATE):
        decoded = by_id(None, *headers, level=level)
        assert (decoded.operations, decoded.null_requests) == ([(b"order-17", 3, None, 1)], [])


def test_below_the_level_a_cancel_that_looks_like_a_request_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    rig = MachineRig(BY_ID_FORMAT, topic="ids-of-this-test")
    rig.observe(0)

    def ask(value: bytes | None) -> None:
        rig.log.append(rig.topic, b"order-17", value, [DUE], partition=0)
        rig.read_all()

    for value in (future.encode("t", "k", b"v"), None, None):
        ask(value)
    (said,) = caplog.messages
    assert said.startswith("ids-of-this-test/0/1 has no value") and f"`timers levels --raise {RAISED_TO}`" in said
    assert rig.machine.find(b"order-17") is None
    rig.machine.raise_level(READABLE_LATE)
    ask(future.encode("t", "k", b"v"))
    ask(None)
    rig.machine.commit_progress()
    for wipe in (False, True):
        rig.open(wipe=wipe)
        rig.read_all()
        assert rig.keys[-1] == (9, 3) and rig.machine.find(b"order-17") is not None
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("value", [JSON, b"", b"\n", future.encode("no topic", "", b"")])
@pytest.mark.parametrize("level", [FIRST, TRIMMING])
def test_below_the_level_a_dead_letter_says_so(value: bytes, level: int) -> None:
    for decoded in (by_key(value, TO_ORDERS, level=level), by_id(value, TO_ORDERS, DUE, level=level)):
        (rejected,) = decoded.rejected
        assert rejected.code == "level-too-low"
        assert f"from feature level {BY_HEADERS} on: `timers levels --raise {RAISED_TO}`" in rejected.message
        assert decoded.rows == {}


def test_below_the_level_what_was_a_request_stays_one() -> None:
    value = future.encode("elsewhere", "k", b"v")
    assert by_key(value, TO_ORDERS, level=TRIMMING).rows == {9: [(3, "elsewhere", "k", b"v", None, None)]}
    assert by_key(bytes(1_001), TO_ORDERS, level=TRIMMING).rejected[0].code == "value-too-large"
    assert by_key(None, TO_ORDERS, level=TRIMMING).rejected[0].code == "value-missing"


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
    sent = Rejected(3, "level-too-low", "a sentence", b"9", JSON, (TO_ORDERS, ("timer-key", b"17"), ("a", b"1")))
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
    too_early = decide(letter, letter.request, None, 1_000, False, BY_HEADERS - 1)
    assert too_early.request is None and f"`timers levels --raise {RAISED_TO}` allows it" in too_early.reason
    assert decide(letter, letter.request, None, 1_000, True, BY_HEADERS - 1).request is not None


def test_a_machine_reads_each_request_at_its_level_also_in_a_replay() -> None:
    rig = NativeRig()
    rig.observe(0)

    def ask() -> None:
        rig.log.append(rig.topic, b"9", JSON, [TO_ORDERS], partition=0)
        rig.read_all()

    ask()
    assert (rig.keys, len(rig.outbox.commits[-1][1])) == ([], 1)
    rig.machine.raise_level(BY_HEADERS)
    ask()
    rig.machine.commit_progress()
    assert rig.keys == [(9, 1)]
    rig.open(wipe=True)
    rig.read_all()
    assert rig.keys == [(9, 1)]


@pytest.mark.parametrize(
    ("level", "permitted", "unverified", "verified"),
    [
        (FIRST, FIRST, FIRST, FIRST),
        (FIRST, SNAPSHOTS, SNAPSHOTS, SNAPSHOTS),
        (SNAPSHOTS, TRIMMING, SNAPSHOTS, TRIMMING),
        (SNAPSHOTS, BY_HEADERS, BY_HEADERS, TRIMMING),
        (SNAPSHOTS, BY_HEADERS_TRIMMED, BY_HEADERS, BY_HEADERS_TRIMMED),
        (TRIMMING, BY_HEADERS, TRIMMING, TRIMMING),
        (TRIMMING, BY_HEADERS_TRIMMED, BY_HEADERS_TRIMMED, BY_HEADERS_TRIMMED),
        (BY_HEADERS, 99, RAISED_TO, RAISED_TO),
        (TRIMMING, 99, RAISED_TO, RAISED_TO),
        (READABLE_LATE, BY_HEADERS_TRIMMED, BY_HEADERS, BY_HEADERS_TRIMMED),
    ],
)
def test_no_raise_forgets_that_a_log_begins_late_or_says_so_of_one_that_was_not_compared(
    level: int, permitted: int, unverified: int, verified: int
) -> None:
    assert wanted(level, permitted, is_verified=False) == unverified
    assert wanted(level, permitted, is_verified=True) == verified
    if unverified < READABLE_LATE:
        assert says_trimmed(unverified) == says_trimmed(level)
    assert [each for each in range(FIRST, SUPPORTED + 1) if says_trimmed(each)] == [TRIMMING, BY_HEADERS_TRIMMED]


def test_from_the_level_on_that_says_it_no_raise_forgets_that_a_log_begins_late() -> None:
    trimmed = Progress.first(BY_HEADERS_TRIMMED).with_setting(FEATURE_LEVEL, READABLE_LATE)
    assert trimmed.settings.trims
    whole = Progress.first(BY_HEADERS).with_setting(FEATURE_LEVEL, READABLE_LATE)
    assert not whole.settings.trims
    assert whole.with_setting(LOG_TRIMMED, 1).settings.trims
    assert [each for each in range(FIRST, SUPPORTED + 1) if allows_trimming(each)] == [6, 8, 9, 10, 11]


@pytest.mark.parametrize("payload", [JSON, future.encode("secret", "k", b"nested")])
def test_what_is_said_of_a_request_that_cannot_be_read_follows_its_header_and_not_its_payload(payload: bytes) -> None:
    """A user sees the dead letters of the topics that the user may see."""
    headers = [TO_ORDERS, ("timer-key", b"17")]
    assert future.summarize_request(b"1700000000000", payload, headers) == (None, "orders", b"17")
