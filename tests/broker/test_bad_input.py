"""Each bad request becomes a whole dead letter with a code and a sentence, and its partition goes on."""

import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.cases import CASES, ON_A_BROKER, Letter
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
    "unit/test_wire_future_by_id.py": ["condition-invalid", "condition-without-append-time"],
}
"""Test file -> codes that no case of tests/conformance has, which runs its cases on a worker too."""


def due(due_s: int) -> bytes:
    return b"%d" % due_s


def good(topic: str) -> bytes:
    return future.encode(topic, "k", b"v")


OWN_TOPICS = [
    "request_topic",
    "oscillator_topic",
    "dead_letter_topic",
    "progress_topic",
    "retry_topic",
    "retried_topic",
    "targets_topic",
]


def test_every_code_that_a_request_can_have_is_tried() -> None:
    """On each engine by tests/conformance, or else in the tests of its format."""
    here = {case.becomes.code for case in (CASES | ON_A_BROKER).values() if isinstance(case.becomes, Letter)}
    elsewhere = {code for codes in TRIED_ELSEWHERE.values() for code in codes}
    assert here | elsewhere == set(CODES)
    assert not here & elsewhere
    for path, codes in TRIED_ELSEWHERE.items():
        text = (Path(__file__).parents[1] / path).read_text()
        assert [code for code in codes if f'"{code}"' not in text] == [], path


def test_a_callback_to_a_topic_of_the_engine_is_denied(running: System) -> None:
    """And the timers behind such requests fire on time."""
    target, due_s, publisher = running.target(), due_in(3), running.publisher()
    values: dict[str, bytes] = {}
    behind: list[Request] = []
    for number, name in enumerate(OWN_TOPICS):
        value, partition = future.encode(getattr(running.settings, name), "k", b"v"), number % PARTITIONS
        values[publisher.send_raw(due(due_s), value, HEADERS, partition)] = value
        behind += publisher.send([Request(target, due_s, name, partition=partition)])
    assert all(each.lag_ms < MAX_LAG_MS for each in running.fired(behind).values())
    letters = await_letters(running, set(values))
    for source, value in values.items():
        letter = letters[source]
        assert (letter.text("timer-error"), letter.key, letter.value) == ("topic-denied", due(due_s), value)
        assert letter.headers[: len(HEADERS)] == HEADERS


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
