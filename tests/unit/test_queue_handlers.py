"""What becomes of a message when its handler returns or raises an exception, in threads and in tasks. No brokers."""

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from functools import partial
from inspect import CORO_SUSPENDED, getcoroutinestate
from time import sleep
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.harness import queue_handlers
from tests.harness.forks import frozen
from tests.harness.queue_calls import SimMessage
from tests.harness.queue_handlers import RAISED
from tests.harness.waiting import DEADLINE_S, wait_until
from timers.errors import InvalidTimerError, LeaseLostError, QueueError, SettingsError
from timers.queue import AsyncQueue, Queue, aio, running
from timers.queue.running import Handlers, handle


class SimQueue:
    """A queue with some messages, which closes when it has no more."""

    def __init__(self, topic: str, messages: list[Any]) -> None:
        self.messages = messages
        self.closing = False
        self.stopping = False
        self.handlers = Handlers()
        self.driver = SimpleNamespace(member=SimpleNamespace(joined=True))
        self.state = SimpleNamespace()
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

    receive_to_run = receive

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
    [(id, ["ack"]), (acks, ["ack"]), (fails, [("retry", None, "ValueError('bad')")])],
    ids=["returns", "acks", "fails"],
)
def test_a_handler_settles_its_message(handler: Any, calls: list[Any]) -> None:
    message: Any = SimMessage()
    handle(message, handler)
    assert message.calls == calls


def test_a_message_that_cannot_be_retried_is_rejected() -> None:
    message: Any = SimMessage(refused=InvalidTimerError("too large"))
    handle(message, fails)
    assert message.calls == [("reject", "ValueError('bad'), and it cannot be retried: too large")]


def test_the_traceback_of_a_failure_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    running._shown.clear()
    for attempt in (1, 2, 3):
        message: Any = SimMessage()
        message.attempt = attempt
        handle(message, fails)
    lines = [record.getMessage() for record in caplog.records]
    assert lines[:3] == [f"message jobs/0/1 failed in attempt {n}: ValueError('bad')" for n in (1, 2, 3)]
    assert [record.exc_info is not None for record in caplog.records[:3]] == [True, False, False]
    caplog.set_level(logging.DEBUG, "timers.queue")
    handle(cast(Any, SimMessage()), fails)
    assert caplog.records[-1].exc_info is not None, "the switch"


def test_a_message_is_settled_though_its_handler_has_broken_the_log() -> None:
    def ends(_record: logging.LogRecord) -> bool:
        raise SystemExit(3)

    def breaks_the_log(message: Any) -> None:
        logging.getLogger("timers.queue").addFilter(ends)
        raise ValueError("bad")

    message: Any = SimMessage()
    try:
        handle(message, breaks_the_log)
    finally:
        logging.getLogger("timers.queue").removeFilter(ends)
    assert message.calls == [("retry", None, "ValueError('bad')")]


def test_a_handler_that_failed_leaves_nothing_of_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "log_failure", lambda message, error: None)  # pytest keeps what is logged
    message: Any = SimMessage()
    kept = weakref.ref(message)
    gc.disable()
    try:
        handle(message, fails)
        del message
        assert kept() is None
    finally:
        gc.enable()


def test_a_lost_lease_does_not_retry_the_message() -> None:
    message: Any = SimMessage(lost=LeaseLostError("lost"))
    handle(message, acks)
    assert message.calls == []


def mixed(word: str) -> list[Any]:
    """100 messages. Each tenth one raises one of :data:`RAISED`."""
    names = list(RAISED)
    return [SimMessage("" if number % 10 else f"{word} {names[number // 10 % len(names)]}") for number in range(100)]


def check_mixed(messages: list[Any]) -> None:
    """Each message was settled once: the bad ones were retried, the others acknowledged."""
    assert [[call if call == "ack" else call[0] for call in each.calls] for each in messages] == [
        ["retry"] if each.value else ["ack"] for each in messages
    ]


def test_no_exception_of_a_handler_ends_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = mixed("raise")
    queue: Any = Queue("jobs", brokers="localhost:1")
    source = SimQueue("jobs", list(messages))
    source.close = queue.stop  # type: ignore[method-assign]
    monkeypatch.setattr(queue, "receive_to_run", source.receive)
    queue.run(queue_handlers.handle, concurrency=3)
    check_mixed(messages)


@pytest.mark.parametrize("word", ["raise", "raise-in-task"])
async def test_no_exception_of_a_handler_ends_the_event_loop(word: str, queue: AsyncQueue) -> None:
    source: Any = queue.queue
    source.messages = messages = mixed(word)
    await queue.run(queue_handlers.handle_in_task, concurrency=3)
    check_mixed(messages)


class CallsAsync:
    """An object that is called as an async function."""

    async def __call__(self, message: Any) -> None:
        message.ack()


async def is_async(message: Any) -> None:
    message.ack()


def yields(message: Any) -> Any:
    message.ack()
    yield


async def yields_async(message: Any) -> Any:
    message.ack()
    yield


@pytest.mark.parametrize("handler", [is_async, partial(is_async), CallsAsync(), yields, yields_async])
def test_a_handler_that_a_call_does_not_run_is_refused(handler: Any) -> None:
    with pytest.raises(SettingsError, match=r"is async: give it to AsyncQueue|has a yield, so a call does not run it"):
        Queue("jobs", brokers="localhost:1").run(handler)


def test_a_message_whose_handler_has_not_run_is_not_acknowledged() -> None:
    message: Any = SimMessage("coroutine")
    handle(message, queue_handlers.handle)
    ((name, _, error),) = message.calls
    assert name == "retry" and error.startswith("TypeError('the handler returned a coroutine")


async def test_a_task_that_a_handler_cancels_before_it_begins_is_no_trouble(queue: AsyncQueue) -> None:
    async def handler(message: Any) -> None:
        task = asyncio.create_task(asyncio.sleep(60))
        task.cancel()
        assert not [each for each in await asyncio.gather(task, return_exceptions=True) if each is None]

    source: Any = queue.queue
    messages = list(source.messages)
    await queue.run(handler, concurrency=2)
    assert [each.calls for each in messages] == [["ack"]] * 7


async def test_libraries_may_look_at_the_tasks_that_a_handler_starts(queue: AsyncQueue) -> None:
    """anyio does, for the cancel scopes of httpx and others: an error there would fail the handler."""

    async def own() -> None:
        await asyncio.sleep(0)

    async def handler(message: Any) -> None:
        task = asyncio.create_task(own())
        await asyncio.sleep(0)
        assert getcoroutinestate(task.get_coro()) == CORO_SUSPENDED  # type: ignore[arg-type]
        assert "own()" in repr(task)
        assert task.get_stack()
        await task

    source: Any = queue.queue
    messages = list(source.messages)
    await queue.run(handler)
    assert [each.calls for each in messages] == [["ack"]] * 7


def interrupted_run(queue: AsyncQueue, handler: Any, number: int, on_signal: Any) -> None:
    """Run in an event loop that leaves the signal to ``on_signal``."""
    before = signal.signal(number, on_signal)
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(queue.run(handler, concurrency=2))
    finally:
        loop.run_until_complete(asyncio.sleep(0))
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()
        assert signal.getsignal(number) is on_signal, "the program's handler is back"
        signal.signal(number, before)


def exits(_number: int, _frame: Any) -> None:
    raise SystemExit(0)


@pytest.mark.parametrize(
    ("number", "on_signal", "raised"),
    [(signal.SIGINT, signal.default_int_handler, KeyboardInterrupt), (signal.SIGTERM, exits, SystemExit)],
    ids=["Ctrl-C", "SIGTERM"],
)
def test_a_signal_is_no_exception_of_the_handler_in_which_python_raises_it(
    number: int, on_signal: Any, raised: type[BaseException], queue: AsyncQueue
) -> None:
    source: Any = queue.queue
    first = source.messages[0]

    async def handler(message: Any) -> None:
        if message is first:
            os.kill(os.getpid(), number)

    with pytest.raises(raised):
        interrupted_run(queue, handler, number, on_signal)
    assert first.calls == ["put back"]


def test_the_programs_handler_of_a_signal_is_back_when_two_runs_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio, "Queue", SimQueue)
    short, long = (AsyncQueue(name, messages=[SimMessage()]) for name in ("short", "long"))

    async def both() -> None:
        has_ended = asyncio.Event()

        async def handle_long(message: Any) -> None:
            await has_ended.wait()

        async def handle_short(message: Any) -> None: ...

        first = asyncio.create_task(short.run(handle_short))
        second = asyncio.create_task(long.run(handle_long))
        await first
        has_ended.set()
        await second

    before = signal.signal(signal.SIGTERM, exits)
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(both())
        assert signal.getsignal(signal.SIGTERM) is exits
    finally:
        loop.close()
        signal.signal(signal.SIGTERM, before)


async def test_messages_of_handlers_whose_run_is_cancelled_are_put_back(queue: AsyncQueue) -> None:
    source: Any = queue.queue
    first, second, *others = source.messages
    began = asyncio.Event()

    async def handler(message: Any) -> None:
        try:
            if message is second:
                began.set()
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            if message is second:
                raise SystemExit(1) from None
            raise

    running = asyncio.create_task(queue.run(handler, concurrency=2))
    await began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (first.calls, second.calls) == (["put back"], ["put back"])
    assert all(each.calls in ([], ["put back"]) for each in others)


def test_a_process_that_a_handler_forks_ends_with_the_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = []

    def handler(message: Any) -> None:
        child = os.fork()
        if not child:
            raise SystemExit(7)
        ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
        wait_until(lambda: os.waitid(os.P_PID, child, ended), "the end of the fork")
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    message: Any = SimMessage()
    with frozen():
        handle(message, handler)
    assert (codes, message.calls) == ([7], ["ack"])


def test_threads_handle_all_messages_until_the_queue_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    lost, *others = messages = [SimMessage(lost=LeaseLostError("lost")), *(SimMessage() for _ in range(7))]
    handled: list[Any] = []
    queue: Any = Queue("jobs", brokers="localhost:1")
    monkeypatch.setattr(queue, "receive_to_run", SimQueue("jobs", list(messages)).receive)

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
    calls = Counter(call for each in handled for call in each.calls)
    assert calls == {"ack": 6, ("retry", None, "ValueError('bad')"): 1}


def test_handlers_that_run_may_return_before_the_queue_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    message: Any = SimMessage()
    others: list[Any] = [SimMessage() for _ in range(3)]
    queue: Any = Queue("jobs", brokers="localhost:1")
    monkeypatch.setattr(queue, "receive_to_run", SimQueue("jobs", [message, *others]).receive)
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
    assert closing.is_alive() and not queue.driver.closing, "it waits for the handler"
    may_return.set()
    running.join()
    closing.join()
    assert message.calls == ["ack"]
    assert [each.calls for each in others] == [[], [], []], "no handler begins after the stop"


class Hanging:
    """A run of two threads. The handler of the first message does not return before :meth:`release`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.queue: Any = Queue("jobs", brokers="localhost:1")
        self.hung, self.other = messages = [SimMessage(), SimMessage()]
        source, self.release = list(messages), threading.Event()

        def receive(*_: float) -> list[Any]:
            sleep(0.01)
            return [source.pop(0)] if source else []

        def handler(message: Any) -> None:
            if message is self.hung:
                self.release.wait()

        monkeypatch.setattr(self.queue, "receive_to_run", receive)
        self.run = threading.Thread(target=self.queue.run, args=(handler,), kwargs={"concurrency": 2})
        self.run.start()
        wait_until(lambda: self.other.calls == ["ack"], "the other thread")
        self.queue.driver._asked_s -= 100


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    hanging = Hanging(monkeypatch)
    yield hanging
    hanging.release.set()
    hanging.queue.stop()
    hanging.run.join()


def test_run_and_close_do_not_wait_for_a_handler_that_hangs(hanging: Hanging, caplog: pytest.LogCaptureFixture) -> None:
    hanging.queue.stop()
    hanging.run.join(1)
    assert hanging.run.is_alive(), "its lease lasts"
    hanging.hung.is_overdue = True
    hanging.run.join(DEADLINE_S)
    assert not hanging.run.is_alive()
    assert "the queue jobs does not wait for 1 handlers that hang" in caplog.text
    hanging.queue.close()
    assert "is closed while handlers run" in caplog.text


def test_handlers_that_close_the_queue_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    queue: Any = Queue("jobs", brokers="localhost:1")
    source, both = [SimMessage(), SimMessage()], threading.Barrier(2)
    monkeypatch.setattr(queue, "receive_to_run", lambda *_: [source.pop()])

    def handler(message: Any) -> None:
        both.wait(DEADLINE_S)
        queue.close()

    run = threading.Thread(target=queue.run, args=(handler,), kwargs={"concurrency": 2}, daemon=True)
    run.start()
    run.join(DEADLINE_S)
    assert not run.is_alive() and queue.driver.closing


def test_close_gives_up_a_run_whose_event_loop_was_stopped(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing of that run is called any more. Its thread lives, and may work for others."""
    queue: Any = Queue("jobs", brokers="localhost:1", lease_s=0.1)
    is_stopped, may_end = threading.Event(), threading.Event()

    def work() -> None:
        with queue.handlers.running():
            is_stopped.set()
            may_end.wait()

    loop = threading.Thread(target=work)
    loop.start()
    is_stopped.wait()
    try:
        closing = threading.Thread(target=queue.close, daemon=True)
        closing.start()
        closing.join(DEADLINE_S)
        assert not closing.is_alive() and "is closed while handlers run" in caplog.text
    finally:
        may_end.set()
        loop.join()


def test_close_waits_for_a_handler_whose_lease_is_longer(hanging: Hanging) -> None:
    assert not hanging.hung.is_overdue
    waiting = threading.Thread(target=hanging.queue.handlers.wait, args=(0.0,))
    hanging.queue.stop()
    waiting.start()
    waiting.join(1)
    assert waiting.is_alive()
    hanging.release.set()
    waiting.join(DEADLINE_S)
    assert not waiting.is_alive()


def test_a_process_all_of_whose_handlers_hang_is_not_live(hanging: Hanging) -> None:
    queue = hanging.queue
    assert (queue.counters().hanging, queue.stuck()) == (0, [])
    hanging.hung.is_overdue = True
    assert queue.counters().hanging == 1
    assert queue.stuck() == ["all 1 handlers of the queue 'jobs' hang: they take more than ten leases"]
    assert queue.stuck()[0] in queue.unready()
    with queue.handlers.handling(hanging.other):
        assert queue.stuck() == [], "another one works"
    queue.driver._asked_s += 100
    assert queue.stuck() == [], "a thread without a message waits for one"
    hanging.release.set()
    wait_until(lambda: not queue.counters().hanging, "the return of the handler")


async def test_tasks_that_hang_are_cancelled_after_the_stop(queue: AsyncQueue) -> None:
    source: Any = queue.queue
    messages = list(source.messages)

    async def handler(message: Any) -> None:
        if message is messages[0]:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        messages[0].is_overdue = message is messages[-1]

    await asyncio.wait_for(queue.run(handler, concurrency=3), DEADLINE_S)
    assert [each.calls for each in messages] == [["put back"], *[["ack"]] * 6]


def main_thread_waits() -> bool:
    """Whether the main thread has started the handlers of a run: then it waits for a stop."""
    return sys._current_frames()[threading.main_thread().ident or 0].f_code is Queue.run.__code__


def test_at_an_interrupt_run_returns_when_the_handlers_have_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    queue: Any = Queue("jobs", brokers="localhost:1")
    monkeypatch.setattr(queue, "receive_to_run", lambda *_: [SimMessage()])
    running = []

    def handler(message: Any) -> None:
        if not queue.stopping:
            running.append(message)
            if len(running) == 3:
                wait_until(main_thread_waits, "the main thread has started this one")
                os.kill(os.getpid(), signal.SIGINT)
            wait_until(lambda: queue.stopping, "the stop")
            sleep(0.2)  # before Python 3.13, a join of this thread that is interrupted would count it as ended
            running.remove(message)

    queue.run(handler, concurrency=3)  # a KeyboardInterrupt would be a traceback in the user's program
    assert queue.stopping and not running


def test_threads_and_processes_are_one_or_the_other() -> None:
    with pytest.raises(SettingsError, match="give either concurrency"):
        Queue("jobs", brokers="localhost:1").run(fails, concurrency=2, processes=2)


@pytest.mark.parametrize("count", [-1, 10**6, True, 1.5, "2", None])
@pytest.mark.parametrize("name", ["concurrency", "processes"])
async def test_a_number_of_threads_or_processes_has_limits(name: str, count: Any) -> None:
    with pytest.raises(SettingsError, match=f"{name}=.* is not an integer from [01] to "):
        Queue("jobs", brokers="localhost:1").run(fails, **{name: count})
    if name == "concurrency":
        with pytest.raises(SettingsError, match="is not an integer from 1 to 10000"):
            await AsyncQueue("jobs", brokers="localhost:1").run(cast(Any, fails), concurrency=count)


def test_a_handler_is_a_function() -> None:
    with pytest.raises(SettingsError, match="is not a function"):
        Queue("jobs", brokers="localhost:1").run("fails")  # type: ignore[arg-type]


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
    assert cast(Any, queue.queue).closing


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
