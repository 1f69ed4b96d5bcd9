"""The format of kafka-mq-go's markers. The bytes are those that its Go code writes."""

import pytest

from tests.harness.discarding import UsableTopics, discarding
from timers.core.timer import Origin, Row
from timers.errors import SettingsError
from timers.kafka.request_formats import enabled_formats
from timers.machines.firing.policy import MarkerPolicy, policy_of
from timers.process.config.settings import Settings
from timers.wire.formats import RequestRecord, marker

START = bytes.fromhex("1a05080110812420904e2a05717565756532026869")
"""Message 1/4609 of the queue ``queue``: ``hi``, delivered again after 10 s."""
KEEP_ALIVE = bytes.fromhex("10021a05080110812420904e")
END = bytes.fromhex("10011a050801108124")
FIRST_END = bytes.fromhex("10011a00")
"""Of the message 0/0: the Go code leaves out zeros."""

AT_MS = 1_800_000_000_001
DUE_S = 1_800_000_011
ROW: Row = (5, "messages", b"queue", b"hi", None, Origin("1/4609", DUE_S, 0))


def record(value: bytes | None, timestamp_ms: int = AT_MS) -> RequestRecord:
    return RequestRecord(5, b"queue", value, None, timestamp_ms)


def test_a_start_holds_the_message_and_its_lease() -> None:
    decoded = marker.decode([record(START)], 1000, "messages")
    assert decoded.rows == {DUE_S: [ROW]}
    assert decoded.operations == [(b"1/4609", 5, DUE_S, AT_MS // 1000)]
    assert marker.encode_start("1/4609", b"queue", b"hi", 10_000) == START


def test_a_lease_is_rounded_up_to_a_whole_second() -> None:
    for at_ms, due_s in ((1_000, 11), (1_001, 12), (1_999, 12), (2_000, 12)):
        assert marker.decode([record(START, at_ms)], 1000).operations[0][2] == due_s


def test_a_keep_alive_has_a_lease_and_no_message() -> None:
    decoded = marker.decode([record(KEEP_ALIVE)], 1000)
    assert (decoded.rows, decoded.operations) == ({}, [(b"1/4609", 5, DUE_S, AT_MS // 1000)])
    assert marker.encode_keep_alive("1/4609", 10_000) == KEEP_ALIVE


def test_an_end_has_neither() -> None:
    for value, id in ((END, "1/4609"), (FIRST_END, "0/0")):
        decoded = marker.decode([record(value, -1)], 1000)
        assert (decoded.rows, decoded.operations) == ({}, [(id.encode(), 5, None, -1)])
        assert marker.encode_end(id) == value


def test_a_message_may_be_empty() -> None:
    """The Go code leaves out an empty key or value, and a lease of 0 ms."""
    (row,) = marker.decode([record(bytes.fromhex("1a00"))], 1000, "messages").rows[AT_MS // 1000 + 1]
    assert row[2:4] == (b"", b"")


def test_unknown_fields_are_ignored() -> None:
    assert marker.decode([record(START + bytes.fromhex("f80101"))], 1000, "messages").rows == {DUE_S: [ROW]}


@pytest.mark.parametrize(
    ("value", "code", "sentence"),
    [
        (None, "value-missing", "no value"),
        (b"x" * 1001, "value-too-large", "1001 bytes"),
        (b'{"type": "START"}', "value-not-a-marker", "17 bytes"),
        (START[:-1], "value-not-a-marker", "Marker message"),
        (b"", "marker-invalid", "no message_id"),
        (b"\x08\x01" + START, "marker-invalid", "version 1"),
        (b"\x10\x03" + START[:7], "marker-invalid", "type 3"),
        (bytes.fromhex("1a0b08ffffffffffffffffff01"), "marker-invalid", "partition -1"),
        (bytes.fromhex("1a0b10ffffffffffffffffff01"), "marker-invalid", "offset -1"),
        (START + bytes.fromhex("20ffffffffffffffffff01"), "marker-invalid", "redeliver_after_ms=18446744073709551615"),
    ],
)
def test_what_is_no_marker_becomes_a_dead_letter(value: bytes | None, code: str, sentence: str) -> None:
    decoded = marker.decode([record(value), record(END)], 1000)
    (rejected,) = decoded.rejected
    assert (rejected.code, rejected.key, rejected.value) == (code, b"queue", value)
    assert sentence in rejected.message
    assert len(decoded.operations) == 1, "the next marker is read"


def test_a_lease_needs_a_timestamp() -> None:
    (rejected,) = marker.decode([record(START, -1)], 1000).rejected
    assert rejected.code == "time-missing"


def test_a_dead_letter_that_is_retried_delivers_the_message_at_once() -> None:
    key, value, headers = marker.rebuild_request(ROW, Origin("1/4609", DUE_S, 3))
    again = marker.decode([RequestRecord(9, key, value, headers, DUE_S * 1000)], 1000, "messages")
    assert again.rows == {DUE_S: [(9, *ROW[1:])]}


SETTINGS = {"TIMERS_MARKER_TOPIC": "markers", "TIMERS_MESSAGE_TOPIC": "messages"}


def test_messages_go_to_the_queue_topic_of_the_settings() -> None:
    request_format = enabled_formats(Settings.load(SETTINGS))["markers"]
    assert request_format.read(record(START)).rows == {DUE_S: [ROW]}
    assert request_format.is_request_of(record(START), ROW, Origin("1/4609", DUE_S, 0, "markers/0/5"))
    assert not request_format.is_request_of(record(KEEP_ALIVE), ROW, Origin("1/4609", DUE_S, 0, "markers/0/5"))
    known = UsableTopics({})
    assert isinstance(policy_of(Settings.load(SETTINGS), known, discarding(known, ("markers", 0))), MarkerPolicy)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"TIMERS_MESSAGE_TOPIC": ""}, "TIMERS_MESSAGE_TOPIC is not set"),
        ({"TIMERS_MARKER_TOPIC": ""}, "TIMERS_MARKER_TOPIC is not set"),
        ({"TIMERS_MESSAGE_TOPIC": "markers"}, "is the topic of TIMERS_MARKER_TOPIC"),
        ({"TIMERS_MESSAGE_TOPIC": "oscillator"}, "is the topic of TIMERS_OSCILLATOR_TOPIC"),
        ({"TIMERS_MARKER_TOPIC": "oscillator"}, "give each its own name"),
    ],
)
def test_settings_that_do_not_fit_together_stop_the_start(changes: dict[str, str], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        Settings.load({**SETTINGS, **changes})
