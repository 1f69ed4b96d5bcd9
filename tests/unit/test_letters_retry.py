"""Retries in steps: each reads a bounded part of dead letters and marks, and no request is published twice."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message

from tests.harness.constants import Constants
from timers.console import letter_box
from timers.console.letter_box import LetterBox, RetryResult
from timers.console.problems import Problem
from timers.core.levels import FIRST_LEVEL, RAISED_TO_LEVEL, REPEATS_LEVEL
from timers.core.ports import Lost
from timers.core.timer import Rejected
from timers.errors import AccessError, TimersError, UnacknowledgedError
from timers.kafka import progress_log, request_reader
from timers.kafka.connection import ErrorReports
from timers.kafka.request_formats import NATIVE, REQUEST_FORMATS
from timers.kafka.request_reader import DeletedRequest
from timers.offline.dead_letters.letters import Letter, LetterFilter, LetterLog, Marks, Span
from timers.offline.dead_letters.retrying import Retrier, Retry
from timers.process.config.settings import Settings
from timers.wire import dead_letter, future
from timers.wire.dead_letter import Mark
from timers.wire.formats import LOG_APPEND_TIME, RequestRecord
from timers.wire.headers import Header

TOPIC = "dead"
BY_ID = REQUEST_FORMATS[1].request_format
AGAIN, WITH_ID = "bound to be rejected again", "with an id"
PARTITIONS, COUNT = 2, 10
"""Dead letters are at the even offsets of each partition."""


def letter(partition: int, offset: int, code: str = "target-failing", headers: Sequence[Header] = ()) -> Letter:
    value = b"{}" if headers else future.encode("orders", "k", b"v")
    rejected = Rejected(offset, code, "a sentence", b"1", value, headers)
    record = dead_letter.encode(rejected, f"timer-request/{partition}/{offset}", 10_000)
    decoded = dead_letter.decode(record.headers)
    assert decoded is not None
    request = RequestRecord(offset, b"1", value, list(headers), 0)
    return Letter(TOPIC, partition, offset, offset * 1000, request, decoded, NATIVE)


class SimTopics:
    """The topics of dead letters and of marks. Reading a record takes a second.

    Attributes:
        read: number of records that were read, by topic.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.letters = [
            letter(partition, offset) for partition in range(PARTITIONS) for offset in range(0, 2 * COUNT, 2)
        ]
        self.marks: list[Message] = []
        self.read: Counter[str] = Counter()
        self.unknown: dict[tuple[str, int], str] = {}
        self.id = b"id"

    def mark(self, partition: int, offset: int, written_ms: int = 0) -> None:
        name = Mark(f"{TOPIC}/{partition}/{offset}", f"timer-request/{partition}/{offset}", "timer-request/0/99")
        mark: Any = dict(zip(("key", "value", "headers"), dead_letter.encode_mark(name), strict=True))
        place: dict[str, Any] = {"partition": 0, "offset": len(self.marks), "timestamp": (1, written_ms)}
        self.marks.append(Message(**mark, **place))


class SimLetterLog(LetterLog):
    """A log that reads :class:`SimTopics`."""

    def __init__(self, topics: SimTopics) -> None:
        self._topics = topics
        self.settings = self._settings = Settings.load({"TIMERS_BROKERS": "nowhere:1"})
        self.topic = TOPIC
        offsets: Any = SimpleNamespace(unknown=topics.unknown, id_of=lambda _: topics.id)
        self._offsets = offsets

    def __exit__(self, *_: object) -> None: ...

    def _bounds(self, topic: str) -> tuple[dict[int, int], dict[int, int]]:
        if topic != self._settings.retried_topic:
            return {}, {}
        return {0: 0}, {0: len(self._topics.marks)}

    def _messages(self, topic: str, spans: Iterable[Span], description: str) -> Iterator[Any]:
        for span in spans:
            for message in self._topics.marks[span.start : span.end]:
                self._count("marks")
                yield message

    def spans(self, letter_filter: LetterFilter) -> list[Span]:
        return [Span(partition, 0, 2 * COUNT) for partition in range(PARTITIONS)]

    def scan(self, letter_filter: LetterFilter, spans: Iterable[Span]) -> Iterator[tuple[int, int, Letter | None]]:
        for span in spans:
            for each in self._topics.letters:
                if each.partition == span.partition and span.start <= each.offset < span.end:
                    self._count("letters")
                    yield each.partition, each.offset, each if each in letter_filter else None

    def original(self, letter: Letter) -> RequestRecord | None:
        return letter.request

    def _count(self, what: str) -> None:
        self._topics.read[what] += 1
        self._topics.now_s += 1.0


class SimRetrier:
    """Publishes requests to nowhere, and their marks to :class:`SimTopics`."""

    def __init__(self, topics: SimTopics) -> None:
        self._topics = topics

    def publish(self, group: Sequence[tuple[Letter, RequestRecord]]) -> list[str]:
        for each, _ in group:
            self._topics.mark(each.partition, each.offset)
        return ["timer-request/0/99"] * len(group)


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> SimTopics:
    topics = SimTopics()
    monkeypatch.setattr(letter_box, "LetterLog", lambda *_, **__: SimLetterLog(topics))
    monkeypatch.setattr(letter_box, "Retrier", lambda _: SimRetrier(topics))
    monkeypatch.setattr(letter_box, "monotonic", lambda: topics.now_s)
    return topics


@pytest.fixture
def box() -> LetterBox:
    return LetterBox(Settings.load({"TIMERS_BROKERS": "nowhere:1"}))


def reading(topics: SimTopics, step: Callable[[], Any]) -> Any:
    """The result of a step. Whatever it must read, it takes a limited time."""
    begun = topics.now_s
    result = step()
    assert topics.now_s - begun <= letter_box.MAX_RETRYING_S + 2, "it read without bound"
    return result


def test_a_look_at_a_retry_ends_and_steps_go_on_from_there(box: LetterBox, topics: SimTopics) -> None:
    """Even if the first step reads only letters that are left out."""
    for offset in range(0, 2 * COUNT, 2):
        topics.mark(0, offset)
    for _ in range(3):  # until all marks are read
        box.read_page(LetterFilter(), 1, None)
    look: RetryResult = reading(topics, lambda: box.retry(LetterFilter(), None, only_look=True))
    assert look.more and look.published == 0
    ranges, published, steps = look.rest, 0, 0
    while True:
        step = partial(box.retry, LetterFilter(), ranges, only_look=False)
        done: RetryResult = reading(topics, step)
        published, steps = published + done.published, steps + 1
        if not done.more:
            break
        assert done.rest != ranges
        ranges = done.rest
    assert (published, steps) == (COUNT, 2)
    assert len(topics.marks) == 2 * COUNT


@pytest.mark.parametrize("code", sorted(dead_letter.QUEUE_CODES))
def test_messages_that_may_do_harm_again_are_put_back_only_if_they_are_named(topics: SimTopics, code: str) -> None:
    topics.letters = [letter(0, 0, code), letter(0, 2)]

    def published(letter_filter: LetterFilter, *, force: bool = False) -> tuple[int, Counter[str]]:
        log = SimLetterLog(topics)
        made = Retry(log.settings, log, letter_filter, log.spans(letter_filter), Marks(), 0.0, force=force)
        seen = made.preview()
        return seen.requests, seen.left_out

    left_out = Counter({f"{code}: only if its code or its position is given": 1})
    everything = (1, left_out) if code in {"crashed", "unsigned"} else (2, Counter[str]())
    assert published(LetterFilter()) == published(LetterFilter(since_s=0)) == everything
    assert published(LetterFilter(), force=True) == everything, "force names nothing"
    assert published(LetterFilter(codes=["rejected"]))[0] == (code == "rejected")
    assert published(LetterFilter(codes=[code])) == published(LetterFilter(names=[f"{TOPIC}/0/0"])) == (1, Counter())


def test_letters_that_are_written_after_the_look_are_not_retried(box: LetterBox, topics: SimTopics) -> None:
    ranges = {0: (4, 8)}
    done = box.retry(LetterFilter(), ranges, only_look=False)
    assert (done.published, done.more) == (2, False)


@pytest.mark.parametrize(
    ("allowed", "left_out"),
    [(FIRST_LEVEL, AGAIN), (REPEATS_LEVEL, WITH_ID), (RAISED_TO_LEVEL, WITH_ID), (None, WITH_ID)],
)
def test_a_timer_that_repeats_is_judged_at_the_level_that_is_allowed_or_at_the_highest(
    allowed: int | None, left_out: str, box: LetterBox, topics: SimTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before that, workers would reject it again."""
    asked = []

    def read(_settings: object) -> int:
        asked.append(1)
        if allowed is None:
            raise KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
        return allowed

    monkeypatch.setattr(progress_log, "allowed_level", read)
    headers = [("timer-topic", b"orders"), ("timer-repeat", b"every=10")]
    sent = [letter(0, offset, "level-too-low", headers) for offset in (0, 2)]
    repeating = [
        replace(each, request=each.request._replace(timestamp_type=LOG_APPEND_TIME), request_format=BY_ID)
        for each in sent
    ]
    topics.letters = [*repeating, letter(0, 4)]
    done = box.retry(LetterFilter(), {0: (0, 6)}, only_look=False)
    assert (done.published, len(topics.marks), len(asked)) == (1, 1, 1)
    assert done.left_out == {left_out: 2}


def test_marks_are_read_once_and_in_steps(box: LetterBox, topics: SimTopics) -> None:
    for number in range(25):
        topics.mark(1, 2 * number)
    found = reading(topics, lambda: box.read_page(LetterFilter(), COUNT, None))
    first = topics.read["marks"]
    assert 0 < first < 25 and found.unsure, "what is not read yet is said"
    with pytest.raises(Problem, match="not all read"):
        reading(topics, lambda: box.retry(LetterFilter(), None, only_look=False))
    for _ in range(15):
        found = reading(topics, lambda: box.read_page(LetterFilter(), COUNT, None))
    assert topics.read["marks"] == 25 and not found.unsure, "each once"
    assert set(found.marks) == {
        (f"{TOPIC}/1/{each.offset}", each.decoded.source) for each in found.page.letters if each.partition == 1
    }
    topics.mark(0, 18)
    found = box.read_page(LetterFilter(), COUNT, None)
    assert topics.read["marks"] == 26
    assert (f"{TOPIC}/0/18", "timer-request/0/18") in found.marks
    assert found.marks[f"{TOPIC}/0/18", "timer-request/0/18"].timer_id == "timer-request/0/99"


def test_what_is_not_kept_may_have_been_retried(
    box: LetterBox, topics: SimTopics, monkeypatch: pytest.MonkeyPatch, constants: Constants
) -> None:
    constants(letter_box, MAX_MARKS=1)
    box = LetterBox(Settings.load({"TIMERS_BROKERS": "nowhere:1"}))
    late = letter(0, 200)
    topics.letters = [letter(0, 0), letter(0, 2), late]
    topics.mark(0, 0, written_ms=5_000)
    topics.mark(0, 2, written_ms=6_000)
    result = box.retry(LetterFilter(), {0: (0, 300)}, only_look=True)
    assert result.requests == 0, "0/200 is beyond the end of the log"
    monkeypatch.setattr(SimLetterLog, "spans", lambda *_: [Span(0, 0, 300)])
    result = box.retry(LetterFilter(), None, only_look=True)
    assert result.requests == 1, "only the one that is later than the marks that were forgotten"
    assert sorted(result.left_out.values()) == [1, 1] and any("may have been retried" in why for why in result.left_out)
    found = box.read_page(LetterFilter(), 3, None)
    assert found.unsure == {f"{TOPIC}/0/0"}
    assert [mark.letter for mark in found.marks.values()] == [f"{TOPIC}/0/2"]


def test_marks_of_a_topic_that_was_made_anew_are_read_and_those_of_the_former_one_stay() -> None:
    """What was retried was retried. The new topic may have more records than were read of the former one."""
    topics = SimTopics()
    log = SimLetterLog(topics)
    for offset in (0, 2, 4):
        topics.mark(0, offset)
    marks = log.read_marks(Marks())
    topics.marks, topics.id = [], b"new"
    for offset in (6, 8, 10, 12):
        topics.mark(0, offset)
    again = log.read_marks(marks)
    assert again.is_whole
    assert all(again.of(letter(0, offset)) for offset in range(0, 14, 2))


def test_only_marks_of_letters_that_are_asked_for_take_memory() -> None:
    marks = Marks(spans=[Span(1, 7, 9), Span(0, 4, 4), Span(1, 2, 4)])
    letters = [letter(partition, offset) for partition in range(3) for offset in range(12)]
    for number, each in enumerate(letters):
        marks.add(0, number, Mark(*each.mark_key, "timer-request/0/99"), 0)
    assert [each.offset for each in letters if marks.of(each) is not None] == [2, 3, 7, 8]
    assert all(each.partition == 1 for each in letters if marks.of(each) is not None)
    assert marks.next_offset(0) == len(letters)


def test_the_newest_mark_of_a_letter_counts_and_records_of_other_programs_do_not() -> None:
    marks = Marks(2)
    source = "timer-request/0/2"
    marks.add(0, 0, Mark(f"{TOPIC}/0/2", source, "timer-request/0/50"), 0)
    marks.add(0, 1, Mark(f"{TOPIC}/0/4", "timer-request/0/4", "timer-request/0/51"), 0)
    marks.add(0, 2, Mark(f"{TOPIC}/0/2", source, "timer-request/0/52"), 0)
    marks.add(0, 3, Mark("", "", ""), 0)
    newest = marks.of(letter(0, 2))
    assert newest is not None and newest.timer_id == "timer-request/0/52"
    marks.add(0, 4, Mark(f"{TOPIC}/0/6", "timer-request/0/6", "timer-request/0/53"), 0)
    assert marks.of(letter(0, 2)) is not None and marks.of(letter(0, 4)) is None, "the oldest one is forgotten"
    assert marks.next_offset(0) == 5


def test_letters_are_shown_but_not_retried_while_the_marks_have_no_leader(box: LetterBox, topics: SimTopics) -> None:
    topics.unknown = {("timers-dead-letters-retried", 0): "its leader does not answer"}
    found = box.read_page(LetterFilter(), 3, None)
    assert len(found.page.letters) == len(found.unsure) == 3
    with pytest.raises(Problem, match="not all read"):
        box.retry(LetterFilter(), None, only_look=False)


def test_an_answer_names_the_partitions_without_a_leader(box: LetterBox, topics: SimTopics) -> None:
    topics.unknown = {(TOPIC, 7): "its leader does not answer", ("orders", 1): "its leader does not answer"}
    for answer in (box.read_page(LetterFilter(), 3, None), box.retry(LetterFilter(), None, only_look=True)):
        assert answer.missing == {f"{TOPIC}/7": "its leader does not answer"}


def test_a_letter_in_a_partition_without_a_leader_is_not_called_missing(topics: SimTopics) -> None:
    topics.unknown = {(TOPIC, 1): "its leader does not answer"}
    log = SimLetterLog(topics)
    with pytest.raises(TimersError, match="dead/1/4 cannot be read"):
        LetterLog.spans(log, LetterFilter(names={f"{TOPIC}/1/4"}))
    elsewhere = replace(letter(0, 2), request=RequestRecord(2, None, None, [], 0))
    assert elsewhere.is_truncated
    topics.unknown = {("timer-request", 0): "its leader does not answer"}
    log = SimLetterLog(topics)
    with pytest.raises(TimersError, match="timer-request/0/2 cannot be read"):
        LetterLog.original(log, elsewhere)


class SimRequestReader:
    """Has one request, which librdkafka could not read."""

    def __init__(self, settings: Settings, formats: Any, *, value_limit: Callable[[Any], int]) -> None:
        assert value_limit(None) == settings.max_request_bytes
        self.closed = False

    def read(self, sources: list[str], may_wait: Callable[[], bool]) -> dict[str, RequestRecord | DeletedRequest]:
        assert may_wait()
        if sources == ["timer-request/0/8"]:
            raise Lost("timer-request/0 has no leader")
        whole = RequestRecord(2, b"1", b"whole", [], 5)
        known: dict[str, RequestRecord | DeletedRequest] = {
            "timer-request/0/2": whole,
            "timer-request/0/4": DeletedRequest(6),
        }
        return {source: known[source] for source in sources if source in known}


def test_the_request_of_a_cut_letter_is_read_as_by_workers(topics: SimTopics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_reader, "RequestReader", SimRequestReader)
    monkeypatch.setattr(SimLetterLog, "_bounds", lambda *_: ({0: 0}, {0: 100}))
    log = SimLetterLog(topics)
    log._request_reader, log._formats, log._check = None, {}, lambda: None

    def original(offset: int) -> RequestRecord | None:
        return LetterLog.original(log, replace(letter(0, offset), request=RequestRecord(offset, None, None, [], 0)))

    found = original(2)
    assert found is not None and found.value == b"whole"
    assert original(4) is None, "it is deleted"
    assert original(6) is None, "no record of a sender"
    with pytest.raises(TimersError, match="'timer-request' cannot be read: timer-request/0 has no leader"):
        original(8)


class RefusedRetrier(Retrier):
    """The login of its user is refused from the next transaction on; or it has no right to write."""

    def __init__(self, code: int) -> None:
        self._settings = Settings.load({"TIMERS_BROKERS": "nowhere:1"})
        self._reports = ErrorReports(self._settings)
        self._partitions = {self._settings.request_topic: 1, "timer-request": 1}
        writer: Any = SimpleNamespace(transaction=partial(self._transaction, code))
        self._writer = writer

    @contextmanager
    def _transaction(self, code: int) -> Iterator[Callable[[Sequence[Any]], list[str]]]:
        yield lambda sent: ["timer-request/0/1" for _ in sent]
        self._reports(KafkaError(KafkaError._AUTHENTICATION, "sasl_ssl://a:1/1: no (after 3ms in state AUTH_REQ)"))
        raise KafkaException(KafkaError(code))


@pytest.mark.parametrize(
    ("code", "kind", "cause"),
    [
        (KafkaError._TIMED_OUT, UnacknowledgedError, AccessError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, AccessError, KafkaException),  # the transaction is not committed
    ],
)
def test_requests_that_were_sent_before_the_login_was_refused_may_be_published(
    code: int, kind: type[TimersError], cause: type[Exception]
) -> None:
    again = letter(0, 0)
    assert again.request is not None
    with pytest.raises(TimersError) as error:
        RefusedRetrier(code).publish([(again, again.request)])
    assert type(error.value) is kind and type(error.value.__cause__) is cause
