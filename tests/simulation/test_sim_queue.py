"""Tests of :class:`timers.testing.SimQueue`, with which users test the handlers of their queues."""

import re
import textwrap
from typing import Any

import pytest

from timers.queue import Backoff, LeaseLostError, Message
from timers.testing import SimQueue, SimTimers, sim_queue


def fails(message: Message) -> None:
    raise RuntimeError("no connection")


def values(queue: SimQueue, limit: int = 10) -> list[bytes | None]:
    return [message.value for message in queue.receive(limit)]


def test_the_example_in_the_docstring() -> None:
    _, _, example = (sim_queue.__doc__ or "").partition("::\n")
    names: dict[str, Any] = {"fails": fails}
    exec(textwrap.dedent(re.split(r"\n(?=\S)", example)[0]), names)
    names["test_a_payment_is_retried_and_then_given_up"]()


def test_messages_are_acknowledged_one_by_one_in_any_order() -> None:
    queue = SimQueue()
    queue.send_many([b"a", ("k", b"b"), (None, b"c", {"n": "1"})])
    first, second, third = queue.receive(3)
    assert (first.value, second.key, third.headers, third.source) == (b"a", b"k", [("n", b"1")], "jobs/0/2")
    third.ack()
    first.ack()
    assert values(queue) == []
    queue.advance(31)  # the lease of the second one is over
    assert values(queue) == []
    queue.advance(5)  # and the delay of a retry
    assert values(queue) == [b"b"]
    with pytest.raises(LeaseLostError):
        second.ack()


def test_a_failing_message_comes_back_with_its_attempt_error_and_headers() -> None:
    queue = SimQueue(backoff=Backoff(first_s=5, factor=2, retries=2, jitter=0))
    source = queue.send(b"order", key="k", headers={"trace": "1"})
    for attempt, wait_s in ((1, 5), (2, 10), (3, 0)):
        [message] = queue.receive(5)
        assert (message.attempt, message.value, message.key, message.source) == (attempt, b"order", b"k", source)
        assert dict(message.headers)["trace"] == b"1"
        message.retry(error="no connection")
        queue.advance(wait_s - 1 if wait_s else 0)
        assert queue.receive() == [], "it is not due yet, or was given up"
        queue.advance(1)
    [letter] = queue.dead
    assert (letter.code, letter.source) == ("attempts-exhausted", source)
    assert "no connection" in letter.message


def test_delays_rejections_and_outputs() -> None:
    queue = SimQueue("payments", timers=SimTimers(now_s=1_000_000))

    def handle(message: Message) -> None:
        if message.value == b"bad":
            message.reject("no such order")
        else:
            message.output("results", b"done", key=message.key)

    queue.send(b"bad")
    queue.send(b"good", key="k", delay=60)
    assert queue.run(handle) == 1 and queue.outputs == []
    queue.advance(60)
    assert queue.run(handle) == 1
    assert [(output.topic, output.key, output.value) for output in queue.outputs] == [("results", b"k", b"done")]
    assert [letter.code for letter in queue.dead] == ["rejected"]


def test_an_ordered_queue_delivers_a_key_one_after_the_other() -> None:
    queue = SimQueue(ordered=True, backoff=Backoff(first_s=5, jitter=0))
    queue.send_many([("a", b"1"), ("a", b"2"), ("b", b"3")])
    first, other = queue.receive(5)
    assert (first.value, other.value) == (b"1", b"3")
    first.retry()
    other.ack()
    assert values(queue) == []
    queue.advance(5)
    [again] = queue.receive(5)
    assert (again.value, again.attempt) == (b"1", 2)
    again.ack()
    assert values(queue) == [b"2"]


def test_a_loop_over_it_ends_when_nothing_is_ready() -> None:
    queue = SimQueue()
    queue.send_many(b"%d" % number for number in range(100))
    seen = []
    for message in queue:
        seen.append(message.value)
        message.ack()
    assert len(set(seen)) == 100


def test_a_handler_of_a_run_has_ten_leases() -> None:
    queue = SimQueue(backoff=Backoff(first_s=5, retries=1, jitter=0))
    attempts: list[int] = []

    def handle(message: Message) -> None:
        attempts.append(message.attempt)
        queue.advance(299 if message.value == b"slow" else 306)
        if message.value == b"slow":
            assert queue.receive() == [], "its lease lasts"
            message.extend(1)

    queue.send(b"slow")
    assert queue.run(handle) == 1
    queue.send(b"hangs")
    assert queue.run(handle) == 1, "it is late, and counts: nobody else has got the message"
    queue.advance(1000)
    assert (queue.run(handle), attempts, queue.dead) == (0, [1, 1], [])
    assert not any(ledger.undated for ledger in queue._ledgers.values()), "nothing of the messages is kept"
