"""Tests of :class:`timers.testing.SimQueue`, with which users test the handlers of their queues."""

import asyncio
import inspect
import re
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from timers.errors import SettingsError
from timers.queue import AsyncMessage, Backoff, LeaseLostError, Message, Queue
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
    assert [output[:3] for output in queue.outputs] == [("results", b"k", b"done")]
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


@pytest.mark.parametrize("is_retried", [False, True])
@pytest.mark.parametrize(("key", "value"), [(b"k", b"a"), (b"\xff", b""), (None, b"a")])
def test_a_dead_letter_shows_the_key_and_value_of_its_message(
    key: bytes | None, value: bytes, is_retried: bool
) -> None:
    queue = SimQueue(backoff=Backoff(first_s=5, jitter=0))
    source = queue.send(value, key=key)
    if is_retried:
        queue.receive()[0].retry()
        queue.advance(5)
    queue.receive()[0].reject("no such order")
    queue.settle()
    [letter] = queue.dead
    assert (letter.key, letter.value, letter.source, letter.code) == (key, value, source, "rejected")


def test_an_async_handler_is_awaited() -> None:
    """In one event loop for a run, with the message that AsyncQueue gives."""
    queue = SimQueue(backoff=Backoff(first_s=5, retries=1, jitter=0))
    loops: list[asyncio.AbstractEventLoop] = []

    async def handle(message: AsyncMessage) -> None:
        await asyncio.sleep(0)
        loops.append(asyncio.get_running_loop())
        if message.value == b"bad":
            await message.reject("no such order")
        elif message.value == b"fails" and message.attempt == 1:
            raise ConnectionError

    class Handler:
        async def __call__(self, message: AsyncMessage) -> None:
            await handle(message)

    queue.send_many([b"bad", b"good", b"fails"])
    assert queue.run(handle, concurrency=10) == 3
    assert len({id(loop) for loop in loops}) == 1 and loops[0].is_closed()
    assert [letter.code for letter in queue.dead] == ["rejected"]
    queue.advance(5)
    assert (queue.run(Handler()), queue.run(handle)) == (1, 0)

    async def test() -> int:
        queue.send(b"good")
        with pytest.raises(SettingsError, match="to_thread"):
            queue.run(handle)
        return await asyncio.to_thread(queue.run, handle)

    assert asyncio.run(test()) == 1


def test_a_program_that_is_given_a_queue_can_be_given_a_simulated_one() -> None:
    def work(queue: SimQueue) -> None:
        with queue:
            queue.run(lambda message: queue.stop(), processes=2)

    queue = SimQueue("orders", name="mails")
    queue.send_many([b"a", b"b"])
    work(queue)
    assert queue.stopping and list(queue) == []
    work(queue)
    assert queue.run(fails) == 0, "each of the two runs has handled one message"
    queue.send(b"c")
    assert [message.id for message in queue.receive()] == [f"mails orders/0/2 {queue.timers.clock.now_ms}"]


def test_it_has_the_calls_of_a_queue() -> None:
    """Except those that say how its processes and brokers are."""
    left_out = {"counters", "stats", "unready", "stuck", "receive_to_run", "after_fork"}
    public = {name for name in vars(Queue) if not name.startswith("_") or name in ("__enter__", "__iter__")}
    calls = {name for name in public if callable(getattr(SimQueue, name, None))}
    assert public - calls - left_out == {"stopping"}, "which is an attribute"
    assert calls & left_out == set()
    for name in calls:
        given, simulated = (list(inspect.signature(getattr(kind, name)).parameters) for kind in (Queue, SimQueue))
        assert given == simulated, name


def test_threads_may_share_it() -> None:
    queue, interval_s = SimQueue(), sys.getswitchinterval()

    def work(thread: int) -> tuple[list[str], list[bytes | None]]:
        sources, received = [], []
        for number in range(30):
            sources.append(queue.send(b"%d-%d" % (thread, number)))
            for message in queue.receive():
                received.append(message.value)
                message.ack()
            queue.settle()
        return sources, received

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            done = list(pool.map(work, range(4)))
    finally:
        sys.setswitchinterval(interval_s)
    assert len({source for sources, _ in done for source in sources}) == 120
    received = [value for _, values in done for value in values] + values(queue, 200)
    assert (len(received), len({*received})) == (120, 120)
