"""Messages of a program with an event loop, whose calls may have to wait for the brokers. No brokers."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.harness.clock import SimClock
from tests.harness.queue_state import JOBS, SimGuards, confirm, guarded, opened, receive
from timers.errors import LeaseLostError
from timers.queue import AsyncMessage, AsyncQueue, aio
from timers.queue.aio import MAX_THREADS, TaskRun, _handle


class SlowGuards(SimGuards):
    """Guards whose timers are cancelled when the test says so."""

    def __init__(self, *, is_cancelled: bool = True) -> None:
        super().__init__(is_cancelled=is_cancelled, timeout_s=60.0)
        self.may_answer = threading.Event()

    def cancel(self, id: str, timeout_s: float) -> bool:
        assert self.may_answer.wait(60)
        return super().cancel(id, timeout_s)


def a_guarded_message(guards: SlowGuards) -> AsyncMessage:
    return cast(AsyncMessage, guarded(opened(guards=guards), kind=AsyncMessage))


async def test_a_call_that_does_not_wait_takes_effect_at_once() -> None:
    state = opened()
    first, second, third, fourth = receive(state, 4, AsyncMessage)
    first.ack()
    second.retry()
    third.reject("bad")
    await cast(AsyncMessage, fourth).ack()
    counters = state.counters()
    assert (counters.acked, counters.retried, counters.dead) == (2, 1, {"rejected": 1})
    with pytest.raises(LeaseLostError):
        first.ack()


async def test_a_call_that_waits_does_not_stop_the_event_loop() -> None:
    guards = SlowGuards()
    message = a_guarded_message(guards)
    answer = message.ack()
    assert guards.calls == []
    guards.may_answer.set()
    await answer
    assert guards.calls == ["cancel"]


async def test_many_calls_that_wait_leave_the_threads_of_the_event_loop_to_the_program() -> None:
    guards = SlowGuards()
    state = opened(50, guards=guards)
    messages = receive(state, 50, AsyncMessage)
    set_guards = state.member.protect([JOBS])
    while (plan := state.member.settler.plan()) is not None:
        state.member.settler.succeed(plan)
    state.member.settler.revoke([JOBS])
    answers = [cast(AsyncMessage, message).ack() for message in messages]
    assert len(set_guards) == 50
    for _ in range(3):  # the calls begin
        await asyncio.sleep(0)
    async with asyncio.timeout(30):
        assert await asyncio.to_thread(lambda: "not held up") == "not held up"
    assert guards.calls == []
    guards.may_answer.set()
    await asyncio.gather(*answers)
    assert guards.calls == 50 * ["cancel"]


async def test_a_thousand_calls_that_wait_share_some_threads() -> None:
    guards = SlowGuards()
    state = opened(1000, guards=guards)
    messages = receive(state, 1000, AsyncMessage)
    state.member.protect([JOBS])
    while (plan := state.member.settler.plan()) is not None:
        state.member.settler.succeed(plan)
    state.member.settler.revoke([JOBS])
    before = set(threading.enumerate())  # those of another test may still be ending
    answers = [cast(AsyncMessage, message).ack() for message in messages]
    for _ in range(3):  # the calls begin
        await asyncio.sleep(0)
    assert len(set(threading.enumerate()) - before) == MAX_THREADS
    cast("asyncio.Future[None]", answers[-1]).cancel()
    guards.may_answer.set()
    async with asyncio.timeout(30):
        await asyncio.gather(*answers[:-1])
        while len(guards.calls) < 1000:
            await asyncio.sleep(0.01)
    assert guards.calls == 1000 * ["cancel"], "also the one whose task was cancelled before it began"


class BlockedQueue:
    """A queue without messages: calls wait until it is closed, but a settle does not wait for receives."""

    name = "jobs"
    timeout_s = 60.0

    def __init__(self, topic: str) -> None:
        self.closing = self.stopping = False
        self.state = SimpleNamespace()
        self.driver = SimpleNamespace(member=SimpleNamespace(joined=True))
        self.is_closed = threading.Event()
        self.receives = 0
        self.settles = 0

    def receive(self, limit: int, wait_s: float) -> list[Any]:
        self.receives += 1
        assert self.is_closed.wait(60)
        return []

    def settle(self) -> None:
        self.settles += 1

    def send(self, value: Any, **_: Any) -> str:
        assert self.is_closed.wait(60)
        return "jobs/0/1"

    def stop(self) -> None:
        self.stopping = True

    def close(self) -> None:
        self.closing = True
        self.is_closed.set()


@pytest.mark.parametrize("call", ["receive", "send"])
async def test_a_queue_settles_and_closes_while_thousands_wait(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio, "Queue", BlockedQueue)
    queue = AsyncQueue("jobs")
    source: Any = queue.queue
    before = set(threading.enumerate())  # those of another test may still be ending
    waiting = [asyncio.create_task(queue.receive(1, 60) if call == "receive" else queue.send(b"")) for _ in range(1000)]
    await asyncio.sleep(0)
    assert len(set(threading.enumerate()) - before) == MAX_THREADS
    async with asyncio.timeout(30):
        if call == "receive":
            await queue.settle()
            assert source.settles == 1 and not source.is_closed.is_set()
        waiting[-1].cancel()
        await asyncio.wait(waiting[-1:])
        await queue.close()
        await asyncio.gather(*waiting[:-1])
    assert source.receives == (999 if call == "receive" else 0), "a receive that was cancelled did not begin"


async def test_a_call_that_waits_and_is_cancelled_goes_on_in_its_thread() -> None:
    guards = SlowGuards()
    answer = a_guarded_message(guards).ack()
    await asyncio.sleep(0)
    cast("asyncio.Future[None]", answer).cancel()
    with pytest.raises(asyncio.CancelledError):
        await answer
    guards.may_answer.set()
    async with asyncio.timeout(30):
        while guards.calls != ["cancel"]:
            await asyncio.sleep(0.01)


async def test_a_call_that_does_not_count_raises_its_error_where_it_is_awaited() -> None:
    guards = SlowGuards(is_cancelled=False)
    answer = a_guarded_message(guards).ack()
    guards.may_answer.set()
    with pytest.raises(LeaseLostError):
        await answer


async def test_an_error_that_is_not_awaited_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    guards = SlowGuards(is_cancelled=False)
    a_guarded_message(guards).ack()
    guards.may_answer.set()
    async with asyncio.timeout(30):
        while "no longer this receiver's" not in caplog.text:
            await asyncio.sleep(0.01)


def test_a_thread_without_an_event_loop_waits() -> None:
    guards = SlowGuards()
    guards.may_answer.set()
    a_guarded_message(guards).ack()
    assert guards.calls == ["cancel"]


@pytest.mark.parametrize("is_stopped", [False, True], ids=["the partition moved", "the process was stopped"])
async def test_a_handler_that_returns_does_not_stop_the_event_loop(is_stopped: bool) -> None:
    guards, clock = SlowGuards(), SimClock()
    state = opened(guards=guards, clock=clock)
    if is_stopped:
        (message,) = receive(state, 1, AsyncMessage)
        clock.now_s += 60
    else:
        message = guarded(state, kind=AsyncMessage)

    async def handler(message: Any) -> None: ...

    handling = asyncio.create_task(_handle(cast(AsyncMessage, message), handler, TaskRun(None)))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not handling.done()
    guards.may_answer.set()
    async with asyncio.timeout(30):
        while not handling.done():
            confirm(state, clock.now_s)
            await asyncio.sleep(0.01)
    assert state.counters().acked == 1
    assert (JOBS in state.member.settler.ledgers) == is_stopped
