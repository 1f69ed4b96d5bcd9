"""Dead letters of the command line: how they are shown, selected and published again."""

import base64
from contextlib import AbstractContextManager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from confluent_kafka import Message

from timers.cli import dead_letters as command
from timers.cli.output import Output
from timers.core.timer import Rejected
from timers.errors import TimersError
from timers.kafka.request_formats import REQUEST_FORMATS
from timers.kafka.topic_admin import UNKNOWN_TOPIC_RETRY_S
from timers.offline.dead_letters import letters, retrying
from timers.offline.dead_letters.letters import (
    LETTER_COLUMNS,
    Letter,
    LetterFilter,
    LetterLog,
    Marks,
    QueueTopics,
    Span,
)
from timers.offline.dead_letters.retrying import decide
from timers.process.config.settings import Settings
from timers.wire import dead_letter, future
from timers.wire.dead_letter import Mark
from timers.wire.formats import RequestRecord, schedule
from timers.wire.headers import Header

VALUE = future.encode("orders", "o-1", b"v")
WRITTEN_MS = 1_800_000_000_500
HEADERS: list[Header] = [("trace", b"1"), ("null", None), ("other", b"\x00\xff")]
KINDS_BY_NAME = {kind.request_format.name: kind.request_format for kind in REQUEST_FORMATS}
FORMATS = {
    "timer-request": KINDS_BY_NAME["future"],
    "by-id": KINDS_BY_NAME["future-by-id"],
    "delay": KINDS_BY_NAME["countdown"],
    "schedules": KINDS_BY_NAME["schedule"],
}
MARK = Mark("dead/2/5", "timer-request/0/7", "timer-request/0/99")


def letter(
    key: bytes | None = b"1700000000",
    value: bytes | None = VALUE,
    headers: list[Header] = HEADERS,
    *,
    code: str = "topic-unknown",
    message: str = "it does not exist",
    source: str = "timer-request/0/7",
    max_bytes: int = 10**6,
) -> Letter:
    rejected = Rejected(7, code, message, key, value, headers)
    found = read(dead_letter.encode(rejected, source, max_bytes))
    assert found is not None
    return found


def read(written: dead_letter.DeadLetter) -> Letter | None:
    place: dict[str, Any] = {"topic": "dead", "partition": 2, "offset": 5, "timestamp": (1, WRITTEN_MS)}
    return Letter.of(Message(key=written.key, value=written.value, **place), written.headers, FORMATS)


def test_a_row_has_all_columns() -> None:
    cells = dict(zip(LETTER_COLUMNS, letter().cells(None), strict=True))
    assert cells == {
        "WRITTEN": "2027-01-15T08:00:00Z",
        "CODE": "topic-unknown",
        "POSITION": "2/5",
        "SOURCE": "timer-request/0/7",
        "TOPIC": "orders",
        "DUE": "2023-11-14T22:13:20Z",
        "RETRIED AS": "-",
    }
    assert letter().cells(MARK)[-1] == "timer-request/0/99"
    assert letter(b"soon", b"\xff").cells(None)[4:6] == ("-", "-")


def test_a_list_counts_what_was_retried(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """They stay in the topic of dead letters, so a list that only counts them looks as if a retry had done nothing."""

    class SimLog(AbstractContextManager[Any]):
        missing: ClassVar[dict[str, str]] = {}
        foreign = 0

        def __exit__(self, *_: object) -> None: ...

        def spans(self, letter_filter: LetterFilter) -> list[Any]:
            return []

        def read_marks(self, marks: Any) -> Any:
            return SimpleNamespace(of=lambda one: MARK if one.decoded.code == "crashed" else None)

        def read(self, letter_filter: LetterFilter, spans: list[Any]) -> list[Letter]:
            return [letter(code="crashed"), letter(), letter(code="crashed")]

    monkeypatch.setattr(letters, "LetterLog", lambda settings: SimLog())
    command.show_letters(Settings(), LetterFilter(), 1, Output())
    command.show_letters(Settings(), LetterFilter(), 0, Output(), "put back")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith("the newest 1 shown (--limit 0 shows all); 2 of them published again already")
    assert lines[1] == "3 dead letters: 2 crashed, 1 topic-unknown; 2 of them put back already"


def test_control_characters_of_a_dead_letter_are_escaped() -> None:
    shown = letter(value=future.encode("a\x1b[2Jb\n", "k", b"")).cells(None)[4]
    assert shown == r"a\x1b[2Jb\n"
    text = "\n".join(letter(headers=[("\x1b[1m", b"\x1b[2J")], message="a\x9bb").text(None))
    assert "\x1b" not in text and "\x9b" not in text


def test_an_impossible_timestamp_is_shown_in_milliseconds() -> None:
    one = letter()
    for at_ms in (-1, 2**62):
        assert replace(one, timestamp_ms=at_ms).cells(None)[0] == f"{at_ms} ms"


def test_json_marks_bytes_that_are_no_text() -> None:
    decoded = letter().fields(MARK)
    assert "request" not in decoded
    assert (decoded["code"], decoded["topic"], decoded["key"], decoded["due_s"]) == (
        "topic-unknown",
        "orders",
        "o-1",
        1_700_000_000,
    )
    assert (decoded["position"], decoded["retried_as"], decoded["truncated"]) == (
        "dead/2/5",
        "timer-request/0/99",
        False,
    )
    whole = letter().fields(None, with_request=True)["request"]
    assert whole["key"] == "1700000000"
    assert whole["headers"] == [
        ["trace", "1"],
        ["null", None],
        ["other", {"base64": base64.b64encode(b"\0\xff").decode()}],
    ]


def test_a_callback_key_that_is_no_text_is_not_changed() -> None:
    headers: list[Header] = [
        (schedule.EPOCH, b"1700000000"),
        (schedule.TARGET_TOPIC, b"orders"),
        (schedule.TARGET_KEY, b"a\xff"),
    ]
    of_schedule = letter(b"id", b"", headers, source="schedules/0/7")
    assert of_schedule.fields(None)["key"] == {"base64": base64.b64encode(b"a\xff").decode()}
    assert "key         'a\\xff'" in of_schedule.text(None)


def test_bytes_are_text_or_hexadecimal() -> None:
    lines = list(letter(b"line\nline", b"\x00text\xff" * 4).text(None))
    assert lines[lines.index("request key, 9 bytes") + 1 :][:2] == ["  line", "  line"]
    at = lines.index("request value, 24 bytes")
    assert lines[at + 1] == "  000000  00 74 65 78 74 ff 00 74 65 78 74 ff 00 74 65 78  .text..text..tex"
    assert lines[at + 2] == "  000010  74 ff 00 74 65 78 74 ff                          t..text."
    assert "  null, null" in lines


def test_a_truncated_dead_letter_is_recognized() -> None:
    truncated = letter(value=VALUE + bytes(500), max_bytes=500)
    assert truncated.is_truncated
    assert "request     not here" in "\n".join(truncated.text(None))
    assert not letter(None, None).is_truncated, "its headers are present"


def test_other_records_are_no_dead_letters() -> None:
    assert read(dead_letter.DeadLetter(b"k", b"v", [])) is None
    assert read(dead_letter.DeadLetter(b"k", b"v", [("timer-error", letter().decoded.code.encode())])) is None


@pytest.mark.parametrize(
    ("letter_filter", "selected"),
    [
        (LetterFilter(), True),
        (LetterFilter(codes={"topic-unknown", "key-missing"}), True),
        (LetterFilter(codes={"key-missing"}), False),
        (LetterFilter(topic="orders"), True),
        (LetterFilter(topic="order"), False),
        (LetterFilter(since_s=1_800_000_000, until_s=1_800_000_001), True),
        (LetterFilter(since_s=1_800_000_001), False),
        (LetterFilter(until_s=1_800_000_000), False),
        (LetterFilter(names={"dead/2/5"}), True),
        (LetterFilter(names={"timer-request/0/7", "x/0/0"}), True),
        (LetterFilter(names={"timer-request/0/8"}), False),
        (LetterFilter(contains="o-1"), True),  # the callback's key
        (LetterFilter(contains="70000"), True),  # the request's key
        (LetterFilter(contains="o-2"), False),
        (LetterFilter(contains="\ud800"), False),
    ],
)
def test_a_filter_selects_dead_letters(letter_filter: LetterFilter, selected: bool) -> None:
    assert (letter() in letter_filter) is selected


def judgement(one: Letter, request: RequestRecord | None, mark: Mark | None = None, *, force: bool = False) -> Any:
    return decide(one, request, mark, 1000, force)


def test_which_requests_may_be_published_again() -> None:
    fine = letter()
    assert judgement(fine, fine.request).request == RequestRecord(5, b"1700000000", VALUE, HEADERS, WRITTEN_MS)
    again = judgement(fine, fine.request, MARK)
    assert again.request is None and "as timer-request/0/99" in again.reason
    assert judgement(fine, fine.request, MARK, force=True).request == fine.request
    bad = letter(b"soon", code="key-not-a-number")
    assert judgement(bad, bad.request).reason == (
        "it would be rejected again: key 'soon' is not an epoch second: 1 to 11 ASCII digits"
    )
    assert judgement(bad, bad.request, force=True).request == bad.request
    assert "no longer in its topic" in judgement(fine, None, force=True).reason


@pytest.mark.parametrize("value", [VALUE, None], ids=["timer", "cancel"])
def test_what_a_log_has_lost_is_published_again_also_with_an_id(value: bytes | None) -> None:
    """The operator has accepted the loss, and of what was lost nothing newer is known."""
    headers: list[Header] = [] if value is None else [("timer-due", b"1700000000")]
    lost = letter(b"order-17", value, headers, code="lost-from-log", source="by-id/0/7~1")
    assert judgement(lost, lost.request).request is not None
    other = letter(b"order-17", value, headers, code="due-missing", source="by-id/0/7")
    assert "it has an id" in judgement(other, other.request).reason


def test_a_batch_that_cannot_be_read_is_no_request() -> None:
    batch = letter(None, b"bytes", [], code="batch-unreadable", source="timer-request/0/7")
    for request, force in ((None, False), (None, True), (batch.request, True)):
        decision = judgement(batch, request, force=force)
        assert (decision.request, decision.reason) == (
            None,
            "it is no request: let its sender publish the requests again",
        )


@pytest.mark.parametrize(("code", "waits"), [("topic-unknown", True), ("target-failing", False)])
def test_workers_know_a_new_topic_before_a_retry(code: str, waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[Any] = []

    class Log:
        def scan(self, letter_filter: LetterFilter, spans: Any) -> list[tuple[int, int, Letter]]:
            return [(0, 5, letter(code=code))]

        def original(self, one: Letter) -> RequestRecord | None:
            return one.request

    class Retrier:
        def publish(self, group: list[Any]) -> list[str]:
            happened.append("published")
            return ["timer-request/0/99"] * len(group)

    monkeypatch.setattr(retrying, "sleep", happened.append)
    monkeypatch.setattr(retrying, "monotonic", lambda: 100.0)
    log: Any = Log()
    retrier: Any = Retrier()
    retry = retrying.Retry(Settings(), log, LetterFilter(), [Span(0, 0, 6)], Marks(), 0.0, force=False)
    assert [source for _, source in retry.publish(retrier)] == ["timer-request/0/99"]
    assert happened == [*([retrying.NEW_TOPIC_S] if waits else []), "published"]
    assert retrying.NEW_TOPIC_S > UNKNOWN_TOPIC_RETRY_S


def test_a_dead_letter_with_a_part_of_the_value_is_published_only_with_the_whole_request() -> None:
    value = future.encode("orders", "o-1", bytes(5000))
    cut = letter(value=value, code="value-too-large")
    assert cut.is_cut and not cut.is_truncated
    assert f"the first of {len(value)} bytes, SHA-256 " in "\n".join(cut.text(None))
    assert cut.fields(None)["value_bytes"] == len(value)
    gone = judgement(cut, None, force=True)
    assert gone.request is None and f"only the first 4096 of {len(value)} bytes" in gone.reason
    read = RequestRecord(7, b"1700000000", value, HEADERS, WRITTEN_MS)
    assert f"rejected again: the value has {len(value)} bytes" in judgement(cut, read).reason
    assert decide(cut, read, None, 10_000, False).request == read, "the limit is higher now"


@pytest.mark.parametrize("source", ["timer-request-by-id/0/7", "other/0/7", "app-timer-retry/0/7", "t/0", ""])
def test_only_requests_of_known_topics_are_published(source: str) -> None:
    stray = letter(source=source)
    assert judgement(stray, stray.request, force=True).request is None


@pytest.mark.parametrize("code", ["retries-exhausted", "rejected", "attempts-exhausted", "crashed"])
@pytest.mark.parametrize("source", ["orders/3/7", "by-id/0/7", "timer-request/0/7"])
def test_dead_letters_of_receivers_are_published_wherever_their_message_was(code: str, source: str) -> None:
    given_up = letter(code=code, source=source)
    assert given_up.summary == (1_700_000_000, "orders", b"o-1")
    assert judgement(given_up, given_up.request).request == given_up.request
    assert judgement(given_up, given_up.request, MARK).request is None, "it was published before"
    assert judgement(given_up, given_up.request, MARK, force=True).request == given_up.request


def test_a_truncated_dead_letter_of_a_receiver_says_where_its_message_is() -> None:
    truncated = letter(value=VALUE + bytes(500), max_bytes=500, code="rejected", source="orders/3/7")
    assert "the message is at orders/3/7" in judgement(truncated, None, force=True).reason


ORDERS = QueueTopics("orders", "queue.o-returns")


@pytest.mark.parametrize(
    ("given", "selected"),
    [
        ({"code": "rejected", "value": future.encode("queue.o-returns", "o-1", b"v"), "source": "orders/3/7"}, True),
        ({"code": "crashed", "value": future.encode("queue.o-returns", "o-1", b"v"), "source": "orders/3/7"}, True),
        ({"code": "rejected", "value": future.encode("queue.p-returns", "o-1", b"v"), "source": "orders/3/7"}, False),
        ({"code": "rejected", "source": "orders/3/7", "max_bytes": 0}, True),
        ({"code": "rejected", "source": "other/3/7", "max_bytes": 0}, False),
        ({"code": "message-too-large", "value": future.encode("queue.o-returns", "o-1", b"v")}, True),
        ({"code": "message-too-large", "value": future.encode("queue.p-returns", "o-1", b"v")}, False),
        ({"code": "message-too-large", "source": "orders/3/7", "max_bytes": 0}, False),
    ],
)
def test_a_filter_selects_dead_letters_of_a_queue(given: dict[str, Any], selected: bool) -> None:
    assert (letter(**given) in LetterFilter(queue=ORDERS)) is selected


BY_ID: list[Header] = [("trace", b"1"), ("timer-due", b"1700000000")]
COUNTDOWN = b'{"topic": "orders", "message": "v", "countdown": 5, "id": "o-1"}'


@pytest.mark.parametrize(
    ("source", "value", "sent"), [("by-id/0/7", VALUE, BY_ID), ("delay/0/7", COUNTDOWN, [("trace", b"1")])]
)
def test_a_timer_that_failed_when_due_does_not_replace_its_id(source: str, value: bytes, sent: list[Header]) -> None:
    again: Header = ("timer-again", b"1700000000")
    failed = letter(b"o-1", value, [*sent, again], source=source)
    assert failed.summary == (1_700_000_000, "orders", b"o-1")
    request = judgement(failed, failed.request).request
    assert (request.key, request.value, request.headers) == (b"o-1", value, [*sent, again])
    read = FORMATS[source.split("/")[0]].read(request)
    assert read.operations == [] and list(read.rows) == [1_700_000_000]
    truncated = letter(b"o-1", value + bytes(500), sent, source=source, max_bytes=500)
    original = RequestRecord(7, b"o-1", value, sent, 1_699_999_995_000)
    assert judgement(truncated, original).request.headers == [*sent, again]
    early = letter(b"o-1", value, sent, source=source, code="value-too-large")
    assert "would replace a newer request with that id" in judgement(early, early.request).reason
    assert judgement(early, early.request, force=True).request == early.request


def test_the_callback_of_a_repeating_timer_that_was_not_sent_is_published_again() -> None:
    """After a downtime, an occurrence that was due on Monday may send the callback of Thursday."""
    monday_s, thursday_s, share_s = 1_700_000_000, 1_700_000_000 + 3 * 86_400, 7
    version: Header = ("timer-version", b"by-id/0/3")
    sent: list[Header] = [
        *(
            ("trace", b"1"),
            ("timer-due", b"%d" % (monday_s + share_s)),
            ("timer-repeat", b"every=86400; from=0; spread=9"),
        ),
        *(("timer-follows", b"5"), version, ("timer-nominal", b"%d" % monday_s)),
    ]
    again: Header = ("timer-again", b"%d" % (thursday_s + share_s))
    failed = letter(b"o-1", VALUE, [*sent, again], source="by-id/0/7")
    request = judgement(failed, failed.request).request
    request = request._replace(timestamp=(thursday_s + 900) * 1000)
    ((due_s, rows),) = FORMATS["by-id"].read(request).rows.items()
    assert due_s == thursday_s + share_s
    assert [row[4:] for row in rows] == [([("trace", b"1"), version, ("timer-nominal", b"%d" % thursday_s)], None)], (
        "it has no id, and says of which version and second it is"
    )


def test_a_schedule_is_published_again_only_with_force() -> None:
    """Its topic is compacted: publishing it would remove a newer version of its id."""
    sent = schedule.encode_headers(1_700_000_000, "orders", b"k")
    failed = letter(b"o-1", b"v", sent, source="schedules/0/7")
    assert failed.summary == (1_700_000_000, "orders", b"k")
    assert "would replace a newer request with its id" in judgement(failed, failed.request).reason
    assert judgement(failed, failed.request, force=True).request == failed.request


@pytest.mark.parametrize("count", [0, TimersError("told to stop")], ids=["no topic", "stopped"])
def test_a_log_that_cannot_be_opened_closes_its_consumer(count: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []

    def partitions_of(*_: Any) -> int:
        if isinstance(count, TimersError):
            raise count
        return int(count)

    monkeypatch.setattr(letters, "span_reader", lambda *_, **__: SimpleNamespace(close=lambda: closed.append(True)))
    monkeypatch.setattr("timers.kafka.connection.partitions_of", partitions_of)
    with pytest.raises(TimersError):
        LetterLog(Settings(brokers="localhost:1"))
    assert closed == [True]
