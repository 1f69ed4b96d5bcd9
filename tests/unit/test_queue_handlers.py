"""What becomes of a message when its handler returns or raises an exception, in threads and in tasks. No brokers."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tests.harness.waiting import wait_until
from timers.errors import InvalidTimerError, LeaseLostError, QueueError, SettingsError
from timers.queue import AsyncQueue, Queue, aio
from timers.queue.message import handle
from timers.queue.running import Handlers


class SimMessage:
    """A message that notes the calls."""

    source = "jobs/0/1"
    attempt = 1
    may_wait = False

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
    """A queue with some messages, which closes when it has no more."""

    def __init__(self, topic: str, messages: list[Any]) -> None:
        self.messages = messages
        self.closing = False
        self.stopping = False
        self.handlers = Handlers()
        self.deliveries = SimpleNamespace()
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
            if not received:
                self.close()
            return received

    def stop(self) -> None:
        self.stopping = True

    def close(self) -> None:
        self.closing = self.stopping = True


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


def test_handlers_that_run_may_return_before_the_queue_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    message: Any = SimMessage()
    others: list[Any] = [SimMessage() for _ in range(3)]
    queue: Any = Queue("jobs", brokers="localhost:1")
    monkeypatch.setattr(queue, "receive", SimQueue("jobs", [message, *others]).receive)
    began, may_return = threading.Event(), threading.Event()

    def handler(message: Any) -> None:
        began.set()
        may_return.wait()

    running = threading.Thread(target=queue.run, args=(handler,))
    running.start()
    began.wait()
    closing = threading.Thread(target=queue.close)
    closing.start()
    wait_until(lambda: queue.stopping, "the stop")
    assert closing.is_alive() and not queue.closing, "it waits for the handler"
    may_return.set()
    running.join()
    closing.join()
    assert message.calls == ["ack"]
    assert [each.calls for each in others] == [[], [], []], "no handler begins after the stop"


def test_an_interrupt_ends_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    queue: Any = Queue("jobs", brokers="localhost:1")
    monkeypatch.setattr(queue, "receive", lambda *_: [SimMessage()])

    def handler(message: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        queue.run(handler, concurrency=3)


@pytest.mark.parametrize("arguments", [{"concurrency": 0}, {"processes": -1}, {"concurrency": 2, "processes": 2}])
def test_threads_and_processes_are_one_or_the_other(arguments: dict[str, int]) -> None:
    with pytest.raises(SettingsError, match="give either concurrency"):
        Queue("jobs", brokers="localhost:1").run(fails, **arguments)


async def test_a_message_that_comes_after_the_stop_is_put_back(queue: AsyncQueue) -> None:
    source: Any = queue.queue
    first, *others = source.messages

    async def handler(message: Any) -> None:
        await queue.close()

    await queue.run(handler, concurrency=1)
    assert first.calls == ["ack"]
    assert all(each.calls in ([], ["put back"]) for each in others)


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
