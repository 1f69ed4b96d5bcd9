"""Threads that end, and threads that cannot start."""

import asyncio
import sys
import threading
from concurrent.futures import CancelledError, Future
from types import SimpleNamespace

import pytest

from tests.harness.constants import Constants
from timers.client import AsyncTimersClient, TimersClient
from timers.errors import SettingsError
from timers.process import threads
from timers.process.threads import BoundedThreads, LoopThread
from timers.queue import AsyncQueue, Queue

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


# ---- threads that Kafka's client library cannot run in ---------------------------------------------------------------


@pytest.mark.parametrize("patched", ["threading", "queue", "socket"])
@pytest.mark.parametrize("make", [TimersClient, AsyncTimersClient, lambda: Queue("jobs"), lambda: AsyncQueue("jobs")])
def test_gevent_is_named_before_anything_waits(
    make: type[TimersClient], patched: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may replace other modules: then clients work."""
    monkeypatch.setitem(sys.modules, "gevent.monkey", SimpleNamespace(is_module_patched=lambda name: name == patched))
    if patched == "socket":
        make()
        return
    with pytest.raises(SettingsError, match=r"^gevent has replaced the threads .* patch_all\(thread=False"):
        make()


def test_a_python_without_its_global_lock_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    with pytest.raises(SettingsError, match="without PYTHON_GIL=0"):
        TimersClient()


def test_eventlet_is_named_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        sys.modules, "eventlet.patcher", SimpleNamespace(is_monkey_patched=lambda name: name == "thread")
    )
    with pytest.raises(SettingsError, match=r"^eventlet has replaced the threads"):
        TimersClient()
