"""A queue on a real broker: acknowledged messages stay done, all others come back, whatever happens to the process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.process import Process, clean_environment, python
from tests.harness.system import System
from tests.harness.waiting import DEADLINE_S, wait_until
from timers.queue import Backoff, LeaseLostError, Message, Queue

pytestmark = pytest.mark.broker

MESSAGES = 2000


@pytest.fixture
def here(running: System, monkeypatch: pytest.MonkeyPatch) -> System:
    """The system with the running worker; the environment has its settings."""
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)
    return running


def receive(queue: Queue, count: int) -> list[Message]:
    """Receive exactly ``count`` messages."""
    received: list[Message] = []

    def enough() -> bool:
        received.extend(queue.receive(count - len(received), wait_s=1))
        return len(received) == count

    wait_until(enough, f"{count} messages of {queue.name}", 2 * DEADLINE_S)
    return received


def test_after_a_kill_only_unsettled_messages_come_back(here: System, tmp_path: Path) -> None:
    topic = here.target(partitions=4)
    with Queue(topic) as queue:
        sources = queue.send_many((b"k%d" % (number % 50), b"%d" % number, ()) for number in range(MESSAGES))
    assert len(set(sources)) == MESSAGES
    environment = clean_environment(**here.environment)
    log = tmp_path / "consumer.log"
    consumer = Process(
        "consumer", python("tests.harness.queue_consumer", topic, str(MESSAGES)), environment, tmp_path, log
    )
    try:
        consumer.start().wait_for("^settled$", 2 * DEADLINE_S)
    finally:
        consumer.clean_up()
    numbers = range(MESSAGES)
    acked = {b"%d" % number for number in numbers if number % 3 == 0 and number % 10}
    retried = {b"%d" % number for number in numbers if number % 10 == 0 and number % 20}
    rejected = {b"%d" % number for number in numbers if number % 20 == 0}
    left = {b"%d" % number for number in numbers} - acked - rejected
    with Queue(topic) as queue:
        messages = receive(queue, len(left))
        assert {message.value for message in messages} == left
        assert {message.value for message in messages if message.attempt == 2} == retried
        assert {message.source for message in messages} <= set(sources)
        for message in messages:
            message.ack()
        queue.settle()
        assert queue.receive(1, wait_s=0.5) == []
    letters = here.reader(here.settings.dead_letter_topic, append_time=False)
    mine = [
        each for each in letters.rest() if each.text("timer-error") == "rejected" and topic in each.text("timer-source")
    ]
    assert len(mine) == len(rejected)


def test_a_message_is_retried_after_its_delay_and_then_given_up(here: System) -> None:
    topic = here.target()
    with Queue(topic, backoff=Backoff(first_s=1, attempts=1)) as queue:
        source = queue.send(
            b"\xff\x00", key=b"\xfe", headers=[("trace", b"1"), ("retry-attempt", b"7"), ("null", None)]
        )
        (first,) = receive(queue, 1)
        assert (first.attempt, first.source) == (1, source)
        first.retry(error="no answer")
        with pytest.raises(LeaseLostError):
            first.ack()
        (second,) = receive(queue, 1)
        assert (second.attempt, second.source, second.sent_ms) == (2, source, first.sent_ms)
        assert (second.key, second.value) == (b"\xfe", b"\xff\x00")
        assert second.headers == [("trace", b"1"), ("null", None)]
        second.retry(error="again")
        queue.settle()
    (letter,) = [
        each
        for each in here.reader(here.settings.dead_letter_topic, append_time=False).rest()
        if each.text("timer-source") == source
    ]
    assert letter.text("timer-error") == "attempts-exhausted"
    assert "again" in letter.text("timer-error-message")
    (returned,) = here.reader(f"queue.{topic}-returns").rest()
    assert returned.append_ms - first.sent_ms >= 1000
    with Queue(topic) as queue:
        assert queue.receive(1, wait_s=3) == []
