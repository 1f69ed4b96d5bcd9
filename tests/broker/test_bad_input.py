"""Each bad request becomes a whole dead letter with a code and a sentence, and its partition goes on."""

import hashlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.draw import Draw
from tests.fuzz.records import damaged_requests
from tests.harness.letters import await_letters
from tests.harness.records import Headers, Publisher, Reader, Record, Request
from tests.harness.system import MAX_LAG_MS, PARTITIONS, System
from tests.harness.waiting import DEADLINE_S, due_in
from timers.wire import future
from timers.wire.dead_letter import CODES

pytestmark = pytest.mark.broker

HEADERS: Headers = [("trace", b"1"), ("timer-id", b"forged"), ("trace", None), ("other", b"\x00\xff")]
UNKNOWN_FIELD = b"\x7a\x01x"


NARROW_BYTES = 2000
"""``max.message.bytes`` of one target."""


TRIED_ELSEWHERE = {
    "unit/test_firing_breaker.py": ["target-failing"],
    "broker/test_refused_records.py": ["message-refused"],
    "unit/test_letters.py": ["lost-from-log"],
    "broker/test_unusual_batches.py": ["batch-unreadable"],
    "unit/test_wire_future.py": ["retry-headers-missing"],
    "broker/test_ids.py": ["id-missing", "id-too-long", "id-not-text", "due-missing"],
    "broker/test_cold_timers.py": ["promotion-invalid"],
    "unit/test_wire_countdown.py": ["field-repeated", "field-invalid", "time-missing"],
    "broker/test_countdowns.py": ["value-not-json", "field-missing", "countdown-invalid", "id-not-key"],
    "broker/test_schedules.py": ["overdue"],
    "unit/test_wire_marker.py": ["value-not-a-marker", "marker-invalid"],
    "unit/test_repeating.py": ["level-too-low", "repeat-invalid", "repeat-over", "repeat-without-append-time"],
    "unit/test_repeat_mending.py": ["repeat-lost"],
    "unit/test_wire_future_by_id.py": ["condition-invalid", "condition-without-append-time", "condition-without-id"],
}
"""Test file -> codes that only requests of other formats can have."""


@dataclass
class Case:
    """A request that cannot fire. ``topic`` and ``due`` stand for those of a good one beside it; or it goes to a topic
    that takes little."""

    code: str
    key: Callable[[int], bytes | None]
    value: Callable[[str], bytes | None]
    said: str
    """A part of the sentence."""
    narrow: bool = False


def due(due_s: int) -> bytes:
    return b"%d" % due_s


def good(topic: str) -> bytes:
    return future.encode(topic, "k", b"v")


def to(topic: str) -> Callable[[str], bytes]:
    return lambda _: future.encode(topic, "k", b"v")


CASES = {
    "no key": Case("key-missing", lambda _: None, good, "no key"),
    "a word as key": Case("key-not-a-number", lambda _: b"tomorrow", good, "'tomorrow'"),
    "an empty key": Case("key-not-a-number", lambda _: b"", good, "not an epoch second"),
    "what only Python's int takes": Case("key-not-a-number", lambda due_s: b" 1_%d" % due_s, good, "11 ASCII digits"),
    "a negative key": Case("key-negative", lambda _: b"-1", good, "negative"),
    "milliseconds": Case("key-in-milliseconds", lambda due_s: b"%d001" % due_s, good, "in seconds it is"),
    "no value": Case("value-missing", due, lambda _: None, "no value"),
    "no Future": Case("value-not-a-future", due, lambda _: b"\xff\x00not protobuf", "not a Future"),
    "a huge value": Case("value-too-large", due, lambda topic: future.encode(topic, "", b"x" * 10**6), "1000000"),
    "no topic": Case("topic-missing", due, to(""), "callBackTopic is empty"),
    "an illegal topic": Case("topic-invalid", due, to("no spaces"), "'no spaces'"),
    "an unknown topic": Case("topic-unknown", due, to("no-such-topic"), "'no-such-topic' does not exist"),
    "an unknown topic, written unusually": Case(
        "topic-unknown",
        lambda due_s: b"0%d" % due_s,
        lambda _: future.encode("no-such-topic", "k", b"v") + UNKNOWN_FIELD,
        "'no-such-topic' does not exist",
    ),
    "kafka's own topic": Case("topic-denied", due, to("__consumer_offsets"), "internal"),
    "a callback too large for its topic": Case(
        "message-too-large",
        lambda due_s: b"0%d" % due_s,
        lambda topic: future.encode(topic, "k", b"x" * NARROW_BYTES) + UNKNOWN_FIELD,
        f"more than the {NARROW_BYTES} that fit",
        narrow=True,
    ),
}
OWN_TOPICS = [
    "request_topic",
    "oscillator_topic",
    "dead_letter_topic",
    "progress_topic",
    "retry_topic",
    "retried_topic",
    "targets_topic",
]


@dataclass
class Sent:
    """A bad request that was sent, and the good one behind it on its partition."""

    key: bytes | None
    value: bytes | None
    source: str
    behind: Request


@pytest.fixture(scope="module")
def sent(running: System) -> dict[str, Sent]:
    """All bad requests, each with a good one behind it."""
    target, narrow = running.target(), running.target(max_message_bytes=str(NARROW_BYTES))
    due_s = due_in(3)
    publisher = running.publisher(message_max_bytes=1_060_000)
    cases = CASES | {
        name: Case("topic-denied", due, to(getattr(running.settings, name)), "internal") for name in OWN_TOPICS
    }
    sent = {}
    for number, (name, case) in enumerate(cases.items()):
        partition = number % PARTITIONS
        key, value = case.key(due_s), case.value(narrow if case.narrow else target)
        source = publisher.send_raw(key, value, HEADERS, partition)
        (behind,) = publisher.send([Request(target, due_s, name, partition=partition)])
        sent[name] = Sent(key, value, source, behind)
    return sent


@pytest.fixture(scope="module")
def fired_behind(running: System, sent: dict[str, Sent]) -> dict[str, Record]:
    return running.fired([each.behind for each in sent.values()])


@pytest.fixture(scope="module")
def letters(running: System, sent: dict[str, Sent], fired_behind: dict[str, Record]) -> dict[str, Record]:
    """Dead letters by source, one for each: what could not be sent goes by the retry topic, so it may take a moment."""
    return await_letters(running, {each.source for each in sent.values()})


def test_every_code_that_a_request_can_have_is_tried() -> None:
    """Codes of other request formats are tested with those formats."""
    here = {case.code for case in CASES.values()}
    elsewhere = {code for codes in TRIED_ELSEWHERE.values() for code in codes}
    assert here | elsewhere == set(CODES)
    assert not here & elsewhere
    for path, codes in TRIED_ELSEWHERE.items():
        text = (Path(__file__).parents[1] / path).read_text()
        assert [code for code in codes if f'"{code}"' not in text] == [], path


@pytest.mark.parametrize("name", CASES)
def test_a_bad_request_becomes_a_dead_letter_with_code_sentence_and_source(
    sent: dict[str, Sent], letters: dict[str, Record], name: str
) -> None:
    case, bad = CASES[name], sent[name]
    letter = letters[bad.source]
    assert letter.text("timer-error") == case.code
    assert case.said in letter.text("timer-error-message")
    assert letter.headers[: len(HEADERS)] == HEADERS
    ours = [header for header, _ in letter.headers[len(HEADERS) :]]
    if case.code == "value-too-large":
        assert bad.value is not None
        assert (letter.key, letter.value) == (bad.key, bad.value[:4096])
        assert letter.text(ours.pop(0)) == str(len(bad.value))
        assert letter.text(ours.pop(0)) == hashlib.sha256(bad.value).hexdigest()
    else:
        assert (letter.key, letter.value) == (bad.key, bad.value)
    assert ours == ["timer-error", "timer-error-message", "timer-source"]


@pytest.mark.parametrize("name", OWN_TOPICS)
def test_a_callback_to_a_topic_of_the_engine_is_denied(
    sent: dict[str, Sent], letters: dict[str, Record], name: str
) -> None:
    letter = letters[sent[name].source]
    assert letter.text("timer-error") == "topic-denied"
    assert letter.value == sent[name].value


def test_the_timers_behind_bad_ones_fire_on_time(sent: dict[str, Sent], fired_behind: dict[str, Record]) -> None:
    assert all(fired_behind[each.behind.source].lag_ms < MAX_LAG_MS for each in sent.values())


@pytest.mark.parametrize("seed", [20_261_130, pytest.param(None, marks=pytest.mark.long, id="random")])
def test_damaged_requests_become_whole_dead_letters(running: System, seed: int | None) -> None:
    """Sends the damaged requests of the fuzz tests through a real broker and worker."""
    seed = random.getrandbits(32) if seed is None else seed
    print(f"seed {seed}")
    dice = random.Random(seed)
    publisher = running.publisher()
    bad: list[tuple[Request, str, Any]] = []
    while len(bad) < 1500:
        for record in damaged_requests(Draw(dice.randbytes(300))):
            rejected = future.decode([record], running.settings.max_request_bytes).rejected
            # This test's own client ends a header's name at a NUL.
            if rejected and not any("\0" in name for name, _ in record.headers or []):
                sent = publisher.queue_raw(record.key, record.value, record.headers or [], len(bad) % PARTITIONS)
                bad.append((sent, rejected[0].code, record))
    publisher.flush()
    letters = await_letters(running, {sent.source for sent, *_ in bad})
    for sent, code, record in bad:
        letter = letters[sent.source]
        assert letter.headers[-3][1] == code.encode()
        assert (letter.key, letter.value, letter.headers[:-3]) == (record.key, record.value, record.headers or [])
    (request,) = running.send(Request(running.target(), 1))
    assert running.fired([request])


def test_a_topic_created_just_before_the_due_second_gets_its_callback(running: System) -> None:
    """Also just after the worker has looked up another topic that does not exist."""
    (unknown,) = running.send(Request("no-such-topic-either", 1))
    await_letters(running, {unknown.source})
    (request,) = running.send(Request(running.target(), 1))
    assert running.fired([request])


def test_a_forged_record_on_the_retry_topic_is_a_dead_letter(running: System) -> None:
    retry = running.settings.retry_topic
    target, due_s = running.target(), due_in(2)
    value = good(target)
    forged = Publisher(running.address, retry).send_raw(due(due_s), value, HEADERS, 0)
    letter = await_letters(running, {forged})[forged]
    assert (letter.text("timer-error"), letter.key, letter.value) == ("retry-headers-missing", due(due_s), value)
    assert letter.headers[: len(HEADERS)] == HEADERS


def test_a_request_with_more_headers_than_librdkafka_reads_becomes_a_dead_letter(running: System) -> None:
    """The dead letter has none of the headers, and its sentence names the place of the request."""
    target, due_s = running.target(), due_in(1)
    many: Headers = [("a", b"")] * 100_001
    publisher = running.publisher()
    unknown = publisher.send_raw(due(due_s), future.encode("no-such-topic", "k", b"v"), many, 0)
    (behind,) = publisher.send([Request(target, due_s, partition=0)])
    letter = await_letters(running, {unknown})[unknown]
    assert letter.text("timer-error") == "topic-unknown"
    assert (letter.key, letter.value) == (None, None), (
        "a truncated dead letter: what was sent stands where timer-source says"
    )
    assert running.fired([behind])[behind.source].lag_ms < MAX_LAG_MS


def test_a_callback_too_large_for_its_topic_opens_the_circuit_of_the_small_ones(running: System) -> None:
    narrow = running.target(max_message_bytes="2000")
    other = running.target()
    due_s = due_in(2)
    small = [Request(narrow, due_s, f"small-{i}", b"x" * 100) for i in range(100)]
    big = [Request(narrow, due_s, f"big-{i}", b"x" * 3000) for i in range(5)]
    beside = [Request(other, due_s + i % 2, f"beside-{i}", b"x" * 3000) for i in range(100)]
    running.send(*small, *big, *beside)
    fired = running.fired(beside)
    assert all(record.lag_ms < MAX_LAG_MS for record in fired.values())
    assert len(running.fired(small)) == len(small)
    letters = await_letters(running, {request.source for request in big})
    for request in big:
        letter = letters[request.source]
        assert letter.text("timer-error") == "message-too-large"
        assert "2000" in letter.text("timer-error-message")
        assert (letter.key, letter.value) == (request.wire_key, request.wire_value)


def test_a_target_deleted_under_load_does_not_stop_the_others(running: System) -> None:
    doomed, other = running.target(), running.target()
    first_s = due_in(2)
    lost = [Request(doomed, first_s + i % 5, f"doomed-{i}", b"v", HEADERS) for i in range(600)]
    kept = [Request(other, first_s + i % 5, f"kept-{i}") for i in range(600)]
    running.send(*(request for pair in zip(lost, kept, strict=True) for request in pair))
    running.reader(doomed).take(150)
    running.delete_topic(doomed)
    last = {each.source: each for each in running.send(*(replace(each, due_s=due_in(2)) for each in lost[:120]))}
    fired = running.fired(kept)
    assert all(record.lag_ms < 2 * MAX_LAG_MS for record in fired.values())
    letters = await_letters(running, set(last))
    for source, request in last.items():
        letter = letters[source]
        assert letter.text("timer-error") == "topic-unknown"
        assert letter.text("timer-error-message") == f"callback topic {doomed!r} does not exist"
        assert (letter.key, letter.value) == (request.wire_key, request.wire_value)
        assert letter.headers[: len(HEADERS)] == HEADERS

    running.create_topic(doomed)
    reader = running.reader(doomed)
    back = await_fired(running, reader)
    assert back.key == b"back"


def await_fired(system: System, reader: Reader) -> Record:
    """Request timers until one arrives: the worker may remember for a moment that the topic did not exist."""
    give_up = time.monotonic() + DEADLINE_S
    while True:
        system.wait_past(system.send(Request(reader.topic, due_in(1), "back"))[0].due_s)
        fired = reader.rest()
        if fired:
            return fired[0]
        assert time.monotonic() < give_up, f"nothing fires on {reader.topic} since it is back"
