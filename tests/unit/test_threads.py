"""Threads that end, and threads that cannot start."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError, Future

import pytest

from tests.harness.constants import Constants
from timers.process import threads
from timers.process.threads import BoundedThreads, LoopThread

STUCK_S = 60.0


async def wait_for_ever(is_begun: threading.Event) -> None:
    is_begun.set()
    await asyncio.Event().wait()


async def refuse_to_end(is_begun: threading.Event) -> None:
    while True:
        try:
            await wait_for_ever(is_begun)
        except asyncio.CancelledError:
            continue


def thread_of(loop: LoopThread) -> threading.Thread:
    async def me() -> threading.Thread:
        return threading.current_thread()

    return loop.submit(me()).result(STUCK_S)


def test_a_loop_that_ends_cancels_what_runs_and_takes_nothing_more() -> None:
    loop, is_begun = LoopThread("loop"), threading.Event()
    running, thread = loop.submit(wait_for_ever(is_begun)), thread_of(loop)
    assert is_begun.wait(STUCK_S)
    loop.close()
    with pytest.raises(CancelledError):
        running.result(STUCK_S)
    with pytest.raises(RuntimeError, match="has ended"):
        loop.submit(wait_for_ever(is_begun))
    thread.join(STUCK_S)
    assert not thread.is_alive()
    assert loop._loop.is_closed()
    loop.call_soon(is_begun.clear)
    loop.close()
    assert is_begun.is_set()


def test_a_loop_ends_although_a_task_does_not(constants: Constants) -> None:
    constants(threads, END_S=0.05)
    loop, is_begun = LoopThread("loop", lambda *_: None), threading.Event()  # it hears of the task that is pending
    loop.submit(refuse_to_end(is_begun))
    thread = thread_of(loop)
    assert is_begun.wait(STUCK_S)
    loop.close()
    thread.join(STUCK_S)
    assert not thread.is_alive()
    assert loop._loop.is_closed()


def test_a_thread_that_cannot_start_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    bounded, called = BoundedThreads("bounded", 1), list[str]()

    def call(name: str) -> Future[None]:
        return bounded.call(called.append, name)

    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="new thread"):
            call("refused")
    call("first").result(STUCK_S)
    call("second").result(STUCK_S)
    assert called == ["first", "second"]
