"""Records that a broker refuses: each is the dead letter of its own timer, and no other timer waits for it."""

import statistics

import pytest

from tests.harness.letters import await_letters
from tests.harness.records import Headers, Request
from tests.harness.system import MAX_LAG_MS, PARTITIONS, System, timers
from tests.harness.waiting import due_in

pytestmark = pytest.mark.broker

LETTER_S = 30

WITHOUT_KEY: Headers = [("timer-key", None)]


def without_key(target: str, count: int, first_s: int, seconds: int) -> list[Request]:
    """Timers whose callbacks have no key."""
    return [
        Request(target, first_s + index % seconds, "", b"bad-%d" % index, list(WITHOUT_KEY), index % PARTITIONS)
        for index in range(count)
    ]


def test_a_record_without_a_key_among_good_ones_in_a_compacted_topic(running: System) -> None:
    target = running.target(cleanup_policy="compact")
    due_s = due_in(3)
    good, (bad,) = timers(target, 50, due_s, 1), without_key(target, 1, due_s, 1)
    running.send(*good[:25], bad, *good[25:])
    assert all(record.lag_ms < MAX_LAG_MS for record in running.fired(good).values())
    letter = await_letters(running, {bad.source}, LETTER_S)[bad.source]
    assert letter.text("timer-error") == "message-refused"
    assert "INVALID_RECORD (Compacted topic cannot accept message without key" in letter.text("timer-error-message")
    assert (letter.key, letter.value) == (bad.wire_key, bad.wire_value)
    assert letter.headers[:1] == WITHOUT_KEY


def test_many_bad_records_do_not_delay_good_ones(running: System) -> None:
    target, other = running.target(partitions=4, cleanup_policy="compact"), running.target(partitions=4)
    due_s = due_in(5)
    good, beside = timers(target, 5000, due_s, 4), timers(other, 500, due_s, 4)
    bad = without_key(target, 100, due_s, 4)
    running.send(*bad, *good, *beside)
    for requests in (good, beside):
        lags = [record.lag_ms for record in running.fired(requests).values()]
        assert statistics.quantiles(lags, n=100)[98] < MAX_LAG_MS
    letters = await_letters(running, {request.source for request in bad}, LETTER_S)
    assert {letters[request.source].text("timer-error") for request in bad} == {"message-refused"}


def test_a_topic_that_takes_only_new_records_delays_no_other_timer(running: System) -> None:
    """Kafka would check the time of the record that ends the transaction too, and the transaction might never end."""
    strict = running.target(message_timestamp_type="CreateTime", message_timestamp_before_max_ms="0")
    due_s = due_in(3)
    good, bad = timers(running.target(partitions=4), 400, due_s, 3), timers(strict, 20, due_s, 3)
    running.send(*bad, *good)
    assert all(record.lag_ms < MAX_LAG_MS for record in running.fired(good).values())
    letters = await_letters(running, {request.source for request in bad}, LETTER_S)
    for request in bad:
        letter = letters[request.source]
        assert letter.text("timer-error") == "message-refused"
        assert "no record that is more than 0 ms old" in letter.text("timer-error-message")
        assert letter.value == request.wire_value


def test_a_topic_that_takes_no_record_of_the_future_gets_its_callbacks(running: System) -> None:
    target = running.target(message_timestamp_type="CreateTime", message_timestamp_after_max_ms="0")
    sent = running.send(*timers(target, 60, due_in(2), 3))
    found = {record.timer_id for record in running.reader(target, append_time=False).take(60)}
    assert found == {request.source for request in sent}
