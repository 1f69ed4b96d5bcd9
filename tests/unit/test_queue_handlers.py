"""What becomes of a message when its handler returns or raises an exception, in threads and in tasks. No brokers."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from timers.errors import InvalidTimerError, LeaseLostError, QueueError
from timers.queue import AsyncQueue, Queue, aio
from timers.queue.message import handle


class SimMessage:
    """A message that notes the calls."""

    source = "jobs/0/1"
    attempt = 1

    def __init__(self, refused: Exception | None = None, lost: Exception | None = None) -> None:
        self.calls: list[str] = []
        self.is_settled = False
        self.refused = refused
        self.lost = lost

    def ack(self) -> None:
        if self.lost is not None:
            raise self.lost
        self.is_settled = True
        self.calls.append("ack")

    def retry(self, error: str) -> None:
        if self.refused is not None:
            raise self.refused
        self.calls.append(f"retry {error}")

    def reject(self, reason: str) -> None:
        self.calls.append(f"reject {reason}")

    def put_back(self) -> None:
        self.calls.append("put back")


class SimQueue:
    """A queue with some messages, which closes when they are received."""

    def __init__(self, topic: str, messages: list[Any]) -> None:
        self.messages = messages
        self.closing = False
        self.failure: Exception | None = None
        self.asked = threading.Event()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self._lock = threading.Lock()

    def receive(self, limit: int = 1, wait_s: float = 1.0) -> list[Any]:
        self.asked.set()
        self.may_answer.wait()
        if self.failure is not None:
            raise self.failure
        with self._lock:
            received, self.messages = self.messages[:limit], self.messages[limit:]
            self.closing = not self.messages
            return received

    def close(self) -> None:
        self.closing = True


def fails(message: Any) -> None:
    raise ValueError("bad")


def acks(message: Any) -> None:
    message.ack()


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> AsyncQueue:
    monkeypatch.setattr(aio, "Queue", SimQueue)
    return AsyncQueue("jobs", messages=[SimMessage() for _ in range(7)])


@pytest.mark.parametrize(
    ("handler", "calls"),
    [(id, ["ack"]), (acks, ["ack"]), (fails, ["retry ValueError('bad')"])],
    ids=["returns", "acks", "fails"],
)
def test_a_handler_settles_its_message(handler: Any, calls: list[str]) -> None:
    message: Any = SimMessage()
    handle(message, handler)
    assert message.calls == calls


def test_a_message_that_cannot_be_retried_is_rejected() -> None:
    message: Any = SimMessage(refused=InvalidTimerError("too large"))
    handle(message, fails)
    assert message.calls == ["reject ValueError('bad'), and it cannot be retried: too large"]


def test_a_lost_lease_does_not_retry_the_message() -> None:
    message: Any = SimMessage(lost=LeaseLostError("lost"))
    with pytest.raises(LeaseLostError):
        handle(message, acks)
    assert message.calls == []


def test_threads_handle_all_messages_until_the_queue_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    lost, *others = messages = [SimMessage(lost=LeaseLostError("lost")), *(SimMessage() for _ in range(7))]
    handled: list[Any] = []
    queue: Any = Queue("jobs", brokers="localhost:1")
    monkeypatch.setattr(queue, "receive", SimQueue("jobs", list(messages)).receive)

    def handler(message: Any) -> None:
        handled.append(message)
        if len(handled) == len(messages):
            queue.close()

    queue.run(handler, concurrency=2)
    assert [each.calls for each in others] == [["ack"]] * 7
    assert lost.calls == []


async def test_tasks_handle_all_messages_until_the_queue_is_closed(queue: AsyncQueue) -> None:
    handled: list[Any] = []
    running = 0

    async def handler(message: Any) -> None:
        nonlocal running
        running += 1
        assert running <= 3
        await asyncio.sleep(0)
        running -= 1
        handled.append(message)
        if len(handled) == 2:
            raise ValueError("bad")

    await queue.run(handler, concurrency=3)
    assert sorted(call for each in handled for call in each.calls) == ["ack"] * 6 + ["retry ValueError('bad')"]


async def test_messages_are_yielded_until_the_queue_is_closed(queue: AsyncQueue) -> None:
    async with queue:
        assert len([message async for message in queue.messages(limit=2)]) == 7
    assert queue.queue.closing


async def test_an_error_of_the_queue_reaches_the_caller(queue: AsyncQueue) -> None:
    queue.queue.failure = QueueError("lost")  # type: ignore[attr-defined]
    with pytest.raises(QueueError, match="lost"):
        await queue.receive()


async def test_what_a_cancelled_task_would_have_received_is_put_back(queue: AsyncQueue) -> None:
    source: Any = queue.queue
    source.may_answer.clear()
    (first, *_) = source.messages
    task = asyncio.create_task(queue.receive())
    await asyncio.to_thread(source.asked.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    source.may_answer.set()
    async with asyncio.timeout(30):
        while not first.calls:
            await asyncio.sleep(0)
    assert first.calls == ["put back"]
