"""What a queue writes for a retry and a dead letter, and what it believes of a record that comes back."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from time import monotonic
from typing import Any, cast

import pytest
from confluent_kafka import Message as KafkaMessage

from tests.harness import queue_state
from tests.harness.queue_state import SIGNING
from tests.harness.waiting import DEADLINE_S
from timers.client import PartlyPublishedError, publish
from timers.errors import InvalidTimerError, PublishError, UnacknowledgedError
from timers.kafka.brokers_time import BrokersTime
from timers.kafka.request_formats import NATIVE
from timers.queue import Message, records, sending
from timers.queue.metadata import Start
from timers.queue.records import (
    ERROR,
    NO_VALUE,
    SENT,
    SIGNATURE,
    SOURCE,
    Content,
    Identity,
    Signing,
    returned_value,
    size_of,
)
from timers.queue.sending import Sender
from timers.queue.transactions import due_key
from timers.wire import dead_letter
from timers.wire.formats import RequestRecord
from timers.wire.headers import ATTEMPT, Header

MAX_BYTES = 1_000_000
Headers = list[tuple[str, bytes | None]]


def content(
    key: bytes | None = b"\xff",
    value: bytes | None = b"\x00value",
    headers: Headers | None = None,
    attempt: int = 1,
    source: str = "jobs/3/14",
    sent_ms: int = 1_700_000_000_123,
) -> Content:
    return Content(source, sent_ms, attempt, key, value, headers or [])


def kafka_record(topic: str, headers: Headers, key: bytes | None = None, value: bytes | None = None) -> Any:
    content: Any = {"key": key, "value": value, "headers": headers}
    return KafkaMessage(topic=topic, partition=0, offset=5, timestamp=(2, 99), **content)


def fired(later: records.Record, due_s: int) -> tuple[str, bytes | None, bytes, Headers]:
    """The callback of a timer, as the worker decodes its request."""
    headers: Headers = [(name, data.encode() if isinstance(data, str) else data) for name, data in later.headers]
    read = NATIVE.read(RequestRecord(0, b"%d" % due_s, later.value, headers, due_s * 1000))
    ((_, (row,)),) = read.rows.items()
    key = row[2].encode() if isinstance(row[2], str) else row[2]
    return row[1], key, row[3], list(row[4] or ())


def back(request: records.Record) -> Any:
    """The callback of a timer as a record of the returns topic."""
    topic, key, value, headers = fired(request, 1_800_000_000)
    return kafka_record(topic, headers, key, value)


def identity(record: Any, signing: Signing = SIGNING) -> Identity:
    """What a record of the returns topic is; without the sentence on a doubt."""
    found = records.identity(record, signing)
    return found._replace(doubt=found.doubt and "a doubt")


OF_ITS_OWN = Identity("queue.jobs-returns/0/5", 99, 1, "a doubt")


def test_a_retry_comes_back_as_it_was_sent() -> None:
    message = content(headers=[("trace", b"1"), ("null", None), ("trace", b"2")], attempt=4)
    record = back(records.later(message, SIGNING, 5, "no answer", MAX_BYTES))
    assert (record.topic(), record.key(), record.value()) == ("queue.jobs-returns", b"\xff", b"\x00value")
    assert records.user_headers(record.headers(), returned=True) == message.headers
    assert identity(record) == Identity("jobs/3/14", 1_700_000_000_123, 5)
    assert dict(record.headers())[ERROR] == b"no answer"
    assert returned_value(record.value(), record.headers()) == b"\x00value"


@pytest.mark.parametrize("sent", [None, b""])
@pytest.mark.parametrize("key", [None, b""])
def test_null_comes_back_as_null_and_empty_as_empty(key: bytes | None, sent: bytes | None) -> None:
    record = back(records.later(content(key=key, value=sent), SIGNING, 0, "", MAX_BYTES))
    assert (record.key(), returned_value(record.value(), record.headers())) == (key, sent)
    assert not identity(record).doubt


@pytest.mark.parametrize("sent_ms", [-1, 0, 10**17])
def test_a_message_keeps_its_time_of_sending_whatever_it_is(sent_ms: int) -> None:
    """It is a part of the message's id."""
    record = back(records.later(content(sent_ms=sent_ms), SIGNING, 0, "", MAX_BYTES))
    assert identity(record).sent_ms == sent_ms


def test_headers_of_identity_count_on_the_returns_topic_only() -> None:
    copied = back(records.later(content(), SIGNING, 0, "", MAX_BYTES)).headers()
    assert records.identity(kafka_record("jobs", copied), None) == Identity("jobs/0/5", 99, 1)
    assert records.user_headers(copied, returned=False) == copied
    message = content(headers=[*copied, ("a", b"1")], attempt=1, source="jobs/0/6")
    again = back(records.later(message, SIGNING, 0, "", MAX_BYTES))
    assert identity(again) == Identity("jobs/0/6", 1_700_000_000_123, 2)
    assert records.user_headers(again.headers(), returned=True) == [("a", b"1")]


@pytest.mark.parametrize("text", [b"", b"-2", b"1" * 20, "²".encode(), b"1.00", b".", None])
def test_a_record_that_is_not_signed_is_a_message_of_its_own(text: bytes | None) -> None:
    for names in ([SIGNATURE], [SOURCE, ATTEMPT, SENT, SIGNATURE], [SOURCE, SENT]):
        assert identity(kafka_record("queue.jobs-returns", [(name, text) for name in names])) == OF_ITS_OWN


CHANGED: list[tuple[str, Any]] = [
    ("key", b"other"),
    ("key", None),
    ("value", b"other"),
    ("value", b""),
    (SOURCE, b"jobs/3/15"),
    (SENT, b"1700000000124"),
    (ATTEMPT, b"999"),
    (ATTEMPT, b"04"),
    (NO_VALUE, b""),
    (SIGNATURE, b"1." + b"0" * 64),
]


@pytest.mark.parametrize(("part", "changed"), CHANGED)
def test_a_changed_record_is_a_message_of_its_own(part: str, changed: Any) -> None:
    message = content(value=b"" if part == NO_VALUE else b"\x00value", attempt=4)
    record = back(records.later(message, SIGNING, 0, "", MAX_BYTES))
    assert not identity(record).doubt
    if part in ("key", "value"):
        getattr(record, f"set_{part}")(changed)
    else:
        record.set_headers([*record.headers(), (part, changed)])  # the last one counts
    assert identity(record) == OF_ITS_OWN


def test_what_another_queue_signed_with_the_same_key_does_not_count() -> None:
    other = Signing("jobs2", {1: b"k" * 32})
    record = back(records.later(content(), other, 0, "", MAX_BYTES))
    forged = kafka_record(SIGNING.returns_topic, record.headers(), record.key(), record.value())
    assert identity(forged) == OF_ITS_OWN


def test_all_keys_count_and_the_first_one_signs() -> None:
    first, second = Signing("jobs", {7: b"a" * 32, 9: b"b" * 32}), Signing("jobs", {9: b"b" * 32})
    for signing in (first, second):
        assert not identity(back(records.later(content(), signing, 0, "", MAX_BYTES)), first).doubt
    assert identity(back(records.later(content(), first, 0, "", MAX_BYTES)), second) == OF_ITS_OWN


@pytest.mark.parametrize("changes", [{"key": b"k"}, {"value": b"v"}, {"key": None, "value": None}])
def test_parts_cannot_be_moved_into_each_other(changes: dict[str, Any]) -> None:
    """The signature covers where each part ends."""
    key, value = {"key": b"ab", "value": b"c"}, {"key": b"a", "value": b"bc"}
    signed = [dict(SIGNING.sign("jobs/0/1", 1, 0, **parts)) for parts in (key, value, key | changes)]
    assert len({each[SIGNATURE] for each in signed}) == 3


def test_a_message_larger_than_a_request_is_refused() -> None:
    with pytest.raises(InvalidTimerError, match="TIMERS_MAX_REQUEST_BYTES"):
        records.later(content(value=b"x" * 2000), SIGNING, 1, "", 1000)


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
        records.output(content().source, "results", **sent)
    with pytest.raises(InvalidTimerError, match=error):
        sender_of(Published()).send([(sent["key"], sent["value"], sent["headers"])])


class Published:
    """A publisher that notes what it is given, and answers at once, with an error for some values."""

    timeout_s = 1.0

    def __init__(self, *refused: bytes, failure: PublishError | None = None) -> None:
        self.records: list[tuple[bytes | None, bytes | None, Headers]] = []
        self._refused, self._failure = refused, failure or PublishError("refused")

    def open(self, deadline: float) -> None:
        """Do nothing: there is no broker."""

    def submit_record(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        on_result: Callable[[Any], None],
        timestamp_ms: int,
    ) -> None:
        self.records.append((key, value, headers))
        on_result(self._failure if value in self._refused else f"{topic}/0/{len(self.records) - 1}")


def sender_of(published: Published) -> Sender:
    sender = Sender.__new__(Sender)
    sender._topic, sender._publisher, sender._kafka = "jobs", cast(Any, published), cast(Any, None)
    sender.brokers_time = BrokersTime(dict)
    return sender


def test_messages_are_values_or_pairs_or_have_headers() -> None:
    published = Published()
    sent = [b"a", "b", bytearray(b"c"), ("k", b"d"), (None, "e"), (b"k", b"f", None), ["k", b"g", {"n": "1"}]]
    assert sender_of(published).send(cast(Any, sent)) == [f"jobs/0/{number}" for number in range(7)]
    assert [(key, value) for key, value, _ in published.records] == [
        *((None, value) for value in (b"a", b"b", b"c")),
        *((b"k", b"d"), (None, b"e"), (b"k", b"f"), (b"k", b"g")),
    ]
    assert [headers for *_, headers in published.records] == [[]] * 6 + [[("n", b"1")]]


def test_a_generator_of_many_messages_is_sent_and_a_wrong_one_is_named_by_its_place() -> None:
    published = Published()
    assert len(sender_of(published).send(b"%d" % number for number in range(20_000))) == 20_000
    with pytest.raises(InvalidTimerError, match=r"^message 1: .* is of type int.*the 1 before it are sent") as error:
        sender_of(published).send(cast(Any, [b"a", 5]))
    assert error.value.ids == ["jobs/0/20000"]


@pytest.mark.parametrize(
    ("failure", "unknown"), [(PublishError("refused"), set()), (UnacknowledgedError("no answer"), {0})]
)
def test_a_wrong_message_hides_not_what_was_not_taken_before(failure: PublishError, unknown: set[int]) -> None:
    published = Published(b"b", failure=failure)
    with pytest.raises(PartlyPublishedError, match=rf"^2 of 3 messages .*: {failure}$") as error:
        sender_of(published).send(cast(Any, [b"b", b"a", 5]))
    assert error.value.ids == [None, "jobs/0/1", None]
    assert (error.value.unknown, error.value.read) == (frozenset(unknown), 3)
    assert "is of type int" in str(error.value.__cause__)


def test_messages_that_the_brokers_refuse_are_told_apart() -> None:
    with pytest.raises(PublishError, match=r"^refused$"):
        sender_of(Published(b"b")).send([b"b"])
    with pytest.raises(
        PartlyPublishedError, match=r"^1 of 3 messages were not taken by the brokers: refused$"
    ) as error:
        sender_of(Published(b"b")).send([b"a", b"b", b"c"])
    assert error.value.ids == ["jobs/0/0", None, "jobs/0/2"]


def test_answers_that_come_after_a_long_reading_count(monkeypatch: pytest.MonkeyPatch) -> None:
    read_s = 0.0
    for module in (sending, publish):
        monkeypatch.setattr(module, "monotonic", lambda: monotonic() + read_s)

    class Late(Published):
        timeout_s = DEADLINE_S

        def submit_record(self, *record: Any, timestamp_ms: int) -> None:  # type: ignore[override]
            threading.Timer(0.05, super().submit_record, (*record, timestamp_ms)).start()

    def slowly() -> Iterator[bytes]:
        nonlocal read_s
        for number in range(3):
            read_s += Late.timeout_s / 2  # together longer than a call may wait
            yield b"%d" % number

    assert len(sender_of(Late()).send(slowly())) == 3


def test_messages_before_one_that_cannot_be_submitted_are_told() -> None:
    class TooLarge(Published):
        def submit_record(
            self, topic: str, key: Any, value: Any, headers: Any, on_result: Callable[[Any], None], timestamp_ms: int
        ) -> None:
            if value == b"large":
                raise PublishError("too large")
            super().submit_record(topic, key, value, headers, on_result, timestamp_ms)

    published = TooLarge()
    with pytest.raises(PartlyPublishedError, match=r"^1 of 3 messages .*: too large$") as error:
        sender_of(published).send([b"a", b"b", b"large", b"not read"])
    assert error.value.ids == ["jobs/0/0", "jobs/0/1", None]
    assert [value for _, value, _ in published.records] == [b"a", b"b"]


def test_an_output_keeps_its_headers() -> None:
    made = records.output(
        content().source, "results", "k", None, [("timer-a", "1"), ("b", None), ("b", bytearray(b"2"))]
    )
    assert (made.topic, made.key, made.value, made.source) == ("results", b"k", None, "jobs/3/14")
    assert made.headers == [("timer-a", b"1"), ("b", None), ("b", b"2")]


def test_delays_are_rounded_up_from_the_brokers_time() -> None:
    assert due_key(1_000_000, 0) == b"1000"
    assert due_key(1_000_001, 0) == b"1001"
    assert due_key(999_999, 1) == b"1000"
    assert records.later(content(), SIGNING, 0.0001, "", MAX_BYTES).after_ms == 1


@pytest.mark.parametrize("sent", [b"\x00value", b"", None])
def test_a_dead_letter_holds_a_request_that_returns_the_message_as_its_first_attempt(sent: bytes | None) -> None:
    message = content(value=sent, headers=[("trace", b"1"), ("null", None)], attempt=4)
    letter = records.letter(message, SIGNING, "rejected", "too old", MAX_BYTES)
    decoded = dead_letter.decode(letter.headers)
    assert decoded is not None
    assert (decoded.code, decoded.message, decoded.source) == ("rejected", "too old", "jobs/3/14")
    again = letter._replace(headers=list(decoded.headers))
    record = back(again)
    found = record.topic(), record.key(), returned_value(record.value(), record.headers())
    assert found == ("queue.jobs-returns", b"\xff", sent)
    assert records.user_headers(record.headers(), returned=True) == message.headers
    assert identity(record) == Identity("jobs/3/14", 1_700_000_000_123, 1)


def test_what_the_brokers_refuse_becomes_a_truncated_dead_letter() -> None:
    for record, code in (
        (records.later(content(), SIGNING, 1, "", MAX_BYTES), "rejected"),
        (records.letter(content(), SIGNING, "attempts-exhausted", "why", MAX_BYTES), "attempts-exhausted"),
        (records.output(content().source, "results", "key", None), "rejected"),
    ):
        stub = records.truncated_letter(record, "too large")
        decoded = dead_letter.decode(stub.headers)
        assert decoded is not None and (stub.after_ms, stub.value) == (None, None)
        assert (decoded.code, decoded.message, decoded.source) == (code, "too large", "jobs/3/14")


@pytest.mark.parametrize(("key", "headers"), [(b"k" * 1000, []), (None, [("h" * 400, b"v" * 600), ("null", None)])])
def test_the_size_of_a_record_counts_its_key_and_headers(key: bytes | None, headers: Headers) -> None:
    assert 1007 <= size_of(kafka_record("jobs", headers, key, bytes(7))) <= 2007


def test_what_the_queue_did_not_sign_becomes_a_dead_letter_and_reaches_no_receiver() -> None:
    state = queue_state.opened(0)
    ledger = queue_state.add(state, queue_state.RETURNS, 0)
    ledger.starts.allow(Start(0, 9))
    real = SIGNING.sign("jobs/0/7", 1_600_000_000_000, 2, b"key", b"4")
    forged: list[Header] = [
        ("queue-source", b"jobs/0/8"),
        ("queue-sent", b"1600000000000"),
        ("retry-attempt", b"999"),
        ("mine", b"1"),
    ]
    copied = [*real[:-1], ("retry-attempt", b"0"), real[-1]]
    for offset, headers in enumerate([forged, (), real, copied, real]):
        record = queue_state.record(*queue_state.RETURNS, 2 * offset, headers)  # the offset is also its value
        found = records.identity(record, SIGNING)
        ledger.read(offset, record, attempt=found.attempt, returned=found)
    assert [(each.source, each.attempt, each.id) for each in state.receive(Message, 9, 0)] == [
        ("jobs/0/7", 3, "jobs jobs/0/7 1600000000000")
    ]
    plan = state.member.settler.plan()
    assert plan is not None and [job.entry.offset for job in plan.jobs] == [0, 1, 3, 4]
    for job, at in zip(plan.jobs, (0, 2, 6, 8), strict=True):
        (letter,) = job.records
        assert letter.source == f"queue.jobs-returns/0/{at}", "it has no other message's name"
        said = dict(letter.headers)
        assert said["timer-error"] == b"unsigned"
        assert said["timer-error-message"].startswith(b"the queue 'jobs' did not send it back: it")
        # A retry of the dead letter delivers it, as a message of its own.
        again = SIGNING.identity(Identity("", 0, 0, "?"), b"key", b"%d" % at, letter.headers)
        assert again == Identity(letter.source, 1_700_000_000_000, 1)
    assert dict(plan.jobs[0].records[0].headers)["mine"] == b"1"
    assert state.counters().dead == {"unsigned": 4}


def test_a_list_of_delays_has_one_for_each_attempt_and_the_last_for_all_others() -> None:
    delays: list[float | timedelta] = [5, timedelta(minutes=1), 300.0]
    assert [records.delay_s(delays, attempt) for attempt in (1, 2, 3, 4, 99)] == [5, 60, 300, 300, 300]
    assert records.delay_s((7,), 3) == 7
    for wrong in ([], [5, "x"], [5, -1], "5", [[5]]):
        with pytest.raises(InvalidTimerError, match="is not a number of seconds"):
            records.delay_s(cast(Any, wrong), 1)
